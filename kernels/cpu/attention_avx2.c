/* kernels/cpu/attention_avx2.c - a block of an attention tile with AVX2; arithmetic: cpu_attention.c, the
 * bits of attention_portable.c.
 *
 * All types of K and V become float32 in scratch, K transposed: lanes of a score are positions, lanes of the
 * output are head_dim. The types then differ in one thing: bfloat16 multiplies in pairs, the odd one first,
 * and takes subnormal arguments and results of these products as zero (MXCSR), which is what vdpbf16ps does.
 * The products are therefore functions of their own, not inlined: the compiler may move arithmetic across a
 * change of MXCSR, but not across a call. */
#include <immintrin.h>

#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/isa_avx2.h"
#include "kernels/cpu/vmath_avx2.h"

#define BLK              SL_ATTN_BLOCK
#define ROWS             6u      /* rows at a time: x 2 vectors of sums, 12 registers */
#define FEW              3u      /* rows at a time with 4 vectors each */
#define FLUSH_SUBNORMALS 0x8040u /* MXCSR: flush to zero, denormals are zeros */
#define INLINE           static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* 16 elements of 16 bits from element i on, zero from hd on. */
INLINE __m256i load_halves(const uint8_t *row, uint32_t i, uint32_t hd)
{
    if (i + 16 <= hd)
        return _mm256_loadu_si256((const __m256i *)(const void *)(row + 2 * (size_t)i));
    _Alignas(32) uint8_t rest[32] = {0};
    memcpy(rest, row + 2 * (size_t)i, 2 * (size_t)(hd - i));
    return _mm256_load_si256((const __m256i *)(const void *)rest);
}

INLINE __m256 load_floats(const uint8_t *row, uint32_t i, uint32_t hd)
{
    if (i + 8 <= hd)
        return _mm256_loadu_ps((const float *)(const void *)(row + 4 * (size_t)i));
    _Alignas(32) float rest[8] = {0};
    memcpy(rest, row + 4 * (size_t)i, 4 * (size_t)(hd - i));
    return _mm256_load_ps(rest);
}

INLINE __m256 to_floats(enum sl_dtype type, __m128i halves)
{
    if (type == SL_F16)
        return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* Within each 128-bit lane, 16-bit elements: r[i] element j -> r[j] element i. */
INLINE void transpose_halves(__m256i r[8])
{
    __m256i t[8];
    UNROLL
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        r[4 * i] = _mm256_unpacklo_epi32(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm256_unpackhi_epi32(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm256_unpacklo_epi32(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm256_unpackhi_epi32(t[4 * i + 1], t[4 * i + 3]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_epi64(r[i], r[i + 4]);
        t[2 * i + 1] = _mm256_unpackhi_epi64(r[i], r[i + 4]);
    }
    UNROLL
    for (int i = 0; i < 8; i++)
        r[i] = t[i];
}

INLINE void transpose_floats(__m256 r[8])
{
    __m256 t[8];
    UNROLL
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    UNROLL
    for (int i = 0; i < 8; i++)
        r[i] = t[i];
}

/* 8 positions of K to columns [0, 8) of k, rows up to hd rounded up to 16. */
INLINE void transpose_k(enum sl_dtype type, const uint8_t *const rows[8], uint32_t hd, float *k)
{
    if (type == SL_F32) {
        for (uint32_t d = 0; d < hd; d += 8) {
            __m256 r[8];
            UNROLL
            for (uint32_t i = 0; i < 8; i++)
                r[i] = load_floats(rows[i], d, hd);
            transpose_floats(r);
            UNROLL
            for (uint32_t i = 0; i < 8; i++)
                _mm256_store_ps(k + (size_t)(d + i) * BLK, r[i]);
        }
        return;
    }
    for (uint32_t d = 0; d < hd; d += 16) {
        __m256i r[8];
        UNROLL
        for (uint32_t i = 0; i < 8; i++)
            r[i] = load_halves(rows[i], d, hd);
        transpose_halves(r);
        UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            _mm256_store_ps(k + (size_t)(d + i) * BLK, to_floats(type, _mm256_castsi256_si128(r[i])));
            _mm256_store_ps(k + (size_t)(d + 8 + i) * BLK,
                            to_floats(type, _mm256_extracti128_si256(r[i], 1)));
        }
    }
}

INLINE void convert_v(enum sl_dtype type, const uint8_t *row, uint32_t hd, float *v)
{
    if (type == SL_F32) {
        for (uint32_t d = 0; d < hd; d += 8)
            _mm256_store_ps(v + d, load_floats(row, d, hd));
        return;
    }
    for (uint32_t d = 0; d < hd; d += 16) {
        __m256i h = load_halves(row, d, hd);
        _mm256_store_ps(v + d, to_floats(type, _mm256_castsi256_si128(h)));
        _mm256_store_ps(v + d + 8, to_floats(type, _mm256_extracti128_si256(h, 1)));
    }
}

/* The block in scratch as float32: K [head_dim][BLK], V [BLK][width]. */
INLINE void load_block(enum sl_dtype type, const struct sl_attn_scratch *s, uint32_t hd,
                       const struct sl_attn_block *b)
{
    uint32_t width = sl_attn_width(hd);
    for (uint32_t i = 0; i < b->n; i += 8)
        transpose_k(type, b->k + i, hd, s->k + i);
    for (uint32_t i = 0; i < b->n; i++)
        convert_v(type, b->v[i], hd, s->v + (size_t)i * width);
}

/* Which of two comes when: (0, 1), for bfloat16 (1, 0). */
INLINE uint32_t nth(int pairs, uint32_t i)
{
    return pairs ? 1 - i : i;
}

/* Scores of rows [r, r + rows) at positions [8 v, 8 (v + vectors)) of the block. */
INLINE void score_tile(int pairs, uint32_t rows, uint32_t vectors, const struct sl_attn_scratch *s,
                       uint32_t r, uint32_t hd, uint32_t v)
{
    uint32_t width = sl_attn_width(hd);
    const float *q = s->q + (size_t)r * width, *k = s->k + 8 * v;
    __m256 x[ROWS][4];
    UNROLL
    for (uint32_t i = 0; i < rows; i++)
        x[i][0] = x[i][1] = x[i][2] = x[i][3] = _mm256_setzero_ps();
    for (uint32_t d = 0; d < hd; d += 2, k += 2 * BLK) {
        UNROLL
        for (uint32_t e = 0; e < 2; e++) {
            uint32_t at = nth(pairs, e);
            __m256 y[4];
            UNROLL
            for (uint32_t j = 0; j < vectors; j++)
                y[j] = _mm256_load_ps(k + at * BLK + 8 * j);
            UNROLL
            for (uint32_t i = 0; i < rows; i++) {
                __m256 f = _mm256_set1_ps(q[(size_t)i * width + d + at]);
                UNROLL
                for (uint32_t j = 0; j < vectors; j++)
                    x[i][j] = _mm256_fmadd_ps(f, y[j], x[i][j]);
            }
        }
    }
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        UNROLL
        for (uint32_t j = 0; j < vectors; j++)
            _mm256_store_ps(s->s + (size_t)(r + i) * BLK + 8 * (v + j), x[i][j]);
    }
}

INLINE void score_rows(int pairs, uint32_t rows, const struct sl_attn_scratch *s, uint32_t r, uint32_t hd,
                       uint32_t n)
{
    const uint32_t vectors = rows > FEW ? 2 : 4;
    for (uint32_t v = 0; 8 * v < n; v += vectors)
        score_tile(pairs, rows, vectors, s, r, hd, v);
}

/* One position for one row. */
INLINE void add_position(uint32_t vectors, float p, const float *v, __m256 a[4])
{
    UNROLL
    for (uint32_t j = 0; j < vectors; j++)
        a[j] = _mm256_fmadd_ps(_mm256_set1_ps(p), _mm256_load_ps(v + 8 * j), a[j]);
}

/* The positions from i on for one row that sees n of them; with pairs i is even, and a partner from n on
 * counts as zero times zero. */
INLINE void value_rest(int pairs, uint32_t vectors, const float *p, const float *v, uint32_t width,
                       uint32_t i, uint32_t n, __m256 a[4])
{
    for (; i + 2 <= n; i += 2) {
        UNROLL
        for (uint32_t e = 0; e < 2; e++)
            add_position(vectors, p[i + nth(pairs, e)], v + (size_t)(i + nth(pairs, e)) * width, a);
    }
    if (i == n)
        return;
    UNROLL
    for (uint32_t j = 0; pairs && j < vectors; j++)
        a[j] = _mm256_add_ps(a[j], _mm256_setzero_ps());
    add_position(vectors, p[i], v + (size_t)i * width, a);
}

/* Vectors [c, c + vectors) of acc of rows [r, r + rows); row i sees n[i] positions, the first of them least.
 */
INLINE void value_tile(int pairs, uint32_t rows, uint32_t vectors, const struct sl_attn_scratch *s,
                       uint32_t r, const uint32_t *n, uint32_t hd, uint32_t c)
{
    uint32_t width = sl_attn_width(hd), common = n[0] / 2 * 2;
    const float *p = s->s + (size_t)r * BLK, *v = s->v + 8 * c;
    float *acc = s->acc + (size_t)r * width + 8 * c;
    __m256 a[ROWS][4];
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        UNROLL
        for (uint32_t j = 0; j < vectors; j++)
            a[i][j] = _mm256_load_ps(acc + (size_t)i * width + 8 * j);
    }
    for (uint32_t k = 0; k < common; k += 2) {
        UNROLL
        for (uint32_t e = 0; e < 2; e++) {
            uint32_t at = k + nth(pairs, e);
            __m256 y[4];
            UNROLL
            for (uint32_t j = 0; j < vectors; j++)
                y[j] = _mm256_load_ps(v + (size_t)at * width + 8 * j);
            UNROLL
            for (uint32_t i = 0; i < rows; i++) {
                __m256 f = _mm256_set1_ps(p[(size_t)i * BLK + at]);
                UNROLL
                for (uint32_t j = 0; j < vectors; j++)
                    a[i][j] = _mm256_fmadd_ps(f, y[j], a[i][j]);
            }
        }
    }
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        value_rest(pairs, vectors, p + (size_t)i * BLK, v, width, common, n[i], a[i]);
        UNROLL
        for (uint32_t j = 0; j < vectors; j++)
            _mm256_store_ps(acc + (size_t)i * width + 8 * j, a[i][j]);
    }
}

INLINE void value_rows(int pairs, uint32_t rows, const struct sl_attn_scratch *s, uint32_t r,
                       const uint32_t *n, uint32_t hd)
{
    uint32_t c = 0, end = sl_attn_width(hd) / 8; /* an even number */
    for (; rows <= FEW && c + 4 <= end; c += 4)
        value_tile(pairs, rows, 4, s, r, n, hd, c);
    for (; c < end; c += 2)
        value_tile(pairs, rows, 2, s, r, n, hd, c);
}

/* All rows by ROWS, then FEW, then one. */
INLINE void all_scores(int pairs, const struct sl_attn_scratch *s, uint32_t r, uint32_t end, uint32_t hd,
                       uint32_t n)
{
    for (; r + ROWS <= end; r += ROWS)
        score_rows(pairs, ROWS, s, r, hd, n);
    for (; r + FEW <= end; r += FEW)
        score_rows(pairs, FEW, s, r, hd, n);
    for (; r < end; r++)
        score_rows(pairs, 1, s, r, hd, n);
}

INLINE void all_values(int pairs, const struct sl_attn_scratch *s, uint32_t r, uint32_t end,
                       const uint32_t *n, uint32_t hd)
{
    for (; r + ROWS <= end; r += ROWS)
        value_rows(pairs, ROWS, s, r, n + r, hd);
    for (; r + FEW <= end; r += FEW)
        value_rows(pairs, FEW, s, r, n + r, hd);
    for (; r < end; r++)
        value_rows(pairs, 1, s, r, n + r, hd);
}

static __attribute__((noinline)) void scores_singly(const struct sl_attn_scratch *s, uint32_t r, uint32_t end,
                                                    uint32_t hd, uint32_t n)
{
    all_scores(0, s, r, end, hd, n);
}

static __attribute__((noinline)) void scores_in_pairs(const struct sl_attn_scratch *s, uint32_t r,
                                                      uint32_t end, uint32_t hd, uint32_t n)
{
    all_scores(1, s, r, end, hd, n);
}

static __attribute__((noinline)) void values_singly(const struct sl_attn_scratch *s, uint32_t r, uint32_t end,
                                                    const uint32_t *n, uint32_t hd)
{
    all_values(0, s, r, end, n, hd);
}

static __attribute__((noinline)) void values_in_pairs(const struct sl_attn_scratch *s, uint32_t r,
                                                      uint32_t end, const uint32_t *n, uint32_t hd)
{
    all_values(1, s, r, end, n, hd);
}

/* Lanes of all ones at the positions in [first, n) of the 8 from i on. */
INLINE __m256 between(uint32_t i, uint32_t first, uint32_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i at = _mm256_add_epi32(lane, _mm256_set1_epi32((int)i));
    __m256i low = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)first), at);
    __m256i high = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), at);
    return _mm256_castsi256_ps(_mm256_andnot_si256(low, high));
}

INLINE __m256 round_bf16(__m256 x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(sl_v8_to_bf16(x), 16));
}

/* Softmax of the 64 scores in row r of s->s against positions [first, n): m and l, p in place of the scores,
 * and acc times what the row keeps. For bfloat16 p is rounded before it is summed. */
static void softmax_row(const struct sl_attn_scratch *s, uint32_t r, uint32_t first, uint32_t n, uint32_t hd,
                        int bf16)
{
    const __m256 none = _mm256_set1_ps(-INFINITY);
    float *to = s->s + (size_t)r * BLK, *acc = s->acc + (size_t)r * sl_attn_width(hd);
    __m256 v[8], most = none;
    UNROLL
    for (uint32_t c = 0; c < 8; c++) {
        v[c] = _mm256_blendv_ps(none, _mm256_load_ps(to + 8 * c), between(8 * c, first, n));
        most = _mm256_max_ps(v[c], most);
    }
    float block_most = sl_v8_max(most), m = block_most > s->m[r] ? block_most : s->m[r];
    UNROLL
    for (uint32_t c = 0; c < 8; c++) {
        v[c] = _mm256_and_ps(sl_v8_exp2(_mm256_sub_ps(v[c], _mm256_set1_ps(m))), between(8 * c, first, n));
        v[c] = bf16 ? round_bf16(v[c]) : v[c];
        _mm256_store_ps(to + 8 * c, v[c]);
    }
    float keep = sl_exp2(s->m[r] - m);
    __m256 low = _mm256_add_ps(_mm256_add_ps(v[0], v[2]), _mm256_add_ps(v[4], v[6]));
    __m256 high = _mm256_add_ps(_mm256_add_ps(v[1], v[3]), _mm256_add_ps(v[5], v[7]));
    s->l[r] = fmaf(s->l[r], keep, sl_v8_sum(_mm256_add_ps(low, high)));
    s->m[r] = m;
    for (uint32_t d = 0; d < hd; d += 8)
        _mm256_store_ps(acc + d, _mm256_mul_ps(_mm256_load_ps(acc + d), _mm256_set1_ps(keep)));
}

static void softmax_rows(const struct sl_attn_scratch *s, uint32_t r, uint32_t end,
                         const struct sl_attn_seen *seen, uint32_t hd, int bf16)
{
    for (; r < end; r++)
        softmax_row(s, r, seen->first[r], seen->n[r], hd, bf16);
}

static void prefetch_rows(const uint8_t *const rows[BLK], uint32_t n, uint32_t token_bytes)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t at = 0; at < token_bytes; at += 64)
            _mm_prefetch(rows[i] + at, _MM_HINT_T1);
}

static void attend_pairs(const struct sl_attn_scratch *s, uint32_t r, uint32_t end,
                         const struct sl_attn_seen *seen, uint32_t hd, uint32_t n)
{
    uint32_t mode = _mm_getcsr();
    _mm_setcsr(mode | FLUSH_SUBNORMALS);
    scores_in_pairs(s, r, end, hd, n);
    _mm_setcsr(mode);
    softmax_rows(s, r, end, seen, hd, 1);
    _mm_setcsr(mode | FLUSH_SUBNORMALS);
    values_in_pairs(s, r, end, seen->n, hd);
    _mm_setcsr(mode);
}

static void attend_singly(const struct sl_attn_scratch *s, uint32_t r, uint32_t end,
                          const struct sl_attn_seen *seen, uint32_t hd, uint32_t n)
{
    scores_singly(s, r, end, hd, n);
    softmax_rows(s, r, end, seen, hd, 0);
    values_singly(s, r, end, seen->n, hd);
}

static void attend_block(const struct sl_attn_tile *t, const struct sl_attn_scratch *s, uint32_t r,
                         uint32_t end, const struct sl_attn_seen *seen, const struct sl_attn_block *b,
                         const struct sl_attn_block *next)
{
    uint32_t hd = t->shape->head_dim;
    switch (t->kv->g.dtype) {
    case SL_BF16:
        load_block(SL_BF16, s, hd, b);
        break;
    case SL_F16:
        load_block(SL_F16, s, hd, b);
        break;
    default:
        load_block(SL_F32, s, hd, b);
    }
    prefetch_rows(next->k, next->n, (uint32_t)t->kv->token_bytes);
    prefetch_rows(next->v, next->n, (uint32_t)t->kv->token_bytes);
    if (t->kv->g.dtype == SL_BF16)
        attend_pairs(s, r, end, seen, hd, b->n);
    else
        attend_singly(s, r, end, seen, hd, b->n);
}

static void load_query(const float *q, uint32_t hd, float scale, enum sl_dtype type, float *to)
{
    uint32_t i = 0;
    for (; i + 8 <= hd; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(q + i), _mm256_set1_ps(scale));
        _mm256_store_ps(to + i, type == SL_BF16 ? round_bf16(v) : v);
    }
    for (; i < hd; i++)
        to[i] = type == SL_BF16 ? sl_bf16_to_f32(sl_f32_to_bf16(q[i] * scale)) : q[i] * scale;
}

void sl_avx2_attn_merge(float *total, float *total_m, float *total_l, const float *acc, float m, float l,
                        uint32_t head_dim)
{
    float most = m > *total_m ? m : *total_m, keep = sl_exp2(*total_m - most), add = sl_exp2(m - most);
    uint32_t i = 0;
    for (; i + 8 <= head_dim; i += 8) {
        __m256 old = _mm256_mul_ps(_mm256_loadu_ps(total + i), _mm256_set1_ps(keep));
        _mm256_storeu_ps(total + i, _mm256_fmadd_ps(_mm256_loadu_ps(acc + i), _mm256_set1_ps(add), old));
    }
    for (; i < head_dim; i++)
        total[i] = fmaf(acc[i], add, total[i] * keep);
    *total_l = fmaf(l, add, *total_l * keep);
    *total_m = most;
}

void sl_avx2_attn_finish(const float *total, float total_l, uint32_t head_dim, float *out)
{
    float scale = 1.0f / total_l;
    uint32_t i = 0;
    for (; i + 8 <= head_dim; i += 8)
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_loadu_ps(total + i), _mm256_set1_ps(scale)));
    for (; i < head_dim; i++)
        out[i] = total[i] * scale;
}

void sl_avx2_attn_tile(const struct sl_attn_tile *t, const struct sl_attn_scratch *s)
{
    static const struct sl_attn_loops loops = {load_query, attend_block, sl_avx2_attn_merge,
                                               sl_avx2_attn_finish};
    sl_attn_walk_tile(&loops, t, s);
}
