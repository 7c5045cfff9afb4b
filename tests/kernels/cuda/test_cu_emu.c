/* The emulated device: that its words mean what CUDA's mean, and that it finds what it is there to find - a
 * missing barrier, a missing wait, a barrier not all threads reach. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/cuda/cu_port.h"

#define THREADS 128u

struct args {
    const float *in;
    float *out;
    int broken; /* leave out what the kernel needs to be right */
};

struct floats {
    float x[THREADS];
};

static const enum cu_emu_schedule schedules[] = {CU_EMU_FORWARD, CU_EMU_REVERSE};

static const char *run(void (*kernel)(const void *), const struct args *a, unsigned n_blocks)
{
    return cu_emu_run(kernel, a, (struct cu_emu_dim){n_blocks, 1}, THREADS, sizeof(struct floats));
}

/* out[i] = in[the other end of the block] */
CU_KERNEL(reverse_kernel, struct args, THREADS, 1)
{
    struct floats *sh = CU_SHARED(struct floats);
    sh->x[threadIdx.x] = a->in[blockIdx.x * THREADS + threadIdx.x];
    if (!a->broken)
        cu_sync_block();
    a->out[blockIdx.x * THREADS + threadIdx.x] = sh->x[THREADS - 1 - threadIdx.x];
}

static void missing_barrier_shows_in_both_schedules(void **state)
{
    (void)state;
    float in[2 * THREADS], out[2 * THREADS];
    for (unsigned i = 0; i < 2 * THREADS; i++)
        in[i] = (float)i;
    for (unsigned s = 0; s < 2; s++)
        for (int broken = 0; broken < 2; broken++) {
            struct args a = {in, out, broken};
            cu_emu_set_schedule(schedules[s]);
            assert_null(run(reverse_kernel, &a, 2));
            unsigned wrong = 0;
            for (unsigned i = 0; i < THREADS; i++)
                for (unsigned b = 0; b < 2; b++)
                    wrong += out[b * THREADS + i] != in[b * THREADS + THREADS - 1 - i];
            assert_int_equal(wrong > 0, broken);
        }
}

/* Warp 0 writes what warp 1 reads: in one direction only, so one schedule alone would not find it. */
CU_KERNEL(one_way_kernel, struct args, THREADS, 1)
{
    struct floats *sh = CU_SHARED(struct floats);
    if (threadIdx.x < CU_WARP)
        sh->x[threadIdx.x] = a->in[threadIdx.x];
    if (!a->broken)
        cu_sync_block();
    a->out[threadIdx.x] = sh->x[threadIdx.x % CU_WARP];
}

static void one_way_race_shows_in_one_schedule(void **state)
{
    (void)state;
    float in[THREADS] = {0}, out[THREADS];
    unsigned found = 0;
    for (unsigned s = 0; s < 2; s++) {
        struct args a = {in, out, 1};
        cu_emu_set_schedule(schedules[s]);
        assert_null(run(one_way_kernel, &a, 1));
        found += memcmp(in, out, sizeof in) != 0;
        a.broken = 0;
        assert_null(run(one_way_kernel, &a, 1));
        assert_memory_equal(in, out, sizeof in);
    }
    assert_int_equal(found, 1);
}

/* Two groups of copies: the first must be there after a wait that leaves one open. */
CU_KERNEL(copy_kernel, struct args, THREADS, 1)
{
    struct floats *sh = CU_SHARED(struct floats);
    if (threadIdx.x < THREADS / 8) {
        cu_cp_async16(&sh->x[4 * threadIdx.x], &a->in[4 * threadIdx.x], true);
        cu_cp_async_commit();
        cu_cp_async16(&sh->x[THREADS / 2 + 4 * threadIdx.x], &a->in[0], false);
        cu_cp_async_commit();
        cu_cp_async_wait(1);
        a->out[4 * threadIdx.x] = sh->x[4 * threadIdx.x];
        if (!a->broken)
            cu_cp_async_wait(0);
        a->out[THREADS / 2 + 4 * threadIdx.x] = sh->x[THREADS / 2 + 4 * threadIdx.x];
        cu_cp_async_wait(0);
    }
}

static void missing_wait_reads_nan(void **state)
{
    (void)state;
    _Alignas(16) float in[THREADS];
    float out[THREADS];
    for (unsigned i = 0; i < THREADS; i++)
        in[i] = (float)i + 1;
    for (int broken = 0; broken < 2; broken++) {
        struct args a = {in, out, broken};
        assert_null(run(copy_kernel, &a, 1));
        assert_true(out[4] == in[4]);
        assert_true(broken ? isnan(out[THREADS / 2]) : out[THREADS / 2] == 0.0f);
    }
}

CU_KERNEL(forgotten_copy_kernel, struct args, THREADS, 1)
{
    struct floats *sh = CU_SHARED(struct floats);
    cu_cp_async16(&sh->x[0], a->in, true);
}

CU_KERNEL(half_barrier_kernel, struct args, THREADS, 1)
{
    if (threadIdx.x < (unsigned)a->broken)
        cu_sync_block();
}

CU_KERNEL(mixed_warp_kernel, struct args, THREADS, 1)
{
    (void)a;
    if (threadIdx.x % 2)
        cu_sync_warp();
    else
        a->out[0] = cu_shfl_xor(1.0f, 1);
}

struct two_floats {
    struct floats x[2];
};

CU_KERNEL(greedy_kernel, struct args, THREADS, 1)
{
    (void)a;
    (void)CU_SHARED(struct two_floats);
}

static void faults_are_named(void **state)
{
    (void)state;
    _Alignas(16) float in[THREADS] = {0};
    float out[THREADS];
    struct args a = {in, out, 64};
    const struct {
        void (*kernel)(const void *);
        const char *words;
    } cases[] = {
        {forgotten_copy_kernel, "never waited for"},
        {half_barrier_kernel, "waits for threads that never come"},
        {mixed_warp_kernel, "different warp operations"},
        {greedy_kernel, "less shared memory"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *fault = run(cases[i].kernel, &a, 1);
        assert_non_null(fault);
        assert_non_null(strstr(fault, cases[i].words));
    }
    assert_null(run(reverse_kernel, &a, 1)); /* a fault leaves nothing behind */
    assert_non_null(cu_emu_run(reverse_kernel, &a, (struct cu_emu_dim){1, 1}, 33, 0));
}

/* d = A B^T by one warp: A [16, 16] and B [8, 16] lie in shared memory as bfloat16. */
struct product_shared {
    uint16_t a[16][16], b[16][16]; /* the last 8 rows of b are there for ldmatrix only */
};

CU_KERNEL(product_kernel, struct args, CU_WARP, 1)
{
    struct product_shared *sh = CU_SHARED(struct product_shared);
    unsigned lane = threadIdx.x;
    for (unsigned i = lane; i < 256; i += CU_WARP) {
        sh->a[i / 16][i % 16] = cu_bf16_of(a->in[i]);
        sh->b[i / 16][i % 16] = cu_bf16_of(a->in[256 + i]);
    }
    cu_sync_warp();
    uint32_t fa[4], fb[4];
    float d[4] = {0};
    /* matrices in the order of a's fragments: rows 0 and 8 of columns 0, then of columns 8 */
    cu_ldmatrix_x4(fa, &sh->a[lane % 16][lane / 16 * 8]);
    if (a->broken) /* the other way: B^T lies there, and is transposed on the way */
        cu_ldmatrix_x4_trans(fb, &sh->b[lane % 16][lane / 16 * 8]);
    else
        cu_ldmatrix_x4(fb, &sh->b[lane % 8 + lane / 16 * 8][lane / 8 % 2 * 8]);
    cu_mma_bf16(d, fa, fb[0], fb[1]);
    for (unsigned i = 0; i < 4; i++)
        a->out[(lane / 4 + 8 * (i / 2)) * 8 + 2 * (lane % 4) + i % 2] = d[i];
}

static void product_of_matrices_is_right(void **state)
{
    (void)state;
    float in[512], out[128];
    for (unsigned i = 0; i < 512; i++)
        in[i] = (float)((i * 37) % 64) - 31.0f;
    for (int trans = 0; trans < 2; trans++) {
        struct args a = {in, out, trans};
        assert_null(cu_emu_run(product_kernel, &a, (struct cu_emu_dim){1, 1}, CU_WARP,
                               sizeof(struct product_shared)));
        for (unsigned m = 0; m < 16; m++)
            for (unsigned n = 0; n < 8; n++) {
                float want = 0;
                for (unsigned k = 0; k < 16; k++)
                    want += in[m * 16 + k] * in[256 + (trans ? k * 16 + n : n * 16 + k)];
                assert_true(out[m * 8 + n] == want);
            }
    }
}

CU_KERNEL(sum_kernel, struct args, THREADS, 1)
{
    a->out[threadIdx.x] = cu_warp_sum(a->in[threadIdx.x]) + cu_warp_max(a->in[threadIdx.x]);
}

static void sums_and_maxima_reach_every_lane(void **state)
{
    (void)state;
    float in[THREADS], out[THREADS];
    for (unsigned i = 0; i < THREADS; i++)
        in[i] = (float)(i * 7 % THREADS);
    struct args a = {in, out, 0};
    assert_null(run(sum_kernel, &a, 1));
    for (unsigned i = 0; i < THREADS; i++) {
        float sum = 0, most = 0;
        for (unsigned l = i / CU_WARP * CU_WARP, n = 0; n < CU_WARP; l++, n++) {
            sum += in[l];
            most = in[l] > most ? in[l] : most;
        }
        assert_true(out[i] == sum + most);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_barrier_shows_in_both_schedules),
        cmocka_unit_test(one_way_race_shows_in_one_schedule),
        cmocka_unit_test(missing_wait_reads_nan),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(product_of_matrices_is_right),
        cmocka_unit_test(sums_and_maxima_reach_every_lane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
