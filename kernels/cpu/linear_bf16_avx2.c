/* kernels/cpu/linear_bf16_avx2.c - a packed panel of bfloat16 times rows of activations, with float32 FMA.
 *
 * Both sides become float32, the odd element of a pair is added first, and subnormal arguments and results of
 * the products are taken as zero (MXCSR): this is what vdpbf16ps does. With few rows weights are unpacked in
 * registers. With more, a stretch of K at a time is unpacked into the nearest cache, the panel's weights once
 * for all rows and the activations of a tile once for the panel; the sums lie there between stretches.
 *
 * The order of the sums: struct sl_cpu_isa (cpu_dev.h). */
#include "kernels/cpu/linear_avx2.h"

#define FEW              4u      /* most rows whose products unpack as they go */
#define TILE             6u      /* rows x 2 vectors: 12 sums, 2 of weights, a factor */
#define STRETCH          32u     /* pairs of K: 8 KiB of weights, beside 8 KiB of sums in a cache of 32 */
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

/* A stretch of K in float32: the odd elements of all pairs, and the even ones. */
struct weights {
    _Alignas(32) float at[2][STRETCH][SL_PANEL];
};

struct factors {
    float at[2][TILE][STRETCH + 4];
};

INLINE void unpack_weights(const uint8_t *panel, uint32_t pairs, struct weights *to)
{
    for (uint32_t k = 0; k < pairs; k++, panel += SL_PANEL * 4) {
        UNROLL
        for (uint32_t v = 0; v < VECTORS; v++) {
            __m256i both = load_pairs(panel + 32 * v);
            _mm256_store_ps(to->at[0][k] + 8 * v, of_pairs(1, both));
            _mm256_store_ps(to->at[1][k] + 8 * v, of_pairs(0, both));
        }
    }
}

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

/* Half of the panel's columns for a tile of rows. */
INLINE void add_tile(uint32_t rows, uint32_t v0, const struct weights *w, const struct factors *f,
                     uint32_t pairs, float (*sums)[SL_PANEL])
{
    __m256 acc[TILE][2];
    UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        acc[r][0] = _mm256_load_ps(sums[r] + 8 * v0);
        acc[r][1] = _mm256_load_ps(sums[r] + 8 * v0 + 8);
    }
    for (uint32_t k = 0; k < pairs; k++) {
        UNROLL
        for (int e = 0; e < 2; e++) {
            __m256 w0 = _mm256_load_ps(w->at[e][k] + 8 * v0), w1 = _mm256_load_ps(w->at[e][k] + 8 * v0 + 8);
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

INLINE void add_rows(uint32_t rows, const uint16_t *bf, size_t stride, const struct weights *w,
                     uint32_t pairs, float (*sums)[SL_PANEL])
{
    struct factors f;
    unpack_factors(bf, stride, rows, pairs, &f);
    add_tile(rows, 0, w, &f, pairs, sums);
    add_tile(rows, 2, w, &f, pairs, sums);
}

INLINE void sum_many(const struct sl_segment *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
                     uint32_t rows, float (*sums)[SL_PANEL])
{
    const uint32_t all = (w->n_cols + 1) / 2;
    struct weights weights;
    memset(sums, 0, rows * sizeof *sums);
    for (uint32_t k = 0; k < all; k += STRETCH) {
        uint32_t pairs = all - k < STRETCH ? all - k : STRETCH, r = 0;
        unpack_weights(w->data + p * w->panel_bytes + (size_t)k * SL_PANEL * 4, pairs, &weights);
        const uint16_t *bf = x->bf + r0 * x->bf_stride + 2 * (size_t)k;
        for (; r + TILE <= rows && r + 8 != rows; r += TILE) /* two tiles of 4 beat one of 6 and one of 2 */
            add_rows(TILE, bf + r * x->bf_stride, x->bf_stride, &weights, pairs, sums + r);
        for (; r + 4 <= rows; r += 4)
            add_rows(4, bf + r * x->bf_stride, x->bf_stride, &weights, pairs, sums + r);
        for (; r + 2 <= rows; r += 2)
            add_rows(2, bf + r * x->bf_stride, x->bf_stride, &weights, pairs, sums + r);
        if (r < rows)
            add_rows(1, bf + r * x->bf_stride, x->bf_stride, &weights, pairs, sums + r);
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
