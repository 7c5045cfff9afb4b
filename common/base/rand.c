/* common/base/rand.c - getrandom(2). It cannot fail once the kernel's pool is seeded; without it no id is
 * safe. */
#include "common/base/rand.h"

#include <errno.h>
#include <sys/random.h>

#include "common/base/err.h"

void sl_random_bytes(void *p, size_t n)
{
    unsigned char *at = p;
    while (n > 0) {
        ssize_t got = getrandom(at, n, 0);
        if (got < 0) {
            SL_ASSERT(errno == EINTR);
            continue;
        }
        at += got;
        n -= (size_t)got;
    }
}

uint64_t sl_random_u64(void)
{
    uint64_t v;
    sl_random_bytes(&v, sizeof v);
    return v;
}
