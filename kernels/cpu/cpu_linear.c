/* kernels/cpu/cpu_linear.c - the matrix product of all but the reference: who computes what.
 *
 * First the rows are brought, each alone, into the forms the matrix's types want (prologue and quantisation
 * fused, one pass over a row in the nearest cache). Then the product is cut into items of a few panels by up
 * to SL_CHUNK_ROWS rows that the threads take as they come: one that lost its core for a while takes
 * fewer. K is never cut, so nothing of this is seen in the result. A chunk of activations stays in L2
 * while the panels pass by. */
#include "kernels/cpu/cpu_dev.h"

#include <stdbool.h>
#include <string.h>

#define CHUNK_BYTES      ((size_t)512 << 10) /* of activations: half of L2 */
#define LEAST_CHUNK_ROWS 16u                 /* fewer do not pay for unpacking a block of weights */
#define ITEMS_PER_THREAD 8u
#define ITEM_BYTES       ((size_t)32 << 10) /* of weights, at least: less is not worth a hand-over */
#define LEAST_ELEMENTS   2048u /* of an item of rows to prepare: less costs less than its hand-over */
#define SUM_ELEMENTS     512u  /* of ranks' parts summed at a time, in the nearest cache */

struct linear_job {
    struct sl_dev *d;
    const struct sl_linear *a;
    uint32_t first_row, n_rows;
    struct sl_acts acts;
    float *f32; /* where acts.f is written; NULL when the rows are used where they are */
    uint32_t rows_per_item, rows_per_chunk, panels_per_item, items_per_chunk, n_items;
};

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* The forms of activations that a matrix wants. */
struct forms {
    bool f32, bf16, int8;
};

static struct forms forms_of(const struct sl_weight *w)
{
    struct forms f = {false, false, false};
    for (uint32_t i = 0; i < w->n_segments; i++) {
        enum sl_dtype type = w->segments[i].type;
        f.f32 |= type == SL_F32 || type == SL_F16;
        f.bf16 |= type == SL_BF16;
        f.int8 |= sl_is_quantised(type);
    }
    return f;
}

static size_t bf16_stride(uint32_t n_cols)
{
    return round_up(n_cols, 32) + 32;
}

size_t sl_cpu_acts_row_bytes(const struct sl_weight *w)
{
    struct forms f = forms_of(w);
    return (f.f32 ? sl_cpu_row_floats(w->n_cols) * sizeof(float) : 0) +
           (f.bf16 ? bf16_stride(w->n_cols) * sizeof(uint16_t) : 0) +
           (f.int8 ? w->n_cols / SL_QBLOCK * sizeof(struct sl_qblock) : 0);
}

/* Chunks of equal size, of whole tiles where there is more than one. */
static uint32_t rows_per_chunk(const struct sl_weight *w, uint32_t n_rows)
{
    size_t most = CHUNK_BYTES / sl_cpu_acts_row_bytes(w);
    most = most > SL_CHUNK_ROWS ? SL_CHUNK_ROWS : most < LEAST_CHUNK_ROWS ? LEAST_CHUNK_ROWS : most / 8 * 8;
    if (n_rows <= most)
        return n_rows;
    size_t n = (n_rows + most - 1) / most;
    return (uint32_t)round_up((n_rows + n - 1) / n, 8);
}

/* Lays the forms of the activations out in the device's scratch. */
static void lay_out(struct linear_job *j)
{
    const struct sl_weight *w = j->a->w;
    struct sl_acts *x = &j->acts;
    struct forms f = forms_of(w);
    uint8_t *at = j->d->acts;
    x->n_rows = j->n_rows;
    x->n_cols = w->n_cols;
    j->rows_per_chunk = x->group = rows_per_chunk(w, j->n_rows);
    if (f.int8) {
        x->q = (struct sl_qblock *)at;
        at += round_up(j->n_rows, x->group) * (w->n_cols / SL_QBLOCK) * sizeof *x->q;
    }
    if (f.bf16) {
        x->bf = (uint16_t *)at;
        x->bf_stride = bf16_stride(w->n_cols);
        at += j->n_rows * x->bf_stride * sizeof *x->bf;
    }
    if (f.f32 && j->a->prologue == SL_PRO_NONE && !j->a->x_rows) {
        x->f = j->a->x + (size_t)j->first_row * w->n_cols;
        x->f_stride = w->n_cols;
    } else if (f.f32) {
        j->f32 = (float *)at;
        x->f = j->f32;
        x->f_stride = sl_cpu_row_floats(w->n_cols);
    }
}

static void prepare_row(const struct linear_job *j, uint32_t r, float *tmp)
{
    const struct sl_linear *a = j->a;
    const struct sl_cpu_isa *isa = j->d->isa;
    const struct sl_acts *x = &j->acts;
    uint32_t k = a->w->n_cols;
    size_t row = a->x_rows ? a->x_rows[j->first_row + r] : j->first_row + r;
    const float *in = a->x + row * sl_linear_x_cols(a->prologue, k);
    float *f32 = j->f32 ? j->f32 + r * x->f_stride : tmp;
    switch (a->prologue) {
    case SL_PRO_NONE:
        if (j->f32)
            memcpy(f32, in, k * sizeof *f32);
        break;
    case SL_PRO_RMSNORM:
        isa->rmsnorm_row(in, a->norm_w, a->norm_eps, k, f32);
        break;
    case SL_PRO_SWIGLU:
        isa->swiglu_row(in, k, f32);
        break;
    case SL_PRO_GEGLU:
        isa->geglu_row(in, k, f32);
        break;
    }
    if (a->prologue != SL_PRO_NONE)
        in = f32;
    if (x->q)
        isa->quant_row(in, k, sl_acts_block(x, r, 0), x->group);
    if (x->bf) {
        uint16_t *to = x->bf + r * x->bf_stride;
        isa->bf16_row(in, k, to);
        if (k % 2)
            to[k] = 0;
    }
}

static void prepare_item(void *arg, uint32_t item, unsigned worker)
{
    const struct linear_job *j = arg;
    float *tmp = j->d->rows + worker * sl_cpu_row_floats(j->d->widest);
    uint32_t r = item * j->rows_per_item,
             end = j->n_rows - r < j->rows_per_item ? j->n_rows : r + j->rows_per_item;
    for (; r < end; r++)
        prepare_row(j, r, tmp);
}

static void prepare(struct linear_job *j)
{
    if (!j->f32 && !j->acts.q && !j->acts.bf)
        return; /* the rows are used where they are */
    uint32_t want = j->d->n_threads * ITEMS_PER_THREAD, least = (LEAST_ELEMENTS - 1) / j->a->w->n_cols + 1;
    j->rows_per_item = j->n_rows / want > least ? j->n_rows / want : least;
    sl_cpu_pool_run(j->d->pool, (j->n_rows - 1) / j->rows_per_item + 1, prepare_item, j);
}

static void product_item(void *arg, uint32_t i, unsigned worker)
{
    (void)worker;
    const struct linear_job *j = arg;
    const struct sl_weight *w = j->a->w;
    uint32_t r0 = i / j->items_per_chunk * j->rows_per_chunk, p = i % j->items_per_chunk * j->panels_per_item;
    uint32_t r1 = j->n_rows - r0 < j->rows_per_chunk ? j->n_rows : r0 + j->rows_per_chunk;
    uint32_t end = w->n_panels - p < j->panels_per_item ? w->n_panels : p + j->panels_per_item;
    const struct sl_segment *s = w->segments;
    for (; p < end; p++) {
        while (p >= s->first_panel + s->n_panels)
            s++;
        struct sl_store to = {.y = j->a->y + (size_t)j->first_row * w->n_rows + s->first_row,
                              .stride = w->n_rows,
                              .bias = j->a->bias ? j->a->bias + s->first_row : NULL,
                              .add = j->a->add};
        j->d->isa->panel(s, p - s->first_panel, &j->acts, r0, r1, &to);
    }
}

/* Enough items to even out the threads, none too small. */
static uint32_t panels_per_item(const struct sl_dev *d, const struct sl_weight *w)
{
    uint32_t even = w->n_panels / (d->n_threads * ITEMS_PER_THREAD);
    uint32_t least = (uint32_t)(ITEM_BYTES / (w->bytes / w->n_panels)) + 1;
    uint32_t most = (w->n_panels + 2 * d->n_threads - 1) / (2 * d->n_threads);
    uint32_t n = even > least ? even : least;
    return n < most ? n : most;
}

void sl_cpu_linear(struct sl_dev *d, const struct sl_linear *a)
{
    for (uint32_t r = 0; r < a->n_rows; r += d->max_rows) {
        struct linear_job j = {.d = d, .a = a, .first_row = r};
        j.n_rows = a->n_rows - r < d->max_rows ? a->n_rows - r : d->max_rows;
        lay_out(&j);
        prepare(&j);
        j.panels_per_item = panels_per_item(d, a->w);
        j.items_per_chunk = (a->w->n_panels + j.panels_per_item - 1) / j.panels_per_item;
        j.n_items = j.items_per_chunk * ((j.n_rows + j.rows_per_chunk - 1) / j.rows_per_chunk);
        sl_cpu_pool_run(d->pool, j.n_items, product_item, &j);
    }
}

struct norm_add_job {
    const struct sl_dev *d;
    const float *y, *norm_w;
    float eps, *x;
    uint32_t n_rows, n, rows_per_item;
};

static void norm_add_item(void *arg, uint32_t item, unsigned worker)
{
    (void)worker;
    const struct norm_add_job *j = arg;
    uint32_t r = item * j->rows_per_item,
             end = j->n_rows - r < j->rows_per_item ? j->n_rows : r + j->rows_per_item;
    for (; r < end; r++)
        j->d->isa->norm_add_row(j->y + (size_t)r * j->n, j->norm_w, j->eps, j->n, j->x + (size_t)r * j->n);
}

void sl_cpu_norm_add(struct sl_dev *d, const float *y, const float *norm_w, float eps, uint32_t n_rows,
                     uint32_t n, float *x)
{
    struct norm_add_job j = {d, y, norm_w, eps, x, n_rows, n, (LEAST_ELEMENTS - 1) / n + 1};
    sl_cpu_pool_run(d->pool, (n_rows + j.rows_per_item - 1) / j.rows_per_item, norm_add_item, &j);
}

struct sum_job {
    const float *parts;
    uint32_t n_parts;
    size_t n;
    int add;
    float *y;
};

/* n is at most SUM_ELEMENTS. */
static void sum_stretch(const struct sum_job *j, size_t at, size_t n)
{
    float sum[SUM_ELEMENTS], *y = j->y + at;
    memcpy(sum, j->parts + at, n * sizeof *sum);
    for (uint32_t p = 1; p < j->n_parts; p++) {
        const float *part = j->parts + p * j->n + at;
        for (size_t i = 0; i < n; i++)
            sum[i] += part[i];
    }
    for (size_t i = 0; i < n; i++)
        y[i] = j->add ? y[i] + sum[i] : sum[i];
}

static void sum_item(void *arg, uint32_t item, unsigned worker)
{
    (void)worker;
    const struct sum_job *j = arg;
    size_t at = (size_t)item * LEAST_ELEMENTS, end = j->n - at < LEAST_ELEMENTS ? j->n : at + LEAST_ELEMENTS;
    for (; at < end; at += SUM_ELEMENTS)
        sum_stretch(j, at, end - at < SUM_ELEMENTS ? end - at : SUM_ELEMENTS);
}

void sl_cpu_sum_ranks(struct sl_dev *d, const float *parts, uint32_t n_parts, size_t n, int add, float *y)
{
    struct sum_job j = {parts, n_parts, n, add, y};
    sl_cpu_pool_run(d->pool, (uint32_t)((n + LEAST_ELEMENTS - 1) / LEAST_ELEMENTS), sum_item, &j);
}
