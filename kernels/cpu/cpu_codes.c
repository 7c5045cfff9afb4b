/* kernels/cpu/cpu_codes.c - blocks of 32 quantised elements between a file's bytes, the packed layout
 * (cpu_dev.h) and float32.
 *
 * Every type keeps its own codes and its own scales, in as many bits as the file has for them, so packing is
 * a transposition: an element taken out again has the bits that sl_dequant_row() gives. */
#include "kernels/cpu/cpu_dev.h"

#include <string.h>
#include "kernels/cpu/half.h"

#define K_BLOCKS 8u /* of 32 elements in a block of a K type */

static void nibbles(const uint8_t *q, uint8_t *codes)
{
    for (uint32_t j = 0; j < 16; j++) {
        codes[j] = q[j] & 15;
        codes[16 + j] = q[j] >> 4;
    }
}

static void add_fifth_bits(const uint8_t *h, uint8_t *codes)
{
    for (uint32_t j = 0; j < 32; j++)
        codes[j] |= (uint8_t)((h[j / 8] >> j % 8 & 1) << 4);
}

/* Codes of block b of a row of the file, unsigned, element by element. */
static void file_codes(enum sl_dtype type, const uint8_t *row, uint32_t b, uint8_t *codes)
{
    uint32_t i = b % K_BLOCKS;
    const uint8_t *p =
        row + sl_dtype_row_bytes(type, sl_dtype_block(type)) * (b / (sl_dtype_block(type) / SL_QBLOCK));
    switch (type) {
    case SL_Q4_0:
        nibbles(p + 2, codes);
        return;
    case SL_Q4_1:
        nibbles(p + 4, codes);
        return;
    case SL_Q5_0:
        nibbles(p + 6, codes);
        add_fifth_bits(p + 2, codes);
        return;
    case SL_Q5_1:
        nibbles(p + 8, codes);
        add_fifth_bits(p + 4, codes);
        return;
    case SL_Q8_0:
        for (uint32_t j = 0; j < 32; j++)
            codes[j] = p[2 + j] ^ 0x80;
        return;
    case SL_Q4_K:
        for (uint32_t j = 0; j < 32; j++)
            codes[j] = p[16 + i / 2 * 32 + j] >> i % 2 * 4 & 15;
        return;
    case SL_Q5_K:
        for (uint32_t j = 0; j < 32; j++)
            codes[j] = (uint8_t)((p[48 + i / 2 * 32 + j] >> i % 2 * 4 & 15) | (p[16 + j] >> i & 1) << 4);
        return;
    default: /* Q6_K: a half of 128 elements has 64 bytes of low and 32 of high bits */
        for (uint32_t j = 0; j < 32; j++) {
            uint32_t half = i / 4, e = i % 4;
            uint8_t low = p[half * 64 + e % 2 * 32 + j] >> e / 2 * 4 & 15;
            codes[j] = (uint8_t)(low | (p[128 + half * 32 + j] >> e * 2 & 3) << 4);
        }
    }
}

static void put_codes(uint32_t bits, const uint8_t *codes, uint32_t col, uint8_t *packed)
{
    uint32_t h = col / 16, c = col % 16;
    if (bits == 8) {
        for (uint32_t s = 0; s < 8; s++)
            memcpy(packed + s * 128 + h * 64 + c * 4, codes + 4 * s, 4);
        return;
    }
    for (uint32_t e = 0; e < 16; e++)
        packed[e / 4 * 128 + h * 64 + c * 4 + e % 4] = (uint8_t)((codes[e] & 15) | (codes[16 + e] & 15) << 4);
    packed += 512;
    if (bits == 5)
        for (uint32_t e = 0; e < 32; e++)
            packed[h * 64 + c * 4 + e % 4] |= (uint8_t)(codes[e] >> 4 << e / 4);
    if (bits == 6)
        for (uint32_t e = 0; e < 32; e++)
            packed[h * 128 + e / 16 * 64 + c * 4 + e % 4] |= (uint8_t)(codes[e] >> 4 << e % 16 / 4 * 2);
}

static void take_codes(uint32_t bits, const uint8_t *packed, uint32_t col, uint8_t *codes)
{
    uint32_t h = col / 16, c = col % 16;
    if (bits == 8) {
        for (uint32_t s = 0; s < 8; s++)
            memcpy(codes + 4 * s, packed + s * 128 + h * 64 + c * 4, 4);
        return;
    }
    for (uint32_t e = 0; e < 16; e++) {
        uint8_t both = packed[e / 4 * 128 + h * 64 + c * 4 + e % 4];
        codes[e] = both & 15;
        codes[16 + e] = both >> 4;
    }
    packed += 512;
    if (bits == 5)
        for (uint32_t e = 0; e < 32; e++)
            codes[e] |= (uint8_t)((packed[h * 64 + c * 4 + e % 4] >> e / 4 & 1) << 4);
    if (bits == 6)
        for (uint32_t e = 0; e < 32; e++)
            codes[e] |= (uint8_t)((packed[h * 128 + e / 16 * 64 + c * 4 + e % 4] >> e % 16 / 4 * 2 & 3) << 4);
}

/* The scales of block b of a row of the file, for column col; those of the head are written with each block.
 */
static void put_scales(enum sl_dtype type, const uint8_t *row, uint32_t b, uint32_t col, uint8_t *head,
                       uint8_t *scales)
{
    const uint8_t *p =
        row + sl_dtype_row_bytes(type, sl_dtype_block(type)) * (b / (sl_dtype_block(type) / SL_QBLOCK));
    switch (type) {
    case SL_Q4_K:
    case SL_Q5_K:
        sl_k_parts(p, b % K_BLOCKS, scales + col, scales + SL_PANEL + col);
        memcpy(head + 2 * col, p, 2);
        memcpy(head + 2 * SL_PANEL + 2 * col, p + 2, 2);
        return;
    case SL_Q6_K:
        scales[col] = p[192 + b % K_BLOCKS * 2];
        scales[SL_PANEL + col] = p[192 + b % K_BLOCKS * 2 + 1];
        memcpy(head + 2 * col, p + 208, 2);
        return;
    default:
        memcpy(scales + 2 * col, p, 2);
        if (sl_form_of(type).has_min)
            memcpy(scales + 2 * SL_PANEL + 2 * col, p + 2, 2);
    }
}

/* x = d[half] * (code - zero) + m */
struct scales {
    float d[2], m;
    int zero;
};

static struct scales take_scales(enum sl_dtype type, const uint8_t *head, const uint8_t *scales, uint32_t col)
{
    struct scales s = {.m = 0.0f};
    switch (type) {
    case SL_Q4_K:
    case SL_Q5_K:
        s.d[0] = s.d[1] = sl_f16_load(head + 2 * col) * (float)scales[col];
        s.m = -(sl_f16_load(head + 2 * SL_PANEL + 2 * col) * (float)scales[SL_PANEL + col]);
        return s;
    case SL_Q6_K:
        for (uint32_t i = 0; i < 2; i++)
            s.d[i] = sl_f16_load(head + 2 * col) * (float)(int8_t)scales[i * SL_PANEL + col];
        s.zero = 32;
        return s;
    default:
        s.d[0] = s.d[1] = sl_f16_load(scales + 2 * col);
        if (sl_form_of(type).has_min)
            s.m = sl_f16_load(scales + 2 * SL_PANEL + 2 * col);
        else
            s.zero = 1 << (sl_form_of(type).code_bits - 1);
        return s;
    }
}

void sl_cpu_block_put(enum sl_dtype type, const uint8_t *row, uint32_t b, uint32_t col, uint8_t *panel)
{
    struct sl_form f = sl_form_of(type);
    uint8_t *head = panel + b / f.n_blocks * sl_form_bytes(&f),
            *block = head + f.head + b % f.n_blocks * (f.codes + f.scales), codes[SL_QBLOCK];
    file_codes(type, row, b, codes);
    put_codes(f.code_bits, codes, col, block);
    put_scales(type, row, b, col, head, block + f.codes);
}

void sl_cpu_block_take(enum sl_dtype type, const uint8_t *panel, uint32_t b, uint32_t col, float *out)
{
    struct sl_form f = sl_form_of(type);
    const uint8_t *head = panel + b / f.n_blocks * sl_form_bytes(&f),
                  *block = head + f.head + b % f.n_blocks * (f.codes + f.scales);
    uint8_t codes[SL_QBLOCK];
    take_codes(f.code_bits, block, col, codes);
    struct scales s = take_scales(type, head, block + f.codes, col);
    for (uint32_t e = 0; e < SL_QBLOCK; e++) {
        float x = (float)(codes[e] - s.zero) * s.d[e / 16];
        out[e] = f.has_min ? x + s.m : x;
    }
}
