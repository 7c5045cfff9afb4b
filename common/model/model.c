/* common/model/model.c - opening and closing: file, ranks, weights, activations. */
#include "common/model/model.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/model/model_digest.h"
#include "common/model/model_impl.h"
#include <string.h>

/* What a process takes besides weights, KV and the rows of a batch: activations of a slice, attention, code,
 * stacks. */
#define SCRATCH_BYTES (UINT64_C(128) << 20)

static enum sl_err buffer_alloc(struct sl_model *m, struct sl_vector *v, uint64_t n_rows, uint64_t n_cols,
                                const char *what, struct sl_why *why)
{
    v->bytes = n_rows * n_cols * sizeof(float);
    v->p = m->ops->buf_alloc(m->dev, v->bytes);
    if (v->p != NULL)
        return SL_OK;
    return sl_why_set(why, SL_ENOMEM,
                      "no memory for %zu bytes of %s (%llu rows of %llu); lower the most tokens of a batch",
                      v->bytes, what, (unsigned long long)n_rows, (unsigned long long)n_cols);
}

static enum sl_err activations_alloc(struct sl_model *m, struct sl_why *why)
{
    const struct sl_model_conf *c = &m->conf;
    const struct sl_share *s = &m->share;
    uint32_t n_head_rows = m->max_rows < SL_HEAD_ROWS ? m->max_rows : SL_HEAD_ROWS, n = m->slice_rows;
    uint64_t q_dim = sl_share_size(s, c->attn.n_heads) * c->attn.head_dim;
    uint64_t kv_dim = sl_share_size(s, c->attn.n_kv_heads) * c->attn.head_dim;
    bool shared = s->n_ranks > 1, on_device = !m->ops->host_memory;
    const struct {
        struct sl_vector *v;
        uint64_t n_rows, n_cols;
        const char *what;
        bool wanted;
    } buffers[] = {
        {&m->x, m->max_rows, c->d_model, "activations", true},
        {&m->qkv, n, q_dim + 2 * kv_dim, "activations", true},
        {&m->attn, n, q_dim, "activations", true},
        {&m->gate_up, n, 2 * sl_share_size(s, c->d_ff), "activations", true},
        {&m->branch, n, c->d_model, "activations", m->weights.layers[0].post_attn_norm.p != NULL},
        {&m->parts, (uint64_t)s->n_ranks * n, c->d_model, "the ranks' sums", shared},
        {&m->head_parts, (uint64_t)s->n_ranks * n_head_rows, sl_share_most(s, c->n_vocab), "logits", shared},
        {&m->logits, n_head_rows, c->n_vocab, "logits", on_device && s->rank == 0},
    };
    for (size_t i = 0; i < SL_COUNTOF(buffers); i++) {
        enum sl_err e = !buffers[i].wanted ? SL_OK
                                           : buffer_alloc(m, buffers[i].v, buffers[i].n_rows,
                                                          buffers[i].n_cols, buffers[i].what, why);
        if (e != SL_OK)
            return e;
    }
    return SL_OK;
}

static void scratch_alloc(struct sl_model *m)
{
    uint32_t n_slices = (m->max_rows + m->slice_rows - 1) / m->slice_rows;
    m->slices = sl_xcalloc(n_slices, sizeof *m->slices);
    m->slice_runs = sl_xcalloc((size_t)m->max_rows + n_slices, sizeof *m->slice_runs);
    m->slice_out = sl_xcalloc(m->max_rows, sizeof *m->slice_out);
    m->wanted_runs = sl_xcalloc(m->slice_rows, sizeof *m->wanted_runs);
}

/* The file's factors times the linear one: both divide the frequencies. The copy outlives the file. */
static void rope_factors_own(struct sl_model *m)
{
    struct sl_attn_shape *a = &m->conf.attn;
    if (a->rope_factors == NULL && m->conf.rope_linear == 1)
        return;
    m->rope_factors = sl_xcalloc(a->rope_dim / 2, sizeof *m->rope_factors);
    for (uint32_t i = 0; i < a->rope_dim / 2; i++)
        m->rope_factors[i] = (a->rope_factors != NULL ? a->rope_factors[i] : 1) * m->conf.rope_linear;
    a->rope_factors = m->rope_factors;
}

/* Bytes of the weights once they are packed, at all ranks: each has the whole table of tokens beside its share. */
static uint64_t packed_bytes(const struct sl_backend_ops *ops, const struct sl_model_file *f,
                             const struct sl_model_conf *c, uint32_t n_ranks)
{
    uint64_t all = 0;
    for (size_t i = 0; i < sl_model_file_n_tensors(f); i++) {
        const struct sl_model_tensor *t = sl_model_file_tensor_at(f, i);
        uint64_t bytes =
            ops->packed_value_bytes ? t->view.n_rows * t->view.n_cols * ops->packed_value_bytes : t->bytes;
        if (n_ranks > 1 && strcmp(t->name, "token_embd.weight") == 0)
            bytes *= n_ranks + (c->tied_embeddings ? 1 : 0);
        all += bytes;
    }
    return all;
}

/* Before anything is taken: memory that is promised and not there ends in the kernel killing somebody. */
static enum sl_err check_fits(const struct sl_model_open *o, const struct sl_model_file *f,
                              const struct sl_model_conf *c, uint32_t n_ranks, struct sl_why *why)
{
    uint64_t weights = packed_bytes(o->ops, f, c, n_ranks);
    uint64_t scratch = n_ranks * (SCRATCH_BYTES + (uint64_t)o->max_rows * c->d_model * sizeof(float));
    uint64_t all = weights + o->other_bytes + scratch;
    /* Devices with memory of their own have about equal parts of it all; the first tells for them. */
    uint64_t available = o->ops->memory_free ? n_ranks * o->ops->memory_free(o->dev) : o->available_bytes;
    if (available == 0 || all <= available)
        return SL_OK;
    return sl_why_set(why, SL_ETOOBIG,
                      "%s needs about %llu MiB (weights %llu, kv_memory %llu, scratch %llu), and there "
                      "are %llu MiB to have; lower kv_memory or max_batch_tokens, or take a smaller model",
                      sl_model_file_path(f), (unsigned long long)(all >> 20),
                      (unsigned long long)(weights >> 20), (unsigned long long)(o->other_bytes >> 20),
                      (unsigned long long)(scratch >> 20), (unsigned long long)(available >> 20));
}

/* A rank without its conf, weights and activations. */
static struct sl_model *rank_new(const struct sl_model_open *o, struct sl_share share)
{
    struct sl_model *m = sl_xcalloc(1, sizeof *m);
    m->ops = o->ops;
    m->dev = share.rank == 0 ? o->dev : NULL;
    m->share = share;
    m->kv_dtype = o->kv_dtype;
    m->page_tokens = o->page_tokens;
    m->max_rows = o->max_rows;
    m->slice_rows = o->max_rows < SL_MODEL_SLICE_ROWS ? o->max_rows : SL_MODEL_SLICE_ROWS;
    scratch_alloc(m);
    m->cache_dir = o->cache_dir ? sl_xstrdup(o->cache_dir) : NULL;
    return m;
}

static void rank_free(struct sl_model *m)
{
    struct sl_vector *buffers[] = {&m->x,      &m->qkv,   &m->attn,       &m->gate_up,
                                   &m->branch, &m->parts, &m->head_parts, &m->logits};
    for (size_t i = 0; i < SL_COUNTOF(buffers); i++) {
        if (buffers[i]->p != NULL)
            m->ops->buf_free(m->dev, buffers[i]->p, buffers[i]->bytes);
    }
    if (m->kv != NULL)
        m->ops->kv_close(m->dev, m->kv);
    sl_weights_free(&m->weights);
    sl_free(m->slices);
    sl_free(m->slice_runs);
    sl_free(m->slice_out);
    sl_free(m->wanted_runs);
    sl_free(m->rope_factors);
    sl_free(m->cache_dir);
    if (m->share.rank > 0 && m->dev != NULL)
        m->ops->close(m->dev);
    sl_free(m);
}

static enum sl_err rank_load(struct sl_model *m, const struct sl_model_open *o, const struct sl_model_file *f,
                             struct sl_why *why)
{
    uint64_t at = sl_now_ns();
    const struct sl_weights_source from = {.file = f,
                                           .conf = &m->conf,
                                           .share = m->share,
                                           .n_threads = (o->n_threads - 1) / m->share.n_ranks + 1,
                                           .cache_dir = o->cache_dir,
                                           .progress = o->progress,
                                           .progress_arg = o->progress_arg};
    enum sl_err e = sl_weights_load(&m->weights, &from, m->ops, m->dev, why);
    if (e != SL_OK)
        return e;
    m->times.from_cache = m->weights.from_cache;
    m->times.weights_ms = sl_lap_ms(&at);
    e = activations_alloc(m, why);
    m->times.buffers_ms = sl_lap_ms(&at);
    return e;
}

static enum sl_err check_ranks(const struct sl_model_open *o, uint32_t n_ranks, struct sl_why *why)
{
    if (n_ranks > SL_MAX_RANKS)
        return sl_why_set(why, SL_EUNSUPPORTED, "tensor_parallel is %u; expected %u at most", n_ranks,
                          SL_MAX_RANKS);
    if (n_ranks > 1 && (o->ops->kv_part == NULL || o->ops->sum_ranks == NULL))
        return sl_why_set(why, SL_EUNSUPPORTED,
                          "tensor_parallel is %u, and backend \"%s\" computes with one device only; set "
                          "tensor_parallel = 1, or take a CPU backend",
                          n_ranks, o->ops->name);
    if (n_ranks > 1 && o->group == NULL && !o->ops->host_memory)
        return sl_why_set(why, SL_EUNSUPPORTED,
                          "tensor_parallel is %u, and this program has nothing that joins devices of backend "
                          "\"%s\"; set tensor_parallel = 1, or take a CPU backend",
                          n_ranks, o->ops->name);
    return SL_OK;
}

/* The other ranks, their threads and what joins them, for a rank 0 that knows its conf. */
static enum sl_err ranks_make(struct sl_model *m, const struct sl_model_open *o, struct sl_why *why)
{
    uint32_t n = m->share.n_ranks;
    enum sl_err e = sl_ranks_start(n, &m->ranks);
    if (e != SL_OK)
        return sl_why_set(why, e, "cannot start the threads of %u ranks: %s", n, sl_err_name(e));
    m->owns_group = o->group == NULL;
    m->group = o->group != NULL ? o->group : sl_rank_group_memory(n);
    m->votes = m->group->in_order ? sl_rank_group_memory(n) : NULL;
    m->peers = sl_xcalloc(n - 1, sizeof(struct sl_model *));
    for (uint32_t r = 1; r < n; r++) {
        struct sl_model *peer = m->peers[r - 1] = rank_new(o, (struct sl_share){r, n});
        const struct sl_dev_conf own = sl_share_dev(&peer->share, o->node);
        peer->conf = m->conf;
        peer->group = m->group;
        peer->votes = m->votes;
        if ((e = m->ops->open(&own, &peer->dev, why)) != SL_OK)
            return e;
    }
    return SL_OK;
}

struct loading {
    struct sl_model *m;
    const struct sl_model_open *o;
    const struct sl_model_file *f;
    enum sl_err err[SL_MAX_RANKS];
    struct sl_why why[SL_MAX_RANKS];
};

static void load_rank(void *arg, uint32_t rank)
{
    struct loading *l = arg;
    l->err[rank] = rank_load(sl_model_rank(l->m, rank), l->o, l->f, &l->why[rank]);
}

static enum sl_err load_ranks(struct sl_model *m, const struct sl_model_open *o,
                              const struct sl_model_file *f, struct sl_why *why)
{
    enum sl_err e = ranks_make(m, o, why);
    if (e != SL_OK)
        return e;
    struct loading *l = sl_xcalloc(1, sizeof *l);
    *l = (struct loading){.m = m, .o = o, .f = f};
    sl_ranks_run(m->ranks, load_rank, l);
    for (uint32_t r = 0; e == SL_OK && r < m->share.n_ranks; r++) {
        e = l->err[r];
        if (e != SL_OK && why != NULL)
            *why = l->why[r];
    }
    sl_free(l);
    return e;
}

enum sl_err sl_model_open(const struct sl_model_open *o, struct sl_model **out, struct sl_why *why)
{
    SL_ASSERT(o->max_rows > 0 && o->page_tokens > 0);
    struct sl_model_file *f;
    uint32_t n_ranks = o->tensor_parallel > 1 ? o->tensor_parallel : 1;
    uint64_t at = sl_now_ns();
    enum sl_err e = check_ranks(o, n_ranks, why);
    if (e != SL_OK || (e = sl_model_file_open(o->path, &f, why)) != SL_OK)
        return e;
    struct sl_model *m = rank_new(o, (struct sl_share){0, n_ranks});
    if ((e = sl_model_conf_read(f, &m->conf, why)) != SL_OK ||
        (e = sl_share_check(f, &m->conf, n_ranks, why)) != SL_OK ||
        (e = check_fits(o, f, &m->conf, n_ranks, why)) != SL_OK)
        goto close_file;
    m->times.file_ms = sl_lap_ms(&at);
    m->conf.digest = sl_model_digest(f, &m->conf, o->n_threads, o->cache_dir);
    rope_factors_own(m);
    m->times.digest_ms = sl_lap_ms(&at);
    e = n_ranks > 1 ? load_ranks(m, o, f, why) : rank_load(m, o, f, why);
close_file:
    sl_model_file_close(f);
    if (e != SL_OK) {
        sl_model_close(m);
        return e;
    }
    *out = m;
    return SL_OK;
}

void sl_model_save_packed(struct sl_model *m)
{
    struct sl_pack_save saves[SL_MAX_RANKS];
    size_t n = 0;
    for (uint32_t r = 0; r < m->share.n_ranks; r++) {
        const struct sl_model *rank = sl_model_rank(m, r);
        const struct sl_weights_source from = {
            .conf = &rank->conf, .share = rank->share, .cache_dir = rank->cache_dir};
        n += sl_weights_to_save(&rank->weights, &from, &saves[n]);
    }
    if (m->saver == NULL)
        m->saver = sl_pack_saver_start(saves, n);
}

void sl_model_close(struct sl_model *m)
{
    if (m == NULL)
        return;
    sl_pack_saver_end(m->saver);
    sl_ranks_stop(m->ranks);
    for (uint32_t r = 1; m->peers != NULL && r < m->share.n_ranks; r++) {
        if (m->peers[r - 1] != NULL)
            rank_free(m->peers[r - 1]);
    }
    sl_free(m->peers);
    if (m->owns_group)
        m->group->close(m->group);
    if (m->votes)
        m->votes->close(m->votes);
    rank_free(m);
}

/* Each rank's heads of kv. */
static enum sl_err share_kv(struct sl_model *m, struct sl_kv *kv, struct sl_why *why)
{
    enum sl_err e = SL_OK;
    for (uint32_t r = 0; r < m->share.n_ranks && e == SL_OK; r++) {
        struct sl_model *rank = sl_model_rank(m, r);
        uint32_t n_heads = m->conf.attn.n_kv_heads;
        SL_ASSERT(rank->kv == NULL);
        e = m->ops->kv_part(rank->dev, kv, (uint32_t)sl_share_first(&rank->share, n_heads),
                            (uint32_t)sl_share_size(&rank->share, n_heads), &rank->kv, why);
        rank->kv_of = kv;
    }
    return e;
}

enum sl_err sl_model_open_kv(struct sl_model *m, uint32_t n_pages, struct sl_kv **out, struct sl_why *why)
{
    struct sl_kv_geometry g = sl_model_kv_geometry(m);
    struct sl_kv *kv = NULL;
    if (m->group == NULL)
        return m->ops->kv_open(m->dev, &g, n_pages, out, why);
    enum sl_err e = m->ops->kv_open_parts
                        ? m->ops->kv_open_parts(m->dev, &g, n_pages, m->share.n_ranks, &kv, why)
                        : m->ops->kv_open(m->dev, &g, n_pages, &kv, why);
    if (e == SL_OK && (e = share_kv(m, kv, why)) != SL_OK) {
        m->ops->kv_close(m->dev, kv);
        return e;
    }
    *out = kv;
    return e;
}

void sl_model_stall(struct sl_model *m)
{
    sl_model_rank(m, m->share.n_ranks - 1)->stalls = true;
}

const struct sl_model_times *sl_model_times(const struct sl_model *m)
{
    return &m->times;
}

const struct sl_model_conf *sl_model_conf(const struct sl_model *m)
{
    return &m->conf;
}

struct sl_kv_geometry sl_model_kv_geometry(const struct sl_model *m)
{
    return (struct sl_kv_geometry){.n_layers = m->conf.n_layers,
                                   .n_kv_heads = m->conf.attn.n_kv_heads,
                                   .page_tokens = m->page_tokens,
                                   .head_dim = m->conf.attn.head_dim,
                                   .dtype = m->kv_dtype};
}

size_t sl_model_weight_bytes(const struct sl_model *m)
{
    size_t n = sl_weights_bytes(&m->weights);
    for (uint32_t r = 1; r < m->share.n_ranks; r++)
        n += sl_weights_bytes(&m->peers[r - 1]->weights);
    return n;
}
