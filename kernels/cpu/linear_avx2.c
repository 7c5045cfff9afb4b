/* kernels/cpu/linear_avx2.c - a packed panel times rows of activations, with vpmaddubsw and FMA.
 *
 * vpmaddubsw adds two products of an unsigned and a signed byte in int16 and saturates, so Q8_0's codes of
 * eight bits (q + 128) times activations may not go into it whole: 2 * 255 * 127 does not fit. Every code is
 * therefore taken as nibbles, 4-bit weights as they are, the others as 16 * high + low. A column of a block
 * then sums 16 products of at most 15 * 127 in an int16 lane, 30480, without saturation or wrap, and is
 * widened once at the end of the block. (The other way, |w| times x with the sign of w, needs a sign and a
 * widening per product.) The zero point becomes the value at which the integer sum starts.
 *
 * A vector has 8 columns, so 4 vectors a panel. With 16 registers a tile is a few rows by a few vectors, as
 * many as fill them with int16 (or float32) sums; the float32 sums of quantised weights lie on the stack, in
 * the nearest cache. bfloat16 is computed with float32 FMA with subnormal arguments and results taken as zero
 * (MXCSR), which is what vdpbf16ps does.
 *
 * The order of the sums: struct sl_cpu_isa (cpu_dev.h). */
#include <immintrin.h>

#include "kernels/cpu/isa_avx2.h"

#define INT_SUMS         8u /* int16 sums of a tile in registers, beside weights, a factor and products */
#define TILE_QUANT       4u /* rows */
#define TILE_PARTS       2u /* rows of a type with two scales in a block, Q6_K */
#define TILE_FLOAT       6u /* x 2 vectors: 12 sums, 2 of weights, a factor */
#define MOST_ROWS        TILE_FLOAT
#define VECTORS          4u      /* of 8 columns in a panel */
#define PREFETCH_AHEAD   2048    /* bytes; covers the memory latency of a streaming thread at one row */
#define FLUSH_SUBNORMALS 0x8040u /* MXCSR: flush to zero, denormals are zeros */
#define INLINE           static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* The sums of a tile, before bias. */
struct sums {
    _Alignas(32) float at[MOST_ROWS][SL_PANEL];
};

INLINE __m256i quad_at(const int8_t *q)
{
    int32_t quad;
    memcpy(&quad, q, sizeof quad);
    return _mm256_set1_epi32(quad);
}

INLINE __m256i add_products(__m256i sum, __m256i codes, __m256i x)
{
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x));
    __asm__("" : "+x"(sum)); /* the sums are to be made one by one: as trees they would spill */
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

/* Quad s of vector v of a block: its low four bits, and what lies above them. */
INLINE __m256i low_of(uint32_t bits, const uint8_t *block, uint32_t v, uint32_t s)
{
    if (bits == 8)
        return bits_of(bytes_at(block + s * 128 + v * 32), 0, 15);
    return bits_of(bytes_at(block + s % 4 * 128 + v * 32), s / 4 * 4, 15);
}

INLINE __m256i high_of(uint32_t bits, const uint8_t *block, uint32_t v, uint32_t s)
{
    if (bits == 8)
        return bits_of(bytes_at(block + s * 128 + v * 32), 4, 15);
    if (bits == 5)
        return bits_of(bytes_at(block + 512 + v / 2 * 64 + v % 2 * 32), s, 1);
    return bits_of(bytes_at(block + 512 + v / 2 * 128 + s / 4 * 64 + v % 2 * 32), s % 4 * 2, 3);
}

/* Vectors [v0, v0 + vectors) of a block, quads [s0, s1), against rows [0, rows) at x: sums of products with
 * the zero point still in the codes. */
INLINE void dot_block(uint32_t bits, uint32_t rows, uint32_t vectors, const uint8_t *block, uint32_t v0,
                      uint32_t s0, uint32_t s1, const struct sl_qblock *x, __m256i t[MOST_ROWS][VECTORS])
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i low[MOST_ROWS][VECTORS], high[MOST_ROWS][VECTORS];
    UNROLL
    for (uint32_t i = 0; i < rows * vectors; i++)
        low[i / vectors][i % vectors] = high[i / vectors][i % vectors] = _mm256_setzero_si256();
    UNROLL
    for (uint32_t s = s0; s < s1; s++) {
        __m256i lo[VECTORS], hi[VECTORS];
        UNROLL
        for (uint32_t v = 0; v < vectors; v++) {
            lo[v] = low_of(bits, block, v0 + v, s);
            hi[v] = bits > 4 ? high_of(bits, block, v0 + v, s) : lo[v];
        }
        UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            __m256i quad = quad_at(x[r].q + 4 * s);
            UNROLL
            for (uint32_t v = 0; v < vectors; v++) {
                low[r][v] = add_products(low[r][v], lo[v], quad);
                if (bits > 4)
                    high[r][v] = add_products(high[r][v], hi[v], quad);
            }
        }
    }
    UNROLL
    for (uint32_t i = 0; i < rows * vectors; i++) {
        uint32_t r = i / vectors, v = i % vectors;
        t[r][v] = _mm256_madd_epi16(low[r][v], ones);
        if (bits > 4)
            t[r][v] = _mm256_add_epi32(t[r][v], _mm256_slli_epi32(_mm256_madd_epi16(high[r][v], ones), 4));
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
INLINE void sum_quantised(enum sl_dtype type, uint32_t rows, const struct sl_segment *w, uint32_t p,
                          const struct sl_acts *x, uint32_t r0, struct sums *to)
{
    const struct sl_form f = sl_form_of(type);
    const uint32_t most = INT_SUMS / (f.code_bits > 4 ? 2 * rows : rows),
                   vectors = most < VECTORS ? most : VECTORS;
    const uint8_t *head = w->data + p * w->panel_bytes;
    const struct sl_qblock *q = sl_acts_block(x, r0, 0);
    __m256 acc[MOST_ROWS][VECTORS];
    UNROLL
    for (uint32_t r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = acc[r][2] = acc[r][3] = _mm256_setzero_ps();
    for (uint32_t b = 0; b < w->n_cols / SL_QBLOCK; b++, q += x->group) {
        const uint8_t *block = head + f.head + b % f.n_blocks * (f.codes + f.scales);
        UNROLL
        for (uint32_t i = 0; i < f.codes + f.scales; i += 64)
            _mm_prefetch(block + PREFETCH_AHEAD + i, _MM_HINT_T0);
        UNROLL
        for (uint32_t v0 = 0; v0 < VECTORS; v0 += vectors) {
            /* the quads of x are to be loaded again for the next vectors: kept, they would spill */
            __asm__ volatile("" ::: "memory");
            __m256i t[2][MOST_ROWS][VECTORS];
            struct scales scales[VECTORS];
            dot_block(f.code_bits, rows, vectors, block, v0, 0, 4, q, t[0]);
            dot_block(f.code_bits, rows, vectors, block, v0, 4, 8, q, t[1]);
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
            _mm256_store_ps(to->at[r] + 8 * v, acc[r][v]);
    }
}

INLINE __m256 load_floats(enum sl_dtype type, const uint8_t *panel, size_t i)
{
    if (type == SL_F32)
        return _mm256_load_ps((const float *)(const void *)panel + i);
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)(panel + i * 2)));
}

/* Vectors [v0, v0 + vectors) of the panel. */
INLINE void sum_floats(enum sl_dtype type, uint32_t rows, uint32_t v0, uint32_t vectors,
                       const struct sl_segment *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
                       struct sums *to)
{
    const uint8_t *panel = w->data + p * w->panel_bytes;
    const float *f = x->f + r0 * x->f_stride;
    __m256 acc[MOST_ROWS][VECTORS];
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
            _mm256_store_ps(to->at[r] + 8 * (v0 + v), acc[r][v]);
    }
}

/* The odd (or even) elements of a vector of pairs of bfloat16. */
INLINE __m256 of_pairs(int odd, __m256i pairs)
{
    return _mm256_castsi256_ps(odd ? _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u))
                                   : _mm256_slli_epi32(pairs, 16));
}

INLINE __m256i pair_at(const uint16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return _mm256_set1_epi32(pair);
}

INLINE void sum_pairs(uint32_t rows, uint32_t v0, uint32_t vectors, const struct sl_segment *w, uint32_t p,
                      const struct sl_acts *x, uint32_t r0, struct sums *to)
{
    const uint8_t *panel = w->data + p * w->panel_bytes + 32 * v0;
    const uint16_t *bf = x->bf + r0 * x->bf_stride;
    __m256 acc[MOST_ROWS][VECTORS];
    UNROLL
    for (uint32_t r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = acc[r][2] = acc[r][3] = _mm256_setzero_ps();
    for (uint32_t k = 0; k < (w->n_cols + 1) / 2; k++, panel += SL_PANEL * 4) {
        UNROLL
        for (int odd = 1; odd >= 0; odd--) { /* the odd one of a pair is added first */
            __m256 weights[VECTORS];
            UNROLL
            for (uint32_t v = 0; v < vectors; v++)
                weights[v] =
                    of_pairs(odd, _mm256_load_si256((const __m256i *)(const void *)(panel + 32 * v)));
            UNROLL
            for (uint32_t r = 0; r < rows; r++) {
                __m256 one = of_pairs(odd, pair_at(bf + r * x->bf_stride + 2 * (size_t)k));
                UNROLL
                for (uint32_t v = 0; v < vectors; v++)
                    acc[r][v] = _mm256_fmadd_ps(one, weights[v], acc[r][v]);
            }
        }
    }
    UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        UNROLL
        for (uint32_t v = 0; v < vectors; v++)
            _mm256_store_ps(to->at[r] + 8 * (v0 + v), acc[r][v]);
    }
}

/* Up to 3 rows have the whole panel's sums in registers, more have half of it at a time. */
INLINE void sum_tile(enum sl_dtype type, uint32_t rows, const struct sl_segment *w, uint32_t p,
                     const struct sl_acts *x, uint32_t r0, struct sums *to)
{
    const uint32_t vectors = rows > 3 ? VECTORS / 2 : VECTORS;
    if (type != SL_F32 && type != SL_F16 && type != SL_BF16) {
        sum_quantised(type, rows, w, p, x, r0, to);
        return;
    }
    UNROLL
    for (uint32_t v = 0; v < VECTORS; v += vectors) {
        if (type == SL_BF16)
            sum_pairs(rows, v, vectors, w, p, x, r0, to);
        else
            sum_floats(type, rows, v, vectors, w, p, x, r0, to);
    }
}

/* Sums of the rows from r0 on below r1, as many as a tile of the type takes; returns how many. */
INLINE uint32_t sum_rows(enum sl_dtype type, uint32_t most, const struct sl_segment *w, uint32_t p,
                         const struct sl_acts *x, uint32_t r0, uint32_t r1, struct sums *to)
{
    if (r1 - r0 >= most) {
        sum_tile(type, most, w, p, x, r0, to);
        return most;
    }
    if (most > 4 && r1 - r0 >= 4) {
        sum_tile(type, 4, w, p, x, r0, to);
        return 4;
    }
    if (r1 - r0 >= 2) {
        sum_tile(type, 2, w, p, x, r0, to);
        return 2;
    }
    sum_tile(type, 1, w, p, x, r0, to);
    return 1;
}

/* Not inlined: the compiler may move arithmetic across a change of MXCSR, but not across a call. */
static __attribute__((noinline)) uint32_t sum_rows_bf16(const struct sl_segment *w, uint32_t p,
                                                        const struct sl_acts *x, uint32_t r0, uint32_t r1,
                                                        struct sums *to)
{
    return sum_rows(SL_BF16, TILE_FLOAT, w, p, x, r0, r1, to);
}

static uint32_t sum_rows_flushed(const struct sl_segment *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
                                 uint32_t r1, struct sums *to)
{
    uint32_t mode = _mm_getcsr();
    _mm_setcsr(mode | FLUSH_SUBNORMALS);
    uint32_t n = sum_rows_bf16(w, p, x, r0, r1, to);
    _mm_setcsr(mode);
    return n;
}

static uint32_t sum_rows_of(const struct sl_segment *w, uint32_t p, const struct sl_acts *x, uint32_t r0,
                            uint32_t r1, struct sums *to)
{
    switch (w->type) {
    case SL_F32:
        return sum_rows(SL_F32, TILE_FLOAT, w, p, x, r0, r1, to);
    case SL_F16:
        return sum_rows(SL_F16, TILE_FLOAT, w, p, x, r0, r1, to);
    case SL_BF16:
        return sum_rows_flushed(w, p, x, r0, r1, to);
    case SL_Q8_0:
        return sum_rows(SL_Q8_0, TILE_QUANT, w, p, x, r0, r1, to);
    case SL_Q4_0:
        return sum_rows(SL_Q4_0, TILE_QUANT, w, p, x, r0, r1, to);
    case SL_Q4_1:
        return sum_rows(SL_Q4_1, TILE_QUANT, w, p, x, r0, r1, to);
    case SL_Q5_0:
        return sum_rows(SL_Q5_0, TILE_QUANT, w, p, x, r0, r1, to);
    case SL_Q5_1:
        return sum_rows(SL_Q5_1, TILE_QUANT, w, p, x, r0, r1, to);
    case SL_Q4_K:
        return sum_rows(SL_Q4_K, TILE_QUANT, w, p, x, r0, r1, to);
    case SL_Q5_K:
        return sum_rows(SL_Q5_K, TILE_QUANT, w, p, x, r0, r1, to);
    case SL_Q6_K:
        return sum_rows(SL_Q6_K, TILE_PARTS, w, p, x, r0, r1, to);
    }
    return r1 - r0;
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
    struct sums sums;
    while (r0 < r1) {
        uint32_t n = sum_rows_of(w, p, x, r0, r1, &sums);
        for (uint32_t i = 0; i < n; i++)
            store_row(w, p, r0 + i, sums.at[i], to);
        r0 += n;
    }
}
