/* kernels/cpu/linear_avx512.c - a packed panel times rows of activations, with vpdpbusd, vdpbf16ps and FMA.
 *
 * Weights are the unsigned operand of vpdpbusd (4-bit codes as they are, Q8_0 with 128 added), activations
 * the signed one: the zero point becomes the value at which the integer sum starts. A block of 32 elements is
 * a chain of 8 dot products in one register, 4 k-steps each; chains of different rows and columns overlap in
 * the pipeline, so the block needs no integer tile that lives on, and the registers hold the float32 sums of
 * TILE rows x 32 columns and 8 vectors of weights. A block of weights is unpacked once for TILE rows.
 *
 * The order of the sums: struct sl_cpu_isa (cpu_dev.h). */
#include <immintrin.h>

#include "kernels/cpu/isa_avx512.h"

#define TILE           SL_GROUP
#define PREFETCH_AHEAD 2048 /* bytes; covers the memory latency of a streaming thread at one row */
#define INLINE         static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Adds bias and what is there, and stores the 16 columns of half h that exist. */
INLINE void store_half(const struct sl_weight *w, uint32_t p, uint32_t h, uint32_t r, __m512 acc,
                       const struct sl_store *to)
{
    uint32_t n0 = p * SL_PANEL + h * 16;
    if (n0 >= w->n_rows)
        return;
    uint32_t n = w->n_rows - n0;
    __mmask16 mask = n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
    float *y = to->y + r * to->stride + n0;
    if (to->bias)
        acc = _mm512_add_ps(acc, _mm512_maskz_loadu_ps(mask, to->bias + n0));
    if (to->add)
        acc = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), acc);
    _mm512_mask_storeu_ps(y, mask, acc);
}

/* The codes of half h of a block as 8 vectors of unsigned bytes: vector s, column c, elements 4 s .. 4 s + 3.
 */
INLINE void load_codes(enum sl_dtype type, const uint8_t *block, uint32_t h, __m512i codes[8])
{
    if (type == SL_Q8_0) {
        UNROLL
        for (int s = 0; s < 8; s++)
            codes[s] = _mm512_load_si512(block + h * 512 + s * 64);
        return;
    }
    const __m512i low = _mm512_set1_epi8(15);
    UNROLL
    for (int s = 0; s < 4; s++) {
        __m512i b = _mm512_load_si512(block + h * 256 + s * 64);
        codes[s] = _mm512_and_si512(b, low);
        codes[s + 4] = _mm512_and_si512(_mm512_srli_epi16(b, 4), low);
    }
}

INLINE __m512 load_scales(const uint8_t *from)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)from));
}

INLINE __m512i dot4(__m512i sum, __m512i codes, const int8_t *q)
{
    int32_t quad;
    memcpy(&quad, q, sizeof quad);
    return _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(quad));
}

/* rows <= TILE rows of one group from its first on. */
INLINE void tile_quantised(enum sl_dtype type, uint32_t rows, const struct sl_weight *w, uint32_t p,
                           const struct sl_acts *x, uint32_t r0, const struct sl_store *to)
{
    const uint32_t code_bytes = type == SL_Q8_0 ? 1024 : 512,
                   block_bytes = code_bytes + (type == SL_Q4_1 ? 128 : 64);
    const uint8_t *block = w->data + p * w->panel_bytes;
    size_t at = sl_acts_block(x, r0, 0);
    __m512 acc[TILE][2];
    UNROLL
    for (uint32_t r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    for (uint32_t b = w->n_cols / SL_QBLOCK; b > 0; b--, block += block_bytes, at += SL_GROUP) {
        UNROLL
        for (uint32_t i = 0; i < block_bytes; i += 64)
            _mm_prefetch(block + PREFETCH_AHEAD + i, _MM_HINT_T0);
        UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            /* the broadcasts of q are to be loaded again by each dot product: kept for the second half, they
             * would spill */
            __asm__ volatile("" ::: "memory");
            __m512i codes[8];
            load_codes(type, block, h, codes);
            __m512 d = load_scales(block + code_bytes + h * 32), m = _mm512_setzero_ps();
            if (type == SL_Q4_1)
                m = load_scales(block + code_bytes + 64 + h * 32);
            UNROLL
            for (uint32_t r = 0; r < rows; r++) {
                const int8_t *q = x->q + (at + r) * SL_QBLOCK;
                __m512i sum = type == SL_Q4_1 ? _mm512_setzero_si512() : _mm512_set1_epi32(x->start[at + r]);
                UNROLL
                for (int s = 0; s < 8; s++)
                    sum = dot4(sum, codes[s], q + 4 * s);
                __m512 scale = _mm512_mul_ps(_mm512_set1_ps(x->scale[at + r]), d);
                acc[r][h] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum), acc[r][h]);
                if (type == SL_Q4_1)
                    acc[r][h] = _mm512_fmadd_ps(_mm512_set1_ps(x->scaled_sum[at + r]), m, acc[r][h]);
            }
        }
    }
    UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        store_half(w, p, 0, r0 + r, acc[r][0], to);
        store_half(w, p, 1, r0 + r, acc[r][1], to);
    }
}

INLINE __m512 load_f32(enum sl_dtype type, const uint8_t *panel, size_t k, uint32_t h)
{
    if (type == SL_F32)
        return _mm512_load_ps(panel + k * SL_PANEL * 4 + h * 64);
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(panel + k * SL_PANEL * 2 + h * 32)));
}

INLINE void tile_f32(enum sl_dtype type, uint32_t rows, const struct sl_weight *w, uint32_t p,
                     const struct sl_acts *x, uint32_t r0, const struct sl_store *to)
{
    const uint8_t *panel = w->data + p * w->panel_bytes;
    const float *f = x->f + r0 * x->f_stride;
    __m512 acc[TILE][2];
    UNROLL
    for (uint32_t r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    for (uint32_t k = 0; k < w->n_cols; k++) {
        __m512 w0 = load_f32(type, panel, k, 0), w1 = load_f32(type, panel, k, 1);
        UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            __m512 v = _mm512_set1_ps(f[r * x->f_stride + k]);
            acc[r][0] = _mm512_fmadd_ps(v, w0, acc[r][0]);
            acc[r][1] = _mm512_fmadd_ps(v, w1, acc[r][1]);
        }
    }
    UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        store_half(w, p, 0, r0 + r, acc[r][0], to);
        store_half(w, p, 1, r0 + r, acc[r][1], to);
    }
}

INLINE void tile_bf16(uint32_t rows, const struct sl_weight *w, uint32_t p, const struct sl_acts *x,
                      uint32_t r0, const struct sl_store *to)
{
    const uint8_t *panel = w->data + p * w->panel_bytes;
    const uint16_t *bf = x->bf + r0 * x->bf_stride;
    __m512 acc[TILE][2];
    UNROLL
    for (uint32_t r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    for (uint32_t k = 0; k < (w->n_cols + 1) / 2; k++, panel += SL_PANEL * 4) {
        __m512bh w0 = (__m512bh)_mm512_load_si512(panel), w1 = (__m512bh)_mm512_load_si512(panel + 64);
        UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, bf + r * x->bf_stride + 2 * (size_t)k, sizeof pair);
            __m512bh v = (__m512bh)_mm512_set1_epi32(pair);
            acc[r][0] = _mm512_dpbf16_ps(acc[r][0], v, w0);
            acc[r][1] = _mm512_dpbf16_ps(acc[r][1], v, w1);
        }
    }
    UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        store_half(w, p, 0, r0 + r, acc[r][0], to);
        store_half(w, p, 1, r0 + r, acc[r][1], to);
    }
}

INLINE void tile(enum sl_dtype type, uint32_t rows, const struct sl_weight *w, uint32_t p,
                 const struct sl_acts *x, uint32_t r0, const struct sl_store *to)
{
    if (type == SL_F32 || type == SL_F16)
        tile_f32(type, rows, w, p, x, r0, to);
    else if (type == SL_BF16)
        tile_bf16(rows, w, p, x, r0, to);
    else
        tile_quantised(type, rows, w, p, x, r0, to);
}

/* Full tiles, then the rest by its own number of rows, so that the sums stay in registers. */
INLINE void all_tiles(enum sl_dtype type, const struct sl_weight *w, uint32_t p, const struct sl_acts *x,
                      uint32_t r0, uint32_t r1, const struct sl_store *to)
{
    for (; r0 + TILE <= r1; r0 += TILE)
        tile(type, TILE, w, p, x, r0, to);
    switch (r1 - r0) {
    case 1:
        tile(type, 1, w, p, x, r0, to);
        return;
    case 2:
        tile(type, 2, w, p, x, r0, to);
        return;
    case 3:
        tile(type, 3, w, p, x, r0, to);
        return;
    case 4:
        tile(type, 4, w, p, x, r0, to);
        return;
    case 5:
        tile(type, 5, w, p, x, r0, to);
        return;
    case 6:
        tile(type, 6, w, p, x, r0, to);
        return;
    case 7:
        tile(type, 7, w, p, x, r0, to);
        return;
    default:
        return;
    }
}

void sl_avx512_panel(const struct sl_weight *w, uint32_t p, const struct sl_acts *x, uint32_t r0, uint32_t r1,
                     const struct sl_store *to)
{
    switch (w->type) {
    case SL_F32:
        all_tiles(SL_F32, w, p, x, r0, r1, to);
        return;
    case SL_F16:
        all_tiles(SL_F16, w, p, x, r0, r1, to);
        return;
    case SL_BF16:
        all_tiles(SL_BF16, w, p, x, r0, r1, to);
        return;
    case SL_Q8_0:
        all_tiles(SL_Q8_0, w, p, x, r0, r1, to);
        return;
    case SL_Q4_0:
        all_tiles(SL_Q4_0, w, p, x, r0, r1, to);
        return;
    case SL_Q4_1:
        all_tiles(SL_Q4_1, w, p, x, r0, r1, to);
        return;
    }
}
