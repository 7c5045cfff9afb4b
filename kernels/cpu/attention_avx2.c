/* kernels/cpu/attention_avx2.c - a block of an attention tile with AVX2; arithmetic: cpu_attention.c, the
 * bits of attention_portable.c.
 *
 * All types of K and V become float32, K transposed: lanes of a score are positions, lanes of the output are
 * head_dim. A tile of many rows has the block converted to scratch once; a tile of few rows (a decode row and
 * its group) has half the block's K in scratch at a time, bfloat16 still in pairs, and takes V straight from
 * the conversion.
 *
 * The next block is prefetched row by row where this one's rows are read: all at once, the requests would fill
 * the core's buffers and the loads of this block would wait behind them.
 *
 * The types then differ in one thing: bfloat16 multiplies in pairs, the odd one first, and takes subnormal
 * arguments and results of these products as zero (MXCSR), which is what vdpbf16ps does. The products are
 * therefore functions of their own, not inlined: the compiler may move arithmetic across a change of MXCSR,
 * but not across a call. */
#include "kernels/cpu/attention_avx2.h"

#include <string.h>
#include "kernels/cpu/fp8.h"
#include "kernels/cpu/isa_avx2.h"
#include "kernels/cpu/vmath_avx2.h"

#define ROWS             6u /* rows at a time: x 2 vectors of sums, 12 registers */
#define NARROW           3u /* most rows at a time with 4 vectors each */
#define FEW              4u /* most rows of a tile whose K and V are converted as they are taken */
#define HALF_BLK         (BLK / 2)
#define LINE             64u     /* bytes */
#define FLUSH_SUBNORMALS 0x8040u /* MXCSR: flush to zero, denormals are zeros */

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

/* Asks for the lines of the 8 rows that begin at these bytes. */
INLINE void prefetch_rows(const uint8_t *const rows[8], size_t at)
{
    if (at % LINE != 0)
        return;
    UNROLL
    for (uint32_t i = 0; i < 8; i++)
        _mm_prefetch(rows[i] + at, _MM_HINT_T0);
}

/* 8 lanes of 8 rows from byte at on, transposed: element i of row j -> lane j of r[i]. */
INLINE void transposed(const uint8_t *const rows[8], size_t at, __m256 r[8])
{
    UNROLL
    for (uint32_t i = 0; i < 8; i++)
        r[i] = _mm256_loadu_ps((const float *)(const void *)(rows[i] + at));
    transpose_floats(r);
}

/* The odd (or even) elements of a vector of pairs of bfloat16. */
INLINE __m256 of_pairs(uint32_t odd, __m256 pairs)
{
    __m256i x = _mm256_castps_si256(pairs);
    return _mm256_castsi256_ps(odd ? _mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000u))
                                   : _mm256_slli_epi32(x, 16));
}

/* 8 positions of K to columns [0, 8) of k, [width][BLK]; next are 8 rows to ask for. */
INLINE void transpose_k(enum sl_dtype type, const uint8_t *const rows[8], const uint8_t *const next[8],
                        uint32_t width, float *k)
{
    if (type == SL_F32) {
        for (uint32_t d = 0; d < width; d += 8) {
            __m256 r[8];
            prefetch_rows(next, 4 * (size_t)d);
            transposed(rows, 4 * (size_t)d, r);
            UNROLL
            for (uint32_t i = 0; i < 8; i++)
                _mm256_store_ps(k + (size_t)(d + i) * BLK, r[i]);
        }
        return;
    }
    if (type == SL_BF16) {
        for (uint32_t d = 0; d < width; d += 16) {
            __m256 r[8];
            prefetch_rows(next, 2 * (size_t)d);
            transposed(rows, 2 * (size_t)d, r);
            UNROLL
            for (uint32_t i = 0; i < 8; i++) {
                _mm256_store_ps(k + (size_t)(d + 2 * i) * BLK, of_pairs(0, r[i]));
                _mm256_store_ps(k + (size_t)(d + 2 * i + 1) * BLK, of_pairs(1, r[i]));
            }
        }
        return;
    }
    for (uint32_t d = 0; d < width; d += 16) {
        __m256i r[8];
        prefetch_rows(next, 2 * (size_t)d);
        UNROLL
        for (uint32_t i = 0; i < 8; i++)
            r[i] = _mm256_loadu_si256((const __m256i *)(const void *)(rows[i] + 2 * (size_t)d));
        transpose_halves(r);
        UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            _mm256_store_ps(k + (size_t)(d + i) * BLK, to_floats(type, _mm256_castsi256_si128(r[i])));
            _mm256_store_ps(k + (size_t)(d + 8 + i) * BLK,
                            to_floats(type, _mm256_extracti128_si256(r[i], 1)));
        }
    }
}

/* 8 positions of bfloat16 K to columns [0, 8) of k, [width / 2][HALF_BLK] pairs. */
INLINE void transpose_pairs(const uint8_t *const rows[8], const uint8_t *const next[8], uint32_t width,
                            float *k)
{
    for (uint32_t d = 0; d < width; d += 16) {
        __m256 r[8];
        prefetch_rows(next, 2 * (size_t)d);
        transposed(rows, 2 * (size_t)d, r);
        UNROLL
        for (uint32_t i = 0; i < 8; i++)
            _mm256_store_ps(k + (size_t)(d / 2 + i) * HALF_BLK, r[i]);
    }
}

/* 8 elements from element i on. */
INLINE __m256 load_vector(enum sl_dtype type, const uint8_t *row, uint32_t i)
{
    if (type == SL_F32)
        return _mm256_loadu_ps((const float *)(const void *)row + i);
    return to_floats(type, _mm_loadu_si128((const __m128i *)(const void *)(row + 2 * (size_t)i)));
}

/* Which of two comes when: (0, 1), for bfloat16 (1, 0). */
INLINE uint32_t nth(enum sl_dtype type, uint32_t i)
{
    return type == SL_BF16 ? 1 - i : i;
}

/* sums[i][j] += f[i * stride] * y[j] for rows rows. */
INLINE void add_products(uint32_t rows, uint32_t vectors, const float *f, size_t stride, const __m256 y[4],
                         __m256 sums[ROWS][4])
{
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        __m256 factor = _mm256_set1_ps(f[i * stride]);
        UNROLL
        for (uint32_t j = 0; j < vectors; j++)
            sums[i][j] = _mm256_fmadd_ps(factor, y[j], sums[i][j]);
    }
}

INLINE void load_factors(uint32_t rows, const float *f, size_t stride, __m256 to[FEW])
{
    UNROLL
    for (uint32_t i = 0; i < rows; i++)
        to[i] = _mm256_set1_ps(f[i * stride]);
}

/* sums[i][j] += f[i] * y: of few rows the factors are kept, and one vector at a time. */
INLINE void add_vector(uint32_t rows, const __m256 f[FEW], __m256 y, uint32_t j, __m256 sums[ROWS][4])
{
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        sums[i][j] = _mm256_fmadd_ps(f[i], y, sums[i][j]);
        IN_TURN(sums[i][j]);
    }
}

static const _Alignas(32) uint32_t odd_mask[8] = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
                                                  0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};

/* How K lies in scratch: [width][BLK], or as transpose_pairs() puts it. */
enum form { FLOATS, PAIRS };

/* Vector j of dimension `at` of the two that k points to. */
INLINE __m256 key_at(enum form form, const float *k, uint32_t at, uint32_t j)
{
    if (form == FLOATS)
        return _mm256_load_ps(k + at * BLK + 8 * j);
    __m256 y = _mm256_load_ps(k + 8 * j);
    if (at == 0)
        return of_pairs(0, y);
    /* 12 sums, 3 factors and y fill the registers: the mask is to stay in memory */
    __asm__("vandps %1, %0, %0" : "+x"(y) : "m"(odd_mask));
    return y;
}

/* Scores of rows [r, r + rows) at positions [8 v, 8 (v + vectors)) of the block, whose K starts at k. */
INLINE void score_tile(enum sl_dtype type, enum form form, uint32_t rows, uint32_t vectors,
                       const struct sl_attn_scratch *s, uint32_t r, uint32_t hd, uint32_t v, const float *k)
{
    uint32_t width = sl_attn_width(hd);
    const float *q = s->q + (size_t)r * width;
    __m256 x[ROWS][4];
    UNROLL
    for (uint32_t i = 0; i < rows; i++)
        x[i][0] = x[i][1] = x[i][2] = x[i][3] = _mm256_setzero_ps();
    for (uint32_t d = 0; d < hd; d += 2, k += form == PAIRS ? HALF_BLK : 2 * BLK) {
        UNROLL
        for (uint32_t e = 0; e < 2; e++) {
            uint32_t at = nth(type, e);
            __m256 y[4], f[FEW];
            if (rows <= FEW)
                load_factors(rows, q + d + at, width, f);
            UNROLL
            for (uint32_t j = 0; j < vectors; j++) {
                y[j] = key_at(form, k, at, j);
                if (rows <= FEW)
                    add_vector(rows, f, y[j], j, x);
            }
            if (rows > FEW)
                add_products(rows, vectors, q + d + at, width, y, x);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        UNROLL
        for (uint32_t j = 0; j < vectors; j++)
            _mm256_store_ps(s->s + (size_t)(r + i) * BLK + 8 * (v + j), x[i][j]);
    }
}

/* Where V of the block is. */
enum where { IN_SCRATCH, IN_PAGES };

struct values {
    const uint8_t *const *rows, *const *next; /* in pages; next: to be asked for */
    const float *scratch;
    uint32_t width;
};

/* Vector c of V of position i. */
INLINE __m256 value_at(enum where where, enum sl_dtype type, const struct values *v, uint32_t i, uint32_t c)
{
    if (where == IN_PAGES)
        return load_vector(type, v->rows[i], 8 * c);
    return _mm256_load_ps(v->scratch + (size_t)i * v->width + 8 * c);
}

/* Asks for vectors [c, c + vectors) of position i of the next block. */
INLINE void prefetch_value(enum sl_dtype type, uint32_t vectors, const struct values *v, uint32_t i,
                           uint32_t c)
{
    const uint32_t bytes = type == SL_F32 ? 32 : 16;
    UNROLL
    for (uint32_t j = 0; j < vectors; j++)
        if ((c + j) * bytes % LINE == 0)
            _mm_prefetch(v->next[i] + (size_t)(c + j) * bytes, _MM_HINT_T0);
}

/* One position for one row. */
INLINE void add_position(enum where where, enum sl_dtype type, uint32_t vectors, float p,
                         const struct values *v, uint32_t i, uint32_t c, __m256 a[4])
{
    UNROLL
    for (uint32_t j = 0; j < vectors; j++)
        a[j] = _mm256_fmadd_ps(_mm256_set1_ps(p), value_at(where, type, v, i, c + j), a[j]);
}

/* The positions from i on for one row that sees n of them; of pairs i is even, and a partner from n on counts
 * as zero times zero. */
INLINE void value_rest(enum where where, enum sl_dtype type, uint32_t vectors, const float *p,
                       const struct values *v, uint32_t c, uint32_t i, uint32_t n, __m256 a[4])
{
    for (; i + 2 <= n; i += 2) {
        UNROLL
        for (uint32_t e = 0; e < 2; e++)
            add_position(where, type, vectors, p[i + nth(type, e)], v, i + nth(type, e), c, a);
    }
    if (i == n)
        return;
    UNROLL
    for (uint32_t j = 0; type == SL_BF16 && j < vectors; j++)
        a[j] = _mm256_add_ps(a[j], _mm256_setzero_ps());
    add_position(where, type, vectors, p[i], v, i, c, a);
}

/* Vectors [c, c + vectors) of acc of rows [r, r + rows); row i sees positions [first, n[i]), the first of
 * them least. With a first that is not 0 there is one row: no factor 0 stands for what a window leaves out.
 */
INLINE void value_tile(enum where where, enum sl_dtype type, uint32_t rows, uint32_t vectors,
                       const struct sl_attn_scratch *s, const struct values *v, uint32_t r, uint32_t first,
                       const uint32_t *n, uint32_t c)
{
    uint32_t width = v->width, common = n[0] / 2 * 2, from = (first + 1) / 2 * 2;
    const float *p = s->s + (size_t)r * BLK;
    float *acc = s->acc + (size_t)r * width + 8 * c;
    __m256 a[ROWS][4];
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        UNROLL
        for (uint32_t j = 0; j < vectors; j++)
            a[i][j] = _mm256_load_ps(acc + (size_t)i * width + 8 * j);
    }
    if (rows == 1 && first % 2) {
        add_position(where, type, vectors, p[first], v, first, c, a[0]);
        UNROLL
        for (uint32_t j = 0; type == SL_BF16 && j < vectors; j++)
            a[0][j] =
                _mm256_add_ps(a[0][j], _mm256_setzero_ps()); /* its partner in the pair, zero times zero */
    }
    for (uint32_t k = from; k < common; k += 2) {
        UNROLL
        for (uint32_t e = 0; e < 2; e++) {
            uint32_t at = k + nth(type, e);
            __m256 y[4], f[FEW];
            __asm__ volatile("" ::: "memory"); /* loaded ahead, factors would spill */
            if (where == IN_PAGES)
                prefetch_value(type, vectors, v, at, c);
            if (rows <= FEW)
                load_factors(rows, p + at, BLK, f);
            UNROLL
            for (uint32_t j = 0; j < vectors; j++) {
                y[j] = value_at(where, type, v, at, c + j);
                if (rows <= FEW)
                    add_vector(rows, f, y[j], j, a);
            }
            if (rows > FEW)
                add_products(rows, vectors, p + at, BLK, y, a);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        value_rest(where, type, vectors, p + (size_t)i * BLK, v, c, common > from ? common : from, n[i],
                   a[i]);
        UNROLL
        for (uint32_t j = 0; j < vectors; j++)
            _mm256_store_ps(acc + (size_t)i * width + 8 * j, a[i][j]);
    }
}

/* Vectors that so many rows take at a time. */
INLINE uint32_t vectors_of(uint32_t rows)
{
    return rows > NARROW ? 2 : 4;
}

/* Scores at positions [8 v, end of the block or of K in scratch). */
INLINE void score_rows(enum sl_dtype type, enum form form, uint32_t rows, const struct sl_attn_scratch *s,
                       uint32_t r, uint32_t hd, uint32_t v, uint32_t n)
{
    const uint32_t vectors = vectors_of(rows);
    for (uint32_t i = 0; 8 * i < n; i += vectors)
        score_tile(type, form, rows, vectors, s, r, hd, v + i, s->k + 8 * i);
}

INLINE void value_rows(enum where where, enum sl_dtype type, uint32_t rows, const struct sl_attn_scratch *s,
                       const struct values *v, uint32_t r, uint32_t first, const uint32_t *n)
{
    uint32_t c = 0, end = v->width / 8; /* an even number */
    for (; vectors_of(rows) == 4 && c + 4 <= end; c += 4)
        value_tile(where, type, rows, 4, s, v, r, first, n, c);
    for (; c < end; c += 2)
        value_tile(where, type, rows, 2, s, v, r, first, n, c);
}

/* Scores of the rows [r, end), by ROWS, then NARROW, then one. */
INLINE void many_scores(enum sl_dtype type, const struct sl_attn_scratch *s, uint32_t r, uint32_t end,
                        uint32_t hd, const struct sl_attn_block *b, const struct sl_attn_block *next)
{
    for (uint32_t i = 0; i < b->n; i += 8)
        transpose_k(type, b->k + i, next->k + i, sl_attn_width(hd), s->k + i);
    for (; r + ROWS <= end; r += ROWS)
        score_rows(type, FLOATS, ROWS, s, r, hd, 0, b->n);
    for (; r + NARROW <= end; r += NARROW)
        score_rows(type, FLOATS, NARROW, s, r, hd, 0, b->n);
    for (; r < end; r++)
        score_rows(type, FLOATS, 1, s, r, hd, 0, b->n);
}

INLINE void many_values(enum sl_dtype type, const struct sl_attn_scratch *s, const struct values *v,
                        uint32_t r, uint32_t end, uint32_t n_block, const uint32_t *n)
{
    for (uint32_t i = 0; i < n_block; i++)
        for (uint32_t c = 0; c < v->width / 8; c++) {
            prefetch_value(type, 1, v, i, c);
            _mm256_store_ps(s->v + (size_t)i * v->width + 8 * (size_t)c,
                            load_vector(type, v->rows[i], 8 * c));
        }
    for (; r + ROWS <= end; r += ROWS)
        value_rows(IN_SCRATCH, type, ROWS, s, v, r, 0, n + r);
    for (; r + NARROW <= end; r += NARROW)
        value_rows(IN_SCRATCH, type, NARROW, s, v, r, 0, n + r);
    for (; r < end; r++)
        value_rows(IN_SCRATCH, type, 1, s, v, r, 0, n + r);
}

INLINE void few_scores(enum sl_dtype type, uint32_t rows, const struct sl_attn_scratch *s, uint32_t r,
                       uint32_t hd, const struct sl_attn_block *b, const struct sl_attn_block *next)
{
    for (uint32_t i = 0; i < b->n; i += HALF_BLK) {
        for (uint32_t j = 0; j < HALF_BLK; j += 8) {
            if (type == SL_BF16)
                transpose_pairs(b->k + i + j, next->k + i + j, sl_attn_width(hd), s->k + j);
            else
                transpose_k(type, b->k + i + j, next->k + i + j, sl_attn_width(hd), s->k + j);
        }
        score_rows(type, type == SL_BF16 ? PAIRS : FLOATS, rows, s, r, hd, i / 8, HALF_BLK);
    }
}

/* Scores of the rows [r, end) of a tile. */
INLINE void scores(enum sl_dtype type, const struct sl_attn_scratch *s, uint32_t r, uint32_t end, uint32_t hd,
                   const struct sl_attn_block *b, const struct sl_attn_block *next)
{
    switch (end - r) {
    case 1:
        few_scores(type, 1, s, r, hd, b, next);
        return;
    case 2:
        few_scores(type, 2, s, r, hd, b, next);
        return;
    case 3:
        few_scores(type, 3, s, r, hd, b, next);
        return;
    case FEW:
        few_scores(type, FEW, s, r, hd, b, next);
        return;
    default:
        many_scores(type, s, r, end, hd, b, next);
    }
}

/* What V adds to acc of the rows [r, end). */
INLINE void values(enum sl_dtype type, const struct sl_attn_scratch *s, uint32_t r, uint32_t end, uint32_t hd,
                   const struct sl_attn_block *b, const struct sl_attn_block *next,
                   const struct sl_attn_seen *seen)
{
    const struct values v = {b->v, next->v, s->v, sl_attn_width(hd)};
    const uint32_t *n = seen->n;
    for (; end > r && seen->first[end - 1] > 0; end--) /* the window begins inside of the block */
        value_rows(IN_PAGES, type, 1, s, &v, end - 1, seen->first[end - 1], n + end - 1);
    switch (end - r) {
    case 0:
        return;
    case 1:
        value_rows(IN_PAGES, type, 1, s, &v, r, 0, n + r);
        return;
    case 2:
        value_rows(IN_PAGES, type, 2, s, &v, r, 0, n + r);
        return;
    case 3:
        value_rows(IN_PAGES, type, 3, s, &v, r, 0, n + r);
        return;
    case FEW:
        value_rows(IN_PAGES, type, FEW, s, &v, r, 0, n + r);
        return;
    default:
        many_values(type, s, &v, r, end, b->n, n);
    }
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
        __m256 t = _mm256_sub_ps(v[c], _mm256_set1_ps(m));
        v[c] = bf16 ? round_bf16(sl_v8_exp2_coarse(t)) : sl_v8_exp2(t);
        v[c] = _mm256_and_ps(v[c], between(8 * c, first, n));
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

static __attribute__((noinline)) void scores_bf16(const struct sl_attn_scratch *s, uint32_t r, uint32_t end,
                                                  uint32_t hd, const struct sl_attn_block *b,
                                                  const struct sl_attn_block *next)
{
    scores(SL_BF16, s, r, end, hd, b, next);
}

static __attribute__((noinline)) void values_bf16(const struct sl_attn_scratch *s, uint32_t r, uint32_t end,
                                                  uint32_t hd, const struct sl_attn_block *b,
                                                  const struct sl_attn_block *next,
                                                  const struct sl_attn_seen *seen)
{
    values(SL_BF16, s, r, end, hd, b, next, seen);
}

static void attend_bf16(const struct sl_attn_scratch *s, uint32_t r, uint32_t end, uint32_t hd,
                        const struct sl_attn_seen *seen, const struct sl_attn_block *b,
                        const struct sl_attn_block *next)
{
    uint32_t mode = _mm_getcsr();
    _mm_setcsr(mode | FLUSH_SUBNORMALS);
    scores_bf16(s, r, end, hd, b, next);
    _mm_setcsr(mode);
    softmax_rows(s, r, end, seen, hd, 1);
    _mm_setcsr(mode | FLUSH_SUBNORMALS);
    values_bf16(s, r, end, hd, b, next, seen);
    _mm_setcsr(mode);
}

static void attend_f16(const struct sl_attn_scratch *s, uint32_t r, uint32_t end, uint32_t hd,
                       const struct sl_attn_seen *seen, const struct sl_attn_block *b,
                       const struct sl_attn_block *next)
{
    scores(SL_F16, s, r, end, hd, b, next);
    softmax_rows(s, r, end, seen, hd, 0);
    values(SL_F16, s, r, end, hd, b, next, seen);
}

static void attend_f32(const struct sl_attn_scratch *s, uint32_t r, uint32_t end, uint32_t hd,
                       const struct sl_attn_seen *seen, const struct sl_attn_block *b,
                       const struct sl_attn_block *next)
{
    scores(SL_F32, s, r, end, hd, b, next);
    softmax_rows(s, r, end, seen, hd, 0);
    values(SL_F32, s, r, end, hd, b, next, seen);
}

/* The block with its rows copied to scratch, for a head_dim that is no multiple of 16: the inner loops take
 * whole vectors. What they read behind head_dim is never looked at. */
static void widen_rows(const struct sl_attn_scratch *s, uint32_t token_bytes, const struct sl_attn_block *b,
                       struct sl_attn_block *wide)
{
    uint32_t row = (token_bytes + 63) / 64 * 64;
    uint8_t *to = (uint8_t *)s->wide;
    wide->n = b->n;
    for (uint32_t i = 0; i < BLK; i++, to += 2 * (size_t)row) {
        wide->k[i] = memcpy(to, b->k[i], token_bytes);
        wide->v[i] = memcpy(to + row, b->v[i], token_bytes);
    }
}

/* A row of SL_FP8 as bfloat16, in whole vectors. */
static void widen_fp8(const uint8_t *from, const uint8_t *scale, uint32_t hd, uint16_t *to)
{
    const __m256 worth = _mm256_set1_ps(sl_fp8_scale(scale) * 0x1p8f);
    for (uint32_t i = 0; i < hd; i += 16) {
        uint8_t rest[16] = {0};
        const uint8_t *p = hd - i < 16 ? memcpy(rest, from + i, hd - i) : from + i;
        /* float16 of 2^-8 the size: the sign in place, 7 bits behind a zero */
        __m256i h = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
        h = _mm256_and_si256(_mm256_slli_epi16(h, 7), _mm256_set1_epi16((int16_t)0xbfff));
        __m256 low = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(h)), worth);
        __m256 high = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)), worth);
        __m256i both = _mm256_packus_epi32(_mm256_srli_epi32(_mm256_castps_si256(low), 16),
                                           _mm256_srli_epi32(_mm256_castps_si256(high), 16));
        _mm256_store_si256((__m256i *)(void *)(to + i), _mm256_permute4x64_epi64(both, 0xd8));
    }
}

/* The block with its rows as bfloat16 in scratch. */
static void widen_block(const struct sl_attn_scratch *s, uint32_t hd, const struct sl_attn_block *b,
                        struct sl_attn_block *wide)
{
    uint16_t *to = (uint16_t *)(void *)s->wide;
    uint32_t width = sl_attn_width(hd);
    wide->n = b->n;
    for (uint32_t i = 0; i < BLK; i++, to += 2 * (size_t)width) {
        if (i < b->n) {
            widen_fp8(b->k[i], b->k_scale[i], hd, to);
            widen_fp8(b->v[i], b->v_scale[i], hd, to + width);
        }
        wide->k[i] = i < b->n ? (const uint8_t *)to : wide->k[b->n - 1];
        wide->v[i] = i < b->n ? (const uint8_t *)(to + width) : wide->v[b->n - 1];
    }
}

static void attend_block(const struct sl_attn_tile *t, const struct sl_attn_scratch *s, uint32_t r,
                         uint32_t end, const struct sl_attn_seen *seen, const struct sl_attn_block *b,
                         const struct sl_attn_block *next)
{
    uint32_t hd = t->shape->head_dim;
    struct sl_attn_block wide;
    if (t->kv->g.dtype == SL_FP8) {
        widen_block(s, hd, b, &wide);
        b = &wide;
    } else if (hd % 16 != 0 && t->kv->g.dtype != SL_Q8) {
        widen_rows(s, (uint32_t)t->kv->token_bytes, b, &wide);
        b = &wide;
    }
    switch (sl_attn_type(t->kv)) {
    case SL_Q8:
        sl_avx2_q8_block(s, r, end, hd, seen, b, next);
        return;
    case SL_BF16:
        attend_bf16(s, r, end, hd, seen, b, next);
        return;
    case SL_F16:
        attend_f16(s, r, end, hd, seen, b, next);
        return;
    default:
        attend_f32(s, r, end, hd, seen, b, next);
    }
}

static void load_query(const float *q, uint32_t hd, float scale, enum sl_dtype type,
                       const struct sl_attn_scratch *s, uint32_t r)
{
    float *to = s->q + (size_t)r * sl_attn_width(hd);
    uint32_t i = 0;
    if (type == SL_Q8) {
        sl_avx2_q8_query(q, hd, scale, s, r);
        return;
    }
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
