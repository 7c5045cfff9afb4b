/* tests/bench/roofs.c - loops that do one thing as fast as the CPU can.
 *
 * Arithmetic: N_ACC independent accumulators, so that latency is hidden, operands in registers. The widest
 * form the CPU has is taken, of 512 bits or 256; without instructions of its own int8 is summed as the AVX2
 * backend does it, by vpmaddubsw in int16, and bf16 is f32's FMA. Reading: each thread walks a slice of its own, in
 * one stream or in STREAMS of them as a matrix of several column groups is read; the better of both is the
 * roof. All threads start together; the time is from the first start to the last end. */
#include "tests/bench/roofs.h"

#include <pthread.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/thread.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define N_ACC      16 /* of 32 registers */
#define N_ACC_YMM  8  /* of 16, with products beside them; 4 deep, 2 a cycle */
#define STREAMS    4
#define LOOPS      400000 /* of N_ACC operations: about 1 ms at 2 a cycle and 3.3 GHz */
#define ROOF_RUNS  20     /* times LOOPS for a roof */
#define QUIET_RUNS 3      /* and to see whether the machine is quiet */

const char *const sl_roof_names[SL_N_ROOFS] = {"read_gb_s", "int8_gop_s", "bf16_gflop_s", "f32_gflop_s"};

struct slice {
    const char *at;
    size_t bytes;
};

struct kernel {
    void (*compute)(uint64_t loops);
    double ops_per_loop;
};

struct worker {
    struct sl_thread thread;
    pthread_barrier_t *start;
    const struct kernel *kernel; /* NULL: reads */
    uint64_t loops;
    struct slice slice;
    unsigned streams;
    int cpu; /* -1 = not pinned */
    uint64_t start_ns, end_ns;
};

struct sl_roofs {
    uint32_t n_threads;
    const int *cpus;
    size_t n_cpus;
    char *memory;
    size_t bytes;
    struct worker *workers;
    double best_alone;
};

/* The loops' results go here, so that they are not left out. */
static _Thread_local volatile uint64_t sink;

#if defined(__x86_64__)

/* Accumulators that differ, or the compiler makes one of them. */
#define DEFINE_KERNEL(NAME, TARGET, N, TYPE, START, OPERANDS, STEP)                                          \
    __attribute__((target(TARGET))) static void NAME(uint64_t loops)                                         \
    {                                                                                                        \
        TYPE acc[N];                                                                                         \
        _Pragma("GCC unroll 16") for (int i = 0; i < N; i++) acc[i] = START;                                 \
        OPERANDS;                                                                                            \
        for (; loops; loops--)                                                                               \
            _Pragma("GCC unroll 16") for (int i = 0; i < N; i++) acc[i] = STEP;                              \
        for (int i = 0; i < N; i++) {                                                                        \
            union {                                                                                          \
                TYPE v;                                                                                      \
                uint64_t u;                                                                                  \
            } x = {.v = acc[i]};                                                                             \
            sink ^= x.u;                                                                                     \
        }                                                                                                    \
    }

DEFINE_KERNEL(f32_ymm, "avx2,fma", N_ACC_YMM, __m256, _mm256_set1_ps((float)i),
              __m256 a = _mm256_set1_ps(0.5f), _mm256_fmadd_ps(acc[i], a, a))
DEFINE_KERNEL(int8_ymm, "avx2", N_ACC_YMM, __m256i, _mm256_set1_epi32(i), __m256i a = _mm256_set1_epi8(1),
              _mm256_add_epi16(acc[i], _mm256_maddubs_epi16(a, acc[i])))
DEFINE_KERNEL(f32_zmm, "avx512f", N_ACC, __m512, _mm512_set1_ps((float)i), __m512 a = _mm512_set1_ps(0.5f),
              _mm512_fmadd_ps(acc[i], a, a))
DEFINE_KERNEL(bf16_zmm, "avx512f,avx512bf16", N_ACC, __m512, _mm512_set1_ps((float)i),
              __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f80), _mm512_dpbf16_ps(acc[i], a, a))
DEFINE_KERNEL(int8_zmm, "avx512f,avx512vnni", N_ACC, __m512i, _mm512_set1_epi32(i),
              __m512i a = _mm512_set1_epi32(0x01010101), _mm512_dpbusd_epi32(acc[i], a, a))

static const struct kernel *kernel_of(enum sl_roof which)
{
    static const struct kernel f32_256 = {f32_ymm, N_ACC_YMM * 16}, f32_512 = {f32_zmm, N_ACC * 32},
                               bf16 = {bf16_zmm, N_ACC * 64}, int8 = {int8_zmm, N_ACC * 128},
                               int8_256 = {int8_ymm, N_ACC_YMM * 64};
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (which == SL_ROOF_INT8)
        return __builtin_cpu_supports("avx512vnni") ? &int8 : avx2 ? &int8_256 : NULL;
    if (which == SL_ROOF_BF16 && __builtin_cpu_supports("avx512bf16"))
        return &bf16;
    return __builtin_cpu_supports("avx512f") ? &f32_512 : avx2 ? &f32_256 : NULL;
}

#else

static const struct kernel *kernel_of(enum sl_roof which)
{
    (void)which;
    return NULL;
}

#endif

/* 64 bytes, one register or several. */
typedef uint64_t line __attribute__((vector_size(64), may_alias));

static inline __attribute__((always_inline)) void read_streams(struct slice s, unsigned streams)
{
    const size_t part = s.bytes / streams / (4 * sizeof(line)) * (4 * sizeof(line));
    line acc[STREAMS] = {{0}};
    for (size_t at = 0; at < part; at += 4 * sizeof(line))
        for (unsigned k = 0; k < streams; k++) {
            const line *p = (const line *)(s.at + k * part + at);
            acc[k] ^= (p[0] ^ p[1]) ^ (p[2] ^ p[3]);
        }
    for (unsigned k = 0; k < STREAMS; k++)
        sink ^= acc[k][0] ^ acc[k][7];
}

static void read_plain(struct slice s, unsigned streams)
{
    streams == 1 ? read_streams(s, 1) : read_streams(s, STREAMS);
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void read_zmm(struct slice s, unsigned streams)
{
    streams == 1 ? read_streams(s, 1) : read_streams(s, STREAMS);
}
#endif

static void read_slice(struct slice s, unsigned streams)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        read_zmm(s, streams);
        return;
    }
#endif
    read_plain(s, streams);
}

static void worker_main(void *arg)
{
    struct worker *w = arg;
    if (w->cpu >= 0)
        (void)!sl_thread_pin(w->cpu); /* a CPU that is not ours: the figure is one of a moving thread */
    if (w->kernel)
        w->kernel->compute(LOOPS); /* wakes the wide units */
    pthread_barrier_wait(w->start);
    w->start_ns = sl_now_ns();
    if (w->kernel)
        w->kernel->compute(w->loops);
    else
        read_slice(w->slice, w->streams);
    w->end_ns = sl_now_ns();
}

/* Seconds that n threads together take; 0 when a thread cannot be started. */
static double run(struct sl_roofs *r, uint32_t n, const struct kernel *k, uint64_t loops, unsigned streams)
{
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, n);
    size_t part = r->bytes / n;
    uint32_t started = 0;
    for (; started < n; started++) {
        struct worker *w = &r->workers[started];
        *w = (struct worker){.start = &start,
                             .kernel = k,
                             .loops = loops,
                             .streams = streams,
                             .slice = {r->memory + started * part, part},
                             .cpu = r->n_cpus ? r->cpus[started % r->n_cpus] : -1};
        if (sl_thread_start(&w->thread, "sl-roof", worker_main, w) != SL_OK)
            break;
    }
    SL_ASSERT(started == n); /* the others would wait for it for ever */
    uint64_t first = UINT64_MAX, last = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct worker *w = &r->workers[i];
        sl_thread_join(&w->thread);
        first = w->start_ns < first ? w->start_ns : first;
        last = w->end_ns > last ? w->end_ns : last;
    }
    pthread_barrier_destroy(&start);
    return (double)(last - first) / 1e9;
}

static double compute_rate(struct sl_roofs *r, const struct kernel *k, uint32_t n, uint64_t loops)
{
    return k->ops_per_loop * (double)loops * n / run(r, n, k, loops, 1) / 1e9;
}

double sl_roofs_sample(struct sl_roofs *r, enum sl_roof which, uint32_t n)
{
    if (which != SL_ROOF_READ) {
        const struct kernel *k = kernel_of(which);
        return k ? compute_rate(r, k, n, (uint64_t)LOOPS * ROOF_RUNS) : 0;
    }
    double one = (double)r->bytes / run(r, n, NULL, 0, 1) / 1e9;
    double many = (double)r->bytes / run(r, n, NULL, 0, STREAMS) / 1e9;
    return one > many ? one : many;
}

double sl_roofs_quiet(struct sl_roofs *r)
{
    const struct kernel *k = kernel_of(SL_ROOF_F32);
    if (!k)
        return 1;
    const uint64_t loops = (uint64_t)LOOPS * QUIET_RUNS;
    double alone = compute_rate(r, k, 1, loops);
    double all = compute_rate(r, k, r->n_threads, loops) / r->n_threads;
    r->best_alone = alone > r->best_alone ? alone : r->best_alone;
    double scaling = all / alone, clock = alone / r->best_alone;
    return scaling < clock ? scaling : clock;
}

enum sl_err sl_roofs_open(uint32_t n_threads, const int *cpus, size_t n_cpus, uint64_t bytes,
                          struct sl_roofs **out)
{
    char *memory = sl_huge_alloc(bytes, true);
    if (!memory)
        return SL_ENOMEM;
    struct sl_roofs *r = sl_xcalloc(1, sizeof *r);
    *r = (struct sl_roofs){.n_threads = n_threads,
                           .cpus = cpus,
                           .n_cpus = n_cpus,
                           .memory = memory,
                           .bytes = bytes,
                           .workers = sl_xcalloc(n_threads, sizeof *r->workers)};
    *out = r;
    return SL_OK;
}

void sl_roofs_close(struct sl_roofs *r)
{
    if (!r)
        return;
    sl_free(r->workers);
    sl_huge_free(r->memory, r->bytes);
    sl_free(r);
}
