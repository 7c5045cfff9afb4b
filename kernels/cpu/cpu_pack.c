/* kernels/cpu/cpu_pack.c - matrices in panels whose vector lanes are output columns (layouts: cpu_dev.h).
 *
 * Lanes are columns because then every output is summed in one lane in the order of K, whatever the number of
 * rows. Quantised weights stay in the file's codes and scales (cpu_codes.c), so packing loses nothing.
 * Tensors of different types stacked into one matrix are segments of it, each with panels of its own. Packing
 * copies: mapped file pages may be reclaimed at any time, huge pages stay. */
#include "kernels/cpu/cpu_dev.h"

#include <string.h>
#include "kernels/cpu/half.h"

#define EMBED_ROWS 16u /* of an item of the pool */

static size_t panel_bytes(enum sl_dtype type, uint32_t n_cols)
{
    struct sl_form f;
    switch (type) {
    case SL_F32:
        return (size_t)n_cols * SL_PANEL * 4;
    case SL_F16:
        return (size_t)n_cols * SL_PANEL * 2;
    case SL_BF16:
        return ((size_t)n_cols + 1) / 2 * SL_PANEL * 4;
    default:
        f = sl_form_of(type);
        return n_cols / SL_QBLOCK / f.n_blocks * sl_form_bytes(&f);
    }
}

/* Column col of a panel from a row of the file. */
static void put_row(const struct sl_segment *s, uint8_t *panel, uint32_t col, const uint8_t *file)
{
    uint32_t k;
    switch (s->type) {
    case SL_F32:
        for (k = 0; k < s->n_cols; k++)
            memcpy(panel + ((size_t)k * SL_PANEL + col) * 4, file + (size_t)k * 4, 4);
        return;
    case SL_F16:
        for (k = 0; k < s->n_cols; k++)
            memcpy(panel + ((size_t)k * SL_PANEL + col) * 2, file + (size_t)k * 2, 2);
        return;
    case SL_BF16:
        for (k = 0; k < s->n_cols; k++)
            memcpy(panel + (((size_t)(k / 2) * SL_PANEL + col) * 2 + k % 2) * 2, file + (size_t)k * 2, 2);
        return;
    default:
        for (k = 0; k < s->n_cols / SL_QBLOCK; k++)
            sl_cpu_block_put(s->type, file, k, col, panel);
    }
}

static void take_row(const struct sl_segment *s, uint32_t r, float *out)
{
    const uint8_t *panel = s->data + r / SL_PANEL * s->panel_bytes;
    uint32_t col = r % SL_PANEL, k;
    switch (s->type) {
    case SL_F32:
        for (k = 0; k < s->n_cols; k++)
            memcpy(&out[k], panel + ((size_t)k * SL_PANEL + col) * 4, 4);
        return;
    case SL_F16:
        for (k = 0; k < s->n_cols; k++)
            out[k] = sl_f16_load(panel + ((size_t)k * SL_PANEL + col) * 2);
        return;
    case SL_BF16:
        for (k = 0; k < s->n_cols; k++)
            out[k] = sl_bf16_load(panel + (((size_t)(k / 2) * SL_PANEL + col) * 2 + k % 2) * 2);
        return;
    default:
        for (k = 0; k < s->n_cols / SL_QBLOCK; k++)
            sl_cpu_block_take(s->type, panel, k, col, out + (size_t)k * SL_QBLOCK);
    }
}

void sl_cpu_weight_row(const struct sl_weight *w, uint32_t r, float *out)
{
    const struct sl_segment *s = w->segments;
    while (r >= s->first_row + s->n_rows)
        s++;
    take_row(s, r - s->first_row, out);
}

bool sl_cpu_rows_are_sane(const struct sl_rows_of *of, uint32_t n, uint64_t n_cols)
{
    uint64_t n_rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        n_rows += of[i].n_rows;
        if (of[i].n_rows == 0 || n_rows > SL_MATRIX_MAX_ROWS || sl_dtype_row_bytes(of[i].type, n_cols) == 0)
            return false;
    }
    return n > 0 && n <= SL_MAX_SEGMENTS && n_cols <= SL_MATRIX_MAX_COLS;
}

/* Not touched here: the threads that fill it do that, each its part. */
struct sl_weight *sl_cpu_weight_new(struct sl_dev *d, const struct sl_rows_of *of, uint32_t n,
                                    uint32_t n_cols)
{
    struct sl_weight *w = sl_xcalloc(1, sizeof *w);
    w->n_cols = n_cols;
    w->n_segments = n;
    for (uint32_t i = 0; i < n; i++) {
        struct sl_segment *s = &w->segments[i];
        *s = (struct sl_segment){.type = of[i].type, .n_rows = of[i].n_rows, .n_cols = n_cols};
        s->panel_bytes = panel_bytes(s->type, n_cols);
        s->n_panels = (s->n_rows + SL_PANEL - 1) / SL_PANEL;
        s->first_row = w->n_rows;
        s->first_panel = w->n_panels;
        w->n_rows += s->n_rows;
        w->n_panels += s->n_panels;
        w->bytes += s->panel_bytes * s->n_panels;
    }
    w->data = sl_huge_alloc(w->bytes, false);
    if (!w->data || sl_cpu_fit_acts(d, n_cols, sl_cpu_acts_row_bytes(w)) != SL_OK) {
        sl_cpu_weight_free(d, w);
        return NULL;
    }
    uint8_t *at = w->data;
    for (uint32_t i = 0; i < n; at += w->segments[i].panel_bytes * w->segments[i].n_panels, i++)
        w->segments[i].data = at;
    return w;
}

/* The segments of a stack: neighbours of one type are one; to the reference all are float32. */
static enum sl_err segments_of(const struct sl_dev *d, const struct sl_tensor_view *v, size_t n,
                               struct sl_rows_of of[SL_MAX_SEGMENTS], uint32_t *n_segments,
                               struct sl_why *why)
{
    enum sl_err e = sl_views_check(v, n, why);
    if (e != SL_OK)
        return e;
    *n_segments = 0;
    for (size_t i = 0; i < n; i++) {
        enum sl_dtype type = d->isa ? v[i].type : SL_F32;
        struct sl_rows_of *last = *n_segments > 0 ? &of[*n_segments - 1] : NULL;
        uint64_t n_rows = v[i].n_rows + (last && last->type == type ? last->n_rows : 0);
        if (!last || last->type != type) {
            if (*n_segments == SL_MAX_SEGMENTS)
                return sl_why_set(why, SL_EUNSUPPORTED, "A stack of more than %u types is not supported.",
                                  SL_MAX_SEGMENTS);
            last = &of[(*n_segments)++];
        }
        *last = (struct sl_rows_of){type, (uint32_t)n_rows};
    }
    return SL_OK;
}

struct pack_job {
    const struct sl_segment *s;
    const struct sl_tensor_view *views;
    float *rows; /* reference: a dequantised row per worker */
};

/* Row r of the matrix in the file. */
static const uint8_t *file_row(const struct sl_tensor_view *v, uint64_t r, enum sl_dtype *type)
{
    for (; r >= v->n_rows; v++)
        r -= v->n_rows;
    *type = v->type;
    return (const uint8_t *)v->data + r * sl_dtype_row_bytes(v->type, v->n_cols);
}

static void pack_panel(void *arg, uint32_t p, unsigned worker)
{
    const struct pack_job *j = arg;
    const struct sl_segment *s = j->s;
    uint32_t end = (p + 1) * SL_PANEL < s->n_rows ? (p + 1) * SL_PANEL : s->n_rows;
    for (uint32_t r = p * SL_PANEL; r < end; r++) {
        enum sl_dtype type;
        const uint8_t *file = file_row(j->views, s->first_row + r, &type);
        if (j->rows) {
            float *row = j->rows + (size_t)worker * s->n_cols;
            sl_dequant_row(type, file, s->n_cols, row);
            file = (const uint8_t *)row;
        }
        put_row(s, s->data + p * s->panel_bytes, r % SL_PANEL, file);
    }
}

enum sl_err sl_cpu_weight_pack(struct sl_dev *d, const struct sl_tensor_view *views, size_t n,
                               struct sl_weight **out, struct sl_why *why)
{
    struct sl_rows_of of[SL_MAX_SEGMENTS];
    uint32_t n_segments = 0;
    enum sl_err e = segments_of(d, views, n, of, &n_segments, why);
    if (e != SL_OK)
        return e;
    uint32_t n_cols = (uint32_t)views[0].n_cols;
    struct sl_weight *w = sl_cpu_weight_new(d, of, n_segments, n_cols);
    float *rows = d->isa ? NULL : sl_try_alloc((size_t)d->n_threads * n_cols * sizeof *rows);
    if (!w || (!d->isa && !rows)) {
        sl_cpu_weight_free(d, w);
        sl_free(rows);
        return sl_why_set(why, SL_ENOMEM, "There is no memory for a packed matrix with %u columns.", n_cols);
    }
    for (uint32_t i = 0; i < n_segments; i++) {
        struct pack_job job = {&w->segments[i], views, rows};
        sl_cpu_pool_run(d->pool, w->segments[i].n_panels, pack_panel, &job);
    }
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
