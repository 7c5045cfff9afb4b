/* common/model/weights.h - a model's matrices packed for a device, and its vectors in device memory. */
#ifndef SLUICE_COMMON_MODEL_WEIGHTS_H
#define SLUICE_COMMON_MODEL_WEIGHTS_H

#include "common/model/model_conf.h"
#include "common/model/pack_cache.h"
#include "common/model/share.h"

struct sl_vector { /* float32 on the device */
    float *p;      /* NULL = absent */
    size_t bytes;
};

/* Of a rank: n_heads, n_kv_heads, d_ff and, for the head alone, n_vocab are its shares; embed and norms are whole. */
struct sl_layer_weights {
    struct sl_weight *qkv;     /* [(n_heads + 2 n_kv_heads) * head_dim, d_model] q, k, v stacked */
    struct sl_weight *out;     /* [d_model, n_heads * head_dim] */
    struct sl_weight *gate_up; /* [2 d_ff, d_model] gate, up stacked */
    struct sl_weight *down;    /* [d_model, d_ff] */
    struct sl_vector attn_norm, ffn_norm, qkv_bias;
    struct sl_vector out_bias;                      /* rank 0's, which adds it for all */
    struct sl_vector q_norm, k_norm;                /* [head_dim] of each head before it is rotated */
    struct sl_vector post_attn_norm, post_ffn_norm; /* [d_model] of what attention, feed-forward add */
};

struct sl_weights {
    const struct sl_backend_ops *ops;
    struct sl_dev *dev;
    struct sl_weight *embed; /* [n_vocab, d_model] */
    struct sl_weight *head;  /* embed itself when tied and not shared */
    struct sl_vector out_norm;
    struct sl_layer_weights *layers; /* [n_layers] */
    uint32_t n_layers;

    struct sl_pack_item *items; /* every matrix once, by name */
    size_t n_items;
    bool from_cache;
};

struct sl_weights_source {
    const struct sl_model_file *file; /* passed sl_model_conf_read() */
    const struct sl_model_conf *conf; /* of the whole model, with its digest */
    struct sl_share share;
    unsigned n_threads;
    const char *cache_dir;                         /* NULL = no cache */
    void (*progress)(void *arg, unsigned percent); /* while packing; may be NULL */
    void *progress_arg;
};

/* Reads the packed weights from the cache when they are there, else packs them from the file, which may be
 * closed afterwards. On error w is empty again. SL_ENOMEM, SL_EUNSUPPORTED (by this device), with why. */
SL_MUST_CHECK enum sl_err sl_weights_load(struct sl_weights *w, const struct sl_weights_source *from,
                                          const struct sl_backend_ops *ops, struct sl_dev *dev,
                                          struct sl_why *why);
/* How w is saved to the cache, for sl_pack_saver_start(); out borrows of both. False where there is no cache or it came
 * from there. */
bool sl_weights_to_save(const struct sl_weights *w, const struct sl_weights_source *from,
                        struct sl_pack_save *out);
void sl_weights_free(struct sl_weights *w); /* takes a zeroed one */
size_t sl_weights_bytes(const struct sl_weights *w);

#endif
