/* kernels/cpu/linear_avx512.c - a packed panel times rows of activations, with vpdpbusd, vdpbf16ps and FMA.
 *
 * Weights are the unsigned operand of vpdpbusd (codes as they are, Q8_0 with 128 added), activations the
 * signed one: the zero point becomes the value at which the integer sum starts.
 *
 * Quantised: a block of 32 elements by 32 columns is unpacked into 16 registers of codes, and all rows of the
 * chunk pass by it: 8 broadcasts of activations feed 16 dot products, a chain of 8 in each half. The float32
 * sums of a row are two registers where there are few rows, and lie in the nearest cache otherwise: loading
 * and storing them is hidden by the dot products, and unpacking is paid once for all rows. What is left
 * beside the dot products is the work in float32 per block: two FMA-class operations in each half of a row,
 * three where there is a minimum.
 *
 * One row waits for memory, and there the hardware's own prefetching does best when it sees one stream in
 * rising addresses from few instructions: a loop over quads that is not unrolled, without prefetches. With
 * more rows weights are prefetched into L2 and then L1.
 *
 * Float types: the sums of TILE rows x 32 columns stay in registers over all of K; weights are prefetched
 * as above.
 *
 * The order of the sums: struct sl_cpu_isa (cpu_dev.h). */
#include <immintrin.h>

#include "kernels/cpu/isa_avx512.h"

#define TILE     8u   /* rows of float types */
#define FEW      4u   /* most rows of quantised types whose sums are kept in registers */
#define AHEAD_L2 8192 /* bytes prefetched into L2: memory's latency at the rate of a streaming thread */
#define AHEAD_L1 2048
#define INLINE   static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("clang loop unroll(disable)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#define ROLLED _Pragma("GCC unroll 1")
#endif

/* Adds bias and what is there, and stores the 16 columns of half h that exist. */
INLINE void store_half(const struct sl_segment *w, uint32_t p, uint32_t h, uint32_t r, __m512 acc,
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

/* A block of weights in registers: codes[h][s] has elements 4 s .. 4 s + 3 of the columns of half h as
 * unsigned bytes. d1 is that of elements 16 to 31 (Q6_K). m is taken off, not added, where it comes from a K
 * type. */
struct block {
    __m512i codes[2][8];
    __m512 d[2], d1[2], m[2];
};

INLINE __m512i load_vector(const uint8_t *p)
{
    return _mm512_load_si512(p);
}

/* a | (bits & mask) */
INLINE __m512i or_masked(__m512i a, __m512i bits, __m512i mask)
{
    return _mm512_ternarylogic_epi32(a, bits, mask, 0xf8);
}

INLINE __m512i shift_left(__m512i v, int n)
{
    return n >= 0 ? _mm512_slli_epi16(v, (unsigned)n) : _mm512_srli_epi16(v, (unsigned)-n);
}

INLINE void load_codes(uint32_t bits, const uint8_t *p, struct block *b)
{
    const __m512i low = _mm512_set1_epi8(15), fifth = _mm512_set1_epi8(16), upper = _mm512_set1_epi8(48);
    UNROLL
    for (int h = 0; h < 2; h++) {
        __m512i *codes = b->codes[h];
        UNROLL
        for (int s = 0; s < 8 && bits == 8; s++)
            codes[s] = load_vector(p + s * 128 + h * 64);
        UNROLL
        for (int s = 0; s < 4 && bits < 8; s++) {
            __m512i both = load_vector(p + s * 128 + h * 64);
            codes[s] = _mm512_and_si512(both, low);
            codes[s + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        }
        UNROLL
        for (int s = 0; s < 8 && bits == 5; s++)
            codes[s] = or_masked(codes[s], shift_left(load_vector(p + 512 + h * 64), 4 - s), fifth);
        UNROLL
        for (int s = 0; s < 8 && bits == 6; s++)
            codes[s] = or_masked(
                codes[s], shift_left(load_vector(p + 512 + h * 128 + s / 4 * 64), 4 - s % 4 * 2), upper);
    }
}

INLINE __m512 load_halves(const uint8_t *from)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)from));
}

INLINE __m512 load_u8(const uint8_t *from)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)from)));
}

INLINE __m512 load_i8(const uint8_t *from)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)from)));
}

INLINE void load_scales(enum sl_dtype type, const uint8_t *head, const uint8_t *p, struct block *b)
{
    UNROLL
    for (int h = 0; h < 2; h++) {
        if (type == SL_Q6_K) {
            __m512 d = load_halves(head + h * 32);
            b->d[h] = _mm512_mul_ps(d, load_i8(p + h * 16));
            b->d1[h] = _mm512_mul_ps(d, load_i8(p + SL_PANEL + h * 16));
        } else if (type == SL_Q4_K || type == SL_Q5_K) {
            b->d[h] = _mm512_mul_ps(load_halves(head + h * 32), load_u8(p + h * 16));
            b->m[h] = _mm512_mul_ps(load_halves(head + 64 + h * 32), load_u8(p + SL_PANEL + h * 16));
        } else {
            b->d[h] = load_halves(p + h * 32);
            if (sl_form_of(type).has_min)
                b->m[h] = load_halves(p + 64 + h * 32);
        }
    }
}

INLINE __m512i quad_at(const int8_t *q)
{
    int32_t quad;
    memcpy(&quad, q, sizeof quad);
    return _mm512_set1_epi32(quad);
}

/* Where the integer sum of a part starts. */
INLINE __m512i start_of(enum sl_dtype type, const struct sl_qblock *x, int part)
{
    return type == SL_Q6_K ? _mm512_set1_epi32(x->start_32[part]) : _mm512_setzero_si512();
}

/* The first part's sum f, scaled, less the zero point of the whole block. */
INLINE __m512 first_part(enum sl_dtype type, const struct sl_qblock *x, __m512 f)
{
    __m512 scale = _mm512_set1_ps(x->scale[0]);
    switch (type) {
    case SL_Q4_0:
        return _mm512_fmadd_ps(scale, f, _mm512_set1_ps(x->zero_8));
    case SL_Q5_0:
        return _mm512_fmadd_ps(scale, f, _mm512_set1_ps(x->zero_16));
    case SL_Q8_0:
        return _mm512_fmadd_ps(scale, f, _mm512_set1_ps(x->zero_128));
    default:
        return _mm512_mul_ps(scale, f);
    }
}

/* acc[h] += the block's scales times t[part][h], the sums of products with one row's block. */
INLINE void add_sums(enum sl_dtype type, const struct block *b, const struct sl_qblock *x, __m512i t[2][2],
                     __m512 acc[2])
{
    const int k_min = type == SL_Q4_K || type == SL_Q5_K;
    __m512 scale0 = _mm512_set1_ps(x->scale[0]), scale1 = _mm512_set1_ps(x->scale[1]);
    __m512 sum = _mm512_set1_ps(x->scaled_sum);
    UNROLL
    for (int h = 0; h < 2; h++) {
        __m512 f0 = _mm512_cvtepi32_ps(t[0][h]), f1 = _mm512_cvtepi32_ps(t[1][h]);
        if (type == SL_Q6_K) {
            acc[h] = _mm512_fmadd_ps(_mm512_mul_ps(scale0, b->d[h]), f0, acc[h]);
            acc[h] = _mm512_fmadd_ps(_mm512_mul_ps(scale1, b->d1[h]), f1, acc[h]);
            continue;
        }
        acc[h] = _mm512_fmadd_ps(b->d[h], _mm512_fmadd_ps(scale1, f1, first_part(type, x, f0)), acc[h]);
        if (k_min)
            acc[h] = _mm512_fnmadd_ps(sum, b->m[h], acc[h]);
        else if (sl_form_of(type).has_min)
            acc[h] = _mm512_fmadd_ps(sum, b->m[h], acc[h]);
    }
}

INLINE void add_block(enum sl_dtype type, const struct block *b, const struct sl_qblock *x, __m512 acc[2])
{
    __m512i t[2][2];
    t[0][0] = t[0][1] = start_of(type, x, 0);
    t[1][0] = t[1][1] = start_of(type, x, 1);
    UNROLL
    for (int s = 0; s < 8; s++) {
        __m512i q = quad_at(x->q + 4 * s);
        __m512i *sum = t[s / 4];
        sum[0] = _mm512_dpbusd_epi32(sum[0], b->codes[0][s], q);
        sum[1] = _mm512_dpbusd_epi32(sum[1], b->codes[1][s], q);
    }
    add_sums(type, b, x, t, acc);
}

/* t[half] += the products of quad s of bytes. */
INLINE void add_bytes(const uint8_t *codes, const struct sl_qblock *x, int s, __m512i t[2])
{
    UNROLL
    for (int h = 0; h < 2; h++)
        t[h] = _mm512_dpbusd_epi32(t[h], load_vector(codes + s * 128 + h * 64), quad_at(x->q + 4 * s));
}

/* t[part][half] += the products of quad s of nibbles: the low ones are of the first part. */
INLINE void add_nibbles(const uint8_t *codes, const struct sl_qblock *x, int s, __m512i t[2][2])
{
    const __m512i low = _mm512_set1_epi8(15);
    UNROLL
    for (int h = 0; h < 2; h++) {
        __m512i w = load_vector(codes + s * 128 + h * 64);
        __m512i high = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
        t[0][h] = _mm512_dpbusd_epi32(t[0][h], _mm512_and_si512(w, low), quad_at(x->q + 4 * s));
        t[1][h] = _mm512_dpbusd_epi32(t[1][h], high, quad_at(x->q + SL_QPART + 4 * s));
    }
}

/* Of types of 4 and 8 bits. */
INLINE void one_row(enum sl_dtype type, const struct sl_segment *w, uint32_t p, const struct sl_acts *x,
                    uint32_t r, const struct sl_store *to)
{
    const struct sl_form f = sl_form_of(type);
    const uint8_t *head = w->data + p * w->panel_bytes;
    const struct sl_qblock *q = sl_acts_block(x, r, 0);
    __m512 acc[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (uint32_t g = w->n_cols / SL_QBLOCK / f.n_blocks; g > 0; g--, head += sl_form_bytes(&f)) {
        const uint8_t *at = head + f.head;
        for (uint32_t i = 0; i < f.n_blocks; i++, at += f.codes + f.scales, q += x->group) {
            __m512i t[2][2];
            t[0][0] = t[0][1] = t[1][0] = t[1][1] = _mm512_setzero_si512();
            if (f.code_bits == 4) {
                ROLLED
                for (int s = 0; s < 4; s++)
                    add_nibbles(at, q, s, t);
            } else {
                ROLLED
                for (int s = 0; s < 4; s++)
                    add_bytes(at, q, s, t[0]);
                ROLLED
                for (int s = 4; s < 8; s++)
                    add_bytes(at, q, s, t[1]);
            }
            struct block b;
            load_scales(type, head, at + f.codes, &b);
            add_sums(type, &b, q, t, acc);
        }
    }
    store_half(w, p, 0, r, acc[0], to);
    store_half(w, p, 1, r, acc[1], to);
}

/* Asks for what lies ahead of the n bytes at p, which may be the next panel's. */
INLINE void prefetch(const uint8_t *p, uint32_t n)
{
    UNROLL
    for (uint32_t i = 0; i < n; i += 64) {
        _mm_prefetch(p + AHEAD_L2 + i, _MM_HINT_T1);
        _mm_prefetch(p + AHEAD_L1 + i, _MM_HINT_T0);
    }
}

INLINE void load_block(enum sl_dtype type, const uint8_t *head, const uint8_t *at, struct block *b)
{
    const struct sl_form f = sl_form_of(type);
    prefetch(at, f.codes + f.scales);
    load_codes(f.code_bits, at, b);
    load_scales(type, head, at + f.codes, b);
}

INLINE void few_rows(enum sl_dtype type, uint32_t rows, const struct sl_segment *w, uint32_t p,
                     const struct sl_acts *x, uint32_t r0, const struct sl_store *to)
{
    const struct sl_form f = sl_form_of(type);
    const uint8_t *head = w->data + p * w->panel_bytes;
    const struct sl_qblock *q = sl_acts_block(x, r0, 0);
    __m512 acc[FEW][2];
    UNROLL
    for (uint32_t r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    for (uint32_t g = w->n_cols / SL_QBLOCK / f.n_blocks; g > 0; g--, head += sl_form_bytes(&f)) {
        const uint8_t *at = head + f.head;
        for (uint32_t i = 0; i < f.n_blocks; i++, at += f.codes + f.scales, q += x->group) {
            struct block b;
            load_block(type, head, at, &b);
            UNROLL
            for (uint32_t r = 0; r < rows; r++)
                add_block(type, &b, q + r, acc[r]);
        }
    }
    UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        store_half(w, p, 0, r0 + r, acc[r][0], to);
        store_half(w, p, 1, r0 + r, acc[r][1], to);
    }
}

INLINE void many_rows(enum sl_dtype type, const struct sl_segment *w, uint32_t p, const struct sl_acts *x,
                      uint32_t r0, uint32_t rows, const struct sl_store *to)
{
    const struct sl_form f = sl_form_of(type);
    const uint8_t *head = w->data + p * w->panel_bytes;
    const struct sl_qblock *q = sl_acts_block(x, r0, 0);
    __m512 acc[SL_CHUNK_ROWS][2];
    for (uint32_t r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    for (uint32_t g = w->n_cols / SL_QBLOCK / f.n_blocks; g > 0; g--, head += sl_form_bytes(&f)) {
        const uint8_t *at = head + f.head;
        for (uint32_t i = 0; i < f.n_blocks; i++, at += f.codes + f.scales, q += x->group) {
            struct block b;
            load_block(type, head, at, &b);
            for (uint32_t r = 0; r < rows; r++)
                add_block(type, &b, q + r, acc[r]);
        }
    }
    for (uint32_t r = 0; r < rows; r++) {
        store_half(w, p, 0, r0 + r, acc[r][0], to);
        store_half(w, p, 1, r0 + r, acc[r][1], to);
    }
}

INLINE void panel_quantised(enum sl_dtype type, const struct sl_segment *w, uint32_t p,
                            const struct sl_acts *x, uint32_t r0, uint32_t r1, const struct sl_store *to)
{
    const int whole = sl_form_of(type).code_bits == 4 || sl_form_of(type).code_bits == 8;
    switch (r1 - r0) {
    case 1:
        if (whole)
            one_row(type, w, p, x, r0, to);
        else
            few_rows(type, 1, w, p, x, r0, to);
        return;
    case 2:
        few_rows(type, 2, w, p, x, r0, to);
        return;
    case 3:
        few_rows(type, 3, w, p, x, r0, to);
        return;
    case 4:
        few_rows(type, 4, w, p, x, r0, to);
        return;
    default:
        many_rows(type, w, p, x, r0, r1 - r0, to);
    }
}

INLINE __m512 load_f32(enum sl_dtype type, const uint8_t *panel, size_t k, uint32_t h)
{
    if (type == SL_F32)
        return _mm512_load_ps(panel + k * SL_PANEL * 4 + h * 64);
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(panel + k * SL_PANEL * 2 + h * 32)));
}

INLINE void tile_f32(enum sl_dtype type, uint32_t rows, const struct sl_segment *w, uint32_t p,
                     const struct sl_acts *x, uint32_t r0, const struct sl_store *to)
{
    const uint32_t row_bytes = SL_PANEL * (type == SL_F32 ? 4 : 2);
    const uint8_t *panel = w->data + p * w->panel_bytes;
    const float *f = x->f + r0 * x->f_stride;
    __m512 acc[TILE][2];
    UNROLL
    for (uint32_t r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    for (uint32_t k = 0; k < w->n_cols; k++) {
        __m512 w0 = load_f32(type, panel, k, 0), w1 = load_f32(type, panel, k, 1);
        if (rows > 1)
            prefetch(panel + k * row_bytes, row_bytes);
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

INLINE void tile_bf16(uint32_t rows, const struct sl_segment *w, uint32_t p, const struct sl_acts *x,
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
        if (rows > 1)
            prefetch(panel, 2 * 64);
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

INLINE void tile(enum sl_dtype type, uint32_t rows, const struct sl_segment *w, uint32_t p,
                 const struct sl_acts *x, uint32_t r0, const struct sl_store *to)
{
    if (type == SL_BF16)
        tile_bf16(rows, w, p, x, r0, to);
    else
        tile_f32(type, rows, w, p, x, r0, to);
}

/* Full tiles, then the rest by its own number of rows, so that the sums stay in registers. */
INLINE void all_tiles(enum sl_dtype type, const struct sl_segment *w, uint32_t p, const struct sl_acts *x,
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

void sl_avx512_panel(const struct sl_segment *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
                     uint32_t r1, const struct sl_store *to)
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
        panel_quantised(SL_Q8_0, w, p, x, r0, r1, to);
        return;
    case SL_Q4_0:
        panel_quantised(SL_Q4_0, w, p, x, r0, r1, to);
        return;
    case SL_Q4_1:
        panel_quantised(SL_Q4_1, w, p, x, r0, r1, to);
        return;
    case SL_Q5_0:
        panel_quantised(SL_Q5_0, w, p, x, r0, r1, to);
        return;
    case SL_Q5_1:
        panel_quantised(SL_Q5_1, w, p, x, r0, r1, to);
        return;
    case SL_Q4_K:
        panel_quantised(SL_Q4_K, w, p, x, r0, r1, to);
        return;
    case SL_Q5_K:
        panel_quantised(SL_Q5_K, w, p, x, r0, r1, to);
        return;
    case SL_Q6_K:
        panel_quantised(SL_Q6_K, w, p, x, r0, r1, to);
        return;
    case SL_Q8: /* of K and V only */
    case SL_FP8:
        return;
    }
}
