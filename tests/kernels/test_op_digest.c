/* Digests of what the ops compute for fixed inputs, the same on every CPU and with every compiler: nodes on
 * different machines pair in exact mode. A digest here changes only when the arithmetic is changed on
 * purpose. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>
#include <xxhash.h>
#include "common/base/mem.h"
#include "tests/kernels/op_setup.h"

static const char *const backends[] = {"portable", "avx2", "avx512"};

/* y of a product with a norm in front, over a few shapes. */
static uint64_t linear_digest(const struct sl_backend_ops *ops, enum sl_dtype type)
{
    enum { ROWS = 11, MOST = 512 };
    static const uint32_t sizes[][2] = {{45, 256}, {97, 512}};
    struct op_rand r = {41};
    struct sl_dev *d = op_open(ops, 2, ROWS);
    uint64_t digest = 0;
    for (size_t i = 0; i < SL_COUNTOF(sizes); i++) {
        uint32_t n = sizes[i][0], k = sizes[i][1];
        float x[ROWS * MOST], norm[MOST], bias[MOST], y[ROWS * MOST];
        struct sl_tensor_view v;
        struct sl_weight *w;
        void *tensor = op_random_tensor(&r, type, n, k, &v);
        op_rand_floats(&r, x, (size_t)ROWS * k, 1.0f);
        op_rand_floats(&r, norm, k, 1.0f);
        op_rand_floats(&r, bias, n, 1.0f);
        assert_int_equal(ops->weight_pack(d, &v, 1, &w, NULL), SL_OK);
        struct sl_linear a = {.w = w,
                              .prologue = SL_PRO_RMSNORM,
                              .norm_w = norm,
                              .norm_eps = 1e-5f,
                              .x = x,
                              .bias = bias,
                              .y = y,
                              .n_rows = ROWS};
        ops->linear(d, &a);
        digest = XXH64(y, (size_t)ROWS * n * sizeof *y, digest);
        ops->weight_free(d, w);
        sl_free(tensor);
    }
    ops->close(d);
    return digest;
}

/* Both gates of one row. */
static uint64_t gate_digest(const struct sl_backend_ops *ops)
{
    enum { K = 203 };
    struct op_rand r = {42};
    struct sl_dev *d = op_open(ops, 1, 1);
    struct sl_tensor_view v;
    struct sl_weight *w;
    void *tensor = op_random_tensor(&r, SL_F32, 64, K, &v);
    float x[2 * K], y[64];
    uint64_t digest = 0;
    assert_int_equal(ops->weight_pack(d, &v, 1, &w, NULL), SL_OK);
    op_rand_floats(&r, x, 2 * K, 4.0f);
    for (int gelu = 0; gelu < 2; gelu++) {
        struct sl_linear a = {
            .w = w, .prologue = gelu ? SL_PRO_GEGLU : SL_PRO_SWIGLU, .x = x, .y = y, .n_rows = 1};
        ops->linear(d, &a);
        digest = XXH64(y, sizeof y, digest);
    }
    ops->weight_free(d, w);
    sl_free(tensor);
    ops->close(d);
    return digest;
}

/* q, the pages and the output of a prompt of some blocks, rotated. */
static uint64_t attention_digest(const struct sl_backend_ops *ops, enum sl_dtype type)
{
    enum { ROWS = 150, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 40, WIDTH = (HEADS + 2 * KV_HEADS) * HEAD_DIM };
    struct op_rand r = {43};
    struct sl_dev *d = op_open(ops, 2, ROWS);
    struct sl_kv_geometry g = {1, KV_HEADS, 64, HEAD_DIM, type};
    struct sl_kv *kv;
    static const uint32_t pages[] = {2, 0, 1};
    struct sl_attn_shape shape = {.n_heads = HEADS,
                                  .n_kv_heads = KV_HEADS,
                                  .head_dim = HEAD_DIM,
                                  .rope_dim = HEAD_DIM,
                                  .rope_theta = 10000.0f};
    struct sl_batch_run run = {0, ROWS, 0, pages, SL_COUNTOF(pages)};
    struct sl_batch batch = {.n_rows = ROWS, .n_runs = 1, .runs = &run};
    float *qkv = sl_xcalloc((size_t)ROWS * WIDTH, sizeof *qkv),
          *out = sl_xcalloc((size_t)ROWS * HEADS * HEAD_DIM, sizeof *out);
    assert_int_equal(ops->kv_open(d, &g, SL_COUNTOF(pages), &kv, NULL), SL_OK);
    op_rand_floats(&r, qkv, (size_t)ROWS * WIDTH, 1.5f);
    ops->rope_kv(d, kv, 0, &shape, &batch, qkv);
    ops->attention(d, kv, 0, &shape, &batch, qkv, out);
    uint64_t digest = XXH64(qkv, (size_t)ROWS * WIDTH * sizeof *qkv, 0);
    digest = XXH64(ops->kv_host_base(kv), sl_kv_page_bytes(&g), digest);
    digest = XXH64(out, (size_t)ROWS * HEADS * HEAD_DIM * sizeof *out, digest);
    ops->kv_close(d, kv);
    ops->close(d);
    sl_free(qkv);
    sl_free(out);
    return digest;
}

static void expect_digest(const char *backend, const char *op, enum sl_dtype type, uint64_t got,
                          uint64_t want)
{
    if (got != want)
        fail_msg("%s %s %s: digest %016llx, not %016llx", backend, op, sl_dtype_name(type),
                 (unsigned long long)got, (unsigned long long)want);
}

static void ops_compute_these_bits_everywhere(void **state)
{
    (void)state;
    static const struct {
        enum sl_dtype type;
        uint64_t digest;
    } products[] = {{SL_F32, 0x799ee1e8cabd148d},  {SL_F16, 0xfa36e2b2c8615033},
                    {SL_BF16, 0x9d7110ca1f0d6feb}, {SL_Q8_0, 0x3bd3941ec1e0b78f},
                    {SL_Q4_0, 0xb2e7f13f4ea8c6bc}, {SL_Q4_1, 0xe24adb35bc483c11},
                    {SL_Q5_0, 0xf20a53c2a91cd72a}, {SL_Q5_1, 0xdde0e27dc186532f},
                    {SL_Q4_K, 0xcf25f50c24679f25}, {SL_Q5_K, 0xf87ce97f290ac710},
                    {SL_Q6_K, 0x6103620b485b2b12}},
      kv_types[] = {{SL_F32, 0x278d526eaf5dfacc},
                    {SL_F16, 0x3766a065270d16f4},
                    {SL_BF16, 0x78c4c7aaabaf3680},
                    {SL_Q8, 0xe94c4e3b9056a1ee},
                    {SL_FP8, 0x050d0759ad989983}};
    static const uint64_t gates = 0x1579446d11aa4529;
    for (size_t b = 0; b < SL_COUNTOF(backends); b++) {
        const struct sl_backend_ops *ops = op_backend(backends[b]);
        if (!ops)
            continue;
        for (size_t i = 0; i < SL_COUNTOF(products); i++)
            expect_digest(backends[b], "linear", products[i].type, linear_digest(ops, products[i].type),
                          products[i].digest);
        for (size_t i = 0; i < SL_COUNTOF(kv_types); i++)
            expect_digest(backends[b], "attention", kv_types[i].type, attention_digest(ops, kv_types[i].type),
                          kv_types[i].digest);
        expect_digest(backends[b], "gates", SL_F32, gate_digest(ops), gates);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_compute_these_bits_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
