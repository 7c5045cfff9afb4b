/* kernels/cpu/attention_avx512.c - attention over pages on 16 lanes; arithmetic: cpu_attention.c, the bits of
 * attention_portable.c.
 *
 * A block of K is brought to float32 once per tile, transposed, so that lanes are positions and a score is
 * summed over head_dim in one lane; V keeps its rows, lanes are head_dim. All scores of the tile come first,
 * then all products with V: each of the two blocks then has the nearest cache for itself. Rows go through
 * registers ROWS at a time. A tile that fits them at once (a decode row and its group) uses K and V straight
 * from the conversion, without the way through scratch. */
#include <immintrin.h>

#include "kernels/cpu/isa_avx512.h"
#include "kernels/cpu/vmath_avx512.h"

#define BLK    SL_ATTN_BLOCK
#define ROWS   6 /* x 4 vectors of sums: 24 registers, 4 for K or V, the rest for a factor */
#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

static inline __mmask16 lanes(uint32_t i, uint32_t n)
{
    return i >= n ? 0 : n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
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

/* The low (odd = 0) or high 16 bits of each lane as float32. */
INLINE __m512 half_lanes(enum sl_dtype type, __m512i pairs, int odd)
{
    if (type == SL_BF16)
        return _mm512_castsi512_ps(odd ? _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u))
                                       : _mm512_slli_epi32(pairs, 16));
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(odd ? _mm512_srli_epi32(pairs, 16) : pairs));
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

/* 16 positions of K to columns [0, 16) of k. 32-bit words are transposed: pairs of 16-bit elements are taken
 * apart afterwards. */
INLINE void transpose_k(enum sl_dtype type, const uint8_t *const rows[16], uint32_t hd, float *k)
{
    uint32_t words = type == SL_F32 ? hd : hd / 2;
    for (uint32_t w = 0; w < words; w += 16) {
        __m512i r[16];
        load_transposed(rows, w, words, r);
        UNROLL
        for (uint32_t i = 0; i < 16; i++) {
            if (w + i >= words)
                break;
            if (type == SL_F32) {
                _mm512_store_ps(k + (size_t)(w + i) * BLK, _mm512_castsi512_ps(r[i]));
            } else {
                _mm512_store_ps(k + (size_t)(2 * (w + i)) * BLK, half_lanes(type, r[i], 0));
                _mm512_store_ps(k + (size_t)(2 * (w + i) + 1) * BLK, half_lanes(type, r[i], 1));
            }
        }
    }
}

/* Addresses of the n positions from pos on; the rest of the block repeats the last, so that it may be read.
 */
static void block_rows(const struct sl_attn_tile *t, uint32_t which, uint32_t pos, uint32_t n,
                       const uint8_t *rows[BLK])
{
    uint32_t page_tokens = t->kv->g.page_tokens;
    for (uint32_t i = 0; i < n;) {
        uint32_t left = page_tokens - (pos + i) % page_tokens;
        const uint8_t *at = sl_kv_at(t->kv, t->run, t->layer, which, t->kv_head, pos + i);
        for (; left > 0 && i < n; left--, i++, at += t->kv->token_bytes)
            rows[i] = at;
    }
    for (uint32_t i = n; i < BLK; i++)
        rows[i] = rows[n - 1];
}

/* Asks for the block behind this one while it is computed: a page's strips are short, and no hardware
 * prefetcher sees from one to the next. Positions from stop on are not touched. */
static void prefetch(const struct sl_attn_tile *t, uint32_t which, uint32_t pos, uint32_t stop)
{
    uint32_t page_tokens = t->kv->g.page_tokens, end = stop - pos < BLK ? stop : pos + BLK;
    while (pos < end) {
        uint32_t left = page_tokens - pos % page_tokens, n = left < end - pos ? left : end - pos;
        const uint8_t *at = sl_kv_at(t->kv, t->run, t->layer, which, t->kv_head, pos);
        for (size_t i = 0; i < n * t->kv->token_bytes; i += 64)
            _mm_prefetch(at + i, _MM_HINT_T1);
        pos += n;
    }
}

static void load_k(const struct sl_attn_tile *t, const struct sl_attn_scratch *s, uint32_t pos, uint32_t n)
{
    const uint8_t *rows[BLK];
    uint32_t hd = t->shape->head_dim;
    block_rows(t, 0, pos, n, rows);
    for (uint32_t i = 0; i < n; i += 16) {
        if (t->kv->g.dtype == SL_F16)
            transpose_k(SL_F16, rows + i, hd, s->k + i);
        else if (t->kv->g.dtype == SL_BF16)
            transpose_k(SL_BF16, rows + i, hd, s->k + i);
        else
            transpose_k(SL_F32, rows + i, hd, s->k + i);
    }
}

/* Elements [i, i + 16) of a row in the KV dtype, those below hd. */
INLINE __m512 convert16(enum sl_dtype type, const uint8_t *row, uint32_t i, uint32_t hd)
{
    __mmask16 mask = lanes(i, hd);
    if (type == SL_F32)
        return _mm512_maskz_loadu_ps(mask, row + (size_t)i * 4);
    __m256i h = _mm256_maskz_loadu_epi16(mask, row + (size_t)i * 2);
    return type == SL_F16 ? _mm512_cvtph_ps(h)
                          : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

INLINE void convert_row(enum sl_dtype type, const uint8_t *from, uint32_t hd, float *to)
{
    for (uint32_t i = 0; i < hd; i += 16)
        _mm512_store_ps(to + i, convert16(type, from, i, hd));
}

static void load_v(const struct sl_attn_tile *t, const struct sl_attn_scratch *s, uint32_t pos, uint32_t n)
{
    const uint8_t *rows[BLK];
    uint32_t hd = t->shape->head_dim, width = sl_attn_width(hd);
    block_rows(t, 1, pos, n, rows);
    for (uint32_t i = 0; i < n; i++) {
        if (t->kv->g.dtype == SL_F16)
            convert_row(SL_F16, rows[i], hd, s->v + (size_t)i * width);
        else if (t->kv->g.dtype == SL_BF16)
            convert_row(SL_BF16, rows[i], hd, s->v + (size_t)i * width);
        else
            convert_row(SL_F32, rows[i], hd, s->v + (size_t)i * width);
    }
}

static void load_queries(const struct sl_attn_tile *t, const struct sl_attn_scratch *s)
{
    uint32_t hd = t->shape->head_dim, width = sl_attn_width(hd);
    __m512 scale = _mm512_set1_ps(SL_LOG2E / sqrtf((float)hd));
    for (uint32_t j = t->j0; j < t->j1; j++) {
        const float *q = t->qkv + (t->run->first_row + j / t->group) * t->qkv_stride +
                         (size_t)(t->kv_head * t->group + j % t->group) * hd;
        float *to = s->q + (size_t)(j - t->j0) * width;
        for (uint32_t i = 0; i < hd; i += 16)
            _mm512_store_ps(to + i, _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes(i, hd), q + i), scale));
    }
}

/* Softmax of one row's 64 scores x against the first n positions: p to s->s, and m, l, keep of row r. */
INLINE void softmax_row(const struct sl_attn_scratch *s, uint32_t r, uint32_t n, const __m512 x[4])
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 v[4];
    UNROLL
    for (uint32_t c = 0; c < 4; c++)
        v[c] = _mm512_mask_mov_ps(none, lanes(16 * c, n), x[c]);
    float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(v[0], v[1]), _mm512_max_ps(v[2], v[3])));
    float m = most > s->m[r] ? most : s->m[r];
    UNROLL
    for (uint32_t c = 0; c < 4; c++) {
        v[c] = _mm512_maskz_mov_ps(lanes(16 * c, n), sl_v_exp2(_mm512_sub_ps(v[c], _mm512_set1_ps(m))));
        _mm512_store_ps(s->s + (size_t)r * BLK + 16 * c, v[c]);
    }
    float keep = sl_exp2(s->m[r] - m);
    float sum = sl_v_sum(_mm512_add_ps(_mm512_add_ps(v[0], v[1]), _mm512_add_ps(v[2], v[3])));
    s->l[r] = fmaf(s->l[r], keep, sum);
    s->m[r] = m;
    s->keep[r] = keep;
}

/* Scores and softmax of rows [r, r + rows); row r + i sees the first n[i] positions of the block. */
INLINE void score_rows(uint32_t rows, const struct sl_attn_scratch *s, uint32_t r, const uint32_t *n,
                       uint32_t hd)
{
    const float *q = s->q + (size_t)r * sl_attn_width(hd), *k = s->k;
    uint32_t width = sl_attn_width(hd);
    __m512 x[ROWS][4];
    UNROLL
    for (uint32_t i = 0; i < rows; i++)
        x[i][0] = x[i][1] = x[i][2] = x[i][3] = _mm512_setzero_ps();
    for (uint32_t d = 0; d < hd; d++, k += BLK) {
        __m512 k0 = _mm512_load_ps(k), k1 = _mm512_load_ps(k + 16), k2 = _mm512_load_ps(k + 32),
               k3 = _mm512_load_ps(k + 48);
        UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            __m512 f = _mm512_set1_ps(q[(size_t)i * width + d]);
            x[i][0] = _mm512_fmadd_ps(f, k0, x[i][0]);
            x[i][1] = _mm512_fmadd_ps(f, k1, x[i][1]);
            x[i][2] = _mm512_fmadd_ps(f, k2, x[i][2]);
            x[i][3] = _mm512_fmadd_ps(f, k3, x[i][3]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < rows; i++)
        softmax_row(s, r + i, n[i], x[i]);
}

/* cols vectors of acc of rows [r, r + rows) from vector c on. */
INLINE void value_rows(uint32_t rows, uint32_t cols, const struct sl_attn_scratch *s, uint32_t r,
                       const uint32_t *n, uint32_t hd, uint32_t c)
{
    uint32_t width = sl_attn_width(hd), common = n[0];
    float *acc = s->acc + (size_t)r * width + 16 * c;
    const float *p = s->s + (size_t)r * BLK, *v = s->v + 16 * c;
    __m512 a[ROWS][4];
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        __m512 keep = _mm512_set1_ps(s->keep[r + i]);
        UNROLL
        for (uint32_t j = 0; j < cols; j++)
            a[i][j] = _mm512_mul_ps(_mm512_load_ps(acc + (size_t)i * width + 16 * j), keep);
    }
    /* rows are in the order of positions: the first sees least */
    for (uint32_t k = 0; k < common; k++, v += width) {
        __m512 x[4];
        UNROLL
        for (uint32_t j = 0; j < cols; j++)
            x[j] = _mm512_load_ps(v + 16 * j);
        UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            __m512 f = _mm512_set1_ps(p[(size_t)i * BLK + k]);
            UNROLL
            for (uint32_t j = 0; j < cols; j++)
                a[i][j] = _mm512_fmadd_ps(f, x[j], a[i][j]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        const float *at = v;
        for (uint32_t k = common; k < n[i]; k++, at += width) {
            __m512 f = _mm512_set1_ps(p[(size_t)i * BLK + k]);
            UNROLL
            for (uint32_t j = 0; j < cols; j++)
                a[i][j] = _mm512_fmadd_ps(f, _mm512_load_ps(at + 16 * j), a[i][j]);
        }
        UNROLL
        for (uint32_t j = 0; j < cols; j++)
            _mm512_store_ps(acc + (size_t)i * width + 16 * j, a[i][j]);
    }
}

INLINE void value_columns(uint32_t rows, const struct sl_attn_scratch *s, uint32_t r, const uint32_t *n,
                          uint32_t hd)
{
    uint32_t vectors = sl_attn_width(hd) / 16, c = 0;
    for (; c + 4 <= vectors; c += 4)
        value_rows(rows, 4, s, r, n, hd, c);
    if (vectors - c >= 2) {
        value_rows(rows, 2, s, r, n, hd, c);
        c += 2;
    }
    if (c < vectors)
        value_rows(rows, 1, s, r, n, hd, c);
}

static void score_some(const struct sl_attn_scratch *s, uint32_t rows, uint32_t r, const uint32_t *n,
                       uint32_t hd)
{
    switch (rows) {
    case 1:
        score_rows(1, s, r, n, hd);
        return;
    case 2:
        score_rows(2, s, r, n, hd);
        return;
    case 3:
        score_rows(3, s, r, n, hd);
        return;
    case 4:
        score_rows(4, s, r, n, hd);
        return;
    case 5:
        score_rows(5, s, r, n, hd);
        return;
    default:
        score_rows(6, s, r, n, hd);
    }
}

static void value_some(const struct sl_attn_scratch *s, uint32_t rows, uint32_t r, const uint32_t *n,
                       uint32_t hd)
{
    switch (rows) {
    case 1:
        value_columns(1, s, r, n, hd);
        return;
    case 2:
        value_columns(2, s, r, n, hd);
        return;
    case 3:
        value_columns(3, s, r, n, hd);
        return;
    case 4:
        value_columns(4, s, r, n, hd);
        return;
    case 5:
        value_columns(5, s, r, n, hd);
        return;
    default:
        value_columns(6, s, r, n, hd);
    }
}

/* Addresses of the positions of a block in the pages. */
struct block {
    uint32_t n; /* positions; the addresses behind repeat the last */
    const uint8_t *k[BLK], *v[BLK];
};

/* Scores and softmax of a tile of rows <= ROWS rows, from K as it lies in the pages. The next block is asked
 * for line by line: in one go the requests would fill the core's miss buffers and hold up the loads behind
 * them. */
INLINE void score_direct(enum sl_dtype type, uint32_t rows, const struct sl_attn_scratch *s,
                         const struct block *b, const struct block *next, uint32_t hd)
{
    uint32_t words = type == SL_F32 ? hd : hd / 2, width = sl_attn_width(hd);
    for (uint32_t g = 0; g < b->n; g += 16) {
        __m512 x[ROWS];
        UNROLL
        for (uint32_t i = 0; i < rows; i++)
            x[i] = _mm512_setzero_ps();
        for (uint32_t w = 0; w < words; w += 16) {
            __m512i r[16];
            load_transposed(b->k + g, w, words, r);
            UNROLL
            for (uint32_t j = 0; j < 16; j++) {
                if (w + j >= words)
                    break;
                _mm_prefetch(next->k[g + j] + (size_t)w * 4, _MM_HINT_T1);
                _mm_prefetch(next->v[g + j] + (size_t)w * 4, _MM_HINT_T1);
                const float *q = s->q + (type == SL_F32 ? w + j : 2 * (w + j));
                __m512 k0 = type == SL_F32 ? _mm512_castsi512_ps(r[j]) : half_lanes(type, r[j], 0);
                UNROLL
                for (uint32_t i = 0; i < rows; i++)
                    x[i] = _mm512_fmadd_ps(_mm512_set1_ps(q[(size_t)i * width]), k0, x[i]);
                if (type == SL_F32)
                    continue;
                __m512 k1 = half_lanes(type, r[j], 1);
                UNROLL
                for (uint32_t i = 0; i < rows; i++)
                    x[i] = _mm512_fmadd_ps(_mm512_set1_ps(q[(size_t)i * width + 1]), k1, x[i]);
            }
        }
        UNROLL
        for (uint32_t i = 0; i < rows; i++)
            _mm512_store_ps(s->s + (size_t)i * BLK + g, x[i]);
    }
    for (uint32_t i = 0; i < rows; i++) {
        __m512 x[4];
        UNROLL
        for (uint32_t c = 0; c < 4; c++)
            x[c] = _mm512_load_ps(s->s + (size_t)i * BLK + 16 * c);
        softmax_row(s, i, b->n, x);
    }
}

/* cols vectors of acc from vector c on, from V as it lies in the pages. */
INLINE void value_direct(enum sl_dtype type, uint32_t rows, uint32_t cols, const struct sl_attn_scratch *s,
                         const struct block *b, uint32_t hd, uint32_t c)
{
    uint32_t width = sl_attn_width(hd);
    float *acc = s->acc + 16 * c;
    __m512 a[ROWS][4];
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        UNROLL
        for (uint32_t j = 0; j < cols; j++)
            a[i][j] =
                _mm512_mul_ps(_mm512_load_ps(acc + (size_t)i * width + 16 * j), _mm512_set1_ps(s->keep[i]));
    }
    for (uint32_t k = 0; k < b->n; k++) {
        __m512 x[4];
        UNROLL
        for (uint32_t j = 0; j < cols; j++)
            x[j] = convert16(type, b->v[k], 16 * (c + j), hd);
        UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            __m512 f = _mm512_set1_ps(s->s[(size_t)i * BLK + k]);
            UNROLL
            for (uint32_t j = 0; j < cols; j++)
                a[i][j] = _mm512_fmadd_ps(f, x[j], a[i][j]);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        UNROLL
        for (uint32_t j = 0; j < cols; j++)
            _mm512_store_ps(acc + (size_t)i * width + 16 * j, a[i][j]);
    }
}

INLINE void attend_direct(enum sl_dtype type, uint32_t rows, const struct sl_attn_scratch *s,
                          const struct block *b, const struct block *next, uint32_t hd)
{
    uint32_t vectors = sl_attn_width(hd) / 16, c = 0;
    score_direct(type, rows, s, b, next, hd);
    for (; c + 4 <= vectors; c += 4)
        value_direct(type, rows, 4, s, b, hd, c);
    for (; c < vectors; c++)
        value_direct(type, rows, 1, s, b, hd, c);
}

INLINE void attend_direct_rows(enum sl_dtype type, uint32_t rows, const struct sl_attn_scratch *s,
                               const struct block *b, const struct block *next, uint32_t hd)
{
    switch (rows) {
    case 1:
        attend_direct(type, 1, s, b, next, hd);
        return;
    case 2:
        attend_direct(type, 2, s, b, next, hd);
        return;
    case 3:
        attend_direct(type, 3, s, b, next, hd);
        return;
    case 4:
        attend_direct(type, 4, s, b, next, hd);
        return;
    case 5:
        attend_direct(type, 5, s, b, next, hd);
        return;
    default:
        attend_direct(type, 6, s, b, next, hd);
    }
}

static void find_block(const struct sl_attn_tile *t, uint32_t pos, uint32_t stop, struct block *b)
{
    b->n = stop - pos < BLK ? stop - pos : BLK;
    block_rows(t, 0, pos, b->n, b->k);
    block_rows(t, 1, pos, b->n, b->v);
}

/* A block for the few rows of one token. */
static void attend_block_direct(const struct sl_attn_tile *t, const struct sl_attn_scratch *s,
                                const struct block *b, const struct block *next)
{
    uint32_t rows = t->j1 - t->j0, hd = t->shape->head_dim;
    if (t->kv->g.dtype == SL_F16)
        attend_direct_rows(SL_F16, rows, s, b, next, hd);
    else if (t->kv->g.dtype == SL_BF16)
        attend_direct_rows(SL_BF16, rows, s, b, next, hd);
    else
        attend_direct_rows(SL_F32, rows, s, b, next, hd);
}

/* The blocks of [pos, end) of the positions below stop. */
static void attend_blocks_direct(const struct sl_attn_tile *t, const struct sl_attn_scratch *s, uint32_t pos,
                                 uint32_t end, uint32_t stop)
{
    struct block blocks[2];
    find_block(t, pos, stop, &blocks[0]);
    for (uint32_t i = 0; pos < end; pos += BLK, i ^= 1) {
        int more = pos + BLK < stop;
        if (more)
            find_block(t, pos + BLK, stop, &blocks[i ^ 1]);
        attend_block_direct(t, s, &blocks[i], &blocks[more ? i ^ 1 : i]);
    }
}

/* The block at pos of the positions below stop, for the rows of the tile that reach it: from row first on. */
static void attend_block(const struct sl_attn_tile *t, const struct sl_attn_scratch *s, uint32_t pos,
                         uint32_t stop, uint32_t first)
{
    uint32_t n = stop - pos < BLK ? stop - pos : BLK;
    uint32_t n_rows = t->j1 - t->j0, hd = t->shape->head_dim, limits[SL_ATTN_QROWS];
    for (uint32_t r = first; r < n_rows; r++) {
        uint32_t own = t->run->first_pos + (t->j0 + r) / t->group; /* the row's own position, its last */
        limits[r] = own - pos + 1 < BLK ? own - pos + 1 : BLK;
    }
    load_k(t, s, pos, n);
    if (pos + n < stop)
        prefetch(t, 0, pos + n, stop);
    for (uint32_t r = first; r < n_rows; r += ROWS)
        score_some(s, n_rows - r < ROWS ? n_rows - r : ROWS, r, limits + r, hd);
    load_v(t, s, pos, n);
    if (pos + n < stop)
        prefetch(t, 1, pos + n, stop);
    for (uint32_t r = first; r < n_rows; r += ROWS)
        value_some(s, n_rows - r < ROWS ? n_rows - r : ROWS, r, limits + r, hd);
}

/* The blocks of [pos, end), each for the rows that reach it, row first among them all. */
static void attend_blocks(const struct sl_attn_tile *t, const struct sl_attn_scratch *s, uint32_t pos,
                          uint32_t end, uint32_t stop, uint32_t first)
{
    for (; pos < end; pos += BLK) {
        while (t->run->first_pos + (t->j0 + first) / t->group < pos)
            first++;
        attend_block(t, s, pos, stop, first);
    }
}

void sl_avx512_attn_merge(float *total, float *total_m, float *total_l, const float *acc, float m, float l,
                          uint32_t head_dim)
{
    float most = m > *total_m ? m : *total_m, keep = sl_exp2(*total_m - most), add = sl_exp2(m - most);
    for (uint32_t i = 0; i < head_dim; i += 16) {
        __mmask16 mask = lanes(i, head_dim);
        __m512 old = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, total + i), _mm512_set1_ps(keep));
        __m512 sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, acc + i), _mm512_set1_ps(add), old);
        _mm512_mask_storeu_ps(total + i, mask, sum);
    }
    *total_l = fmaf(l, add, *total_l * keep);
    *total_m = most;
}

void sl_avx512_attn_finish(const float *total, float total_l, uint32_t head_dim, float *out)
{
    __m512 scale = _mm512_set1_ps(1.0f / total_l);
    for (uint32_t i = 0; i < head_dim; i += 16) {
        __mmask16 mask = lanes(i, head_dim);
        _mm512_mask_storeu_ps(out + i, mask, _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, total + i), scale));
    }
}

/* The end of a segment for row r: into the total, or out as a partial. */
static void end_segment(const struct sl_attn_tile *t, const struct sl_attn_scratch *s, uint32_t r)
{
    uint32_t hd = t->shape->head_dim, width = sl_attn_width(hd);
    const float *acc = s->acc + (size_t)r * width;
    if (!t->partial) {
        sl_avx512_attn_merge(s->total + (size_t)r * width, &s->total_m[r], &s->total_l[r], acc, s->m[r],
                             s->l[r], hd);
        return;
    }
    float *to = t->partial + (size_t)r * (hd + 2);
    memcpy(to, acc, hd * sizeof *to);
    to[hd] = s->m[r];
    to[hd + 1] = s->l[r];
}

void sl_avx512_attn_tile(const struct sl_attn_tile *t, const struct sl_attn_scratch *s)
{
    uint32_t hd = t->shape->head_dim, width = sl_attn_width(hd), n_rows = t->j1 - t->j0;
    uint32_t first_pos = t->run->first_pos, last = first_pos + (t->j1 - 1) / t->group;
    uint32_t stop = t->seg1 * SL_ATTN_SEG < last + 1 ? t->seg1 * SL_ATTN_SEG : last + 1;
    int direct =
        n_rows <= ROWS && t->j0 / t->group == (t->j1 - 1) / t->group; /* one token: all rows end at last */
    load_queries(t, s);
    memset(s->total, 0, (size_t)n_rows * width * sizeof *s->total);
    for (uint32_t r = 0; r < n_rows; r++) {
        s->total_m[r] = -INFINITY;
        s->total_l[r] = 0.0f;
    }
    for (uint32_t seg = t->seg0, first = 0; seg < t->seg1; seg++) {
        uint32_t start = seg * SL_ATTN_SEG, end = start + SL_ATTN_SEG < stop ? start + SL_ATTN_SEG : stop;
        memset(s->acc, 0, (size_t)n_rows * width * sizeof *s->acc);
        for (uint32_t r = 0; r < n_rows; r++) {
            s->m[r] = -INFINITY;
            s->l[r] = 0.0f;
        }
        while (first_pos + (t->j0 + first) / t->group < start)
            first++; /* rows that end before this segment */
        if (direct)
            attend_blocks_direct(t, s, start, end, stop);
        else
            attend_blocks(t, s, start, end, stop, first);
        for (uint32_t r = first; r < n_rows; r++)
            end_segment(t, s, r);
    }
    for (uint32_t r = 0; r < n_rows && !t->partial; r++) {
        uint32_t j = t->j0 + r;
        sl_avx512_attn_finish(s->total + (size_t)r * width, s->total_l[r], hd,
                              t->out + (t->run->first_row + j / t->group) * t->out_stride +
                                  (size_t)(t->kv_head * t->group + j % t->group) * hd);
    }
}
