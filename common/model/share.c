/* common/model/share.c - see share.h. */
#include "common/model/share.h"

#include <stdio.h>

/* Of every layer: matrices whose columns are cut. */
static const char *const cut_in_columns[] = {"attn_output.weight", "ffn_down.weight"};

static enum sl_err check_columns(const struct sl_model_file *f, uint32_t layer, const char *part,
                                 uint32_t n_ranks, struct sl_why *why)
{
    char name[SL_GGUF_MAX_NAME_BYTES];
    snprintf(name, sizeof name, "blk.%u.%s", layer, part);
    const struct sl_tensor_view *v = &sl_model_file_tensor_find(f, name)->view;
    uint32_t block = sl_dtype_block(v->type);
    if (v->n_cols % n_ranks == 0 && v->n_cols / n_ranks % block == 0)
        return SL_OK;
    return sl_why_set(
        why, SL_EUNSUPPORTED,
        "tensor_parallel is %u, and %s has %llu columns of type %s, which cannot be cut into %u "
        "equal parts of whole blocks of %u; set a smaller degree, or take a file of another type",
        n_ranks, name, (unsigned long long)v->n_cols, sl_dtype_name(v->type), n_ranks, block);
}

struct sl_dev_conf sl_share_dev(const struct sl_share *s, const struct sl_dev_conf *all)
{
    struct sl_dev_conf own = *all;
    own.device += s->rank;
    own.n_threads = all->n_threads > s->n_ranks ? all->n_threads / s->n_ranks : 1;
    if (all->n_cpus >= (size_t)own.n_threads * s->n_ranks) {
        own.n_cpus = own.n_threads;
        own.cpus = all->cpus + s->rank * own.n_cpus;
    }
    return own;
}

enum sl_err sl_share_check(const struct sl_model_file *f, const struct sl_model_conf *c, uint32_t n_ranks,
                           struct sl_why *why)
{
    if (c->attn.n_kv_heads % n_ranks != 0)
        return sl_why_set(
            why, SL_EUNSUPPORTED,
            "tensor_parallel is %u, and the model has %u KV heads; expected a number that divides "
            "them",
            n_ranks, c->attn.n_kv_heads);
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        for (size_t i = 0; i < SL_COUNTOF(cut_in_columns); i++) {
            enum sl_err e = check_columns(f, layer, cut_in_columns[i], n_ranks, why);
            if (e != SL_OK)
                return e;
        }
    }
    return SL_OK;
}

enum sl_err sl_share_check_devices(const struct sl_backend_ops *ops, uint32_t first, uint32_t n_ranks,
                                   struct sl_why *why)
{
    uint32_t n = ops->n_devices ? ops->n_devices() : UINT32_MAX;
    if (first < n && n_ranks <= n - first)
        return SL_OK;
    return sl_why_set(
        why, SL_ECONFIG,
        "device = %u and tensor_parallel = %u take devices up to number %u of backend \"%s\", and "
        "this machine shows %u, counted from 0; set a smaller device or degree, or look at "
        "CUDA_VISIBLE_DEVICES",
        first, n_ranks, first + n_ranks - 1, ops->name, n);
}
