/* tests/gpu/gpu_check.h - what the parts of gpu_check share. */
#ifndef SLUICE_TESTS_GPU_GPU_CHECK_H
#define SLUICE_TESTS_GPU_GPU_CHECK_H

#include "kernels/backend.h"

/* The shape of a model's layers; the sizes that all measurements take. */
struct gpu_sizes {
    const char *name;
    uint32_t n_layers, d_model, d_ff, n_heads, n_kv_heads, head_dim, n_vocab;
    uint32_t page_tokens, max_rows;
    uint32_t decode_batch, decode_context; /* of the attention that should reach the memory's rate */
    uint32_t chunk, chunk_history;         /* of the attention that should reach the tensor cores' */
    uint32_t gemm_rows, move_pages;
    uint32_t repeats;
    size_t read_bytes;
    enum sl_dtype kv_dtype; /* 0 = SL_BF16 */
};

extern const struct gpu_sizes gpu_sizes_8b, gpu_sizes_small;

/* A device with a page pool. Everything dies on error. */
struct gpu_rig {
    const struct sl_backend_ops *ops;
    struct sl_dev *d;
    struct sl_kv *kv;
    struct sl_kv_geometry geometry;
    uint32_t n_pages, page_tokens, next_page;
};

struct gpu_rig gpu_rig_open(const char *table, const struct gpu_sizes *s, uint32_t n_layers,
                            uint32_t max_rows, uint32_t n_pages);
struct gpu_rig gpu_rig_open_conf(const char *table, const struct gpu_sizes *s, uint32_t n_layers,
                                 uint32_t n_pages, const struct sl_dev_conf *conf);
void gpu_rig_close(struct gpu_rig *g);

/* A batch and all it points to. */
struct gpu_batch {
    struct sl_batch b;
    struct sl_batch_run *runs;
    int32_t *tokens;
    uint32_t *pages, *out_rows;
};
/* n_decode rows with `context` positions each, then a chunk of n_chunk rows behind chunk_history positions.
 * Every run has pages of its own as far as the pool goes; then they begin again. The last row of each run has
 * logits. */
struct gpu_batch gpu_batch_make(struct gpu_rig *g, uint32_t n_decode, uint32_t context, uint32_t n_chunk,
                                uint32_t chunk_history);
void gpu_batch_free(struct gpu_batch *b);

/* Small numbers that are the same on every machine. */
void gpu_fill(float *to, size_t n, uint32_t seed, float scale);
/* n floats on the device, filled so. */
float *gpu_buffer(struct gpu_rig *g, size_t n, uint32_t seed, float scale);
struct sl_weight *gpu_matrix(struct gpu_rig *g, uint32_t n_rows, uint32_t n_cols);

struct sl_attn_shape gpu_attn_shape(const struct gpu_sizes *s);

/* gpu_step.c: a model's layers; gpu_step() runs batch b and waits. */
struct gpu_stepper {
    struct gpu_rig g;
    const struct gpu_sizes *s;
    uint32_t n_layers, max_rows;
    struct sl_weight *embed, *qkv, *out, *gate_up, *down; /* embed is the head too */
    float *norm, *x, *qkv_y, *attn, *gate_up_y, *logits;
    const struct sl_batch *b;
};
struct gpu_stepper gpu_stepper_open(const char *table, const struct gpu_sizes *s, uint32_t n_layers,
                                    uint32_t max_rows, uint32_t max_out, int no_graphs);
void gpu_stepper_close(struct gpu_stepper *t);
void gpu_step(void *stepper);

/* gpu_compare.c: every op of the table against the reference; returns the number that differ, each told. */
unsigned gpu_compare(const char *table, const struct gpu_sizes *s);

/* gpu_measure.c: prints a table and writes path as JSON. */
void gpu_measure(const struct gpu_sizes *s, const char *path);

#endif
