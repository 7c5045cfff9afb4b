/* kernels/tensor.c - GGUF's block formats, decoded in the plainest way: the meaning of every packed layout.
 */
#include "kernels/tensor.h"

#include <string.h>
#include "kernels/cpu/half.h"

/* Elements and bytes of one block, sources: GGUF's format notes.
 * Q8_0 { f16 d; int8 q[32] }            x = d * q
 * Q4_0 { f16 d; uint8 q[16] }           x = d * (nibble - 8)
 * Q4_1 { f16 d; f16 m; uint8 q[16] }    x = d * nibble + m
 * Byte j of a 4-bit block holds element j in its low and element j + 16 in its high nibble. */
static void block_shape(enum sl_dtype type, uint32_t *n, uint32_t *bytes)
{
    switch (type) {
    case SL_F32:
        *n = 1, *bytes = 4;
        return;
    case SL_F16:
    case SL_BF16:
        *n = 1, *bytes = 2;
        return;
    case SL_Q4_0:
        *n = 32, *bytes = 18;
        return;
    case SL_Q4_1:
        *n = 32, *bytes = 20;
        return;
    case SL_Q8_0:
        *n = 32, *bytes = 34;
        return;
    }
    *n = 0, *bytes = 0;
}

size_t sl_dtype_row_bytes(enum sl_dtype type, uint64_t n_cols)
{
    uint32_t n, bytes;
    block_shape(type, &n, &bytes);
    if (n == 0 || n_cols % n != 0 || n_cols / n > SIZE_MAX / bytes)
        return 0;
    return (size_t)(n_cols / n) * bytes;
}

const char *sl_dtype_name(enum sl_dtype type)
{
    switch (type) {
    case SL_F32:
        return "F32";
    case SL_F16:
        return "F16";
    case SL_BF16:
        return "BF16";
    case SL_Q4_0:
        return "Q4_0";
    case SL_Q4_1:
        return "Q4_1";
    case SL_Q8_0:
        return "Q8_0";
    }
    return "unknown";
}

static void dequant_q4(const uint8_t *row, uint64_t n_blocks, int has_min, float *out)
{
    for (uint64_t b = 0; b < n_blocks; b++, out += 32) {
        float d = sl_f16_load(row), m = has_min ? sl_f16_load(row + 2) : 0.0f;
        const uint8_t *q = row + (has_min ? 4 : 2);
        for (int j = 0; j < 16; j++) {
            int lo = q[j] & 15, hi = q[j] >> 4;
            out[j] = has_min ? (float)lo * d + m : (float)(lo - 8) * d;
            out[j + 16] = has_min ? (float)hi * d + m : (float)(hi - 8) * d;
        }
        row = q + 16;
    }
}

void sl_dequant_row(enum sl_dtype type, const void *row, uint64_t n_cols, float *out)
{
    const uint8_t *p = row;
    switch (type) {
    case SL_F32:
        memcpy(out, p, n_cols * sizeof *out);
        return;
    case SL_F16:
        for (uint64_t i = 0; i < n_cols; i++)
            out[i] = sl_f16_load(p + 2 * i);
        return;
    case SL_BF16:
        for (uint64_t i = 0; i < n_cols; i++)
            out[i] = sl_bf16_load(p + 2 * i);
        return;
    case SL_Q4_0:
        dequant_q4(p, n_cols / 32, 0, out);
        return;
    case SL_Q4_1:
        dequant_q4(p, n_cols / 32, 1, out);
        return;
    case SL_Q8_0:
        for (uint64_t b = 0; b < n_cols / 32; b++, p += 34, out += 32) {
            float d = sl_f16_load(p);
            for (int j = 0; j < 32; j++)
                out[j] = (float)(int8_t)p[2 + j] * d;
        }
        return;
    }
}
