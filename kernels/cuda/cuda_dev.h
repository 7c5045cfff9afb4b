/* kernels/cuda/cuda_dev.h - a CUDA device as the backend sees it: the stream, scratch, and what of the host's
 * a batch needs on the device.
 *
 * Ops only queue work. What they take of the host's - token ids, positions, page lists - is copied into
 * pinned memory at the call and sent in stream order, so the caller's arrays are free at return. That memory
 * is a ring: it starts over when the stream was waited for. */
#ifndef SLUICE_KERNELS_CUDA_CUDA_DEV_H
#define SLUICE_KERNELS_CUDA_CUDA_DEV_H

#include "kernels/backend.h"
#include "kernels/cpu/cpu_pool.h"
#include "kernels/cuda/cu_blaslt.h"
#include "kernels/cuda/cu_kernels.h"
#include "kernels/cuda/cuda_plan.h"

struct cuda_ring {
    uint8_t *host, *device; /* [bytes], the same offsets */
    size_t bytes, used;
};

/* The rows and pages of a batch on the device. */
struct cuda_batch {
    const struct cu_row *rows;
    const uint32_t *pages;
    uint64_t number; /* from 1; the same as long as the batch is */
};

/* A model has one base, or one for local and one for global layers, and may scale each. */
#define CUDA_ROPE_BASES 4u

struct cuda_rope_base {
    float theta;
    uint32_t dim;         /* 0 = free */
    const float *factors; /* the host's pointer, as a name */
    float *frequency;     /* [SL_HEAD_DIM_MAX / 2] device */
};

/* A plan on the device. */
struct cuda_sent_plan {
    const uint32_t *block_items;
    const struct cu_item *items;
    const struct cu_merge *merges;
};

/* Attention over tiles: its plan, and the last one that was sent, for the layers of a batch. */
struct cuda_tiles {
    struct cuda_plan_shape shape; /* that plan has room for */
    struct cuda_plan plan;
    float *partial_sums, *partial_scales; /* device */
    uint64_t sent_for;                    /* number of the batch it was sent for; 0 = none */
    struct cuda_sent_plan sent;
};

/* Memory that keeps its place, on the host (pinned) and the device. */
struct cuda_area {
    uint8_t *host, *device;
    size_t bytes;
};

#define CUDA_PASS_LEAST_ROWS 16u  /* cuBLASLt's ways have the same numbers of rows */
#define CUDA_PASS_MOST_ROWS  512u /* what is larger hides its launches behind its work */
#define CUDA_PASS_KEPT       16u  /* passes: 6 numbers of rows */
#define CUDA_PASS_KINDS      4u   /* of plans: a model has layers of one window or two */

enum cuda_kept_state { CUDA_KEPT_COLD, CUDA_KEPT_WARM, CUDA_KEPT_FAILED };

struct cuda_kept {
    const void *owner;
    const struct sl_kv *kv;
    uint32_t n_rows;
    enum cuda_kept_state state;
    struct cu_graph *graph; /* NULL = not yet */
};

/* A kind of plan and the place of its lists. */
struct cuda_kind {
    struct cuda_plan_shape shape;
    struct cuda_area area;
    size_t items_at, merges_at; /* block_items are at 0 */
};

/* Passes that are kept (cuda_pass.c). */
struct cuda_passes {
    bool off, on;            /* on: ops are those of a pass */
    bool capturing, spoiled; /* spoiled: what is captured would be wrong for other batches */
    struct cuda_area batch_area;
    const int32_t *tokens; /* on the device, in batch_area, like the next two */
    const struct cu_row *rows;
    const uint32_t *pages;
    uint32_t max_pages;
    struct sl_batch batch; /* the caller's, while its pass is on */
    const struct sl_vote *vote;
    struct cuda_kind kinds[CUDA_PASS_KINDS];
    uint32_t n_kinds;
    struct cuda_kept kept[CUDA_PASS_KEPT];
    uint32_t n_kept;
    struct cuda_kept *current;
    uint64_t n_launched, n_failed; /* graphs; captures */
};

struct cuda_sampling {
    float *edited;            /* [SL_PICK_MAX_ROWS, n_vocab] device */
    struct sl_picked *picked; /* [SL_PICK_MAX_ROWS] device */
    uint32_t n_vocab;         /* that there is room for */
};

struct sl_dev {
    struct cu_stream *stream;
    uint32_t device;
    struct sl_cpu_pool *pool; /* for packing and sampling */
    unsigned n_threads;       /* of the pool, the device thread included */
    int plain;                /* only the plain kernels */
    uint32_t max_rows, widest;
    uint16_t *acts; /* [max_rows, widest] device: what products take */
    struct cuda_ring batches, lists;
    size_t last_batch, last_batch_bytes; /* in batches; 0 bytes = none since the ring started over */
    size_t last_pages;                   /* offset of the page list in it */
    uint64_t n_batches;
    struct cu_blaslt *blaslt; /* NULL = the plain product */
    struct cuda_tiles tiles;
    struct cuda_sampling sampling;
    struct cuda_passes passes;
    bool in_flight; /* a pass was queued since the stream was waited for */
    struct cuda_rope_base rope[CUDA_ROPE_BASES];
    uint32_t rope_next;
};

struct sl_weight {
    uint16_t *data; /* [n_rows, n_cols] bfloat16, device */
    uint32_t n_rows, n_cols;
    size_t bytes;
};

/* A pool on one device; of several ranks each device has one of its heads, and `parts` of the whole names them. */
struct sl_kv {
    struct sl_kv_geometry g;
    uint32_t n_pages;
    size_t page_bytes;
    struct cu_stream *stream; /* the device's, between steps */
    uint32_t device;
    uint8_t *base; /* on it; NULL where parts have the memory */
    uint32_t first_head, n_parts;
    struct sl_kv **parts; /* [n_parts], those that there are */
};

/* How a part's strips lie in whole pages: run_bytes of every run_stride, from first on. */
struct cuda_strips {
    size_t first, run_bytes, run_stride;
    uint32_t n_runs; /* of a page */
};

/* cuda_dev.c */
enum sl_err sl_cuda_open(const struct sl_dev_conf *conf, int plain, struct sl_dev **out, struct sl_why *why);
void sl_cuda_close(struct sl_dev *d); /* takes NULL */
void *sl_cuda_buf_alloc(struct sl_dev *d, size_t bytes);
void sl_cuda_buf_free(struct sl_dev *d, void *p, size_t bytes);
void sl_cuda_upload(struct sl_dev *d, void *dst, const void *src, size_t bytes);
void sl_cuda_download(struct sl_dev *d, void *dst, const void *src, size_t bytes);
void sl_cuda_copy_rows(struct sl_dev *d, void *dst, size_t dst_stride, const void *src, size_t src_stride,
                       size_t bytes, size_t n);
void *sl_cuda_native_stream(struct sl_dev *d);
void sl_cuda_sync(struct sl_dev *d);
void sl_cuda_parallel(struct sl_dev *d, uint32_t n_items, sl_parallel_fn *fn, void *arg);
/* Copies bytes of the host's to the device, where they stay until the stream is waited for. An op sends once:
 * a second time may wait, and so overwrite the first. */
const void *sl_cuda_send(struct sl_dev *d, const void *src, size_t bytes);
struct cuda_part {
    const void *src;
    size_t bytes;
    const void *sent; /* out: where it is on the device */
};
void sl_cuda_send_parts(struct sl_dev *d, struct cuda_part *parts, size_t n);
/* In front of an op that sends more than once: n_parts parts of `bytes` in all. */
void sl_cuda_send_room(struct sl_dev *d, size_t bytes, size_t n_parts);
/* The batch on the device; what is the same as the last one is not sent again. */
struct cuda_batch sl_cuda_send_batch(struct sl_dev *d, const struct sl_batch *b);
/* rows [n_rows] and the page list of a batch of at most n_rows; returns the bytes of the list. */
size_t sl_cuda_rows_and_pages(const struct sl_batch *b, uint32_t n_rows, struct cu_row *rows,
                              uint32_t *pages);

/* cuda_pass.c */
enum sl_pass_state sl_cuda_pass_begin(struct sl_dev *d, const void *owner, struct sl_kv *kv,
                                      uint32_t max_rows, const struct sl_vote *vote, struct sl_batch *b);
int sl_cuda_pass_end(struct sl_dev *d);
enum sl_err sl_cuda_passes_open(struct sl_dev *d); /* SL_ENOMEM */
void sl_cuda_passes_drop(struct sl_dev *d);        /* before memory goes that ops may have been given */
void sl_cuda_passes_close(struct sl_dev *d);
/* Of the pass that is on: its plan of this shape. False: there is no room for it. */
bool sl_cuda_pass_plan(struct sl_dev *d, const struct cuda_plan_shape *s, struct cuda_sent_plan *out);

/* cuda_mover.c */
extern const struct sl_kv_mover_ops sl_cuda_mover;

/* cuda_memory.c: matrices and pages */
enum sl_err sl_cuda_weight_pack(struct sl_dev *d, const struct sl_tensor_view *views, size_t n,
                                struct sl_weight **out, struct sl_why *why);
void sl_cuda_weight_free(struct sl_dev *d, struct sl_weight *w);
size_t sl_cuda_memory_free(const struct sl_dev *d);
size_t sl_cuda_weight_bytes(const struct sl_weight *w);
enum sl_err sl_cuda_kv_open(struct sl_dev *d, const struct sl_kv_geometry *g, uint32_t n_pages,
                            struct sl_kv **out, struct sl_why *why);
enum sl_err sl_cuda_kv_open_parts(struct sl_dev *d, const struct sl_kv_geometry *g, uint32_t n_pages,
                                  uint32_t n_parts, struct sl_kv **out, struct sl_why *why);
enum sl_err sl_cuda_kv_part(struct sl_dev *d, struct sl_kv *kv, uint32_t first_head, uint32_t n_heads,
                            struct sl_kv **out, struct sl_why *why);
void sl_cuda_kv_close(struct sl_dev *d, struct sl_kv *kv);
struct cuda_strips sl_cuda_strips(const struct sl_kv *whole, const struct sl_kv *part);
void *sl_cuda_kv_host_base(struct sl_kv *kv);
void sl_cuda_kv_read(struct sl_dev *d, struct sl_kv *kv, uint32_t page, void *host);
void sl_cuda_kv_write(struct sl_dev *d, struct sl_kv *kv, uint32_t page, const void *host);

/* cuda_attention.c */
enum sl_err sl_cuda_tiles_open(struct sl_dev *d);
void sl_cuda_tiles_close(struct sl_dev *d);
/* Makes d->tiles.plan. */
void sl_cuda_plan_for(struct sl_dev *d, const struct cuda_plan_shape *s, const struct sl_batch *b);
void sl_cuda_attention(struct sl_dev *d, struct sl_kv *kv, uint32_t layer, const struct sl_attn_shape *s,
                       const struct sl_batch *b, const float *qkv, float *out);

/* cuda_sample.c */
void sl_cuda_sampling_close(struct sl_dev *d);
void sl_cuda_sample(struct sl_dev *d, const float *logits, uint32_t n_vocab, const struct sl_pick *picks,
                    uint32_t n_rows, struct sl_picked *out);

/* cuda_ops.c */
struct cu_pages sl_cuda_pages(const struct sl_kv *kv, uint32_t layer);
void sl_cuda_embed(struct sl_dev *d, const struct sl_weight *w, const struct sl_batch *b, float scale,
                   float *x);
void sl_cuda_linear(struct sl_dev *d, const struct sl_linear *a);
void sl_cuda_norm_add(struct sl_dev *d, const float *y, const float *norm_w, float eps, uint32_t n_rows,
                      uint32_t n, float *x);
void sl_cuda_sum_ranks(struct sl_dev *d, const float *parts, uint32_t n_parts, size_t n, int add, float *y);
void sl_cuda_rope_kv(struct sl_dev *d, struct sl_kv *kv, uint32_t layer, const struct sl_attn_shape *s,
                     const struct sl_batch *b, float *qkv);

#endif
