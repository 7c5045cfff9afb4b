/* kernels/tensor.c - GGUF's block formats, decoded in the plainest way: the meaning of every packed layout.
 */
#include "kernels/backend.h"

#include <string.h>
#include "kernels/cpu/half.h"

/* Elements and bytes of one block, sources: GGUF's format notes.
 * Q8_0 { f16 d; int8 q[32] }                     x = d * q
 * Q4_0 { f16 d; uint8 q[16] }                    x = d * (q - 8)
 * Q4_1 { f16 d; f16 m; uint8 q[16] }             x = d * q + m
 * Q5_0 { f16 d; uint32 h; uint8 q[16] }          x = d * (q - 16)
 * Q5_1 { f16 d; f16 m; uint32 h; uint8 q[16] }   x = d * q + m
 * Byte j of q holds element j in its low and element j + 16 in its high nibble; bit j of h is the fifth bit
 * of element j.
 *
 * The K types have blocks of 256 in parts with a scale each, the scales being integers times one f16:
 * Q4_K { f16 d; f16 dmin; uint8 s[12]; uint8 q[128] }                  x = d * sc * q - dmin * mn
 * Q5_K { f16 d; f16 dmin; uint8 s[12]; uint8 h[32]; uint8 q[128] }     the same
 * Q6_K { uint8 q[128]; uint8 h[64]; int8 s[16]; f16 d }                x = d * s * (q - 32)
 * Q4_K, Q5_K: 8 parts of 32 with 6-bit sc and mn (sl_k_parts()). Byte j of the 32 bytes c of q holds element
 * j of part 2 c in its low and of part 2 c + 1 in its high nibble; bit i of h[j] is the fifth bit of element
 * j of part i.
 * Q6_K: 16 parts of 16. In each half of 128 elements, the 64 bytes of q hold elements 0 .. 63 in their low
 * and 64 .. 127 in their high nibbles; h[j] has the upper two bits of elements j, j + 32, j + 64, j + 96. */
static void f32_block(const uint8_t *p, float *out)
{
    memcpy(out, p, sizeof *out);
}

static void f16_block(const uint8_t *p, float *out)
{
    *out = sl_f16_load(p);
}

static void bf16_block(const uint8_t *p, float *out)
{
    *out = sl_bf16_load(p);
}

static void q4_0_block(const uint8_t *p, float *out)
{
    float d = sl_f16_load(p);
    for (int j = 0; j < 16; j++) {
        out[j] = (float)((p[2 + j] & 15) - 8) * d;
        out[j + 16] = (float)((p[2 + j] >> 4) - 8) * d;
    }
}

static void q4_1_block(const uint8_t *p, float *out)
{
    float d = sl_f16_load(p), m = sl_f16_load(p + 2);
    for (int j = 0; j < 16; j++) {
        out[j] = (float)(p[4 + j] & 15) * d + m;
        out[j + 16] = (float)(p[4 + j] >> 4) * d + m;
    }
}

/* Code j of 32 with fifth bits at h and nibbles behind them. */
static int q5_code(const uint8_t *h, int j)
{
    int nibble = j < 16 ? h[4 + j] & 15 : h[4 + j - 16] >> 4;
    return nibble | (h[j / 8] >> j % 8 & 1) << 4;
}

static void q5_0_block(const uint8_t *p, float *out)
{
    float d = sl_f16_load(p);
    for (int j = 0; j < 32; j++)
        out[j] = (float)(q5_code(p + 2, j) - 16) * d;
}

static void q5_1_block(const uint8_t *p, float *out)
{
    float d = sl_f16_load(p), m = sl_f16_load(p + 2);
    for (int j = 0; j < 32; j++)
        out[j] = (float)q5_code(p + 4, j) * d + m;
}

static void q8_0_block(const uint8_t *p, float *out)
{
    float d = sl_f16_load(p);
    for (int j = 0; j < 32; j++)
        out[j] = (float)(int8_t)p[2 + j] * d;
}

void sl_k_parts(const uint8_t *block, uint32_t i, uint8_t *sc, uint8_t *mn)
{
    const uint8_t *s = block + 4;
    if (i < 4) {
        *sc = s[i] & 63;
        *mn = s[i + 4] & 63;
    } else { /* four bits of each in a byte, two more above the first parts' six */
        *sc = (uint8_t)((s[i + 4] & 15) | (s[i - 4] >> 6) << 4);
        *mn = (uint8_t)(s[i + 4] >> 4 | (s[i] >> 6) << 4);
    }
}

static void k_scales(const uint8_t *block, uint32_t i, float *d, float *m)
{
    uint8_t sc, mn;
    sl_k_parts(block, i, &sc, &mn);
    *d = sl_f16_load(block) * (float)sc;
    *m = sl_f16_load(block + 2) * (float)mn;
}

static void q4_k_block(const uint8_t *block, float *out)
{
    for (uint32_t i = 0; i < 8; i++, out += 32) {
        const uint8_t *q = block + 16 + i / 2 * 32;
        float d, m;
        k_scales(block, i, &d, &m);
        for (int j = 0; j < 32; j++)
            out[j] = d * (float)(q[j] >> i % 2 * 4 & 15) - m;
    }
}

static void q5_k_block(const uint8_t *block, float *out)
{
    for (uint32_t i = 0; i < 8; i++, out += 32) {
        const uint8_t *h = block + 16, *q = block + 48 + i / 2 * 32;
        float d, m;
        k_scales(block, i, &d, &m);
        for (int j = 0; j < 32; j++)
            out[j] = d * (float)((q[j] >> i % 2 * 4 & 15) | (h[j] >> i & 1) << 4) - m;
    }
}

static void q6_k_block(const uint8_t *block, float *out)
{
    float d = sl_f16_load(block + 208);
    for (int k = 0; k < 256; k++) {
        int half = k / 128, e = k % 128;
        int low = block[half * 64 + e % 64] >> e / 64 * 4 & 15;
        int high = block[128 + half * 32 + e % 32] >> e / 32 * 2 & 3;
        out[k] = d * (float)(int8_t)block[192 + k / 16] * (float)((low | high << 4) - 32);
    }
}

static const struct type_info {
    enum sl_dtype type;
    const char *name;
    uint32_t elements, bytes; /* of a block */
    void (*dequant)(const uint8_t *block, float *out);
} types[] = {
    {SL_F32, "F32", 1, 4, f32_block},        {SL_F16, "F16", 1, 2, f16_block},
    {SL_BF16, "BF16", 1, 2, bf16_block},     {SL_Q4_0, "Q4_0", 32, 18, q4_0_block},
    {SL_Q4_1, "Q4_1", 32, 20, q4_1_block},   {SL_Q5_0, "Q5_0", 32, 22, q5_0_block},
    {SL_Q5_1, "Q5_1", 32, 24, q5_1_block},   {SL_Q8_0, "Q8_0", 32, 34, q8_0_block},
    {SL_Q4_K, "Q4_K", 256, 144, q4_k_block}, {SL_Q5_K, "Q5_K", 256, 176, q5_k_block},
    {SL_Q6_K, "Q6_K", 256, 210, q6_k_block},
};

static const struct type_info *info(enum sl_dtype type)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (types[i].type == type)
            return &types[i];
    }
    return NULL;
}

uint32_t sl_dtype_block(enum sl_dtype type)
{
    const struct type_info *t = info(type);
    return t ? t->elements : 0;
}

size_t sl_dtype_row_bytes(enum sl_dtype type, uint64_t n_cols)
{
    const struct type_info *t = info(type);
    if (!t || n_cols % t->elements != 0 || n_cols / t->elements > SIZE_MAX / t->bytes)
        return 0;
    return (size_t)(n_cols / t->elements) * t->bytes;
}

const char *sl_dtype_name(enum sl_dtype type)
{
    const struct type_info *t = info(type);
    return t ? t->name : type == SL_Q8 ? "Q8" : type == SL_FP8 ? "FP8" : "unknown";
}

void sl_dequant_row(enum sl_dtype type, const void *row, uint64_t n_cols, float *out)
{
    const struct type_info *t = info(type);
    const uint8_t *p = row;
    if (!t)
        return;
    for (uint64_t i = 0; i < n_cols / t->elements; i++, p += t->bytes, out += t->elements)
        t->dequant(p, out);
}

enum sl_err sl_views_check(const struct sl_tensor_view *v, size_t n, struct sl_why *why)
{
    if (n == 0)
        return sl_why_set(why, SL_EINVAL, "A matrix to pack needs at least one tensor.");
    uint64_t n_rows = 0;
    for (size_t i = 0; i < n; i++) {
        if (v[i].n_cols != v[0].n_cols)
            return sl_why_set(why, SL_EUNSUPPORTED,
                              "Tensors to be stacked have %llu and %llu columns; expected the same.",
                              (unsigned long long)v[0].n_cols, (unsigned long long)v[i].n_cols);
        if (sl_dtype_row_bytes(v[i].type, v[i].n_cols) == 0 || v[i].n_cols > SL_MATRIX_MAX_COLS ||
            v[i].n_rows == 0)
            return sl_why_set(why, SL_EUNSUPPORTED,
                              "A matrix of type %s (number %d) with %llu rows and %llu columns is not "
                              "supported; expected F32, F16, BF16, with a multiple of 32 columns Q8_0, Q4_0, "
                              "Q4_1, Q5_0 or Q5_1, with one of 256 Q4_K, Q5_K or Q6_K.",
                              sl_dtype_name(v[i].type), (int)v[i].type, (unsigned long long)v[i].n_rows,
                              (unsigned long long)v[i].n_cols);
        n_rows += v[i].n_rows;
        if (v[i].n_rows > SL_MATRIX_MAX_ROWS || n_rows > SL_MATRIX_MAX_ROWS)
            return sl_why_set(why, SL_EUNSUPPORTED, "A matrix of more than %u rows is not supported.",
                              SL_MATRIX_MAX_ROWS);
    }
    return SL_OK;
}
