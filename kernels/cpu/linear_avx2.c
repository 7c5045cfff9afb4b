/* kernels/cpu/linear_avx2.c - a packed panel times rows of activations, with AVX2 and FMA: float32 and float16
 * here, the other types in linear_quant_avx2.c and linear_bf16_avx2.c.
 *
 * A vector has 8 columns, so 4 vectors a panel. With 16 registers a tile is a few rows by a few vectors, as
 * many as fill them with float32 sums over all of K.
 *
 * The order of the sums: struct sl_cpu_isa (cpu_dev.h). */
#include "kernels/cpu/linear_avx2.h"

#define TILE 6u /* rows x 2 vectors: 12 sums, 2 of weights, a factor */

INLINE __m256 load_floats(enum sl_dtype type, const uint8_t *panel, size_t i)
{
    if (type == SL_F32)
        return _mm256_load_ps((const float *)(const void *)panel + i);
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)(panel + i * 2)));
}

/* Vectors [v0, v0 + vectors) of the panel. */
INLINE void sum_floats(enum sl_dtype type, uint32_t rows, uint32_t v0, uint32_t vectors,
                       const struct sl_segment *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
                       float (*sums)[SL_PANEL])
{
    const uint8_t *panel = w->data + p * w->panel_bytes;
    const float *f = x->f + r0 * x->f_stride;
    __m256 acc[TILE][VECTORS];
    UNROLL
    for (uint32_t r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = acc[r][2] = acc[r][3] = _mm256_setzero_ps();
    for (uint32_t k = 0; k < w->n_cols; k++) {
        __m256 weights[VECTORS];
        UNROLL
        for (uint32_t v = 0; v < vectors; v++)
            weights[v] = load_floats(type, panel, (size_t)k * SL_PANEL + 8 * (v0 + v));
        UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            __m256 one = _mm256_set1_ps(f[r * x->f_stride + k]);
            UNROLL
            for (uint32_t v = 0; v < vectors; v++)
                acc[r][v] = _mm256_fmadd_ps(one, weights[v], acc[r][v]);
        }
    }
    UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        UNROLL
        for (uint32_t v = 0; v < vectors; v++)
            _mm256_store_ps(sums[r] + 8 * (v0 + v), acc[r][v]);
    }
}

/* Up to 3 rows have the whole panel's sums in registers, more have half of it at a time. */
INLINE void sum_tile(enum sl_dtype type, uint32_t rows, const struct sl_segment *w, uint32_t p,
                     const struct sl_acts *x, uint32_t r0, float (*sums)[SL_PANEL])
{
    const uint32_t vectors = rows > 3 ? VECTORS / 2 : VECTORS;
    UNROLL
    for (uint32_t v = 0; v < VECTORS; v += vectors)
        sum_floats(type, rows, v, vectors, w, p, x, r0, sums);
}

/* A tile of the first rows of some; returns how many. */
INLINE uint32_t sum_first(enum sl_dtype type, const struct sl_segment *w, uint32_t p, const struct sl_acts *x,
                          uint32_t r0, uint32_t rows, float (*sums)[SL_PANEL])
{
    if (rows >= TILE) {
        sum_tile(type, TILE, w, p, x, r0, sums);
        return TILE;
    }
    if (rows >= 4) {
        sum_tile(type, 4, w, p, x, r0, sums);
        return 4;
    }
    if (rows >= 2) {
        sum_tile(type, 2, w, p, x, r0, sums);
        return 2;
    }
    sum_tile(type, 1, w, p, x, r0, sums);
    return 1;
}

/* Sums of as many of the rows as the type takes together; returns how many. */
static uint32_t sum_some(const struct sl_segment *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
                         uint32_t rows, float (*sums)[SL_PANEL])
{
    switch (w->type) {
    case SL_F32:
        return sum_first(SL_F32, w, p, x, r0, rows, sums);
    case SL_F16:
        return sum_first(SL_F16, w, p, x, r0, rows, sums);
    case SL_BF16:
        sl_avx2_sum_bf16(w, p, x, r0, rows, sums);
        return rows;
    default:
        sl_avx2_sum_quantised(w, p, x, r0, rows, sums);
        return rows;
    }
}

/* Adds bias and what is there, and stores the columns that exist. */
static void store_row(const struct sl_segment *w, uint32_t p, uint32_t r, const float *sum,
                      const struct sl_store *to)
{
    uint32_t n0 = p * SL_PANEL, n = w->n_rows - n0 < SL_PANEL ? w->n_rows - n0 : SL_PANEL, i = 0;
    float *y = to->y + r * to->stride + n0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_load_ps(sum + i);
        if (to->bias)
            v = _mm256_add_ps(v, _mm256_loadu_ps(to->bias + n0 + i));
        if (to->add)
            v = _mm256_add_ps(_mm256_loadu_ps(y + i), v);
        _mm256_storeu_ps(y + i, v);
    }
    for (; i < n; i++) {
        float v = to->bias ? sum[i] + to->bias[n0 + i] : sum[i];
        y[i] = to->add ? y[i] + v : v;
    }
}

void sl_avx2_panel(const struct sl_segment *w, uint32_t p, const struct sl_acts *x, uint32_t r0, uint32_t r1,
                   const struct sl_store *to)
{
    _Alignas(32) float sums[SL_CHUNK_ROWS][SL_PANEL];
    while (r0 < r1) {
        uint32_t n = sum_some(w, p, x, r0, r1 - r0, sums);
        for (uint32_t r = 0; r < n; r++)
            store_row(w, p, r0 + r, sums[r], to);
        r0 += n;
    }
}
