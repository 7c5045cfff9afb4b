/* common/model/forward.c - step 6 of the request path: one pass of a batch through the layers.
 *
 * The same loop for every device and every mix of rows: prompt chunks over cached pages and decode rows
 * differ only in the batch's runs. What exactness needs lies in the ops (kernels/backend.h); here rows never
 * meet.
 *
 *     x      = embed(tokens) * scale                        [n_rows, d]
 *     per layer:
 *       qkv  = rmsnorm(x) Wqkv + b                          [n_rows, (heads + 2 kv heads) * head_dim]
 *       norm, where the layer says so, and rotate the heads of q and k, put k and v into the batch's pages
 *       x   += attention(q, pages) Wo + b                   [n_rows, d]
 *       x   += gated(rmsnorm(x) Wgate_up) Wdown             [n_rows, d]
 *     logits = rmsnorm(x[out_rows]) Whead                   [n_out, n_vocab]
 *
 * Under tensor parallelism every rank runs this loop over all rows with its heads, its part of the feed-forward and of
 * the vocabulary. What Wo and Wdown give is then a part of the sum: parts are gathered and added in the order of
 * ranks, the same for 1 row and for 512 (docs/tensor-parallel.md).
 *
 * A large batch goes through each layer in slices of SL_MODEL_SLICE_ROWS rows: rows of a slice see the K and
 * V of the slices before them, which are in the pages by then, and all that a layer computes is as large as a
 * slice only.
 *
 * In the last layer only the rows whose logits are wanted go on once K and V are in the pages; a pass without
 * such rows ends there. */
#include "common/model/model_impl.h"

#include <stdlib.h>
#include <unistd.h>

#include "common/base/log.h"

/* A run of rows to be carried through the last layer costs about as much as this many rows more: its matrices
 * are read once more. */
#define ROWS_PER_RANGE 16

/* How many of n this rank has. */
static uint32_t own(const struct sl_model *m, uint32_t n)
{
    return (uint32_t)sl_share_size(&m->share, n);
}

/* The shape of attention in a layer, of this rank's heads. */
static struct sl_attn_shape attn_shape(const struct sl_model *m, uint32_t layer)
{
    struct sl_attn_shape s = *sl_model_conf_attn(&m->conf, layer);
    s.n_heads = own(m, s.n_heads);
    s.n_kv_heads = own(m, s.n_kv_heads);
    s.q_norm = m->weights.layers[layer].q_norm.p;
    s.k_norm = m->weights.layers[layer].k_norm.p;
    s.qk_norm_eps = m->conf.rms_eps;
    return s;
}

/* Cuts the batch into slices of at most slice_rows rows, each a batch of its own with rows counted from 0.
 * Returns how many. */
static uint32_t slices_make(struct sl_model *m, const struct sl_batch *b)
{
    uint32_t n_slices = 0, n_runs = 0, u = 0, o = 0;
    for (uint32_t first = 0; first < b->n_rows; first += m->slice_rows) {
        uint32_t end = b->n_rows - first < m->slice_rows ? b->n_rows : first + m->slice_rows;
        struct sl_batch *s = &m->slices[n_slices++];
        *s = (struct sl_batch){.n_rows = end - first,
                               .tokens = b->tokens + first,
                               .runs = m->slice_runs + n_runs,
                               .out_rows = m->slice_out + o};
        for (; u < b->n_runs && b->runs[u].first_row < end; u++) {
            const struct sl_batch_run *r = &b->runs[u];
            uint32_t from = r->first_row < first ? first : r->first_row, to = r->first_row + r->n_rows;
            m->slice_runs[n_runs++] =
                (struct sl_batch_run){from - first, (to < end ? to : end) - from,
                                      r->first_pos + (from - r->first_row), r->pages, r->n_pages};
            s->n_runs++;
            if (to > end)
                break; /* goes on in the next slice */
        }
        for (; o < b->n_out && b->out_rows[o] < end; o++, s->n_out++)
            m->slice_out[o] = b->out_rows[o] - first;
    }
    return n_slices;
}

static void qkv_forward(struct sl_model *m, struct sl_kv *kv, uint32_t layer, const struct sl_batch *b,
                        const struct sl_attn_shape *shape, const float *x)
{
    const struct sl_layer_weights *w = &m->weights.layers[layer];
    struct sl_linear qkv = {.w = w->qkv,
                            .prologue = SL_PRO_RMSNORM,
                            .norm_w = w->attn_norm.p,
                            .norm_eps = m->conf.rms_eps,
                            .x = x,
                            .bias = w->qkv_bias.p,
                            .y = m->qkv.p,
                            .n_rows = b->n_rows};
    m->ops->linear(m->dev, &qkv);
    m->ops->rope_kv(m->dev, kv, layer, shape, b, m->qkv.p);
}

/* All ranks' parts [n_ranks, bytes], of which each has computed its own. A group that breaks ends the process, as a
 * device that fails does: to the cluster a node died. */
static void gather(struct sl_model *m, const struct sl_vector *parts, size_t bytes)
{
    struct sl_why why = {{0}};
    void *stream = NULL;
    if (m->group->in_order)
        stream = m->ops->native_stream(m->dev);
    else
        m->ops->sync(m->dev);
    if (m->group->all_gather(m->group, m->share.rank, stream, parts->p, bytes, &why) == SL_OK)
        return;
    SL_ERROR("the ranks of this node cannot go on: %s rank=%u of=%u", why.text, m->share.rank,
             m->share.n_ranks);
    abort();
}

/* The product of a, whose columns all ranks share: their parts are added in the order of ranks. */
static void shared_linear(struct sl_model *m, struct sl_linear a)
{
    size_t n = (size_t)a.n_rows * m->conf.d_model;
    float *y = a.y;
    int add = a.add;
    if (m->group == NULL) {
        m->ops->linear(m->dev, &a);
        return;
    }
    a.y = m->parts.p + m->share.rank * n;
    a.add = 0;
    m->ops->linear(m->dev, &a);
    gather(m, &m->parts, n * sizeof *y);
    m->ops->sum_ranks(m->dev, m->parts.p, m->share.n_ranks, n, add, y);
}

/* x += y, the product of a; where the architecture norms what it adds, y is normed first. */
static void branch_add(struct sl_model *m, struct sl_linear a, const struct sl_vector *post_norm, float *x)
{
    a.y = post_norm->p != NULL ? m->branch.p : x;
    a.add = post_norm->p == NULL;
    shared_linear(m, a);
    if (post_norm->p != NULL)
        m->ops->norm_add(m->dev, a.y, post_norm->p, m->conf.rms_eps, a.n_rows, m->conf.d_model, x);
}

/* What follows attention, for rows [first, first + n) of the slice that x begins. */
static void rows_forward(struct sl_model *m, uint32_t layer, uint32_t first, uint32_t n, float *x)
{
    const struct sl_layer_weights *w = &m->weights.layers[layer];
    size_t q_dim = (size_t)own(m, m->conf.attn.n_heads) * m->conf.attn.head_dim;
    x += (size_t)first * m->conf.d_model;
    struct sl_linear out = {.w = w->out, .x = m->attn.p + first * q_dim, .bias = w->out_bias.p, .n_rows = n};
    branch_add(m, out, &w->post_attn_norm, x);
    struct sl_linear gate_up = {.w = w->gate_up,
                                .prologue = SL_PRO_RMSNORM,
                                .norm_w = w->ffn_norm.p,
                                .norm_eps = m->conf.rms_eps,
                                .x = x,
                                .y = m->gate_up.p,
                                .n_rows = n};
    m->ops->linear(m->dev, &gate_up);
    struct sl_linear down = {.w = w->down, .prologue = m->conf.gated, .x = m->gate_up.p, .n_rows = n};
    branch_add(m, down, &w->post_ffn_norm, x);
}

/* The parts of the batch's runs whose logits are wanted, as runs over the same rows. */
static struct sl_batch wanted_rows(struct sl_model *m, const struct sl_batch *b)
{
    struct sl_batch wanted = {.n_rows = b->n_rows, .tokens = b->tokens, .runs = m->wanted_runs};
    uint32_t i = 0;
    for (uint32_t u = 0; u < b->n_runs; u++) {
        const struct sl_batch_run *run = &b->runs[u];
        while (i < b->n_out && b->out_rows[i] < run->first_row + run->n_rows) {
            uint32_t first = b->out_rows[i], n = 1;
            while (i + n < b->n_out && b->out_rows[i + n] == first + n &&
                   first + n < run->first_row + run->n_rows)
                n++;
            m->wanted_runs[wanted.n_runs++] = (struct sl_batch_run){
                first, n, run->first_pos + (first - run->first_row), run->pages, run->n_pages};
            i += n;
        }
    }
    return wanted;
}

static void last_layer_forward(struct sl_model *m, struct sl_kv *kv, uint32_t layer, const struct sl_batch *b,
                               const struct sl_attn_shape *shape, float *x)
{
    struct sl_batch wanted = wanted_rows(m, b);
    if (b->n_out == 0)
        return;
    m->ops->attention(m->dev, kv, layer, shape, &wanted, m->qkv.p, m->attn.p);
    if (b->n_out + ROWS_PER_RANGE * wanted.n_runs >= b->n_rows) {
        /* Unwanted rows compute on what attention left of another layer or slice. */
        rows_forward(m, layer, 0, b->n_rows, x);
        return;
    }
    for (uint32_t u = 0; u < wanted.n_runs;) {
        uint32_t first = wanted.runs[u].first_row, end = first;
        for (; u < wanted.n_runs && wanted.runs[u].first_row == end; u++)
            end += wanted.runs[u].n_rows;
        rows_forward(m, layer, first, end - first, x);
    }
}

static void layer_forward(struct sl_model *m, struct sl_kv *kv, uint32_t layer, const struct sl_batch *b,
                          float *x)
{
    struct sl_attn_shape shape = attn_shape(m, layer);
    qkv_forward(m, kv, layer, b, &shape, x);
    if (layer + 1 == m->conf.n_layers) {
        last_layer_forward(m, kv, layer, b, &shape, x);
        return;
    }
    m->ops->attention(m->dev, kv, layer, &shape, b, m->qkv.p, m->attn.p);
    rows_forward(m, layer, 0, b->n_rows, x);
}

/* Queues the head for out_rows [first, first + n). */
static void head_forward(struct sl_model *m, const struct sl_batch *b, uint32_t first, uint32_t n, float *y)
{
    struct sl_linear head = {.w = m->weights.head,
                             .prologue = SL_PRO_RMSNORM,
                             .norm_w = m->weights.out_norm.p,
                             .norm_eps = m->conf.rms_eps,
                             .x = m->x.p,
                             .x_rows = b->out_rows + first,
                             .y = y,
                             .n_rows = n};
    SL_ASSERT(first + n <= b->n_out);
    m->ops->linear(m->dev, &head);
}

/* A pass, or the logits of some of its rows, as all ranks get it. */
struct pass {
    struct sl_model *m; /* rank 0's */
    const struct sl_batch *b;
    atomic_uint_fast64_t *progress;
    uint32_t first, n;
    float *logits; /* [n, n_vocab] of rank 0's device */
};

/* The logits of n rows from all ranks' parts, each [n, its tokens]. */
static void logits_join(struct sl_model *m, uint32_t n, float *logits)
{
    size_t n_vocab = m->conf.n_vocab, most = sl_share_most(&m->share, n_vocab);
    for (uint32_t r = 0; r < m->share.n_ranks; r++) {
        const struct sl_share s = {r, m->share.n_ranks};
        size_t bytes = sl_share_size(&s, n_vocab) * sizeof *logits;
        m->ops->copy_rows(m->dev, logits + sl_share_first(&s, n_vocab), n_vocab * sizeof *logits,
                          m->head_parts.p + r * n * most, bytes, bytes, n);
    }
}

static void logits_of_rank(void *arg, uint32_t rank)
{
    const struct pass *p = arg;
    struct sl_model *m = sl_model_rank(p->m, rank);
    size_t most = sl_share_most(&m->share, m->conf.n_vocab);
    head_forward(m, p->b, p->first, p->n, m->head_parts.p + rank * p->n * most);
    gather(m, &m->head_parts, p->n * most * sizeof(float));
    if (rank == 0)
        logits_join(m, p->n, p->logits);
    m->ops->sync(m->dev);
}

/* Logits of n rows, at most SL_HEAD_ROWS, in memory of rank 0's device. */
static void logits_forward(struct sl_model *m, const struct sl_batch *b, uint32_t first, uint32_t n,
                           float *logits)
{
    struct pass p = {.m = m, .b = b, .first = first, .n = n, .logits = logits};
    SL_ASSERT(n <= SL_HEAD_ROWS);
    if (m->group != NULL)
        sl_ranks_run(m->ranks, logits_of_rank, &p);
    else
        head_forward(m, b, first, n, logits);
}

float *sl_model_logits_on_device(struct sl_model *m, const struct sl_batch *b, uint32_t first, uint32_t n)
{
    logits_forward(m, b, first, n, m->logits.p);
    return m->logits.p;
}

void sl_model_logits(struct sl_model *m, const struct sl_batch *b, uint32_t first, uint32_t n, float *logits)
{
    size_t n_vocab = m->conf.n_vocab;
    for (uint32_t end = first + n; first < end; first += SL_HEAD_ROWS, logits += SL_HEAD_ROWS * n_vocab) {
        n = end - first < SL_HEAD_ROWS ? end - first : SL_HEAD_ROWS;
        logits_forward(m, b, first, n, m->logits.p ? m->logits.p : logits);
        if (m->logits.p)
            m->ops->download(m->dev, logits, m->logits.p, n * n_vocab * sizeof *logits);
    }
    m->ops->sync(m->dev);
}

/* All rows through all layers, whichever logits are wanted: the same ops for every batch of as many rows. */
static void whole_forward(struct sl_model *m, struct sl_kv *kv, const struct sl_batch *b,
                          atomic_uint_fast64_t *progress)
{
    m->ops->embed(m->dev, m->weights.embed, b, m->conf.embed_scale, m->x.p);
    for (uint32_t layer = 0; layer < m->conf.n_layers; layer++) {
        struct sl_attn_shape shape = attn_shape(m, layer);
        qkv_forward(m, kv, layer, b, &shape, m->x.p);
        m->ops->attention(m->dev, kv, layer, &shape, b, m->qkv.p, m->attn.p);
        rows_forward(m, layer, 0, b->n_rows, m->x.p);
        atomic_fetch_add_explicit(progress, 1, memory_order_relaxed);
    }
}

static void sliced_forward(struct sl_model *m, struct sl_kv *kv, const struct sl_batch *b,
                           atomic_uint_fast64_t *progress)
{
    uint32_t n_slices = slices_make(m, b);
    m->ops->embed(m->dev, m->weights.embed, b, m->conf.embed_scale, m->x.p);
    for (uint32_t layer = 0; layer < m->conf.n_layers; layer++) {
        float *x = m->x.p;
        for (uint32_t i = 0; i < n_slices; x += (size_t)m->slices[i++].n_rows * m->conf.d_model)
            layer_forward(m, kv, layer, &m->slices[i], x);
        atomic_fetch_add_explicit(progress, 1, memory_order_relaxed);
    }
}

/* A device that hangs, for tests of the watchdog. */
static void stall(void)
{
    SL_WARN("fault injection: this step never ends");
    for (;;)
        pause();
}

/* What all ranks say: by host memory, whatever joins their devices. */
static uint32_t least_of_ranks(void *arg, uint32_t mine)
{
    struct sl_model *m = arg;
    uint32_t said[SL_MAX_RANKS], least = mine;
    said[m->share.rank] = mine;
    enum sl_err e = m->votes->all_gather(m->votes, m->share.rank, NULL, said, sizeof mine, NULL);
    SL_ASSERT(e == SL_OK);
    for (uint32_t r = 0; r < m->share.n_ranks; r++)
        least = said[r] < least ? said[r] : least;
    return least;
}

static void rank_forward(struct sl_model *m, struct sl_kv *kv, const struct sl_batch *b,
                         atomic_uint_fast64_t *progress)
{
    struct sl_batch filled = *b;
    const struct sl_vote vote = {least_of_ranks, m};
    enum sl_pass_state pass = SL_PASS_NONE;
    if (m->stalls)
        stall();
    if (m->ops->pass_begin && b->n_out > 0 && b->n_rows <= m->slice_rows &&
        (m->group == NULL || m->votes != NULL))
        pass = m->ops->pass_begin(m->dev, m, kv, m->slice_rows, m->votes ? &vote : NULL, &filled);
    switch (pass) {
    case SL_PASS_NONE:
        sliced_forward(m, kv, b, progress);
        break;
    case SL_PASS_RUN:
        do
            whole_forward(m, kv, &filled, progress);
        while (!m->ops->pass_end(m->dev));
        break;
    case SL_PASS_QUEUED:
        atomic_fetch_add_explicit(progress, m->conf.n_layers, memory_order_relaxed);
        break;
    }
}

static void forward_of_rank(void *arg, uint32_t rank)
{
    const struct pass *p = arg;
    struct sl_model *m = sl_model_rank(p->m, rank);
    rank_forward(m, m->kv, p->b, rank == 0 ? p->progress : &m->unheard);
    m->ops->sync(m->dev);
}

void sl_model_forward(struct sl_model *m, struct sl_kv *kv, const struct sl_batch *b, float *logits,
                      atomic_uint_fast64_t *progress)
{
    SL_ASSERT(b->n_rows > 0 && b->n_rows <= m->max_rows && b->n_out <= b->n_rows);
    SL_ASSERT(m->group == NULL || m->kv_of == kv);
    if (m->group != NULL)
        sl_ranks_run(m->ranks, forward_of_rank, &(struct pass){.m = m, .b = b, .progress = progress});
    else
        rank_forward(m, kv, b, progress);
    if (logits != NULL)
        sl_model_logits(m, b, 0, b->n_out, logits);
    else
        m->ops->sync(m->dev);
}
