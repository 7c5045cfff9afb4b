/* tests/support/make_model/quantise.c - float32 rows to GGUF's block formats (blocks of 32 values).
 *
 *   Q8_0  f16 d;        int8 q[32]             x = d * q          d = max|x| / 127
 *   Q4_0  f16 d;        nibbles q[32]          x = d * (q - 8)    d = (the value of largest size) / -8
 *   Q4_1  f16 d, f16 m; nibbles q[32]          x = d * q + m      m = min, d = (max - min) / 15
 * Nibble j of a block is the low half of byte j, nibble j + 16 its high half. */
#include "tests/support/make_model/make_model.h"

#include <string.h>

#define BLOCK 32

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* To nearest, ties to even; overflow becomes infinity. */
static uint16_t to_f16(float f)
{
    uint32_t u = bits_of(f), sign = (u >> 16) & 0x8000u;
    uint32_t a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (a >= 0x47800000u)
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x33000000u) /* below half the smallest subnormal */
        return (uint16_t)sign;
    uint32_t mant, shift;
    if (a < 0x38800000u) { /* subnormal in f16 */
        shift = 126u - (a >> 23);
        mant = (a & 0x7fffffu) | 0x800000u;
    } else {
        shift = 13;
        mant = a - 0x38000000u;
    }
    uint32_t half = 1u << (shift - 1), rest = mant & ((1u << shift) - 1), q = mant >> shift;
    if (rest > half || (rest == half && (q & 1u)))
        q++;
    return (uint16_t)(sign | q);
}

static uint16_t to_bf16(float f)
{
    uint32_t u = bits_of(f);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static void put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static int clamp_int(float v, int lo, int hi)
{
    if (v <= (float)lo)
        return lo;
    if (v >= (float)hi)
        return hi;
    return (int)v;
}

static void block_q8_0(const float *x, uint8_t *out)
{
    float amax = 0;
    for (int i = 0; i < BLOCK; i++) {
        float a = x[i] < 0 ? -x[i] : x[i];
        amax = a > amax ? a : amax;
    }
    float d = amax / 127, inv = d > 0 ? 1 / d : 0;
    put16(out, to_f16(d));
    for (int i = 0; i < BLOCK; i++) {
        float v = x[i] * inv;
        out[2 + i] = (uint8_t)(int8_t)(v < 0 ? -clamp_int(0.5f - v, 0, 127) : clamp_int(v + 0.5f, 0, 127));
    }
}

static void pack_nibbles(const float *x, float min, float scale, float offset, uint8_t *out)
{
    for (int i = 0; i < BLOCK / 2; i++) {
        int lo = clamp_int((x[i] - min) * scale + offset, 0, 15);
        int hi = clamp_int((x[i + BLOCK / 2] - min) * scale + offset, 0, 15);
        out[i] = (uint8_t)(lo | hi << 4);
    }
}

static void block_q4_0(const float *x, uint8_t *out)
{
    float amax = 0, max = 0;
    for (int i = 0; i < BLOCK; i++) {
        float a = x[i] < 0 ? -x[i] : x[i];
        if (a > amax) {
            amax = a;
            max = x[i];
        }
    }
    float d = max / -8, inv = amax > 0 ? 1 / d : 0;
    put16(out, to_f16(d));
    pack_nibbles(x, 0, inv, 8.5f, out + 2);
}

static void block_q4_1(const float *x, uint8_t *out)
{
    float min = x[0], max = x[0];
    for (int i = 1; i < BLOCK; i++) {
        min = x[i] < min ? x[i] : min;
        max = x[i] > max ? x[i] : max;
    }
    float d = (max - min) / 15, inv = d > 0 ? 1 / d : 0;
    put16(out, to_f16(d));
    put16(out + 2, to_f16(min));
    pack_nibbles(x, min, inv, 0.5f, out + 4);
}

size_t sl_quantise_row_bytes(enum sl_dtype type, uint64_t n)
{
    switch (type) {
    case SL_F32:
        return n * 4;
    case SL_F16:
    case SL_BF16:
        return n * 2;
    case SL_Q8_0:
        return n / BLOCK * 34;
    case SL_Q4_0:
        return n / BLOCK * 18;
    case SL_Q4_1:
        return n / BLOCK * 20;
    }
    return 0;
}

void sl_quantise_row(enum sl_dtype type, const float *x, uint64_t n, void *out)
{
    uint8_t *o = out;
    switch (type) {
    case SL_F32:
        memcpy(out, x, n * 4);
        break;
    case SL_F16:
        for (uint64_t i = 0; i < n; i++)
            put16(o + 2 * i, to_f16(x[i]));
        break;
    case SL_BF16:
        for (uint64_t i = 0; i < n; i++)
            put16(o + 2 * i, to_bf16(x[i]));
        break;
    case SL_Q8_0:
        for (uint64_t i = 0; i < n; i += BLOCK)
            block_q8_0(x + i, o + i / BLOCK * 34);
        break;
    case SL_Q4_0:
        for (uint64_t i = 0; i < n; i += BLOCK)
            block_q4_0(x + i, o + i / BLOCK * 18);
        break;
    case SL_Q4_1:
        for (uint64_t i = 0; i < n; i += BLOCK)
            block_q4_1(x + i, o + i / BLOCK * 20);
        break;
    }
}

bool sl_quantise_type_parse(const char *word, enum sl_dtype *out)
{
    static const struct {
        const char *word;
        enum sl_dtype type;
    } types[] = {{"f32", SL_F32},   {"f16", SL_F16},   {"bf16", SL_BF16},
                 {"q8_0", SL_Q8_0}, {"q4_0", SL_Q4_0}, {"q4_1", SL_Q4_1}};
    for (size_t i = 0; i < SL_COUNTOF(types); i++) {
        if (strcmp(types[i].word, word) == 0) {
            *out = types[i].type;
            return true;
        }
    }
    return false;
}
