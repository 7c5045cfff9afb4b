/* kernels/cpu/cpu_linear.c - the matrix product of all but the reference: who computes what.
 *
 * First the rows are brought, each alone, into the form the weight's type wants (prologue and quantisation
 * fused, one pass over a row in the nearest cache). Then the product is cut into items of a few panels by up
 * to ROW_CHUNK rows that the threads take as they come: one that lost its core for a while takes
 * fewer. K is never cut, so nothing of this is seen in the result. ROW_CHUNK rows of activations stay in L2
 * while the panels pass by. */
#include "kernels/cpu/cpu_dev.h"

#include <string.h>

#define ROW_CHUNK        64u
#define ITEMS_PER_THREAD 8u
#define LEAST_ELEMENTS   2048u /* of an item of rows to prepare: less costs less than its hand-over */

struct linear_job {
    struct sl_dev *d;
    const struct sl_linear *a;
    uint32_t first_row, n_rows;
    struct sl_acts acts;
    float *f32; /* where acts.f is written; NULL when the rows are used where they are */
    uint32_t rows_per_item, panels_per_item, items_per_chunk, n_items;
};

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Lays the forms of the activations out in the device's scratch. */
static void lay_out(struct linear_job *j)
{
    const struct sl_weight *w = j->a->w;
    struct sl_acts *x = &j->acts;
    uint8_t *at = j->d->acts;
    size_t n = j->n_rows, n_blocks = w->n_cols / SL_QBLOCK;
    x->n_rows = j->n_rows;
    x->n_cols = w->n_cols;
    switch (w->type) {
    case SL_F32:
    case SL_F16:
        if (j->a->prologue == SL_PRO_NONE && !j->a->x_rows) {
            x->f = j->a->x + (size_t)j->first_row * w->n_cols;
            x->f_stride = w->n_cols;
        } else {
            j->f32 = (float *)at;
            x->f = j->f32;
            x->f_stride = sl_cpu_row_floats(w->n_cols);
        }
        return;
    case SL_BF16:
        x->bf = (uint16_t *)at;
        x->bf_stride = round_up(w->n_cols, 32) + 32;
        return;
    default:
        n = round_up(n, SL_GROUP) * n_blocks;
        x->q = (int8_t *)at;
        at += round_up(n * SL_QBLOCK, 64);
        x->scale = (float *)at;
        at += round_up(n * sizeof(float), 64);
        if (w->type == SL_Q4_1)
            x->scaled_sum = (float *)at;
        else
            x->start = (int32_t *)at;
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
    float *f32 = x->f ? j->f32 + r * x->f_stride : tmp;
    switch (a->prologue) {
    case SL_PRO_NONE:
        if (x->f)
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
    if (x->q) {
        size_t at = sl_acts_block(x, r, 0);
        isa->quant_row(in, k, a->w->type == SL_Q8_0 ? 128 : 8, x->q + at * SL_QBLOCK, x->scale + at,
                       x->start ? x->start + at : NULL, x->scaled_sum ? x->scaled_sum + at : NULL);
    } else if (x->bf) {
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
    if (j->acts.f && !j->f32)
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
    struct sl_store to = {j->a->y + (size_t)j->first_row * w->n_rows, w->n_rows, j->a->bias, j->a->add};
    uint32_t r0 = i / j->items_per_chunk * ROW_CHUNK, p0 = i % j->items_per_chunk * j->panels_per_item;
    uint32_t r1 = j->n_rows - r0 < ROW_CHUNK ? j->n_rows : r0 + ROW_CHUNK;
    uint32_t p1 = w->n_panels - p0 < j->panels_per_item ? w->n_panels : p0 + j->panels_per_item;
    for (uint32_t p = p0; p < p1; p++)
        j->d->isa->panel(w, p, &j->acts, r0, r1, &to);
}

void sl_cpu_linear(struct sl_dev *d, const struct sl_linear *a)
{
    for (uint32_t r = 0; r < a->n_rows; r += d->max_rows) {
        struct linear_job j = {.d = d, .a = a, .first_row = r};
        j.n_rows = a->n_rows - r < d->max_rows ? a->n_rows - r : d->max_rows;
        lay_out(&j);
        prepare(&j);
        uint32_t want = d->n_threads * ITEMS_PER_THREAD;
        j.panels_per_item = a->w->n_panels > want ? a->w->n_panels / want : 1;
        j.items_per_chunk = (a->w->n_panels + j.panels_per_item - 1) / j.panels_per_item;
        j.n_items = j.items_per_chunk * ((j.n_rows + ROW_CHUNK - 1) / ROW_CHUNK);
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
