/* kernels/cpu/attention_avx512.h - what the parts of attention with AVX-512 share. Included by
 * attention_*avx512.c only.
 *
 * Both kernels compute with words of 32 bits: two bfloat16 (vdpbf16ps) or one float32 (FMA). `pairs` says
 * which; it is a constant where it matters. */
#ifndef SLUICE_KERNELS_CPU_ATTENTION_AVX512_H
#define SLUICE_KERNELS_CPU_ATTENTION_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/isa_avx512.h"
#include "kernels/cpu/vmath_avx512.h"

#define BLK   SL_ATTN_BLOCK
#define LANES 16u
/* Most rows of the few: x 4 vectors of sums, 24 registers; 4 for K or V, the rest for a factor. */
#define ROWS   6u
#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Where the positions of a block lie: 16 at a time, stride bytes apart; all may be read. */
struct sl_avx512_block {
    uint32_t n;         /* positions */
    uint32_t first;     /* the first that a row of the tile sees */
    enum sl_dtype type; /* of its rows: SL_BF16, SL_F32, SL_Q8, or SL_F16, which only the few take */
    size_t stride;
    uint32_t row_bytes; /* to ask for ahead */
    const uint8_t *k[BLK / LANES], *v[BLK / LANES];
    const uint8_t *k_scale[BLK / LANES], *v_scale[BLK / LANES]; /* float32, of any alignment; SL_Q8 only */
};

/* Position i of K or V. */
static inline const uint8_t *row_at(const uint8_t *const rows[BLK / LANES], size_t stride, uint32_t i)
{
    return rows[i / LANES] + i % LANES * stride;
}

/* What the rows of a tile see of a block: positions [first, n), none when n is 0. */
struct sl_avx512_seen {
    _Alignas(64) int32_t first[SL_ATTN_QROWS], n[SL_ATTN_QROWS];
    int whole; /* all rows see all 64: then only the first ROWS of the above are set */
};

/* A block for a tile of n_rows <= ROWS rows; queries in s->q, output in s->acc: the weights of its positions, from
 * K, and then what V adds. next is asked for meanwhile. */
void sl_avx512_attn_few_weights(const struct sl_attn_scratch *s, uint32_t n_rows, uint32_t hd,
                                const struct sl_avx512_seen *seen, const struct sl_avx512_block *b,
                                const struct sl_avx512_block *next);
void sl_avx512_attn_few_values(const struct sl_attn_scratch *s, uint32_t n_rows, uint32_t hd,
                               const struct sl_avx512_seen *seen, const struct sl_avx512_block *b,
                               const struct sl_avx512_block *next);
/* The same for SL_Q8. */
void sl_avx512_attn_few_q8_weights(const struct sl_attn_scratch *s, uint32_t n_rows, uint32_t hd,
                                   const struct sl_avx512_seen *seen, const struct sl_avx512_block *b,
                                   const struct sl_avx512_block *next);
void sl_avx512_attn_few_q8_values(const struct sl_attn_scratch *s, uint32_t n_rows, uint32_t hd,
                                  const struct sl_avx512_seen *seen, const struct sl_avx512_block *b,
                                  const struct sl_avx512_block *next);
/* A block for a tile of any number of rows; queries in s->q_t, output in s->acc_t. */
void sl_avx512_attn_many(const struct sl_attn_scratch *s, uint32_t n_rows, uint32_t hd,
                         const struct sl_avx512_seen *seen, const struct sl_avx512_block *b,
                         const struct sl_avx512_block *next);

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

/* 32-bit words of a row of hd elements. */
static inline uint32_t words_of(int pairs, uint32_t hd)
{
    return pairs ? hd / 2 : hd;
}

/* acc + the product of two words in each lane. */
INLINE __m512 multiply(int pairs, __m512 acc, __m512i a, __m512i b)
{
    return pairs ? _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b)
                 : _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), acc);
}

/* p of scores t, which are 0 at most. */
INLINE __m512 weight_of(int pairs, __m512 t)
{
    return pairs ? sl_v_exp2_coarse(t) : sl_v_exp2(t);
}

INLINE __m512i word_at(const void *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return _mm512_set1_epi32(word);
}

/* Elements [i, i + 32) of two rows of bfloat16 V, those below hd, as pairs: lo has the first 16. */
INLINE void interleave(const uint8_t *even, const uint8_t *odd, uint32_t i, uint32_t hd, __m512i *lo,
                       __m512i *hi)
{
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7,
                                         38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    __mmask32 mask = hd - i >= 32 ? 0xffffffffu : (1u << (hd - i)) - 1;
    __m512i a = even ? _mm512_maskz_loadu_epi16(mask, even + (size_t)i * 2) : _mm512_setzero_si512();
    __m512i b = odd ? _mm512_maskz_loadu_epi16(mask, odd + (size_t)i * 2) : _mm512_setzero_si512();
    *lo = _mm512_permutex2var_epi16(a, low, b);
    *hi = _mm512_permutex2var_epi16(a, high, b);
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

#endif
