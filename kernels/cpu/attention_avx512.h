/* kernels/cpu/attention_avx512.h - what the attention kernels of all KV types share. Included by
 * attention_*avx512.c only. */
#ifndef SLUICE_KERNELS_CPU_ATTENTION_AVX512_H
#define SLUICE_KERNELS_CPU_ATTENTION_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/isa_avx512.h"
#include "kernels/cpu/vmath_avx512.h"

#define BLK    SL_ATTN_BLOCK
#define ROWS   6 /* rows at a time: x 4 vectors of sums, 24 registers; 4 for K or V, the rest for a factor */
#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
/* f(n, ...) with n a constant, so that its sums stay in registers; n is 1 .. ROWS. */
#define BY_ROWS(n, f, ...)                                                                                   \
    switch (n) {                                                                                             \
    case 1:                                                                                                  \
        f(1, __VA_ARGS__);                                                                                   \
        break;                                                                                               \
    case 2:                                                                                                  \
        f(2, __VA_ARGS__);                                                                                   \
        break;                                                                                               \
    case 3:                                                                                                  \
        f(3, __VA_ARGS__);                                                                                   \
        break;                                                                                               \
    case 4:                                                                                                  \
        f(4, __VA_ARGS__);                                                                                   \
        break;                                                                                               \
    case 5:                                                                                                  \
        f(5, __VA_ARGS__);                                                                                   \
        break;                                                                                               \
    default:                                                                                                 \
        f(ROWS, __VA_ARGS__);                                                                                \
    }

/* Addresses of the positions of a block in the pages. */
struct sl_attn_block {
    uint32_t n;     /* positions; the addresses behind repeat the last, so that they may be read */
    uint32_t first; /* few: where the rows' window starts */
    const uint8_t *k[BLK], *v[BLK];
};

/* A block for a tile of n_rows <= ROWS rows that all see its positions [b->first, b->n): K and V straight
 * from the pages. next is asked for meanwhile. */
void sl_avx512_attn_few_f16(const struct sl_attn_scratch *s, uint32_t n_rows, uint32_t hd,
                            const struct sl_attn_block *b, const struct sl_attn_block *next);
void sl_avx512_attn_few_f32(const struct sl_attn_scratch *s, uint32_t n_rows, uint32_t hd,
                            const struct sl_attn_block *b, const struct sl_attn_block *next);
void sl_avx512_attn_few_bf16(const struct sl_attn_scratch *s, uint32_t n_rows, uint32_t hd,
                             const struct sl_attn_block *b, const struct sl_attn_block *next);
/* What the rows of a tile see of a block. */
struct sl_attn_seen {
    uint32_t first[SL_ATTN_QROWS], n[SL_ATTN_QROWS]; /* positions [first, n) of the block, rising with r */
};

/* A block for the rows [first, n_rows) of a tile. */
void sl_avx512_attn_many_f16(const struct sl_attn_scratch *s, uint32_t first, uint32_t n_rows,
                             const struct sl_attn_seen *seen, uint32_t hd, const struct sl_attn_block *b,
                             const struct sl_attn_block *next);
void sl_avx512_attn_many_f32(const struct sl_attn_scratch *s, uint32_t first, uint32_t n_rows,
                             const struct sl_attn_seen *seen, uint32_t hd, const struct sl_attn_block *b,
                             const struct sl_attn_block *next);
void sl_avx512_attn_many_bf16(const struct sl_attn_scratch *s, uint32_t first, uint32_t n_rows,
                              const struct sl_attn_seen *seen, uint32_t hd, const struct sl_attn_block *b,
                              const struct sl_attn_block *next);

/* The lanes below n of the 16 from i on. */
static inline __mmask16 lanes(uint32_t i, uint32_t n)
{
    return i >= n ? 0 : n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
}

/* The lanes in [first, n) of the 16 from i on. */
static inline __mmask16 between(uint32_t i, uint32_t first, uint32_t n)
{
    return (__mmask16)(lanes(i, n) & ~lanes(i, first));
}

/* r[i] lane j -> r[j] lane i */
INLINE void transpose16(__m512i r[16])
{
    __m512i t[16];
    UNROLL
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* 32-bit words [w, w + 16) of the 16 rows given by address, those below words: r[i] = word w + i of each row.
 */
INLINE void load_transposed(const uint8_t *const rows[16], uint32_t w, uint32_t words, __m512i r[16])
{
    __mmask16 mask = lanes(w, words);
    UNROLL
    for (int i = 0; i < 16; i++)
        r[i] = _mm512_maskz_loadu_epi32(mask, rows[i] + (size_t)w * 4);
    transpose16(r);
}

/* Asks for a whole block: for tiles with so much work on it that the requests do not hold it up. */
static inline void prefetch_rows(const uint8_t *const rows[BLK], uint32_t n, uint32_t token_bytes)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t at = 0; at < token_bytes; at += 64)
            _mm_prefetch(rows[i] + at, _MM_HINT_T1);
}

/* Softmax of the 64 scores in row r of s->s against positions [first, n): m, l and keep, and p in place of
 * the scores; for bfloat16 V as bfloat16 in the first half of the row, and rounded before it is summed. */
INLINE void softmax_row(enum sl_dtype type, const struct sl_attn_scratch *s, uint32_t r, uint32_t first,
                        uint32_t n)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    float *to = s->s + (size_t)r * BLK;
    __m512 v[4];
    UNROLL
    for (uint32_t c = 0; c < 4; c++)
        v[c] = _mm512_mask_mov_ps(none, between(16 * c, first, n), _mm512_load_ps(to + 16 * c));
    float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(v[0], v[1]), _mm512_max_ps(v[2], v[3])));
    float m = most > s->m[r] ? most : s->m[r];
    UNROLL
    for (uint32_t c = 0; c < 4; c++)
        v[c] =
            _mm512_maskz_mov_ps(between(16 * c, first, n), sl_v_exp2(_mm512_sub_ps(v[c], _mm512_set1_ps(m))));
    if (type == SL_BF16) {
        UNROLL
        for (uint32_t c = 0; c < 4; c++) {
            __m256i h = (__m256i)_mm512_cvtneps_pbh(v[c]);
            _mm256_store_si256((__m256i *)to + c, h);
            v[c] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
        }
    } else {
        UNROLL
        for (uint32_t c = 0; c < 4; c++)
            _mm512_store_ps(to + 16 * c, v[c]);
    }
    float keep = sl_exp2(s->m[r] - m);
    float sum = sl_v_sum(_mm512_add_ps(_mm512_add_ps(v[0], v[1]), _mm512_add_ps(v[2], v[3])));
    s->l[r] = fmaf(s->l[r], keep, sum);
    s->m[r] = m;
    s->keep[r] = keep;
}

/* acc of rows [0, rows) from vector c on, times keep. */
INLINE void load_acc(uint32_t rows, uint32_t cols, const struct sl_attn_scratch *s, uint32_t r,
                     uint32_t width, uint32_t c, __m512 a[ROWS][4])
{
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        const float *acc = s->acc + (size_t)(r + i) * width + 16 * c;
        UNROLL
        for (uint32_t j = 0; j < cols; j++)
            a[i][j] = _mm512_mul_ps(_mm512_load_ps(acc + 16 * j), _mm512_set1_ps(s->keep[r + i]));
    }
}

INLINE void store_acc(uint32_t rows, uint32_t cols, const struct sl_attn_scratch *s, uint32_t r,
                      uint32_t width, uint32_t c, __m512 a[ROWS][4])
{
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        UNROLL
        for (uint32_t j = 0; j < cols; j++)
            _mm512_store_ps(s->acc + (size_t)(r + i) * width + 16 * (c + j), a[i][j]);
    }
}

#endif
