/* kernels/tensor.h - the words all devices share: data types, views of matrices in a file, a batch, KV
 * geometry. */
#ifndef SLUICE_KERNELS_TENSOR_H
#define SLUICE_KERNELS_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Values are GGUF's type numbers; SL_Q8 and SL_FP8 are none of them. */
enum sl_dtype {
    SL_F32 = 0,
    SL_F16 = 1,
    SL_Q4_0 = 2,
    SL_Q4_1 = 3,
    SL_Q5_0 = 6,
    SL_Q5_1 = 7,
    SL_Q8_0 = 8,
    SL_Q4_K = 12,
    SL_Q5_K = 13,
    SL_Q6_K = 14,
    SL_BF16 = 30,
    /* of K and V only, with one float32 scale for a token's row of a head: */
    SL_Q8 = 256, /* int8 */
    SL_FP8 = 257 /* e4m3; the scale is a power of two */
};

#define SL_MATRIX_MAX_ROWS (1u << 28)
#define SL_MATRIX_MAX_COLS (1u << 24)

/* A row-major matrix [n_rows, n_cols] as it lies in the model file; a row is contiguous, n_cols is the
 * reduced side. */
struct sl_tensor_view {
    enum sl_dtype type;
    uint64_t n_rows, n_cols;
    const void *data;
};

/* Elements of a block: 1, 32 for the quantised, 256 for the K types; 0 for a number that is no type. */
uint32_t sl_dtype_block(enum sl_dtype type);
/* Bytes of one row of n_cols elements; 0 when n_cols is no multiple of the type's block. */
size_t sl_dtype_row_bytes(enum sl_dtype type, uint64_t n_cols);
const char *sl_dtype_name(enum sl_dtype type);
/* Plain dequantisation of one row to float32: the meaning of the type. Source: GGUF's block formats. */
void sl_dequant_row(enum sl_dtype type, const void *row, uint64_t n_cols, float *out);
/* Of elements [32 i, 32 i + 32) of a block of Q4_K or Q5_K: x = d * sc * q - dmin * mn. */
void sl_k_parts(const uint8_t *block, uint32_t i, uint8_t *sc, uint8_t *mn);

/* KV page geometry. One page: [n_layers, 2 (K, V), n_kv_heads] strips, contiguous; a strip: [page_tokens,
 * head_dim] of dtype and, behind it, for SL_Q8 and SL_FP8 float32 scales [page_tokens]. */
struct sl_kv_geometry {
    uint32_t n_layers, n_kv_heads, page_tokens, head_dim;
    enum sl_dtype dtype; /* SL_F16, SL_BF16, SL_F32, SL_Q8, SL_FP8 */
};

/* A run of consecutive tokens of one sequence inside a batch: a decode row is a run of one. */
struct sl_batch_run {
    uint32_t first_row, n_rows; /* rows [first_row, first_row + n_rows) of the batch */
    uint32_t first_pos;         /* absolute position of its first row */
    /* Page i holds positions [i * page_tokens, ...); covers first_pos + n_rows positions. */
    const uint32_t *pages;
    uint32_t n_pages;
};

/* One forward pass: any mix of prompt chunks over cached pages and decode rows. Runs cover all rows in order;
 * for attention() they may leave rows out, whose output is not written. */
struct sl_batch {
    uint32_t n_rows, n_runs, n_out;
    const int32_t *tokens;           /* [n_rows] */
    const struct sl_batch_run *runs; /* [n_runs] */
    const uint32_t *out_rows;        /* [n_out] ascending: rows whose logits are wanted */
};

#ifdef __cplusplus
}
#endif
#endif
