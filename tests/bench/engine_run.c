/* tests/bench/engine_run.c - see engine_run.h.
 *
 * The pool: first the pages of the prompt's sequence, then one page of each decode row to write to, then the
 * pages of their contexts, dealt out in turn and again from the start when they do not last. No two rows of a
 * pass write to one page. */
#include "tests/bench/engine_run.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/philox.h"
#include "common/model/share.h"
#include "common/transfer/nccl_group.h"

#define PAGE_TOKENS 32u
#define SEED_TOKENS 256u /* of real text behind the pages' content */

struct sl_engine_run {
    const struct sl_backend_ops *ops;
    struct sl_dev *dev;
    struct sl_rank_group *group; /* of ranks with memory of their own; else NULL */
    struct sl_model *model;
    struct sl_kv *kv;
    struct sl_kv_geometry geometry;
    enum sl_dtype weight_type;
    double embed_bytes; /* of a table that no product reads */
    uint32_t n_decodes, pages_per_seq, n_pages;
    bool shares;
    uint32_t *shared; /* [n_decodes]: pages that stand back for a pass */
    uint32_t *pages;  /* [1 + n_decodes, pages_per_seq] */
    int32_t *tokens;  /* [max_rows] */
    uint32_t n_drawn;
    struct sl_batch_run *runs; /* [1 + n_decodes] */
    uint32_t *out_rows;
    float *logits; /* [1 + n_decodes, n_vocab] */
    atomic_uint_fast64_t progress;
};

static uint32_t pages_of(uint32_t tokens)
{
    return (tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
}

/* What the file's first feed-forward matrix is, is what most of the layers are. */
static enum sl_err look_into_file(struct sl_engine_run *r, const char *path, struct sl_why *why)
{
    struct sl_model_file *f;
    enum sl_err e = sl_model_file_open(path, &f, why);
    if (e)
        return e;
    const struct sl_model_tensor *t = sl_model_file_tensor_find(f, "blk.0.ffn_gate.weight");
    r->weight_type = t ? t->view.type : SL_F32;
    if (sl_model_file_tensor_find(f, "output.weight") &&
        (t = sl_model_file_tensor_find(f, "token_embd.weight")))
        r->embed_bytes = (double)t->bytes;
    sl_model_file_close(f);
    return SL_OK;
}

/* Sequence 0 is the prompt's, 1 + i is decode row i's. */
static uint32_t *pages_at(const struct sl_engine_run *r, uint32_t sequence)
{
    return r->pages + (size_t)sequence * r->pages_per_seq;
}

static void deal_pages(struct sl_engine_run *r)
{
    r->pages = sl_xcalloc((size_t)(r->n_decodes + 1) * r->pages_per_seq, sizeof *r->pages);
    uint32_t first = r->pages_per_seq + r->n_decodes, n = r->n_pages - first, next = 0;
    for (uint32_t i = 0; i < r->pages_per_seq; i++)
        pages_at(r, 0)[i] = i;
    for (uint32_t s = 1; s <= r->n_decodes; s++)
        for (uint32_t i = 0; i < r->pages_per_seq; i++)
            pages_at(r, s)[i] = first + next++ % n;
}

static void forward(struct sl_engine_run *r, uint32_t n_rows, uint32_t n_runs, uint32_t n_out)
{
    size_t n_vocab = sl_model_conf(r->model)->n_vocab;
    for (uint32_t i = 0; i < n_rows; i++)
        r->tokens[i] = (int32_t)(sl_philox_uniform(1, 0, r->n_drawn++) * (float)n_vocab);
    struct sl_batch b = {n_rows, n_runs, n_out, r->tokens, r->runs, r->out_rows};
    sl_model_forward(r->model, r->kv, &b, r->logits, &r->progress);
}

static enum sl_err fill_pages(struct sl_engine_run *r, uint32_t max_rows, struct sl_why *why)
{
    uint32_t n = SEED_TOKENS < max_rows ? SEED_TOKENS : max_rows;
    if (n > r->pages_per_seq * PAGE_TOKENS)
        n = r->pages_per_seq * PAGE_TOKENS;
    r->runs[0] = (struct sl_batch_run){0, n, 0, r->pages, r->pages_per_seq};
    forward(r, n, 1, 0);
    uint32_t full = n / PAGE_TOKENS;
    size_t bytes = sl_kv_page_bytes(&r->geometry);
    void *page = sl_try_alloc(bytes);
    if (!page)
        return sl_why_set(why, SL_ENOMEM, "no memory for a KV page of %zu bytes", bytes);
    for (uint32_t to = full; full && to < r->n_pages; to++) {
        r->ops->kv_read(r->dev, r->kv, to % full, page);
        r->ops->kv_write(r->dev, r->kv, to, page);
    }
    sl_free(page);
    return SL_OK;
}

static enum sl_err open_model(struct sl_engine_run *r, const struct sl_engine_run_conf *c, struct sl_why *why)
{
    enum sl_err e = sl_backend_find(c->backend, &r->ops, why);
    const struct sl_dev_conf node = {.n_threads = c->n_threads,
                                     .cpus = c->cpus,
                                     .n_cpus = c->n_cpus,
                                     .max_rows = c->max_rows,
                                     .device = c->device,
                                     .no_graphs = c->no_graphs};
    const struct sl_share first = {0, c->tensor_parallel > 1 ? c->tensor_parallel : 1};
    const struct sl_dev_conf own = sl_share_dev(&first, &node);
    if (!e)
        e = sl_share_check_devices(r->ops, c->device, first.n_ranks, why);
    if (!e && first.n_ranks > 1 && !r->ops->host_memory)
        e = sl_nccl_group_open(c->device, first.n_ranks, &r->group, why);
    if (!e)
        e = r->ops->open(&own, &r->dev, why);
    if (!e)
        e = sl_model_open(&(struct sl_model_open){.path = c->model,
                                                  .ops = r->ops,
                                                  .dev = r->dev,
                                                  .tensor_parallel = c->tensor_parallel,
                                                  .node = &node,
                                                  .group = r->group,
                                                  .kv_dtype = c->kv_dtype,
                                                  .page_tokens = PAGE_TOKENS,
                                                  .max_rows = c->max_rows},
                          &r->model, why);
    return e ? e : look_into_file(r, c->model, why);
}

static enum sl_err open_pages(struct sl_engine_run *r, const struct sl_engine_run_conf *c, struct sl_why *why)
{
    r->geometry = sl_model_kv_geometry(r->model);
    r->n_decodes = c->max_decodes;
    r->pages_per_seq = pages_of(c->max_tokens);
    uint64_t own = r->pages_per_seq + r->n_decodes;
    uint64_t wanted = own + (uint64_t)r->n_decodes * r->pages_per_seq;
    uint64_t most = c->kv_bytes / sl_kv_page_bytes(&r->geometry);
    if (most < own + r->pages_per_seq)
        return sl_why_set(why, SL_ETOOBIG,
                          "%u tokens and %u decode rows take %llu KV pages of %zu bytes at least, kv_memory "
                          "holds %llu; set it higher",
                          c->max_tokens, r->n_decodes, (unsigned long long)(own + r->pages_per_seq),
                          sl_kv_page_bytes(&r->geometry), (unsigned long long)most);
    r->shares = wanted > most;
    r->n_pages = (uint32_t)(r->shares ? most : wanted);
    enum sl_err e = sl_model_open_kv(r->model, r->n_pages, &r->kv, why);
    if (e)
        return e;
    deal_pages(r);
    r->tokens = sl_xcalloc(c->max_rows, sizeof *r->tokens);
    r->shared = sl_xcalloc(r->n_decodes + 1, sizeof *r->shared);
    r->runs = sl_xcalloc(r->n_decodes + 1, sizeof *r->runs);
    r->out_rows = sl_xcalloc(r->n_decodes + 1, sizeof *r->out_rows);
    r->logits = sl_xcalloc((size_t)(r->n_decodes + 1) * sl_model_conf(r->model)->n_vocab, sizeof *r->logits);
    return fill_pages(r, c->max_rows, why);
}

enum sl_err sl_engine_run_open(const struct sl_engine_run_conf *c, struct sl_engine_run **out,
                               struct sl_why *why)
{
    struct sl_engine_run *r = sl_xcalloc(1, sizeof *r);
    enum sl_err e = open_model(r, c, why);
    if (!e)
        e = open_pages(r, c, why);
    if (e) {
        sl_engine_run_close(r);
        return e;
    }
    *out = r;
    return SL_OK;
}

void sl_engine_run_close(struct sl_engine_run *r)
{
    if (!r)
        return;
    sl_free(r->shared);
    sl_free(r->pages);
    sl_free(r->tokens);
    sl_free(r->runs);
    sl_free(r->out_rows);
    sl_free(r->logits);
    if (r->kv)
        r->ops->kv_close(r->dev, r->kv);
    sl_model_close(r->model);
    if (r->group)
        r->group->close(r->group);
    if (r->dev)
        r->ops->close(r->dev);
    sl_free(r);
}

/* The page that row i of a pass writes to becomes its own; returns the one that was there. */
static uint32_t swap_written_page(struct sl_engine_run *r, uint32_t i, uint32_t context, uint32_t page)
{
    uint32_t *at = &pages_at(r, 1 + i)[context / PAGE_TOKENS], old = *at;
    *at = page;
    return old;
}

double sl_engine_run_ms(struct sl_engine_run *r, const struct sl_pass *p)
{
    uint32_t n_runs = 0, n_rows = 0, n_out = 0;
    if (p->chunk) {
        r->runs[n_runs++] = (struct sl_batch_run){0, p->chunk, p->history, r->pages, r->pages_per_seq};
        n_rows = p->chunk;
        if (p->ends_prompt)
            r->out_rows[n_out++] = n_rows - 1;
    }
    for (uint32_t i = 0; i < p->decodes; i++) {
        r->out_rows[n_out++] = n_rows;
        r->shared[i] = swap_written_page(r, i, p->context, r->pages_per_seq + i);
        r->runs[n_runs++] =
            (struct sl_batch_run){n_rows++, 1, p->context, pages_at(r, 1 + i), r->pages_per_seq};
    }
    uint64_t start = sl_now_ns();
    forward(r, n_rows, n_runs, n_out);
    double ms = (double)(sl_now_ns() - start) / 1e6;
    for (uint32_t i = 0; i < p->decodes; i++)
        swap_written_page(r, i, p->context, r->shared[i]);
    return ms;
}

struct sl_step_load sl_pass_load(const struct sl_pass *p)
{
    return (struct sl_step_load){.prompt_rows = p->chunk,
                                 .decode_rows = p->decodes,
                                 .prompt_attn = p->chunk * (p->history + p->chunk / 2.0),
                                 .prompt_history = p->chunk ? p->history : 0,
                                 .decode_context = (double)p->decodes * (p->context + 1)};
}

struct sl_pass_work sl_engine_run_work(const struct sl_engine_run *r, const struct sl_pass *p)
{
    const struct sl_model_conf *c = sl_model_conf(r->model);
    double q = (double)c->attn.n_heads * c->attn.head_dim, kv = (double)c->attn.n_kv_heads * c->attn.head_dim;
    double layer = c->d_model * (2 * q + 2 * kv) + 3.0 * c->d_model * c->d_ff;
    double rows = p->chunk + p->decodes, outs = p->decodes + (p->chunk && p->ends_prompt ? 1 : 0);
    struct sl_step_load l = sl_pass_load(p);
    double positions = l.prompt_attn + l.decode_context; /* (row, position) pairs */
    double kv_token = (double)sl_kv_page_bytes(&r->geometry) / PAGE_TOKENS;
    return (struct sl_pass_work){
        .ops = 2 * (rows * c->n_layers * layer + outs * c->d_model * c->n_vocab) +
               4 * positions * q * c->n_layers,
        .bytes = (double)sl_model_weight_bytes(r->model) - r->embed_bytes +
                 kv_token * (l.prompt_history + l.decode_context),
    };
}

const struct sl_model_conf *sl_engine_run_model(const struct sl_engine_run *r)
{
    return sl_model_conf(r->model);
}

const char *sl_engine_run_backend(const struct sl_engine_run *r)
{
    return r->ops->name;
}

enum sl_dtype sl_engine_run_weight_type(const struct sl_engine_run *r)
{
    return r->weight_type;
}

bool sl_engine_run_shares(const struct sl_engine_run *r)
{
    return r->shares;
}
