/* tests/gpu/gpu_check.c - what tests/gpu/check runs on a machine with a card: the backend against the
 * reference, and its speed. Under emulation the same, with small sizes, shows that it runs.
 *
 *   gpu_check compare [--small]
 *   gpu_check measure [--small] FILE.json */
#include "tests/gpu/gpu_check.h"

#include <stdio.h>
#include <string.h>
#include "common/base/mem.h"

/* Llama-3.1-8B. Batches and contexts: those that published figures are for. */
const struct gpu_sizes gpu_sizes_8b = {
    .name = "8b",
    .n_layers = 32,
    .d_model = 4096,
    .d_ff = 14336,
    .n_heads = 32,
    .n_kv_heads = 8,
    .head_dim = 128,
    .n_vocab = 128256,
    .page_tokens = 64,
    .max_rows = 4096,
    .decode_batch = 64,
    .decode_context = 8192,
    .chunk = 4096,
    .chunk_history = 4096,
    .gemm_rows = 4096,
    .move_pages = 16,
    .repeats = 10,
    .read_bytes = (size_t)4 << 30,
};

const struct gpu_sizes gpu_sizes_small = {
    .name = "small",
    .n_layers = 2,
    .d_model = 64,
    .d_ff = 96,
    .n_heads = 4,
    .n_kv_heads = 2,
    .head_dim = 64,
    .n_vocab = 128,
    .page_tokens = 16,
    .max_rows = 64,
    .decode_batch = 3,
    .decode_context = 200,
    .chunk = 40,
    .chunk_history = 30,
    .gemm_rows = 32,
    .move_pages = 2,
    .repeats = 1,
    .read_bytes = (size_t)1 << 20,
};

static int usage(void)
{
    fprintf(stderr, "usage: gpu_check compare [--small] | measure [--small] FILE.json\n");
    return 2;
}

static int compare(const struct gpu_sizes *s)
{
    static const char *const tables[] = {"cuda", "cuda-plain"};
    unsigned wrong = 0;
    for (size_t i = 0; i < SL_COUNTOF(tables); i++)
        wrong += gpu_compare(tables[i], s);
    printf("%u comparisons failed\n", wrong);
    return wrong > 0;
}

int main(int argc, char **argv)
{
    int small = argc > 2 && strcmp(argv[2], "--small") == 0, rest = 2 + small;
    const struct gpu_sizes *s = small ? &gpu_sizes_small : &gpu_sizes_8b;
    if (argc < 2)
        return usage();
    const struct sl_backend_ops *ops;
    struct sl_why why = {""};
    if (sl_backend_find("cuda", &ops, &why) != SL_OK) {
        fprintf(stderr, "gpu_check: %s\n", why.text);
        return 1;
    }
    if (strcmp(argv[1], "compare") == 0 && argc == rest)
        return compare(s);
    if (strcmp(argv[1], "measure") == 0 && argc == rest + 1) {
        gpu_measure(s, argv[rest]);
        return 0;
    }
    return usage();
}
