/* common/model/model.c - opening and closing: file, weights, activations. */
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
    const struct sl_attn_shape *a = &c->attn;
    uint32_t n_head_rows = m->max_rows < SL_HEAD_ROWS ? m->max_rows : SL_HEAD_ROWS;
    uint64_t q_dim = (uint64_t)a->n_heads * a->head_dim, kv_dim = (uint64_t)a->n_kv_heads * a->head_dim;
    enum sl_err e;
    uint32_t n = m->slice_rows;
    if ((e = buffer_alloc(m, &m->x, m->max_rows, c->d_model, "activations", why)) != SL_OK ||
        (e = buffer_alloc(m, &m->qkv, n, q_dim + 2 * kv_dim, "activations", why)) != SL_OK ||
        (e = buffer_alloc(m, &m->attn, n, q_dim, "activations", why)) != SL_OK ||
        (e = buffer_alloc(m, &m->gate_up, n, 2 * (uint64_t)c->d_ff, "activations", why)) != SL_OK)
        return e;
    if (m->weights.layers[0].post_attn_norm.p != NULL &&
        (e = buffer_alloc(m, &m->branch, n, c->d_model, "activations", why)) != SL_OK)
        return e;
    if (m->ops->host_memory)
        return SL_OK;
    return buffer_alloc(m, &m->logits, n_head_rows, c->n_vocab, "logits", why);
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

/* Bytes of the weights once they are packed. */
static uint64_t packed_bytes(const struct sl_backend_ops *ops, const struct sl_model_file *f)
{
    uint64_t all = 0;
    for (size_t i = 0; i < sl_model_file_n_tensors(f); i++) {
        const struct sl_model_tensor *t = sl_model_file_tensor_at(f, i);
        all += ops->packed_value_bytes ? t->view.n_rows * t->view.n_cols * ops->packed_value_bytes : t->bytes;
    }
    return all;
}

/* Before anything is taken: memory that is promised and not there ends in the kernel killing somebody. */
static enum sl_err check_fits(const struct sl_model_open *o, const struct sl_model_file *f,
                              const struct sl_model_conf *c, struct sl_why *why)
{
    uint64_t weights = packed_bytes(o->ops, f);
    uint64_t scratch = SCRATCH_BYTES + (uint64_t)o->max_rows * c->d_model * sizeof(float);
    uint64_t all = weights + o->other_bytes + scratch;
    uint64_t available = o->ops->memory_free ? o->ops->memory_free(o->dev) : o->available_bytes;
    if (available == 0 || all <= available)
        return SL_OK;
    return sl_why_set(why, SL_ETOOBIG,
                      "%s needs about %llu MiB (weights %llu, kv_memory %llu, scratch %llu), and there "
                      "are %llu MiB to have; lower kv_memory or max_batch_tokens, or take a smaller model",
                      sl_model_file_path(f), (unsigned long long)(all >> 20),
                      (unsigned long long)(weights >> 20), (unsigned long long)(o->other_bytes >> 20),
                      (unsigned long long)(scratch >> 20), (unsigned long long)(available >> 20));
}

enum sl_err sl_model_open(const struct sl_model_open *o, struct sl_model **out, struct sl_why *why)
{
    SL_ASSERT(o->max_rows > 0 && o->page_tokens > 0);
    struct sl_model_file *f;
    uint64_t at = sl_now_ns();
    enum sl_err e = sl_model_file_open(o->path, &f, why);
    if (e != SL_OK)
        return e;
    struct sl_model *m = sl_xcalloc(1, sizeof *m);
    m->ops = o->ops;
    m->dev = o->dev;
    m->kv_dtype = o->kv_dtype;
    m->page_tokens = o->page_tokens;
    m->max_rows = o->max_rows;
    m->slice_rows = o->max_rows < SL_MODEL_SLICE_ROWS ? o->max_rows : SL_MODEL_SLICE_ROWS;
    scratch_alloc(m);
    m->cache_dir = o->cache_dir ? sl_xstrdup(o->cache_dir) : NULL;
    if ((e = sl_model_conf_read(f, &m->conf, why)) != SL_OK)
        goto close_file;
    if ((e = check_fits(o, f, &m->conf, why)) != SL_OK)
        goto close_file;
    m->times.file_ms = sl_lap_ms(&at);
    m->conf.digest = sl_model_digest(f, &m->conf, o->n_threads, o->cache_dir);
    rope_factors_own(m);
    m->times.digest_ms = sl_lap_ms(&at);
    const struct sl_weights_source from = {.file = f,
                                           .conf = &m->conf,
                                           .n_threads = o->n_threads,
                                           .cache_dir = o->cache_dir,
                                           .progress = o->progress,
                                           .progress_arg = o->progress_arg};
    if ((e = sl_weights_load(&m->weights, &from, m->ops, m->dev, why)) != SL_OK)
        goto close_file;
    m->times.from_cache = m->weights.from_cache;
    m->times.weights_ms = sl_lap_ms(&at);
    e = activations_alloc(m, why);
    m->times.buffers_ms = sl_lap_ms(&at);
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
    const struct sl_weights_source from = {.conf = &m->conf, .cache_dir = m->cache_dir};
    sl_weights_save(&m->weights, &from);
}

void sl_model_close(struct sl_model *m)
{
    if (m == NULL)
        return;
    struct sl_vector *buffers[] = {&m->x, &m->qkv, &m->attn, &m->gate_up, &m->branch, &m->logits};
    for (size_t i = 0; i < SL_COUNTOF(buffers); i++) {
        if (buffers[i]->p != NULL)
            m->ops->buf_free(m->dev, buffers[i]->p, buffers[i]->bytes);
    }
    sl_weights_free(&m->weights);
    sl_free(m->slices);
    sl_free(m->slice_runs);
    sl_free(m->slice_out);
    sl_free(m->wanted_runs);
    sl_free(m->rope_factors);
    sl_free(m->cache_dir);
    sl_free(m);
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
    return sl_weights_bytes(&m->weights);
}
