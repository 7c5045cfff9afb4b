/* tests/support/make_model/quantise.c - float32 rows to GGUF's block formats (blocks of 32 values, of 256 in
 * the K types).
 *
 *   Q8_0  f16 d;        int8 q[32]             x = d * q          d = max|x| / 127
 *   Q4_0  f16 d;        nibbles q[32]          x = d * (q - 8)    d = (the value of largest size) / -8
 *   Q4_1  f16 d, f16 m; nibbles q[32]          x = d * q + m      m = min, d = (max - min) / 15
 *   Q5_0, Q5_1 as these with five bits
 *   Q4_K, Q5_K, Q6_K: parts of a block with a scale each, as kernels/tensor.c describes them
 * Nibble j of a block of 32 is the low half of byte j, nibble j + 16 its high half. */
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

/* Of a finite one that is not negative. */
static float from_f16(uint16_t h)
{
    float v = (float)(h < 0x400 ? h : (h & 0x3ff) | 0x400); /* in units of 2^-24 times 2^(exponent - 1) */
    for (uint32_t e = h >> 10; e > 1; e--)
        v *= 2;
    return v * 0x1p-24f;
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

/* The value of largest size, with its sign. */
static float extreme(const float *x, int n)
{
    float amax = 0, max = 0;
    for (int i = 0; i < n; i++) {
        float a = x[i] < 0 ? -x[i] : x[i];
        if (a > amax) {
            amax = a;
            max = x[i];
        }
    }
    return max;
}

static void range(const float *x, float *min, float *max)
{
    *min = *max = x[0];
    for (int i = 1; i < BLOCK; i++) {
        *min = x[i] < *min ? x[i] : *min;
        *max = x[i] > *max ? x[i] : *max;
    }
}

/* q[i] = (x[i] - min) * scale + offset, cut to [0, most]. */
static void codes(const float *x, int n, float min, float scale, float offset, int most, uint8_t *q)
{
    for (int i = 0; i < n; i++)
        q[i] = (uint8_t)clamp_int((x[i] - min) * scale + offset, 0, most);
}

/* The low four bits of 32 codes in 16 bytes. */
static void put_nibbles(const uint8_t *q, uint8_t *out)
{
    for (int i = 0; i < BLOCK / 2; i++)
        out[i] = (uint8_t)((q[i] & 15) | (q[i + BLOCK / 2] & 15) << 4);
}

static void put_fifth_bits(const uint8_t *q, uint8_t *out)
{
    memset(out, 0, BLOCK / 8);
    for (int i = 0; i < BLOCK; i++)
        out[i / 8] |= (uint8_t)(q[i] >> 4 << i % 8);
}

/* bits 4 or 5: codes from -2^(bits - 1) on. */
static void block_signed(const float *x, int bits, uint8_t *out)
{
    uint8_t q[BLOCK];
    int zero = 1 << (bits - 1);
    float d = extreme(x, BLOCK) / (float)-zero, inv = d < 0 || d > 0 ? 1 / d : 0;
    codes(x, BLOCK, 0, inv, (float)zero + 0.5f, 2 * zero - 1, q);
    put16(out, to_f16(d));
    if (bits == 5)
        put_fifth_bits(q, out + 2);
    put_nibbles(q, out + (bits == 5 ? 6 : 2));
}

static void block_q4_0(const float *x, uint8_t *out)
{
    block_signed(x, 4, out);
}

static void block_q5_0(const float *x, uint8_t *out)
{
    block_signed(x, 5, out);
}

static void block_with_min(const float *x, int bits, uint8_t *out)
{
    uint8_t q[BLOCK];
    int most = (1 << bits) - 1;
    float min, max;
    range(x, &min, &max);
    float d = (max - min) / (float)most, inv = d > 0 ? 1 / d : 0;
    codes(x, BLOCK, min, inv, 0.5f, most, q);
    put16(out, to_f16(d));
    put16(out + 2, to_f16(min));
    if (bits == 5)
        put_fifth_bits(q, out + 4);
    put_nibbles(q, out + (bits == 5 ? 8 : 4));
}

static void block_q4_1(const float *x, uint8_t *out)
{
    block_with_min(x, 4, out);
}

static void block_q5_1(const float *x, uint8_t *out)
{
    block_with_min(x, 5, out);
}

/* The smallest integer of 6 bits that times unit is at least v. */
static int six_bits(float v, float unit)
{
    int i = unit > 0 ? clamp_int(v / unit, 0, 63) : 0;
    return i < 63 && (float)i * unit < v ? i + 1 : i;
}

/* Q4_K and Q5_K: 8 parts of 32. Scales and minima are rounded up, so that a part's range stays inside. */
static void block_k(const float *x, int bits, uint8_t *out)
{
    float scale[8], below[8], most_scale = 0, most_below = 0;
    int most = (1 << bits) - 1;
    for (int i = 0; i < 8; i++) {
        float min, max;
        range(x + i * BLOCK, &min, &max);
        min = min < 0 ? min : 0;
        below[i] = -min;
        scale[i] = (max - min) / (float)most;
        most_scale = scale[i] > most_scale ? scale[i] : most_scale;
        most_below = below[i] > most_below ? below[i] : most_below;
    }
    uint16_t d16 = to_f16(most_scale / 63), m16 = to_f16(most_below / 63);
    float d = from_f16(d16), dmin = from_f16(m16);
    uint8_t *s = out + 4, *h = out + 16, *to = out + (bits == 5 ? 48 : 16);
    put16(out, d16);
    put16(out + 2, m16);
    memset(s, 0, 12);
    if (bits == 5)
        memset(h, 0, 32);
    for (int i = 0; i < 8; i++) {
        int mn = six_bits(below[i], dmin), sc = six_bits(scale[i], d);
        float step = d * (float)sc;
        uint8_t q[BLOCK];
        codes(x + i * BLOCK, BLOCK, -dmin * (float)mn, step > 0 ? 1 / step : 0, 0.5f, most, q);
        if (i < 4) {
            s[i] = (uint8_t)(s[i] | sc);
            s[i + 4] = (uint8_t)(s[i + 4] | mn);
        } else {
            s[i + 4] = (uint8_t)((sc & 15) | (mn & 15) << 4);
            s[i - 4] = (uint8_t)(s[i - 4] | sc >> 4 << 6);
            s[i] = (uint8_t)(s[i] | mn >> 4 << 6);
        }
        for (int j = 0; j < BLOCK; j++) {
            uint8_t *byte = &to[i / 2 * BLOCK + j];
            *byte = (uint8_t)(i % 2 ? *byte | (q[j] & 15) << 4 : q[j] & 15);
            if (bits == 5)
                h[j] = (uint8_t)(h[j] | q[j] >> 4 << i);
        }
    }
}

static void block_q4_k(const float *x, uint8_t *out)
{
    block_k(x, 4, out);
}

static void block_q5_k(const float *x, uint8_t *out)
{
    block_k(x, 5, out);
}

static void block_q6_k(const float *x, uint8_t *out)
{
    float scale[16], most = 0;
    for (int i = 0; i < 16; i++) {
        scale[i] = extreme(x + i * 16, 16) / -32;
        float a = scale[i] < 0 ? -scale[i] : scale[i];
        most = a > most ? a : most;
    }
    uint16_t d16 = to_f16(most / 127);
    float d = from_f16(d16);
    memset(out, 0, 192);
    put16(out + 208, d16);
    for (int i = 0; i < 16; i++) {
        float v = d > 0 ? scale[i] / d : 0;
        int s = v < 0 ? -clamp_int(0.5f - v, 0, 127) : clamp_int(v + 0.5f, 0, 127);
        float step = d * (float)s;
        uint8_t q[16];
        out[192 + i] = (uint8_t)s;
        codes(x + i * 16, 16, 0, step < 0 || step > 0 ? 1 / step : 0, 32.5f, 63, q);
        for (int j = 0; j < 16; j++) {
            int half = i / 8, e = i % 8 * 16 + j;
            uint8_t *low = &out[half * 64 + e % 64], *high = &out[128 + half * 32 + e % 32];
            *low = (uint8_t)(*low | (q[j] & 15) << e / 64 * 4);
            *high = (uint8_t)(*high | q[j] >> 4 << e / 32 * 2);
        }
    }
}

static void block_f32(const float *x, uint8_t *out)
{
    memcpy(out, x, sizeof *x);
}

static void block_f16(const float *x, uint8_t *out)
{
    put16(out, to_f16(*x));
}

static void block_bf16(const float *x, uint8_t *out)
{
    put16(out, to_bf16(*x));
}

static const struct type_info {
    enum sl_dtype type;
    const char *word;
    uint32_t values, bytes; /* of a block */
    void (*quantise)(const float *x, uint8_t *out);
} types[] = {
    {SL_F32, "f32", 1, 4, block_f32},        {SL_F16, "f16", 1, 2, block_f16},
    {SL_BF16, "bf16", 1, 2, block_bf16},     {SL_Q8_0, "q8_0", 32, 34, block_q8_0},
    {SL_Q4_0, "q4_0", 32, 18, block_q4_0},   {SL_Q4_1, "q4_1", 32, 20, block_q4_1},
    {SL_Q5_0, "q5_0", 32, 22, block_q5_0},   {SL_Q5_1, "q5_1", 32, 24, block_q5_1},
    {SL_Q4_K, "q4_k", 256, 144, block_q4_k}, {SL_Q5_K, "q5_k", 256, 176, block_q5_k},
    {SL_Q6_K, "q6_k", 256, 210, block_q6_k},
};

static const struct type_info *info(enum sl_dtype type)
{
    for (size_t i = 0; i < SL_COUNTOF(types); i++) {
        if (types[i].type == type)
            return &types[i];
    }
    return NULL;
}

size_t sl_quantise_row_bytes(enum sl_dtype type, uint64_t n)
{
    const struct type_info *t = info(type);
    return t != NULL && n % t->values == 0 ? n / t->values * t->bytes : 0;
}

void sl_quantise_row(enum sl_dtype type, const float *x, uint64_t n, void *out)
{
    const struct type_info *t = info(type);
    uint8_t *to = out;
    if (t == NULL)
        return;
    for (uint64_t i = 0; i < n; i += t->values, to += t->bytes)
        t->quantise(x + i, to);
}

bool sl_quantise_type_parse(const char *word, enum sl_dtype *out)
{
    for (size_t i = 0; i < SL_COUNTOF(types); i++) {
        if (strcmp(types[i].word, word) == 0) {
            *out = types[i].type;
            return true;
        }
    }
    return false;
}
