/* common/base/spin_wait.c - see spin_wait.h. */
#include "common/base/spin_wait.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/clock.h"

#define SPIN_NS          40000 /* two to three times the wake-up of a futex */
#define PAUSES_PER_CHECK 16

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

bool sl_word_spin(_Atomic uint32_t *at, uint32_t value)
{
    uint64_t until = 0;
    for (;;) {
        for (int i = 0; i < PAUSES_PER_CHECK; i++) {
            if (atomic_load_explicit(at, memory_order_acquire) != value)
                return true;
            relax();
        }
        uint64_t now = sl_now_ns();
        if (until == 0)
            until = now + SPIN_NS;
        else if (now >= until)
            return false;
    }
}

void sl_word_sleep(_Atomic uint32_t *at, uint32_t value)
{
    syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

void sl_word_wake(_Atomic uint32_t *at)
{
    syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}
