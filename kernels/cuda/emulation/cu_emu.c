/* kernels/cuda/emulation/cu_emu.c - see cu_emu.h.
 *
 * Fibers switch by some instructions of assembly on x86-64, by ucontext elsewhere: a warp operation is 64
 * switches, and ucontext makes a system call at each. The scheduler runs one warp until no lane of it can go
 * on, then the next; the block is over when all threads are. Nothing of a warp operation is copied: a lane
 * leaves the addresses of its operands, which lie on its stack, and the last one reads and writes them all.
 */
#include "kernels/cuda/emulation/cu_emu.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "common/base/alloc_guard.h"
#include "common/base/mem.h"

#define LANES       32u
#define MAX_THREADS 1024u
#define STACK_BYTES ((size_t)64 << 10)
#define MAX_COPIES  256u                /* started by one thread and not yet waited for */
#define MAX_SHARED  ((size_t)227 << 10) /* of a block on sm_90 */
#define COPY_BYTES  16u
#define POISON      0xff /* four of them are a NaN, and so are two as float16 or bfloat16 */

struct cu_emu_dim cu_emu_thread, cu_emu_block, cu_emu_grid;

enum thread_state { READY, AT_WARP, AT_BLOCK, DONE };
enum warp_op { OP_NONE, OP_SYNC, OP_SHFL, OP_LDMATRIX, OP_LDMATRIX_TRANS, OP_MMA };

struct copy {
    void *dst;
    const void *src;
    bool valid;
    unsigned group;
};

struct operand {
    const void *in;
    void *out;
    uint32_t word[2]; /* mask and bytes of a shuffle; b of an mma */
};

struct thread {
    void *context; /* of the fiber while it does not run */
    enum thread_state state;
    unsigned n_groups, n_copies;
    struct operand operand;
    struct copy copies[MAX_COPIES];
};

struct warp {
    enum warp_op op; /* that lanes wait in */
    unsigned n_waiting;
};

static struct {
    void (*kernel)(const void *arg);
    const void *arg;
    unsigned n_threads, n_at_block, current;
    void *scheduler;
    enum cu_emu_schedule schedule;
    unsigned char *stacks, *shared;
    size_t shared_bytes;
    struct thread *threads;
    struct warp warps[MAX_THREADS / LANES];
    char fault[256];
} emu;

/* ---- fibers: fiber_make gives a context that will enter run_thread, fiber_switch leaves one for another
 * ---- */

static void run_thread(void);

#if defined(__x86_64__)

void cu_emu_switch(void **from, void *to);
__asm__(".text\n"
        ".globl cu_emu_switch\n"
        ".type cu_emu_switch, @function\n"
        "cu_emu_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size cu_emu_switch, . - cu_emu_switch\n");

#define SAVED_REGISTERS 6

static void fiber_make(unsigned i)
{
    /* at entry of a function the stack is 8 off a multiple of 16: the return address is on it */
    void **top = (void **)(void *)(emu.stacks + (i + 1) * STACK_BYTES) - 2;
    *top = (void *)run_thread;
    memset(top - SAVED_REGISTERS, 0, SAVED_REGISTERS * sizeof *top);
    emu.threads[i].context = top - SAVED_REGISTERS;
}

static void fiber_switch(void **from, void *to)
{
    cu_emu_switch(from, to);
}

#else

#include <ucontext.h>

static ucontext_t contexts[MAX_THREADS], scheduler_context;

static void fiber_make(unsigned i)
{
    getcontext(&contexts[i]);
    contexts[i].uc_stack.ss_sp = emu.stacks + i * STACK_BYTES;
    contexts[i].uc_stack.ss_size = STACK_BYTES;
    contexts[i].uc_link = NULL;
    makecontext(&contexts[i], run_thread, 0);
    emu.threads[i].context = &contexts[i];
}

static void fiber_switch(void **from, void *to)
{
    if (!*from)
        *from = &scheduler_context;
    swapcontext(*from, to);
}

#endif

static void leave(enum thread_state state)
{
    struct thread *t = &emu.threads[emu.current];
    t->state = state;
    fiber_switch(&t->context, emu.scheduler);
}

/* The fiber never comes back: the scheduler gives the block up. */
static void fail(const char *sentence)
{
    if (emu.fault[0] == '\0')
        snprintf(emu.fault, sizeof emu.fault, "block %u,%u thread %u: %s", cu_emu_block.x, cu_emu_block.y,
                 emu.current, sentence);
    for (;;)
        leave(DONE);
}

static void run_thread(void)
{
    emu.kernel(emu.arg);
    if (emu.threads[emu.current].n_copies > 0)
        fail("it ended with copies of cp.async that it never waited for");
    for (;;)
        leave(DONE);
}

/* ---- barriers and warp operations ---- */

void cu_sync_block(void)
{
    if (++emu.n_at_block < emu.n_threads) {
        leave(AT_BLOCK);
        return;
    }
    emu.n_at_block = 0;
    for (unsigned i = 0; i < emu.n_threads; i++)
        if (emu.threads[i].state == AT_BLOCK)
            emu.threads[i].state = READY;
}

static void do_shuffle(struct thread *lanes)
{
    for (unsigned l = 0; l < LANES; l++) {
        const struct operand *o = &lanes[l].operand;
        memcpy(o->out, lanes[(l ^ o->word[0]) % LANES].operand.in, o->word[1]);
    }
}

static uint16_t matrix_element(const struct thread *lanes, unsigned matrix, unsigned row, unsigned col)
{
    return ((const uint16_t *)lanes[matrix * 8 + row].operand.in)[col];
}

static void do_ldmatrix(struct thread *lanes, bool trans)
{
    for (unsigned l = 0; l < LANES; l++)
        for (unsigned m = 0; m < 4; m++) {
            unsigned row = l / 4, col = 2 * (l % 4);
            uint32_t low = trans ? matrix_element(lanes, m, col, row) : matrix_element(lanes, m, row, col);
            uint32_t high =
                trans ? matrix_element(lanes, m, col + 1, row) : matrix_element(lanes, m, row, col + 1);
            ((uint32_t *)lanes[l].operand.out)[m] = high << 16 | low;
        }
}

static float half_of(uint32_t pair, unsigned i)
{
    return sl_bf16_to_f32((uint16_t)(pair >> 16 * i));
}

/* Fragments of PTX's mma.m16n8k16: with g = lane / 4 and t = lane % 4, a[i] holds row g + 8 (i % 2), columns
 * 2t + 8 (i / 2) and the next; b[i] rows 2t + 8 i and the next of column g; d[i] row g + 8 (i / 2), column
 * 2t + i % 2. */
static void do_mma(struct thread *lanes)
{
    float a[16][16], b[16][8], d[16][8];
    for (unsigned l = 0; l < LANES; l++) {
        const struct operand *o = &lanes[l].operand;
        unsigned g = l / 4, t = l % 4;
        for (unsigned i = 0; i < 4; i++) {
            uint32_t pair = ((const uint32_t *)o->in)[i];
            for (unsigned j = 0; j < 2; j++)
                a[g + 8 * (i % 2)][2 * t + 8 * (i / 2) + j] = half_of(pair, j);
            d[g + 8 * (i / 2)][2 * t + i % 2] = ((const float *)o->out)[i];
        }
        for (unsigned i = 0; i < 2; i++)
            for (unsigned j = 0; j < 2; j++)
                b[2 * t + 8 * i + j][g] = half_of(o->word[i], j);
    }
    for (unsigned m = 0; m < 16; m++)
        for (unsigned k = 0; k < 16; k++)
            for (unsigned n = 0; n < 8; n++)
                d[m][n] += a[m][k] * b[k][n];
    for (unsigned l = 0; l < LANES; l++)
        for (unsigned i = 0; i < 4; i++)
            ((float *)lanes[l].operand.out)[i] = d[l / 4 + 8 * (i / 2)][2 * (l % 4) + i % 2];
}

static void do_op(enum warp_op op, struct thread *lanes)
{
    switch (op) {
    case OP_NONE:
    case OP_SYNC:
        return;
    case OP_SHFL:
        do_shuffle(lanes);
        return;
    case OP_LDMATRIX:
    case OP_LDMATRIX_TRANS:
        do_ldmatrix(lanes, op == OP_LDMATRIX_TRANS);
        return;
    case OP_MMA:
        do_mma(lanes);
        return;
    }
}

static void warp_collective(enum warp_op op, struct operand o)
{
    struct warp *w = &emu.warps[emu.current / LANES];
    struct thread *lanes = &emu.threads[emu.current / LANES * LANES];
    if (w->n_waiting > 0 && w->op != op)
        fail("lanes of its warp are in different warp operations");
    w->op = op;
    emu.threads[emu.current].operand = o;
    if (++w->n_waiting < LANES) {
        leave(AT_WARP);
        return;
    }
    do_op(op, lanes);
    w->n_waiting = 0;
    for (unsigned l = 0; l < LANES; l++)
        if (lanes[l].state == AT_WARP)
            lanes[l].state = READY;
}

void cu_sync_warp(void)
{
    warp_collective(OP_SYNC, (struct operand){.in = NULL});
}

float cu_shfl_xor(float x, int mask)
{
    float out;
    warp_collective(OP_SHFL, (struct operand){.in = &x, .out = &out, .word = {(uint32_t)mask, sizeof x}});
    return out;
}

uint64_t cu_shfl_xor64(uint64_t x, int mask)
{
    uint64_t out;
    warp_collective(OP_SHFL, (struct operand){.in = &x, .out = &out, .word = {(uint32_t)mask, sizeof x}});
    return out;
}

/* ---- shared memory ---- */

void *cu_emu_shared(size_t bytes)
{
    if (bytes > emu.shared_bytes)
        fail("the launch gives less shared memory than the kernel uses");
    return emu.shared;
}

static void check_shared(const void *p)
{
    size_t at = (size_t)((const unsigned char *)p - emu.shared);
    if (at % COPY_BYTES != 0 || at + COPY_BYTES > emu.shared_bytes)
        fail("an address is not one of 16 bytes in shared memory");
}

void cu_ldmatrix_x4(uint32_t r[4], const void *row)
{
    check_shared(row);
    warp_collective(OP_LDMATRIX, (struct operand){.in = row, .out = r});
}

void cu_ldmatrix_x4_trans(uint32_t r[4], const void *row)
{
    check_shared(row);
    warp_collective(OP_LDMATRIX_TRANS, (struct operand){.in = row, .out = r});
}

void cu_mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    warp_collective(OP_MMA, (struct operand){.in = a, .out = d, .word = {b0, b1}});
}

void cu_cp_async16(void *dst, const void *src, bool valid)
{
    struct thread *t = &emu.threads[emu.current];
    check_shared(dst);
    if ((uintptr_t)src % COPY_BYTES != 0)
        fail("cp.async reads from an address that is no multiple of 16");
    if (t->n_copies == MAX_COPIES)
        fail("it has too many copies of cp.async that it has not waited for");
    t->copies[t->n_copies++] = (struct copy){dst, src, valid, t->n_groups};
    memset(dst, POISON, COPY_BYTES);
}

void cu_cp_async_commit(void)
{
    emu.threads[emu.current].n_groups++;
}

void cu_cp_async_wait(unsigned n)
{
    struct thread *t = &emu.threads[emu.current];
    unsigned kept = 0;
    for (unsigned i = 0; i < t->n_copies; i++) {
        const struct copy *c = &t->copies[i];
        if (c->group + n >= t->n_groups)
            t->copies[kept++] = *c;
        else if (c->valid)
            memcpy(c->dst, c->src, COPY_BYTES);
        else
            memset(c->dst, 0, COPY_BYTES);
    }
    t->n_copies = kept;
}

/* ---- the scheduler ---- */

static unsigned in_order(unsigned i, unsigned n)
{
    return emu.schedule == CU_EMU_REVERSE ? n - 1 - i : i;
}

/* Runs the lanes of a warp until none can go on. True when one could. */
static bool run_warp(unsigned w)
{
    bool any = false;
    for (bool again = true; again && emu.fault[0] == '\0';) {
        again = false;
        for (unsigned l = 0; l < LANES; l++) {
            unsigned i = w * LANES + in_order(l, LANES);
            if (emu.threads[i].state != READY)
                continue;
            emu.current = i;
            cu_emu_thread.x = i;
            fiber_switch(&emu.scheduler, emu.threads[i].context);
            any = again = true;
        }
    }
    return any;
}

static void run_block(void)
{
    memset(emu.shared, POISON, emu.shared_bytes);
    memset(emu.warps, 0, sizeof emu.warps);
    emu.n_at_block = 0;
    for (unsigned i = 0; i < emu.n_threads; i++) {
        struct thread *t = &emu.threads[i];
        t->state = READY;
        t->n_groups = t->n_copies = 0;
        fiber_make(i);
    }
    unsigned n_warps = emu.n_threads / LANES;
    for (bool any = true; any && emu.fault[0] == '\0';) {
        any = false;
        for (unsigned w = 0; w < n_warps; w++)
            any |= run_warp(in_order(w, n_warps));
    }
    for (emu.current = 0; emu.current < emu.n_threads && emu.fault[0] == '\0'; emu.current++)
        if (emu.threads[emu.current].state != DONE)
            snprintf(emu.fault, sizeof emu.fault,
                     "block %u,%u thread %u: it waits for threads that never come (at a barrier of the %s)",
                     cu_emu_block.x, cu_emu_block.y, emu.current,
                     emu.threads[emu.current].state == AT_BLOCK ? "block" : "warp");
}

void cu_emu_set_schedule(enum cu_emu_schedule s)
{
    emu.schedule = s;
}

enum cu_emu_schedule cu_emu_schedule(void)
{
    return emu.schedule;
}

static const char *run_launch(void (*kernel)(const void *arg), const void *arg, struct cu_emu_dim grid,
                              unsigned n_threads, size_t shared_bytes)
{
    if (n_threads == 0 || n_threads % LANES != 0 || n_threads > MAX_THREADS || shared_bytes > MAX_SHARED)
        return "a launch of no whole warps, of too many threads or of too much shared memory";
    if (!emu.stacks) {
        const char *phase = sl_alloc_guard_pause();
        emu.stacks = sl_huge_alloc(MAX_THREADS * STACK_BYTES, false);
        emu.shared = sl_huge_alloc(MAX_SHARED, false);
        emu.threads = sl_huge_alloc(MAX_THREADS * sizeof *emu.threads, false);
        sl_alloc_guard_on(phase);
        SL_ASSERT(emu.stacks && emu.shared && emu.threads);
    }
    emu.kernel = kernel;
    emu.arg = arg;
    emu.n_threads = n_threads;
    emu.shared_bytes = shared_bytes;
    emu.fault[0] = '\0';
    cu_emu_grid = grid;
    unsigned n_blocks = grid.x * grid.y;
    for (unsigned i = 0; i < n_blocks && emu.fault[0] == '\0'; i++) {
        unsigned b = in_order(i, n_blocks);
        cu_emu_block = (struct cu_emu_dim){b % grid.x, b / grid.x};
        run_block();
    }
    return emu.fault[0] ? emu.fault : NULL;
}

const char *cu_emu_run(void (*kernel)(const void *arg), const void *arg, struct cu_emu_dim grid,
                       unsigned n_threads, size_t shared_bytes)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one);
    const char *fault = run_launch(kernel, arg, grid, n_threads, shared_bytes);
    pthread_mutex_unlock(&one);
    return fault;
}
