/* kernels/cuda/cuda_backends.c - the op tables of a CUDA device. */
#include "kernels/cuda/cuda_backends.h"

#include "kernels/cuda/cuda_dev.h"

static int available(void)
{
    return cu_missing() == NULL;
}

static uint32_t n_devices(void)
{
    return cu_devices();
}

static enum sl_err open_fast(const struct sl_dev_conf *conf, struct sl_dev **out, struct sl_why *why)
{
    return sl_cuda_open(conf, 0, out, why);
}

static enum sl_err open_plain(const struct sl_dev_conf *conf, struct sl_dev **out, struct sl_why *why)
{
    return sl_cuda_open(conf, 1, out, why);
}

#define SHARED_OPS                                                                                           \
    .available = available, .missing = cu_missing, .n_devices = n_devices, .close = sl_cuda_close,           \
    .buf_alloc = sl_cuda_buf_alloc, .buf_free = sl_cuda_buf_free, .upload = sl_cuda_upload,                  \
    .download = sl_cuda_download, .weight_pack = sl_cuda_weight_pack, .weight_free = sl_cuda_weight_free,    \
    .weight_bytes = sl_cuda_weight_bytes, .kv_open = sl_cuda_kv_open, .kv_close = sl_cuda_kv_close,          \
    .kv_host_base = sl_cuda_kv_host_base, .kv_read = sl_cuda_kv_read, .kv_write = sl_cuda_kv_write,          \
    .embed = sl_cuda_embed, .linear = sl_cuda_linear, .norm_add = sl_cuda_norm_add,                          \
    .rope_kv = sl_cuda_rope_kv, .attention = sl_cuda_attention, .sample = sl_cuda_sample,                    \
    .sync = sl_cuda_sync, .parallel = sl_cuda_parallel, .pass_begin = sl_cuda_pass_begin,                    \
    .pass_end = sl_cuda_pass_end, .memory_free = sl_cuda_memory_free,                                        \
    .packed_value_bytes = sizeof(uint16_t), .mover = &sl_cuda_mover, .copy_rows = sl_cuda_copy_rows,         \
    .native_stream = sl_cuda_native_stream, .sum_ranks = sl_cuda_sum_ranks, .kv_part = sl_cuda_kv_part,      \
    .kv_open_parts = sl_cuda_kv_open_parts

const struct sl_backend_ops sl_backend_cuda = {SHARED_OPS, .name = "cuda", .open = open_fast, .inexact = 1};
const struct sl_backend_ops sl_backend_cuda_plain = {SHARED_OPS, .name = "cuda-plain", .open = open_plain};
