/* kernels/cpu/linear_quant_avx2.c - a packed panel of a quantised type times rows of activations, with
 * vpmaddubsw.
 *
 * vpmaddubsw adds two products of an unsigned and a signed byte in int16 and saturates. How many quads of a
 * part may be added in int16 before they are widened follows from the largest code: of 4 and 5 bits all four
 * (8 * 31 * 127 = 31496), of 6 bits two (4 * 63 * 127 = 32004). Codes of 8 bits do not fit at all (2 * 255 *
 * 127): they and the activations become int16, the even and the odd bytes of a quad apart, and vpmaddwd adds
 * products in int32. The zero point becomes the value at which the sum starts.
 *
 * A vector has 8 columns, so 4 vectors a panel. With 16 registers a tile is a few rows by a few vectors, as
 * many as fill them with int16 sums; the float32 sums lie on the stack, in the nearest cache. Unpacking for
 * four rows at a time, in registers, was faster than once into the nearest cache for all rows: there is
 * nothing to gain where two units multiply and four add.
 *
 * The order of the sums: struct sl_cpu_isa (cpu_dev.h). */
#include "kernels/cpu/linear_avx2.h"

#define INT_SUMS       8u   /* integer sums of a tile in registers, beside weights, a factor and products */
#define TILE           4u   /* rows */
#define QUADS          4u   /* of a part */
#define PREFETCH_AHEAD 2048 /* bytes; covers the memory latency of a streaming thread at one row */

INLINE __m256i quad_at(const int8_t *q)
{
    int32_t quad;
    memcpy(&quad, q, sizeof quad);
    return _mm256_set1_epi32(quad);
}

INLINE __m256i add_products(__m256i sum, __m256i codes, __m256i x)
{
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x));
    IN_TURN(sum);
    return sum;
}

INLINE __m256i bytes_at(const uint8_t *p)
{
    return _mm256_load_si256((const __m256i *)(const void *)p);
}

INLINE __m256i bits_of(__m256i bytes, uint32_t shift, int mask)
{
    return _mm256_and_si256(_mm256_srli_epi16(bytes, (int)shift), _mm256_set1_epi8((char)mask));
}

/* Quad s of vector v of a block: its codes, of at most 6 bits. */
INLINE __m256i codes_of(uint32_t bits, const uint8_t *block, uint32_t v, uint32_t s)
{
    __m256i low = bits_of(bytes_at(block + s % 4 * 128 + v * 32), s / 4 * 4, 15);
    if (bits == 4)
        return low;
    __m256i high = bits == 5
                       ? bits_of(bytes_at(block + 512 + v / 2 * 64 + v % 2 * 32), s, 1)
                       : bits_of(bytes_at(block + 512 + v / 2 * 128 + s / 4 * 64 + v % 2 * 32), s % 4 * 2, 3);
    return _mm256_or_si256(low, _mm256_slli_epi16(high, 4));
}

/* Vectors [v0, v0 + vectors), a part of a block against rows [0, rows) at x: sums of products with the zero
 * point still in the codes, of at most 6 bits. */
INLINE void dot_part(uint32_t bits, uint32_t rows, uint32_t vectors, const uint8_t *block, uint32_t v0,
                     uint32_t part, const struct sl_qblock *x, __m256i t[TILE][VECTORS])
{
    const __m256i ones = _mm256_set1_epi16(1);
    const uint32_t together = bits == 6 ? 2 : QUADS;
    __m256i sums[TILE][VECTORS];
    UNROLL
    for (uint32_t i = 0; i < QUADS; i++) {
        const uint32_t s = part * QUADS + i;
        __m256i codes[VECTORS];
        UNROLL
        for (uint32_t v = 0; v < vectors; v++)
            codes[v] = codes_of(bits, block, v0 + v, s);
        UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            __m256i quad = quad_at(x[r].q + 4 * s);
            UNROLL
            for (uint32_t v = 0; v < vectors; v++) {
                sums[r][v] = add_products(i % together ? sums[r][v] : _mm256_setzero_si256(), codes[v], quad);
                if (i % together + 1 < together)
                    continue;
                __m256i wide = _mm256_madd_epi16(sums[r][v], ones);
                t[r][v] = i < together ? wide : _mm256_add_epi32(t[r][v], wide);
            }
        }
    }
}

/* The quads of a block of activations in int16: elements 0 and 2 of all, and elements 1 and 3. */
struct halves {
    _Alignas(32) int32_t even[2 * QUADS], odd[2 * QUADS];
};

INLINE void widen(const struct sl_qblock *x, struct halves *to)
{
    __m256i q = _mm256_loadu_si256((const __m256i *)(const void *)x->q);
    _mm256_store_si256((__m256i *)to->even, _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8));
    _mm256_store_si256((__m256i *)to->odd, _mm256_srai_epi16(q, 8));
}

INLINE __m256i add_wide(__m256i sum, __m256i codes, __m256i x)
{
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(codes, x));
    IN_TURN(sum);
    return sum;
}

/* The same with codes of 8 bits. */
INLINE void dot_part_8(uint32_t rows, uint32_t vectors, const uint8_t *block, uint32_t v0, uint32_t part,
                       const struct halves x[TILE], __m256i t[TILE][VECTORS])
{
    UNROLL
    for (uint32_t i = 0; i < QUADS; i++) {
        const uint32_t s = part * QUADS + i;
        __m256i even[VECTORS], odd[VECTORS];
        UNROLL
        for (uint32_t v = 0; v < vectors; v++) {
            __m256i bytes = bytes_at(block + s * 128 + (v0 + v) * 32);
            even[v] = _mm256_and_si256(bytes, _mm256_set1_epi16(255));
            odd[v] = _mm256_srli_epi16(bytes, 8);
        }
        UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            __m256i x0 = _mm256_set1_epi32(x[r].even[s]), x1 = _mm256_set1_epi32(x[r].odd[s]);
            UNROLL
            for (uint32_t v = 0; v < vectors; v++) {
                t[r][v] = add_wide(i ? t[r][v] : _mm256_setzero_si256(), even[v], x0);
                t[r][v] = add_wide(t[r][v], odd[v], x1);
            }
        }
    }
}

INLINE __m256 load_halves(const uint8_t *from)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)from));
}

INLINE __m256 load_u8(const uint8_t *from)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from)));
}

INLINE __m256 load_i8(const uint8_t *from)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from)));
}

/* Of a vector; d[1] is that of the second part, m is taken off where it comes from a K type. */
struct scales {
    __m256 d[2], m;
};

INLINE struct scales load_scales(enum sl_dtype type, const uint8_t *head, const uint8_t *p, uint32_t v)
{
    struct scales s;
    s.m = _mm256_setzero_ps();
    if (type == SL_Q6_K) {
        s.d[0] = _mm256_mul_ps(load_halves(head + v * 16), load_i8(p + v * 8));
        s.d[1] = _mm256_mul_ps(load_halves(head + v * 16), load_i8(p + SL_PANEL + v * 8));
        return s;
    }
    if (type == SL_Q4_K || type == SL_Q5_K) {
        s.d[0] = _mm256_mul_ps(load_halves(head + v * 16), load_u8(p + v * 8));
        s.m = _mm256_mul_ps(load_halves(head + 64 + v * 16), load_u8(p + SL_PANEL + v * 8));
    } else {
        s.d[0] = load_halves(p + v * 16);
        if (sl_form_of(type).has_min)
            s.m = load_halves(p + 64 + v * 16);
    }
    s.d[1] = s.d[0];
    return s;
}

/* The first part's sum f, scaled, less the zero point of the whole block. */
INLINE __m256 first_part(enum sl_dtype type, const struct sl_qblock *x, __m256 f)
{
    __m256 scale = _mm256_set1_ps(x->scale[0]);
    switch (type) {
    case SL_Q4_0:
        return _mm256_fmadd_ps(scale, f, _mm256_set1_ps(x->zero_8));
    case SL_Q5_0:
        return _mm256_fmadd_ps(scale, f, _mm256_set1_ps(x->zero_16));
    case SL_Q8_0:
        return _mm256_fmadd_ps(scale, f, _mm256_set1_ps(x->zero_128));
    default:
        return _mm256_mul_ps(scale, f);
    }
}

/* The float32 sum of a row and vector with a block's: t0 and t1 of its parts. */
INLINE __m256 add_sums(enum sl_dtype type, const struct scales *s, const struct sl_qblock *x, __m256i t0,
                       __m256i t1, __m256 sum)
{
    const __m256 scale0 = _mm256_set1_ps(x->scale[0]), scale1 = _mm256_set1_ps(x->scale[1]);
    if (type == SL_Q6_K) {
        __m256 f0 = _mm256_cvtepi32_ps(_mm256_add_epi32(t0, _mm256_set1_epi32(x->start_32[0]))),
               f1 = _mm256_cvtepi32_ps(_mm256_add_epi32(t1, _mm256_set1_epi32(x->start_32[1])));
        sum = _mm256_fmadd_ps(_mm256_mul_ps(scale0, s->d[0]), f0, sum);
        return _mm256_fmadd_ps(_mm256_mul_ps(scale1, s->d[1]), f1, sum);
    }
    __m256 both =
        _mm256_fmadd_ps(scale1, _mm256_cvtepi32_ps(t1), first_part(type, x, _mm256_cvtepi32_ps(t0)));
    sum = _mm256_fmadd_ps(s->d[0], both, sum);
    if (type == SL_Q4_K || type == SL_Q5_K)
        return _mm256_fnmadd_ps(_mm256_set1_ps(x->scaled_sum), s->m, sum);
    if (sl_form_of(type).has_min)
        return _mm256_fmadd_ps(_mm256_set1_ps(x->scaled_sum), s->m, sum);
    return sum;
}

/* rows rows of one group. */
INLINE void sum_tile(enum sl_dtype type, uint32_t rows, const struct sl_segment *w, uint32_t p,
                     const struct sl_acts *x, uint32_t r0, float (*sums)[SL_PANEL])
{
    const struct sl_form f = sl_form_of(type);
    const uint32_t vectors = INT_SUMS / rows < VECTORS ? INT_SUMS / rows : VECTORS;
    const uint8_t *head = w->data + p * w->panel_bytes;
    const struct sl_qblock *q = sl_acts_block(x, r0, 0);
    __m256 acc[TILE][VECTORS];
    UNROLL
    for (uint32_t r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = acc[r][2] = acc[r][3] = _mm256_setzero_ps();
    for (uint32_t b = 0; b < w->n_cols / SL_QBLOCK; b++, q += x->group) {
        const uint8_t *block = head + f.head + b % f.n_blocks * (f.codes + f.scales);
        UNROLL
        for (uint32_t i = 0; i < f.codes + f.scales; i += 64)
            _mm_prefetch(block + PREFETCH_AHEAD + i, _MM_HINT_T0);
        struct halves wide[TILE];
        if (f.code_bits == 8) {
            UNROLL
            for (uint32_t r = 0; r < rows; r++)
                widen(q + r, &wide[r]);
        }
        UNROLL
        for (uint32_t v0 = 0; v0 < VECTORS; v0 += vectors) {
            /* the quads of x are to be loaded again for the next vectors: kept, they would spill */
            __asm__ volatile("" ::: "memory");
            __m256i t[2][TILE][VECTORS];
            struct scales scales[VECTORS];
            UNROLL
            for (uint32_t part = 0; part < 2; part++) {
                if (f.code_bits == 8)
                    dot_part_8(rows, vectors, block, v0, part, wide, t[part]);
                else
                    dot_part(f.code_bits, rows, vectors, block, v0, part, q, t[part]);
            }
            UNROLL
            for (uint32_t v = 0; v < vectors; v++)
                scales[v] = load_scales(type, head, block + f.codes, v0 + v);
            UNROLL
            for (uint32_t i = 0; i < rows * vectors; i++) {
                uint32_t r = i / vectors, v = i % vectors;
                acc[r][v0 + v] = add_sums(type, &scales[v], q + r, t[0][r][v], t[1][r][v], acc[r][v0 + v]);
            }
        }
        if (b % f.n_blocks + 1 == f.n_blocks)
            head += sl_form_bytes(&f);
    }
    UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        UNROLL
        for (uint32_t v = 0; v < VECTORS; v++)
            _mm256_store_ps(sums[r] + 8 * v, acc[r][v]);
    }
}

/* By tiles, then what is left. */
INLINE void sum_rows(enum sl_dtype type, const struct sl_segment *w, uint32_t p, const struct sl_acts *x,
                     uint32_t r0, uint32_t rows, float (*sums)[SL_PANEL])
{
    uint32_t r = 0;
    for (; r + TILE <= rows; r += TILE)
        sum_tile(type, TILE, w, p, x, r0 + r, sums + r);
    if (r + 2 <= rows) {
        sum_tile(type, 2, w, p, x, r0 + r, sums + r);
        r += 2;
    }
    if (r < rows)
        sum_tile(type, 1, w, p, x, r0 + r, sums + r);
}

void sl_avx2_sum_quantised(const struct sl_segment *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
                           uint32_t rows, float (*sums)[SL_PANEL])
{
    switch (w->type) {
    case SL_Q8_0:
        sum_rows(SL_Q8_0, w, p, x, r0, rows, sums);
        return;
    case SL_Q4_0:
        sum_rows(SL_Q4_0, w, p, x, r0, rows, sums);
        return;
    case SL_Q4_1:
        sum_rows(SL_Q4_1, w, p, x, r0, rows, sums);
        return;
    case SL_Q5_0:
        sum_rows(SL_Q5_0, w, p, x, r0, rows, sums);
        return;
    case SL_Q5_1:
        sum_rows(SL_Q5_1, w, p, x, r0, rows, sums);
        return;
    case SL_Q4_K:
        sum_rows(SL_Q4_K, w, p, x, r0, rows, sums);
        return;
    case SL_Q5_K:
        sum_rows(SL_Q5_K, w, p, x, r0, rows, sums);
        return;
    case SL_Q6_K:
        sum_rows(SL_Q6_K, w, p, x, r0, rows, sums);
        return;
    default:
        return;
    }
}
