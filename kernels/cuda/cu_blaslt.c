/* kernels/cuda/cu_blaslt.c - see cu_blaslt.h.
 *
 * The library is half a gigabyte, so it is loaded when a device is opened and not by every program. The way
 * to do a product is asked for once per (bucket of rows, n, k, bias, addition) and kept: asking takes longer
 * than a small product. cuBLAS is column-major: y^T [n, rows] = w^T^T [n, k] x^T [k, rows]. */
#include "kernels/cuda/cu_blaslt.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>

#include "common/base/log.h"
#include "common/base/mem.h"

#define WORKSPACE_BYTES ((size_t)32 << 20) /* what NVIDIA recommends for Hopper */
#define MAX_WAYS        256u               /* a model has 5 shapes; 10 buckets of rows */
#define MIN_BUCKET      16u
#define ALIGNMENT       8u /* of n and k, in elements: 16 bytes of bfloat16 */

/* The functions used, by the names they have in the library. */
#define FUNCTIONS(X)                                                                                         \
    X(cublasLtCreate)                                                                                        \
    X(cublasLtDestroy)                                                                                       \
    X(cublasLtMatmul)                                                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                        \
    X(cublasLtMatmulDescCreate)                                                                              \
    X(cublasLtMatmulDescDestroy)                                                                             \
    X(cublasLtMatmulDescSetAttribute)                                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                            \
    X(cublasLtMatrixLayoutDestroy)                                                                           \
    X(cublasLtMatrixLayoutSetAttribute)                                                                      \
    X(cublasLtMatmulPreferenceCreate)                                                                        \
    X(cublasLtMatmulPreferenceDestroy)                                                                       \
    X(cublasLtMatmulPreferenceSetAttribute)

struct functions {
#define MEMBER(name) __typeof__(&name) name;
    FUNCTIONS(MEMBER)
#undef MEMBER
};

struct way {
    uint32_t bucket, n, k;
    bool bias, add, found;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulAlgo_t algo;
};

struct cu_blaslt {
    struct cu_stream *stream;
    void *library, *workspace;
    struct functions f;
    cublasLtHandle_t handle;
    struct way ways[MAX_WAYS];
    uint32_t n_ways;
};

static bool load(struct cu_blaslt *b)
{
    char name[64];
    snprintf(name, sizeof name, "libcublasLt.so.%d", CUBLAS_VER_MAJOR);
    b->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!b->library) {
        SL_WARN("cuBLASLt is not used; products will be slow, install it beside the driver error=%s",
                dlerror());
        return false;
    }
    const struct {
        const char *name;
        void *to;
    } names[] = {
#define ENTRY(name) {#name, &b->f.name},
        FUNCTIONS(ENTRY)
#undef ENTRY
    };
    for (size_t i = 0; i < SL_COUNTOF(names); i++) {
        void *function = dlsym(b->library, names[i].name);
        if (!function) {
            SL_WARN("cuBLASLt is not used; it lacks a function library=%s function=%s", name, names[i].name);
            return false;
        }
        *(void **)names[i].to = function;
    }
    cublasStatus_t status = b->f.cublasLtCreate(&b->handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        SL_WARN("cuBLASLt is not used; it does not start status=%d", (int)status);
    return status == CUBLAS_STATUS_SUCCESS;
}

struct cu_blaslt *cu_blaslt_open(struct cu_stream *s)
{
    struct cu_blaslt *b = sl_xcalloc(1, sizeof *b);
    b->stream = s;
    cu_stream_use(s);
    b->workspace = cu_alloc(s, WORKSPACE_BYTES);
    if (b->workspace && load(b))
        return b;
    cu_blaslt_close(b);
    return NULL;
}

static void drop(struct cu_blaslt *b, struct way *w)
{
    if (w->desc)
        b->f.cublasLtMatmulDescDestroy(w->desc);
    cublasLtMatrixLayout_t layouts[] = {w->w, w->x, w->y};
    for (size_t i = 0; i < SL_COUNTOF(layouts); i++)
        if (layouts[i])
            b->f.cublasLtMatrixLayoutDestroy(layouts[i]);
}

void cu_blaslt_close(struct cu_blaslt *b)
{
    if (!b)
        return;
    for (uint32_t i = 0; i < b->n_ways; i++)
        drop(b, &b->ways[i]);
    if (b->handle)
        b->f.cublasLtDestroy(b->handle);
    if (b->library)
        dlclose(b->library);
    cu_free(b->stream, b->workspace);
    sl_free(b);
}

static bool describe(struct cu_blaslt *b, struct way *w)
{
    const struct functions *f = &b->f;
    cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    return f->cublasLtMatmulDescCreate(&w->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           f->cublasLtMatmulDescSetAttribute(w->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                             sizeof transposed) == CUBLAS_STATUS_SUCCESS &&
           (!w->bias || f->cublasLtMatmulDescSetAttribute(w->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                                          sizeof epilogue) == CUBLAS_STATUS_SUCCESS) &&
           f->cublasLtMatrixLayoutCreate(&w->w, CUDA_R_16BF, w->k, w->n, w->k) == CUBLAS_STATUS_SUCCESS &&
           f->cublasLtMatrixLayoutCreate(&w->x, CUDA_R_16BF, w->k, w->bucket, w->k) ==
               CUBLAS_STATUS_SUCCESS &&
           f->cublasLtMatrixLayoutCreate(&w->y, CUDA_R_32F, w->n, w->bucket, w->n) == CUBLAS_STATUS_SUCCESS;
}

static bool ask(struct cu_blaslt *b, struct way *w)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    size_t workspace = WORKSPACE_BYTES;
    int n = 0;
    if (!describe(b, w) || b->f.cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS)
        return false;
    bool ok =
        b->f.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                  &workspace, sizeof workspace) == CUBLAS_STATUS_SUCCESS &&
        b->f.cublasLtMatmulAlgoGetHeuristic(b->handle, w->desc, w->w, w->x, w->y, w->y, preference, 1,
                                            &result, &n) == CUBLAS_STATUS_SUCCESS &&
        n > 0;
    b->f.cublasLtMatmulPreferenceDestroy(preference);
    w->algo = result.algo;
    return ok;
}

/* Buckets are powers of 2. */
static uint32_t bucket_of(uint32_t n_rows)
{
    uint32_t bucket = MIN_BUCKET;
    while (bucket < n_rows)
        bucket *= 2;
    return bucket;
}

static struct way *way_for(struct cu_blaslt *b, const struct cu_matmul_args *a)
{
    struct way want = {
        .bucket = bucket_of(a->n_rows), .n = a->n, .k = a->k, .bias = a->bias != NULL, .add = a->add};
    for (uint32_t i = 0; i < b->n_ways; i++) {
        struct way *w = &b->ways[i];
        if (w->bucket == want.bucket && w->n == want.n && w->k == want.k && w->bias == want.bias &&
            w->add == want.add)
            return w;
    }
    if (b->n_ways == MAX_WAYS)
        return NULL;
    want.found = ask(b, &want);
    if (!want.found)
        SL_WARN("cuBLASLt has no way for a product, which will be slow rows=%u n=%u k=%u", want.bucket,
                want.n, want.k);
    b->ways[b->n_ways] = want;
    return &b->ways[b->n_ways++];
}

bool cu_blaslt_matmul(struct cu_blaslt *b, const struct cu_matmul_args *a)
{
    if (a->n % ALIGNMENT != 0 || a->k % ALIGNMENT != 0)
        return false;
    struct way *w = way_for(b, a);
    if (!w || !w->found)
        return false;
    uint64_t n_rows = a->n_rows;
    float one = 1.0f, keep = a->add ? 1.0f : 0.0f;
    cublasLtMatrixLayout_t of_rows[] = {w->x, w->y};
    for (size_t i = 0; i < SL_COUNTOF(of_rows); i++)
        if (b->f.cublasLtMatrixLayoutSetAttribute(of_rows[i], CUBLASLT_MATRIX_LAYOUT_COLS, &n_rows,
                                                  sizeof n_rows) != CUBLAS_STATUS_SUCCESS)
            return false;
    if (a->bias && b->f.cublasLtMatmulDescSetAttribute(w->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &a->bias,
                                                       sizeof a->bias) != CUBLAS_STATUS_SUCCESS)
        return false;
    return b->f.cublasLtMatmul(b->handle, w->desc, &one, a->w, w->w, a->x, w->x, &keep, a->y, w->y, a->y,
                               w->y, &w->algo, b->workspace, WORKSPACE_BYTES,
                               cu_native_stream(b->stream)) == CUBLAS_STATUS_SUCCESS;
}
