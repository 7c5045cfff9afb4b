/* kernels/cpu/cpu_backends.c - the op tables of the CPU: reference, portable, avx2, avx512. */
#include "kernels/cpu/cpu_backends.h"

#include "kernels/cpu/cpu_dev.h"
#include "kernels/cpu/isa_portable.h"

const struct sl_cpu_isa sl_cpu_isa_portable = {
    .rmsnorm_row = sl_portable_rmsnorm_row,
    .norm_add_row = sl_portable_norm_add_row,
    .swiglu_row = sl_portable_swiglu_row,
    .geglu_row = sl_portable_geglu_row,
    .quant_row = sl_portable_quant_row,
    .bf16_row = sl_portable_bf16_row,
    .panel = sl_portable_panel,
    .angles = sl_portable_angles,
    .rotate = sl_portable_rotate,
    .kv_store = sl_portable_kv_store,
    .kv_quantise = sl_portable_kv_quantise,
    .attn_tile = sl_portable_attn_tile,
    .attn_merge = sl_portable_attn_merge,
    .attn_finish = sl_portable_attn_finish,
};

static int always_available(void)
{
    return 1;
}

static enum sl_err reference_open(const struct sl_dev_conf *conf, struct sl_dev **out, struct sl_why *why)
{
    return sl_cpu_open(conf, NULL, out, why);
}

static enum sl_err portable_open(const struct sl_dev_conf *conf, struct sl_dev **out, struct sl_why *why)
{
    return sl_cpu_open(conf, &sl_cpu_isa_portable, out, why);
}

/* What is the same in all. */
#define SHARED_OPS                                                                                           \
    .host_memory = 1, .close = sl_cpu_close, .buf_alloc = sl_cpu_buf_alloc, .buf_free = sl_cpu_buf_free,     \
    .upload = sl_cpu_copy, .download = sl_cpu_copy, .copy_rows = sl_cpu_copy_rows,                           \
    .weight_pack = sl_cpu_weight_pack, .weight_free = sl_cpu_weight_free,                                    \
    .weight_bytes = sl_cpu_weight_bytes, .weight_image = sl_cpu_weight_image,                                \
    .weight_restore = sl_cpu_weight_restore, .pack_version = SL_PACK_VERSION, .kv_open = sl_cpu_kv_open,     \
    .kv_close = sl_cpu_kv_close, .kv_part = sl_cpu_kv_part, .sum_ranks = sl_cpu_sum_ranks,                   \
    .kv_host_base = sl_cpu_kv_host_base, .kv_read = sl_cpu_kv_read, .kv_write = sl_cpu_kv_write,             \
    .embed = sl_cpu_embed, .sync = sl_cpu_sync, .parallel = sl_cpu_parallel

/* What is the same in all that have a table of inner loops. */
#define DRIVEN_OPS                                                                                           \
    SHARED_OPS, .linear = sl_cpu_linear, .norm_add = sl_cpu_norm_add, .rope_kv = sl_cpu_rope_kv,             \
                .attention = sl_cpu_attention

const struct sl_backend_ops sl_backend_reference = {
    SHARED_OPS,
    .name = "reference",
    .available = always_available,
    .open = reference_open,
    .linear = sl_ref_linear,
    .norm_add = sl_ref_norm_add,
    .rope_kv = sl_ref_rope_kv,
    .attention = sl_ref_attention,
};

const struct sl_backend_ops sl_backend_portable = {
    DRIVEN_OPS,
    .name = "portable",
    .available = always_available,
    .open = portable_open,
};

#if defined(SL_X86_KERNELS) /* of kernels/CMakeLists.txt */
#include <cpuid.h>

/* clang 14's __builtin_cpu_supports() does not know it. */
static bool has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

static int avx2_available(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static int avx512_available(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16") && avx2_available();
}

static enum sl_err avx2_open(const struct sl_dev_conf *conf, struct sl_dev **out, struct sl_why *why)
{
    return sl_cpu_open(conf, &sl_cpu_isa_avx2, out, why);
}

static enum sl_err avx512_open(const struct sl_dev_conf *conf, struct sl_dev **out, struct sl_why *why)
{
    return sl_cpu_open(conf, &sl_cpu_isa_avx512, out, why);
}

#else

static int never_available(void)
{
    return 0;
}

static enum sl_err refuse_open(const struct sl_dev_conf *conf, struct sl_dev **out, struct sl_why *why)
{
    (void)conf, (void)out;
    return sl_why_set(why, SL_EUNSUPPORTED, "This backend needs an x86-64 CPU; use \"auto\".");
}

#define avx2_available   never_available
#define avx512_available never_available
#define avx2_open        refuse_open
#define avx512_open      refuse_open

#endif

const struct sl_backend_ops sl_backend_avx2 = {
    DRIVEN_OPS,
    .name = "avx2",
    .available = avx2_available,
    .open = avx2_open,
};

const struct sl_backend_ops sl_backend_avx512 = {
    DRIVEN_OPS,
    .name = "avx512",
    .available = avx512_available,
    .open = avx512_open,
};
