/* kernels/backend.h - the one table that a device implements.
 *
 * Law of exactness (docs/architecture.md): the result of every op for a row depends on that row's inputs only
 * - never on n_rows, on the other rows, on the number of threads. Each output element is reduced over K in
 * one fixed order; attention walks the KV in blocks of SL_ATTN_BLOCK positions aligned to absolute position,
 * whatever page_tokens is.
 *
 * Activations are float32, row-major. Buffers come from buf_alloc and are device memory; only the engine's
 * device thread calls ops, in program order. An op may return before it is done; sync waits. On the CPU ops
 * run on the device's thread pool and are done at return. */
#ifndef SLUICE_KERNELS_BACKEND_H
#define SLUICE_KERNELS_BACKEND_H

#include "common/base/err.h"
#include "kernels/kv_mover.h"
#include "kernels/sample.h"
#include "kernels/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SL_ATTN_BLOCK   64u   /* KV positions per softmax block; part of the numerics id */
#define SL_HEAD_DIM_MAX 1024u /* of a head, and so of what is rotated */
/* KV positions after which the online softmax starts afresh; part of the numerics id. */
#define SL_ATTN_SEG 512u

struct sl_dev;    /* opaque: an open device with its threads */
struct sl_weight; /* opaque: a packed matrix */
struct sl_kv;     /* opaque: the memory of a page pool on a device */

struct sl_dev_conf {
    uint32_t n_threads; /* compute threads, the caller's included; 0 = 1 */
    const int *cpus;    /* CPU of thread i, NULL = not pinned */
    size_t n_cpus;
    uint32_t max_rows; /* most rows of one batch: sizes scratch */
    uint32_t device;   /* of a table with several, counted from 0 */
    int no_graphs;     /* keeps no passes */
};

/* What linear() does to a row of x before the product. */
enum sl_prologue {
    SL_PRO_NONE,
    SL_PRO_RMSNORM, /* x * rsqrt(mean(x^2) + eps) * norm_w */
    SL_PRO_SWIGLU,  /* x is [n_rows, 2K]: silu(x[0..K)) * x[K..2K) */
    SL_PRO_GEGLU    /* x is [n_rows, 2K]: gelu(x[0..K)) * x[K..2K), gelu in its tanh form */
};

struct sl_linear {
    const struct sl_weight *w; /* [N, K] */
    enum sl_prologue prologue;
    const float *norm_w; /* [K], device; SL_PRO_RMSNORM only */
    float norm_eps;
    const float *x;         /* [n_rows, K], or [n_rows, 2K] for SL_PRO_SWIGLU and SL_PRO_GEGLU */
    const uint32_t *x_rows; /* host, [n_rows]: take these rows of x instead of 0..n_rows (head for sampled
                               rows); or NULL */
    const float *bias;      /* [N] device, or NULL */
    float *y;               /* [n_rows, N] */
    int add;                /* y += instead of y = */
    uint32_t n_rows;
};

#define SL_WEIGHT_HEAD_MAX  256u
#define SL_WEIGHT_PARTS_MAX 8u

/* A packed matrix as bytes: a head that says what it is, and the memory of its numbers. */
struct sl_weight_image {
    uint8_t head[SL_WEIGHT_HEAD_MAX];
    uint32_t head_bytes, n_parts;
    struct {
        void *p;
        size_t bytes;
    } parts[SL_WEIGHT_PARTS_MAX];
};

enum sl_rope_layout {
    SL_ROPE_PAIRS, /* rotates (2i, 2i+1): GGUF architecture llama */
    SL_ROPE_HALVES /* rotates (i, i + rope_dim/2): NeoX, qwen2 */
};

struct sl_attn_shape {
    uint32_t n_heads, n_kv_heads, head_dim, rope_dim;
    float rope_theta;
    enum sl_rope_layout rope_layout;
    const float *rope_factors; /* [rope_dim/2] host, divides the frequencies (rope_freqs.weight), or NULL */
    uint32_t window;           /* a row at pos sees (pos - window, pos]; 0 = all */
    float score_scale;         /* of q k^T; 0 = 1 / sqrt(head_dim) */
    /* [head_dim] device: RMSNorm of each head of q and k before it is rotated; both NULL = none */
    const float *q_norm, *k_norm;
    float qk_norm_eps;
};

enum sl_pass_state {
    SL_PASS_NONE,   /* call the ops as always, and not pass_end */
    SL_PASS_RUN,    /* call the ops with the batch as it is now, then pass_end */
    SL_PASS_QUEUED, /* all of it is queued: no op nor pass_end follows */
};

/* How the ranks that run a pass together agree: the least of what they say, once all have said something. */
struct sl_vote {
    uint32_t (*least)(void *arg, uint32_t mine);
    void *arg;
};

typedef void sl_parallel_fn(void *arg, uint32_t item, unsigned worker);

struct sl_backend_ops {
    int inexact;      /* a row's bits may depend on its batch: nodes need exact = false */
    int host_memory;  /* buffers are host memory, and any host memory serves as a buffer */
    const char *name; /* "reference", "portable", "avx2", "avx512", "cuda" */

    /* True when this machine can run it. */
    int (*available)(void);
    /* (optional) What is missing when it cannot, as a clause. */
    const char *(*missing)(void);
    /* (optional) How many devices there are to open. */
    uint32_t (*n_devices)(void);
    enum sl_err (*open)(const struct sl_dev_conf *conf, struct sl_dev **out, struct sl_why *why);
    void (*close)(struct sl_dev *d);

    /* Device memory for activations and small vectors; zeroed. upload/download copy n bytes from/to the host,
     * ordered. */
    void *(*buf_alloc)(struct sl_dev *d, size_t bytes); /* NULL when there is none */
    void (*buf_free)(struct sl_dev *d, void *p, size_t bytes);
    /* (optional) Bytes that are free, of a device with memory of its own. */
    size_t (*memory_free)(const struct sl_dev *d);
    void (*upload)(struct sl_dev *d, void *dst, const void *src, size_t bytes);
    void (*download)(struct sl_dev *d, void *dst, const void *src, size_t bytes);
    /* (optional, with sum_ranks) Copies n runs of bytes between buffers, each side's a stride apart. */
    void (*copy_rows)(struct sl_dev *d, void *dst, size_t dst_stride, const void *src, size_t src_stride,
                      size_t bytes, size_t n);
    /* (optional) What ops are queued on, as the device's own libraries know it (cudaStream_t). */
    void *(*native_stream)(struct sl_dev *d);

    /* Packs n views (same n_cols, any types), stacked along their rows, into the layout linear() wants. The
     * views may be unmapped afterwards. SL_EUNSUPPORTED names a type or size it cannot take; SL_ENOMEM. */
    enum sl_err (*weight_pack)(struct sl_dev *d, const struct sl_tensor_view *views, size_t n,
                               struct sl_weight **out, struct sl_why *why);
    void (*weight_free)(struct sl_dev *d, struct sl_weight *w); /* takes NULL */
    size_t (*weight_bytes)(const struct sl_weight *w);
    size_t
        packed_value_bytes; /* of a number of a packed matrix whatever the file has; 0 = about as in the file */
    /* (optional, both or none) For a cache on disk. weight_restore makes a matrix like the one whose image
     * had this head; the caller then fills the parts of its image with the bytes that the other's had.
     * SL_EINVAL when no matrix [n_rows, n_cols] has such a head: it may be damaged, or of another model.
     * Images are of use to the same table and pack_version only. */
    void (*weight_image)(struct sl_weight *w, struct sl_weight_image *out);
    enum sl_err (*weight_restore)(struct sl_dev *d, const void *head, size_t head_bytes, uint64_t n_rows,
                                  uint64_t n_cols, struct sl_weight **out, struct sl_why *why);
    uint32_t pack_version;

    /* Page memory, allocated once; its pages may come when they are first touched. */
    enum sl_err (*kv_open)(struct sl_dev *d, const struct sl_kv_geometry *g, uint32_t n_pages,
                           struct sl_kv **out, struct sl_why *why);
    void (*kv_close)(struct sl_dev *d, struct sl_kv *kv); /* takes NULL */
    /* Host address of the pool (page i at base + i * page_bytes) when pages are host memory, else NULL. */
    void *(*kv_host_base)(struct sl_kv *kv);
    /* (optional, with sum_ranks) The heads [first_head, first_head + n_heads) of kv's pages, for rope_kv and attention
     * of d, which may be another device than kv's and calls them at the same time as others do for theirs. Closed with
     * kv_close(d), before or after kv; not to be used once that is closed. SL_ENOMEM. */
    enum sl_err (*kv_part)(struct sl_dev *d, struct sl_kv *kv, uint32_t first_head, uint32_t n_heads,
                           struct sl_kv **out, struct sl_why *why);
    /* (optional; without it kv_open serves) A pool whose memory its n_parts parts will have, each on its device: the
     * next calls are theirs, in the order of heads, from one thread. kv_read, kv_write and the mover take the whole,
     * rope_kv and attention do not. */
    enum sl_err (*kv_open_parts)(struct sl_dev *d, const struct sl_kv_geometry *g, uint32_t n_pages,
                                 uint32_t n_parts, struct sl_kv **out, struct sl_why *why);
    /* Copies whole pages between the pool and host memory (staging for devices without host pages). */
    void (*kv_read)(struct sl_dev *d, struct sl_kv *kv, uint32_t page, void *host);
    void (*kv_write)(struct sl_dev *d, struct sl_kv *kv, uint32_t page, const void *host);

    /* x[row] = scale * table[tokens[row]] as float32. w is a packed matrix [n_vocab, D] (tied embeddings
     * share it with the head). */
    void (*embed)(struct sl_dev *d, const struct sl_weight *w, const struct sl_batch *b, float scale,
                  float *x);
    void (*linear)(struct sl_dev *d, const struct sl_linear *a);
    /* x[row] += y[row] * rsqrt(mean(y[row]^2) + eps) * norm_w, for x and y [n_rows, n]: a norm behind a
     * sub-layer. */
    void (*norm_add)(struct sl_dev *d, const float *y, const float *norm_w, float eps, uint32_t n_rows,
                     uint32_t n, float *x);
    /* (optional, with kv_part) y = ((parts[0] + parts[1]) + parts[2]) .., of parts [n_parts, n], or y += that sum. */
    void (*sum_ranks)(struct sl_dev *d, const float *parts, uint32_t n_parts, size_t n, int add, float *y);
    /* qkv [n_rows, (n_heads + 2 n_kv_heads) * head_dim]: norms the heads of q and k where the shape says so,
     * rotates them, all in place; writes k and v in the KV dtype to the pages of the batch, layer `layer`. */
    void (*rope_kv)(struct sl_dev *d, struct sl_kv *kv, uint32_t layer, const struct sl_attn_shape *s,
                    const struct sl_batch *b, float *qkv);
    /* out [n_rows, n_heads * head_dim] = softmax(score_scale q k^T) v over the positions each row sees: up to
     * its own, from the start or the window's; blocks in front of the window cost nothing. K and V are read
     * from pages only, also those written in this pass. q is the head of qkv. Here, and only here, runs may
     * leave rows out: those are not computed, and their rows of out stay. */
    void (*attention)(struct sl_dev *d, struct sl_kv *kv, uint32_t layer, const struct sl_attn_shape *s,
                      const struct sl_batch *b, const float *qkv, float *out);
    /* (optional) Samples rows 0 .. n_rows - 1, at most SL_PICK_MAX_ROWS, of logits [n_rows, n_vocab] where they
     * are; they stay as they are. n_vocab is at most SL_PICK_MAX_VOCAB. picks and what they point to are free at
     * return; out [n_rows] (host) is there after sync. */
    void (*sample)(struct sl_dev *d, const float *logits, uint32_t n_vocab, const struct sl_pick *picks,
                   uint32_t n_rows, struct sl_picked *out);
    /* (optional, both or none) For devices that keep a pass and start it anew by one call. The ops between begin
     * and end are the same, with the same arguments, for every batch of the owner and kv that has as many rows as
     * *b has then: more than before, up to max_rows, those behind its runs being nobody's. No op takes rows of
     * the host's (x_rows). end: 0 when nothing of it ran; call the ops again, and end. vote: of ranks that gather from
     * each other between the ops, which all keep a pass or none does; until end. NULL = alone. */
    enum sl_pass_state (*pass_begin)(struct sl_dev *d, const void *owner, struct sl_kv *kv, uint32_t max_rows,
                                     const struct sl_vote *vote, struct sl_batch *b);
    int (*pass_end)(struct sl_dev *d);
    void (*sync)(struct sl_dev *d);

    /* (optional) Calls fn once for each item 0 .. n_items - 1, at most 2^23, on the device's host threads,
     * worker being 0 .. n_threads - 1 of sl_dev_conf; returns when all are done. For work on host memory
     * between passes. */
    void (*parallel)(struct sl_dev *d, uint32_t n_items, sl_parallel_fn *fn, void *arg);

    const struct sl_kv_mover_ops *mover; /* (optional) of devices whose pages a transport cannot read */
};

/* Frequencies of a rotation, out [dim / 2]: theta^(-2i/dim). Source: Su et al., "RoFormer". */
void sl_rope_frequencies(float theta, uint32_t dim, float *out);

/* What every device refuses of views to be packed as one matrix: none, different columns, a type or size that
 * there is not. */
SL_MUST_CHECK enum sl_err sl_views_check(const struct sl_tensor_view *views, size_t n, struct sl_why *why);

/* What every device refuses of a page pool. */
SL_MUST_CHECK enum sl_err sl_kv_geometry_check(const struct sl_kv_geometry *g, uint32_t n_pages,
                                               struct sl_why *why);

/* Bytes of one token's K or V of one head: its values, and its scale (0 where the type has none). */
size_t sl_kv_value_bytes(const struct sl_kv_geometry *g);
size_t sl_kv_scale_bytes(const struct sl_kv_geometry *g);

/* Bytes of a page: n_layers * 2 * n_kv_heads * page_tokens * (values and scale). */
size_t sl_kv_page_bytes(const struct sl_kv_geometry *g);

/* Digest of the first n_tokens tokens of a page in host memory: independent of what lies behind them.
 * n_tokens equal to page_tokens digests the page as one run of bytes. */
uint64_t sl_kv_page_digest(const struct sl_kv_geometry *g, const void *page, uint32_t n_tokens);

/* "auto" (the fastest available on this machine) or a table's name. Checks that every op is set. SL_ENOTFOUND
 * with the list of names, SL_EUNSUPPORTED when this machine cannot run it. */
SL_MUST_CHECK enum sl_err sl_backend_find(const char *name, const struct sl_backend_ops **out,
                                          struct sl_why *why);

#ifdef __cplusplus
}
#endif
#endif
