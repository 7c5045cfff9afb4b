/* kernels/cpu/linear_bf16_avx2.c - a packed panel of bfloat16 times rows of activations, with float32 FMA.
 *
 * Both sides become float32, the odd element of a pair is added first, and subnormal arguments and results of
 * the products are taken as zero (MXCSR): this is what vdpbf16ps does. Weights are unpacked in
 * registers, two instructions for two vectors of which the products of some rows take many. With more than a
 * few rows, the activations of a tile are unpacked into the nearest cache, a stretch of K at a time, and the
 * sums lie there between stretches.
 *
 * The order of the sums: struct sl_cpu_isa (cpu_dev.h). */
#include "kernels/cpu/linear_avx2.h"

#define FEW              4u      /* most rows whose products unpack as they go */
#define TILE             6u      /* rows x 2 vectors: 12 sums, 2 of weights, a factor */
#define STRETCH          32u     /* pairs of K: 4 KiB of weights, beside 8 KiB of sums in a cache of 32 */
#define PREFETCH_AHEAD   4096    /* bytes: a stretch */
#define FLUSH_SUBNORMALS 0x8040u /* MXCSR: flush to zero, denormals are zeros */

/* The odd (or even) elements of a vector of pairs. */
INLINE __m256 of_pairs(int odd, __m256i pairs)
{
    return _mm256_castsi256_ps(odd ? _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u))
                                   : _mm256_slli_epi32(pairs, 16));
}

INLINE __m256i load_pairs(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

INLINE __m256i pair_at(const uint16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return _mm256_set1_epi32(pair);
}

/* Rows [r0, r0 + rows), vectors [v0, v0 + vectors), over all of K. */
INLINE void sum_few(uint32_t rows, uint32_t v0, uint32_t vectors, const struct sl_segment *w, uint32_t p,
                    const struct sl_acts *x, uint32_t r0, float (*sums)[SL_PANEL])
{
    const uint8_t *panel = w->data + p * w->panel_bytes + 32 * v0;
    const uint16_t *bf = x->bf + r0 * x->bf_stride;
    __m256 acc[FEW][VECTORS];
    UNROLL
    for (uint32_t r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = acc[r][2] = acc[r][3] = _mm256_setzero_ps();
    for (uint32_t k = 0; k < (w->n_cols + 1) / 2; k++, panel += SL_PANEL * 4) {
        UNROLL
        for (int odd = 1; odd >= 0; odd--) {
            __m256 weights[VECTORS];
            UNROLL
            for (uint32_t v = 0; v < vectors; v++)
                weights[v] = of_pairs(odd, load_pairs(panel + 32 * v));
            UNROLL
            for (uint32_t r = 0; r < rows; r++) {
                __m256 one = of_pairs(odd, pair_at(bf + r * x->bf_stride + 2 * (size_t)k));
                UNROLL
                for (uint32_t v = 0; v < vectors; v++) {
                    acc[r][v] = _mm256_fmadd_ps(one, weights[v], acc[r][v]);
                    IN_TURN(acc[r][v]);
                }
            }
        }
    }
    UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        UNROLL
        for (uint32_t v = 0; v < vectors; v++)
            _mm256_store_ps(sums[r] + 8 * (v0 + v), acc[r][v]);
    }
}

/* The activations of a tile over a stretch of K in float32: the odd elements of all pairs, and the even ones. */
struct factors {
    float at[2][TILE][STRETCH + 4]; /* rows do not fall into one cache set */
};

/* Reads up to STRETCH pairs, which the padding of a row of activations has room for. */
INLINE void unpack_factors(const uint16_t *bf, size_t stride, uint32_t rows, uint32_t pairs,
                           struct factors *to)
{
    UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t k = 0; k < pairs; k += 8) {
            __m256i both = load_pairs(bf + r * stride + 2 * (size_t)k);
            _mm256_storeu_ps(to->at[0][r] + k, of_pairs(1, both));
            _mm256_storeu_ps(to->at[1][r] + k, of_pairs(0, both));
        }
    }
}

/* Vectors v0 and v0 + 1 of the panel for a tile of rows. */
INLINE void add_half(uint32_t rows, uint32_t v0, const uint8_t *panel, const struct factors *f,
                     uint32_t pairs, float (*sums)[SL_PANEL])
{
    __m256 acc[TILE][2];
    panel += 32 * v0;
    UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        acc[r][0] = _mm256_load_ps(sums[r] + 8 * v0);
        acc[r][1] = _mm256_load_ps(sums[r] + 8 * v0 + 8);
    }
    for (uint32_t k = 0; k < pairs; k++, panel += SL_PANEL * 4) {
        _mm_prefetch(panel + PREFETCH_AHEAD, _MM_HINT_T0);
        UNROLL
        for (int e = 0; e < 2; e++) {
            __m256 w0 = of_pairs(1 - e, load_pairs(panel)), w1 = of_pairs(1 - e, load_pairs(panel + 32));
            UNROLL
            for (uint32_t r = 0; r < rows; r++) {
                __m256 one = _mm256_broadcast_ss(f->at[e][r] + k);
                acc[r][0] = _mm256_fmadd_ps(one, w0, acc[r][0]);
                IN_TURN(acc[r][0]);
                acc[r][1] = _mm256_fmadd_ps(one, w1, acc[r][1]);
                IN_TURN(acc[r][1]);
            }
        }
    }
    UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        _mm256_store_ps(sums[r] + 8 * v0, acc[r][0]);
        _mm256_store_ps(sums[r] + 8 * v0 + 8, acc[r][1]);
    }
}

INLINE void add_tile(uint32_t rows, const uint8_t *panel, const uint16_t *bf, size_t stride, uint32_t pairs,
                     float (*sums)[SL_PANEL])
{
    struct factors f;
    unpack_factors(bf, stride, rows, pairs, &f);
    add_half(rows, 0, panel, &f, pairs, sums);
    add_half(rows, 2, panel, &f, pairs, sums);
}

static void add_rows(uint32_t rows, const uint8_t *panel, const uint16_t *bf, size_t stride, uint32_t pairs,
                     float (*sums)[SL_PANEL])
{
    switch (rows) {
    case 3:
        add_tile(3, panel, bf, stride, pairs, sums);
        return;
    case 4:
        add_tile(4, panel, bf, stride, pairs, sums);
        return;
    case 5:
        add_tile(5, panel, bf, stride, pairs, sums);
        return;
    default:
        add_tile(TILE, panel, bf, stride, pairs, sums);
    }
}

static void sum_many(const struct sl_segment *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
                     uint32_t rows, float (*sums)[SL_PANEL])
{
    const uint32_t all = (w->n_cols + 1) / 2, tiles = (rows + TILE - 1) / TILE;
    memset(sums, 0, rows * sizeof *sums);
    for (uint32_t k = 0; k < all; k += STRETCH) {
        const uint8_t *panel = w->data + p * w->panel_bytes + (size_t)k * SL_PANEL * 4;
        const uint16_t *bf = x->bf + r0 * x->bf_stride + 2 * (size_t)k;
        uint32_t pairs = all - k < STRETCH ? all - k : STRETCH;
        for (uint32_t i = 0, r = 0; i < tiles; i++) { /* of 3 to TILE rows */
            uint32_t n = (rows - r) / (tiles - i);
            add_rows(n, panel, bf + r * x->bf_stride, x->bf_stride, pairs, sums + r);
            r += n;
        }
    }
}

/* Not inlined: the compiler may move arithmetic across a change of MXCSR, but not across a call. */
static __attribute__((noinline)) void sum_flushed(const struct sl_segment *w, uint32_t p,
                                                  const struct sl_acts *x, uint32_t r0, uint32_t rows,
                                                  float (*sums)[SL_PANEL])
{
    switch (rows) {
    case 1:
        sum_few(1, 0, 4, w, p, x, r0, sums);
        return;
    case 2:
        sum_few(2, 0, 4, w, p, x, r0, sums);
        return;
    case 3:
        sum_few(3, 0, 2, w, p, x, r0, sums);
        sum_few(3, 2, 2, w, p, x, r0, sums);
        return;
    case FEW:
        sum_few(4, 0, 2, w, p, x, r0, sums);
        sum_few(4, 2, 2, w, p, x, r0, sums);
        return;
    default:
        sum_many(w, p, x, r0, rows, sums);
    }
}

void sl_avx2_sum_bf16(const struct sl_segment *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
                      uint32_t rows, float (*sums)[SL_PANEL])
{
    uint32_t mode = _mm_getcsr();
    _mm_setcsr(mode | FLUSH_SUBNORMALS);
    sum_flushed(w, p, x, r0, rows, sums);
    _mm_setcsr(mode);
}
