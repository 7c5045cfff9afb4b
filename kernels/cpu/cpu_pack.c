/* kernels/cpu/cpu_pack.c - matrices in panels whose vector lanes are output columns (layouts: cpu_dev.h).
 *
 * Lanes are columns because then every output is summed in one lane in the order of K, whatever the number of
 * rows; and 4-bit weights stay 4-bit, in the byte order of the file's blocks, so that packing is a
 * transposition and loses nothing; other types of files are recoded first (packed_type()). Packing copies:
 * mapped file pages may be reclaimed at any time, huge pages stay. */
#include "kernels/cpu/cpu_dev.h"

#include <string.h>
#include "kernels/cpu/half.h"

#define EMBED_ROWS 16u                           /* of an item of the pool */
#define MAX_ROWS   (SL_CPU_POOL_MAX_ITEMS * 32u) /* a panel is an item of the pool */
#define MAX_COLS   (1u << 24)

static uint32_t block_bytes(enum sl_dtype type)
{
    switch (type) {
    case SL_Q8_0:
        return SL_PANEL * 34;
    case SL_Q4_0:
        return SL_PANEL * 18;
    case SL_Q4_1:
        return SL_PANEL * 20;
    default:
        return 0;
    }
}

static size_t panel_bytes(enum sl_dtype type, uint32_t n_cols)
{
    switch (type) {
    case SL_F32:
        return (size_t)n_cols * SL_PANEL * 4;
    case SL_F16:
        return (size_t)n_cols * SL_PANEL * 2;
    case SL_BF16:
        return ((size_t)n_cols + 1) / 2 * SL_PANEL * 4;
    default:
        return (size_t)(n_cols / SL_QBLOCK) * block_bytes(type);
    }
}

/* Bytes of quantised codes in a block of a panel; the scales follow. */
static size_t code_bytes(enum sl_dtype type)
{
    return type == SL_Q8_0 ? SL_PANEL * 32 : SL_PANEL * 16;
}

/* Copies between the block of one column in file form and its place in a packed block, byte for byte; flip is
 * applied to the codes (0x80 makes signed Q8_0 codes unsigned and back). */
static void put_block(enum sl_dtype type, const uint8_t *file, uint32_t col, uint8_t *packed)
{
    uint32_t n_scales = type == SL_Q4_1 ? 2 : 1, quads = type == SL_Q8_0 ? 8 : 4;
    uint8_t flip = type == SL_Q8_0 ? 0x80 : 0;
    uint8_t *codes = packed + (col / 16 * quads * 16 + col % 16) * 4, *scales = packed + code_bytes(type);
    const uint8_t *q = file + 2 * n_scales;
    for (uint32_t s = 0; s < quads; s++)
        for (uint32_t j = 0; j < 4; j++)
            codes[s * 64 + j] = q[4 * s + j] ^ flip;
    for (uint32_t i = 0; i < n_scales; i++)
        memcpy(scales + (i * SL_PANEL + col) * 2, file + 2 * i, 2);
}

static void take_block(enum sl_dtype type, const uint8_t *packed, uint32_t col, uint8_t *file)
{
    uint32_t n_scales = type == SL_Q4_1 ? 2 : 1, quads = type == SL_Q8_0 ? 8 : 4;
    uint8_t flip = type == SL_Q8_0 ? 0x80 : 0;
    const uint8_t *codes = packed + (col / 16 * quads * 16 + col % 16) * 4,
                  *scales = packed + code_bytes(type);
    uint8_t *q = file + 2 * n_scales;
    for (uint32_t s = 0; s < quads; s++)
        for (uint32_t j = 0; j < 4; j++)
            q[4 * s + j] = codes[s * 64 + j] ^ flip;
    for (uint32_t i = 0; i < n_scales; i++)
        memcpy(file + 2 * i, scales + (i * SL_PANEL + col) * 2, 2);
}

/* What a type of the file is packed as: the types with inner loops of their own as they are, the others as
 * the nearest of those. Q5_0's codes fit into Q8_0's bytes, with nothing lost. The parts of Q4_K are blocks
 * of Q4_1 once d * sc and dmin * mn, of 17 bits, are rounded to f16: an element stays within 2^-11 (|d sc q|
 * + |dmin mn|). Five bits with a minimum and Q6_K's parts of 16 fit none of the integer layouts: their
 * elements become f16, within 2^-11 of their size or, below f16's normal numbers, 2^-25. All this is far
 * below the error with which the type itself was made. */
static enum sl_dtype packed_type(enum sl_dtype type)
{
    if (type == SL_Q5_0)
        return SL_Q8_0;
    if (type == SL_Q4_K)
        return SL_Q4_1;
    return type == SL_Q5_1 || type == SL_Q5_K || type == SL_Q6_K ? SL_F16 : type;
}

static void q5_0_to_q8_0(const uint8_t *q5, uint8_t *q8)
{
    memcpy(q8, q5, 2);
    for (uint32_t j = 0; j < 32; j++) {
        int nibble = q5[6 + j % 16] >> j / 16 * 4 & 15, fifth = q5[2 + j / 8] >> j % 8 & 1;
        q8[2 + j] = (uint8_t)((nibble | fifth << 4) - 16);
    }
}

static void q4_k_to_q4_1(const uint8_t *block, uint8_t *q4)
{
    for (uint32_t i = 0; i < 8; i++, q4 += 20) {
        const uint8_t *q = block + 16 + i / 2 * 32;
        uint32_t shift = i % 2 * 4;
        float d, m;
        sl_k_scales(block, i, &d, &m);
        uint16_t scales[2] = {sl_f32_to_f16(d), sl_f32_to_f16(-m)};
        memcpy(q4, scales, sizeof scales);
        for (uint32_t j = 0; j < 16; j++)
            q4[4 + j] = (uint8_t)((q[j] >> shift & 15) | (q[j + 16] >> shift & 15) << 4);
    }
}

/* A row of the file as a row of packed_type(type). floats has room for a row. */
static void recode_row(enum sl_dtype type, const uint8_t *file, uint32_t n_cols, float *floats, uint8_t *to)
{
    if (type == SL_Q5_0) {
        for (uint32_t b = 0; b < n_cols / 32; b++)
            q5_0_to_q8_0(file + (size_t)b * 22, to + (size_t)b * 34);
    } else if (type == SL_Q4_K) {
        for (uint32_t b = 0; b < n_cols / 256; b++)
            q4_k_to_q4_1(file + (size_t)b * 144, to + (size_t)b * 160);
    } else {
        sl_dequant_row(type, file, n_cols, floats);
        for (uint32_t k = 0; k < n_cols; k++) {
            uint16_t h = sl_f32_to_f16(floats[k]);
            memcpy(to + (size_t)k * 2, &h, sizeof h);
        }
    }
}

static void put_row(struct sl_weight *w, uint32_t r, const uint8_t *file)
{
    uint8_t *panel = w->data + r / SL_PANEL * w->panel_bytes;
    uint32_t col = r % SL_PANEL, k;
    switch (w->type) {
    case SL_F32:
        for (k = 0; k < w->n_cols; k++)
            memcpy(panel + ((size_t)k * SL_PANEL + col) * 4, file + (size_t)k * 4, 4);
        return;
    case SL_F16:
        for (k = 0; k < w->n_cols; k++)
            memcpy(panel + ((size_t)k * SL_PANEL + col) * 2, file + (size_t)k * 2, 2);
        return;
    case SL_BF16:
        for (k = 0; k < w->n_cols; k++)
            memcpy(panel + (((size_t)(k / 2) * SL_PANEL + col) * 2 + k % 2) * 2, file + (size_t)k * 2, 2);
        return;
    default:
        for (k = 0; k < w->n_cols / SL_QBLOCK; k++)
            put_block(w->type, file + (size_t)k * sl_dtype_row_bytes(w->type, SL_QBLOCK), col,
                      panel + (size_t)k * w->block_bytes);
    }
}

void sl_cpu_weight_row(const struct sl_weight *w, uint32_t r, float *out)
{
    uint32_t col = r % SL_PANEL, k;
    if (w->plain) {
        const float *p = w->plain + (size_t)(r / SL_PANEL) * w->n_cols * SL_PANEL + col;
        for (k = 0; k < w->n_cols; k++)
            out[k] = p[(size_t)k * SL_PANEL];
        return;
    }
    const uint8_t *panel = w->data + r / SL_PANEL * w->panel_bytes;
    uint8_t block[34]; /* Q8_0's, the largest */
    switch (w->type) {
    case SL_F32:
        for (k = 0; k < w->n_cols; k++)
            memcpy(&out[k], panel + ((size_t)k * SL_PANEL + col) * 4, 4);
        return;
    case SL_F16:
        for (k = 0; k < w->n_cols; k++)
            out[k] = sl_f16_load(panel + ((size_t)k * SL_PANEL + col) * 2);
        return;
    case SL_BF16:
        for (k = 0; k < w->n_cols; k++)
            out[k] = sl_bf16_load(panel + (((size_t)(k / 2) * SL_PANEL + col) * 2 + k % 2) * 2);
        return;
    default:
        for (k = 0; k < w->n_cols / SL_QBLOCK; k++) {
            take_block(w->type, panel + (size_t)k * w->block_bytes, col, block);
            sl_dequant_row(w->type, block, SL_QBLOCK, out + (size_t)k * SL_QBLOCK);
        }
    }
}

static enum sl_err check_views(const struct sl_tensor_view *v, size_t n, uint64_t *n_rows, struct sl_why *why)
{
    if (n == 0)
        return sl_why_set(why, SL_EINVAL, "A matrix to pack needs at least one tensor.");
    uint64_t rows = 0;
    for (size_t i = 0; i < n; i++) {
        if (v[i].type != v[0].type || v[i].n_cols != v[0].n_cols)
            return sl_why_set(
                why, SL_EUNSUPPORTED,
                "Tensors to be stacked differ: %s with %llu columns and %s with %llu; convert the model with "
                "one type for them.",
                sl_dtype_name(v[0].type), (unsigned long long)v[0].n_cols, sl_dtype_name(v[i].type),
                (unsigned long long)v[i].n_cols);
        if (v[i].n_rows > MAX_ROWS - rows)
            return sl_why_set(why, SL_EUNSUPPORTED, "A matrix of more than %u rows is not supported.",
                              MAX_ROWS);
        rows += v[i].n_rows;
    }
    if (sl_dtype_row_bytes(v[0].type, v[0].n_cols) == 0 || v[0].n_cols > MAX_COLS || rows == 0)
        return sl_why_set(
            why, SL_EUNSUPPORTED,
            "A matrix of type %s (number %d) with %llu rows and %llu columns is not supported; expected F32, "
            "F16, BF16, with a multiple of 32 columns Q8_0, Q4_0, Q4_1, Q5_0 or Q5_1, with one of 256 Q4_K, "
            "Q5_K or Q6_K.",
            sl_dtype_name(v[0].type), (int)v[0].type, (unsigned long long)rows,
            (unsigned long long)v[0].n_cols);
    *n_rows = rows;
    return SL_OK;
}

struct pack_job {
    struct sl_weight *w;
    const struct sl_tensor_view *views;
    size_t n_views;
    enum sl_dtype type; /* of the file */
    float *rows;        /* two rows per worker: dequantised, recoded; NULL where neither is done */
};

static const uint8_t *file_row(const struct pack_job *j, uint64_t r)
{
    size_t i = 0;
    while (r >= j->views[i].n_rows)
        r -= j->views[i++].n_rows;
    return (const uint8_t *)j->views[i].data + r * sl_dtype_row_bytes(j->type, j->w->n_cols);
}

static void pack_panel(void *arg, uint32_t p, unsigned worker)
{
    const struct pack_job *j = arg;
    struct sl_weight *w = j->w;
    float *row = j->rows ? j->rows + (size_t)worker * 2 * w->n_cols : NULL;
    uint32_t end = (p + 1) * SL_PANEL < w->n_rows ? (p + 1) * SL_PANEL : w->n_rows;
    for (uint32_t r = p * SL_PANEL; r < end; r++) {
        const uint8_t *file = file_row(j, r);
        if (!w->plain) {
            if (j->type != w->type) {
                recode_row(j->type, file, w->n_cols, row, (uint8_t *)(row + w->n_cols));
                file = (const uint8_t *)(row + w->n_cols);
            }
            put_row(w, r, file);
            continue;
        }
        float *to = w->plain + (size_t)p * w->n_cols * SL_PANEL;
        sl_dequant_row(j->type, file, w->n_cols, row);
        for (uint32_t k = 0; k < w->n_cols; k++)
            to[(size_t)k * SL_PANEL + r % SL_PANEL] = row[k];
    }
}

bool sl_cpu_weight_is_sane(enum sl_dtype type, uint64_t n_rows, uint64_t n_cols)
{
    return packed_type(type) == type && n_rows > 0 && n_rows <= MAX_ROWS && n_cols <= MAX_COLS &&
           sl_dtype_row_bytes(type, n_cols) > 0;
}

/* Not touched here: the threads that fill it do that, each its part. */
struct sl_weight *sl_cpu_weight_new(struct sl_dev *d, enum sl_dtype type, uint32_t n_rows, uint32_t n_cols)
{
    struct sl_weight *w = sl_xcalloc(1, sizeof *w);
    w->type = type;
    w->n_rows = n_rows;
    w->n_cols = n_cols;
    w->n_panels = (n_rows + SL_PANEL - 1) / SL_PANEL;
    w->block_bytes = block_bytes(type);
    w->panel_bytes = d->isa ? panel_bytes(type, n_cols) : panel_bytes(SL_F32, n_cols);
    w->bytes = w->panel_bytes * w->n_panels;
    uint8_t *mem = sl_huge_alloc(w->bytes, false);
    if (!mem || sl_cpu_fit_acts(d, n_cols) != SL_OK) {
        sl_huge_free(mem, w->bytes);
        sl_free(w);
        return NULL;
    }
    if (d->isa)
        w->data = mem;
    else
        w->plain = (float *)mem;
    return w;
}

enum sl_err sl_cpu_weight_pack(struct sl_dev *d, const struct sl_tensor_view *views, size_t n,
                               struct sl_weight **out, struct sl_why *why)
{
    uint64_t n_rows = 0;
    enum sl_err e = check_views(views, n, &n_rows, why);
    if (e != SL_OK)
        return e;
    uint32_t n_cols = (uint32_t)views[0].n_cols;
    struct sl_weight *w = sl_cpu_weight_new(d, packed_type(views[0].type), (uint32_t)n_rows, n_cols);
    bool use_rows = !d->isa || packed_type(views[0].type) != views[0].type;
    float *rows = use_rows ? sl_try_alloc((size_t)d->n_threads * 2 * n_cols * sizeof *rows) : NULL;
    if (!w || (use_rows && !rows)) {
        sl_cpu_weight_free(d, w);
        sl_free(rows);
        return sl_why_set(why, SL_ENOMEM, "There is no memory for a packed matrix of %llu x %u.",
                          (unsigned long long)n_rows, n_cols);
    }
    struct pack_job job = {w, views, n, views[0].type, rows};
    sl_cpu_pool_run(d->pool, w->n_panels, pack_panel, &job);
    sl_free(rows);
    *out = w;
    return SL_OK;
}

void sl_cpu_weight_free(struct sl_dev *d, struct sl_weight *w)
{
    (void)d;
    if (!w)
        return;
    sl_huge_free(w->data, w->bytes);
    sl_huge_free(w->plain, w->bytes);
    sl_free(w);
}

size_t sl_cpu_weight_bytes(const struct sl_weight *w)
{
    return w->bytes;
}

struct embed_job {
    const struct sl_weight *w;
    const struct sl_batch *b;
    float scale, *x;
};

static void embed_rows(void *arg, uint32_t item, unsigned worker)
{
    (void)worker;
    const struct embed_job *j = arg;
    uint32_t r = item * EMBED_ROWS, end = j->b->n_rows - r < EMBED_ROWS ? j->b->n_rows : r + EMBED_ROWS;
    for (; r < end; r++) {
        float *x = j->x + (size_t)r * j->w->n_cols;
        sl_cpu_weight_row(j->w, (uint32_t)j->b->tokens[r], x);
        for (uint32_t k = 0; k < j->w->n_cols; k++)
            x[k] *= j->scale;
    }
}

void sl_cpu_embed(struct sl_dev *d, const struct sl_weight *w, const struct sl_batch *b, float scale,
                  float *x)
{
    struct embed_job j = {w, b, scale, x};
    sl_cpu_pool_run(d->pool, (b->n_rows + EMBED_ROWS - 1) / EMBED_ROWS, embed_rows, &j);
}
