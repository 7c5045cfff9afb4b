/* kernels/cuda/cu_kernels.h - the kernels and what they take: one struct each, all pointers to the device.
 *
 * Activations are float32 between ops, as everywhere; a product takes them as bfloat16, and matrices are
 * bfloat16 too. */
#ifndef SLUICE_KERNELS_CUDA_CU_KERNELS_H
#define SLUICE_KERNELS_CUDA_CU_KERNELS_H

#include "kernels/backend.h"
#include "kernels/cuda/cu_runtime.h"
#include "kernels/sample.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- cu_rows.cu: a block per row ---- */

struct cu_embed_args {
    const uint16_t *w;     /* [n_vocab, n] */
    const int32_t *tokens; /* [n_rows] */
    float scale, *x;       /* [n_rows, n] */
    uint32_t n;
};
void cu_embed(struct cu_stream *s, uint32_t n_rows, const struct cu_embed_args *a);

/* The prologue of a product, rounded to bfloat16. */
struct cu_prologue_args {
    enum sl_prologue kind;
    const float *x;       /* [., n] or [., 2 n], see struct sl_linear */
    const uint32_t *rows; /* [n_rows]: rows of x, or NULL */
    const float *norm_w;
    float norm_eps;
    uint16_t *y; /* [n_rows, n] */
    uint32_t n;
};
void cu_prologue(struct cu_stream *s, uint32_t n_rows, const struct cu_prologue_args *a);

struct cu_norm_add_args {
    const float *y, *norm_w;
    float eps, *x;
    uint32_t n;
};
void cu_norm_add(struct cu_stream *s, uint32_t n_rows, const struct cu_norm_add_args *a);

/* y = ((parts[0] + parts[1]) + parts[2]) .., of [n_parts, n], or y += that sum. */
struct cu_sum_args {
    const float *parts;
    uint64_t n;
    uint32_t n_parts;
    int add;
    float *y;
};
void cu_sum_ranks(struct cu_stream *s, const struct cu_sum_args *a);

/* ---- cu_matmul.cu ---- */

/* y [n_rows, n] = x [n_rows, k] w[n, k]^T + bias, or += */
struct cu_matmul_args {
    const uint16_t *x, *w;
    const float *bias; /* [n], or NULL */
    float *y;
    uint32_t n_rows, n, k;
    int add;
};
/* An element is summed over k in rising order by one thread: the same bits at any n_rows. */
void cu_matmul_plain(struct cu_stream *s, const struct cu_matmul_args *a);

/* ---- pages ---- */

/* One layer of a page pool: strips as in struct sl_kv_geometry, K of all heads and then V of all. */
struct cu_pages {
    uint8_t *layer; /* of page 0 */
    uint64_t page_bytes, strip_bytes;
    uint32_t n_kv_heads, page_tokens, head_dim;
    uint32_t row_bytes; /* of a position's values in a strip */
    enum sl_dtype dtype;
};

/* A row of a batch: its position, and where the pages of its sequence begin in the batch's list. */
struct cu_row {
    uint32_t pos; /* CU_NO_ROW: left out */
    uint32_t first_page;
};
#define CU_NO_ROW UINT32_MAX

struct cu_rope_args {
    struct cu_pages kv;
    const struct cu_row *rows;
    const uint32_t *page_list;
    const float *frequency; /* [rope_dim / 2] */
    const float *q_norm, *k_norm;
    float norm_eps;
    enum sl_rope_layout layout;
    uint32_t n_heads, rope_dim;
    float *qkv; /* [n_rows, (n_heads + 2 n_kv_heads) * head_dim] */
};
/* cu_rope.cu */
void cu_rope_kv(struct cu_stream *s, uint32_t n_rows, const struct cu_rope_args *a);

struct cu_attention_args {
    struct cu_pages kv;
    const struct cu_row *rows;
    const uint32_t *page_list;
    uint32_t n_heads, window;
    float score_scale;
    const float *qkv;
    float *out; /* [n_rows, n_heads * head_dim] */
};
/* cu_attention_plain.cu: a block per row and head, all types and shapes; a row's bits depend on that row
 * alone. */
void cu_attention_plain(struct cu_stream *s, uint32_t n_rows, const struct cu_attention_args *a);

/* ---- cu_attention_tile.cu: attention on tensor cores, over lists of work made by cuda_plan.c ---- */

/* Query rows of the heads that share a K and V head are the rows of one matrix: row p of a run is head p %
 * group of its token p / group. A tile is some of them. */
#define CU_SMALL_TILE 16u /* for decode rows: the block's warps share its rows and split the KV */
#define CU_LARGE_TILE 64u /* for prompt chunks: a warp has 16 of the rows */
#define CU_KV_BLOCK   64u /* positions that go through shared memory together */

#define CU_NO_PARTIAL UINT32_MAX

struct cu_item {
    uint32_t tile; /* CU_SMALL_TILE or CU_LARGE_TILE */
    uint32_t kv_head;
    uint32_t first_row, first_pos; /* of the run: in the batch, and the position of that row */
    uint32_t first_page;           /* of the run, in the page list */
    uint32_t p0, n_p;              /* rows [p0, p0 + n_p) of the run's matrix */
    uint32_t kv_begin, kv_end;     /* positions; kv_begin is a multiple of CU_KV_BLOCK */
    uint32_t kv_first;             /* nothing in front of it may be read */
    uint32_t partial;              /* row of the partial results that p0 has, or CU_NO_PARTIAL: all is here */
};

/* The partial results of one row and head, to be put together. */
struct cu_merge {
    uint32_t row, head;
    uint32_t partial, stride, n; /* partial + i * stride, for i < n */
};

struct cu_tile_args {
    struct cu_pages kv; /* as cu_attention_tile_fits() has it */
    const uint32_t *page_list;
    /* [n_blocks + 1]: items of block i are [block_items[i], block_items[i + 1]) */
    const uint32_t *block_items;
    const struct cu_item *items;
    uint32_t n_heads, window;
    float score_scale;
    const float *qkv;
    float *out;
    float *partial_sums;   /* [., head_dim] not yet divided by the weight */
    float *partial_scales; /* [., 2]: the greatest score, times log2(e), and the weight */
};
/* True when the tiles can do it. */
int cu_attention_tile_fits(const struct cu_pages *kv);
/* n_blocks: as many as the lists were made for; two fit a multiprocessor. */
void cu_attention_tile(struct cu_stream *s, uint32_t n_blocks, const struct cu_tile_args *a);

struct cu_merge_args {
    const struct cu_merge *merges; /* [*n] */
    const uint32_t *n;
    uint32_t n_heads, head_dim;
    const float *partial_sums, *partial_scales;
    float *out;
};
/* n_blocks share them. */
void cu_attention_merge(struct cu_stream *s, uint32_t n_blocks, const struct cu_merge_args *a);

/* ---- cu_pages.cu ---- */

/* Page pages[i], of page_bytes, and slot i; to the pool or from it. In the slot it lies in runs, so that what other
 * ranks have of the page fits between them. */
struct cu_move_args {
    uint8_t *pool, *slots;
    const uint32_t *pages; /* [n] */
    uint64_t page_bytes, slot_bytes;
    uint64_t run_bytes, run_stride; /* of a whole page: both page_bytes */
    int to_pool;
};
void cu_move_pages(struct cu_stream *s, uint32_t n, const struct cu_move_args *a);

/* ---- cu_digest.cu ---- */

/* Bytes with one digest: strips of parts, each digested with the last one's digest as its seed. */
struct cu_digest_item {
    const void *p;
    uint64_t seed;
    uint64_t part_bytes[2], part_stride[2]; /* stride: to the next part */
    uint32_t n_strips, n_parts;
    uint64_t *out; /* device */
};
struct cu_digest_args {
    const struct cu_digest_item *items; /* [n] */
};
void cu_digest(struct cu_stream *s, uint32_t n, const struct cu_digest_args *a);

/* ---- cu_sample.cu: a block per row ---- */

struct cu_sample_row {
    struct sl_pick pick; /* its pointers are the device's */
    float *edited;       /* [n_vocab] room for the row with its edits; NULL = there are none */
    const float *raw;    /* [n_vocab] */
};
struct cu_sample_args {
    const struct cu_sample_row *rows; /* [n_rows] */
    struct sl_picked *out;            /* [n_rows]; all but the digest */
    uint32_t n_vocab;                 /* at most SL_PICK_MAX_VOCAB */
};
void cu_sample(struct cu_stream *s, uint32_t n_rows, const struct cu_sample_args *a);

#ifdef __cplusplus
}
#endif
#endif
