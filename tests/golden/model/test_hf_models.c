/* Hugging Face folders as transformers saved them, against its logits in float32 (make_hf_models.py): one
 * file and many, three types, every kind of model, Llama 3's and linear rotary scaling, biases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "tests/golden/model/logits_fixture.h"
#include "tests/unit/model/model_rig.h"

static int double_cmp(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* |got - want| / |want| of each kept position; returns the median. */
static double median_error(const struct logits_fixture *x, const float *logits)
{
    double *errors = sl_xcalloc(x->n_kept, sizeof *errors);
    for (uint32_t k = 0; k < x->n_kept; k++) {
        double off = 0, length = 0;
        for (size_t i = 0; i < x->n_vocab; i++) {
            double want = (double)x->logits[k * x->n_vocab + i],
                   d = (double)logits[k * x->n_vocab + i] - want;
            off += d * d;
            length += want * want;
        }
        errors[k] = sqrt(off / length);
    }
    qsort(errors, x->n_kept, sizeof *errors, double_cmp);
    double median = errors[x->n_kept / 2], worst = errors[x->n_kept - 1];
    sl_free(errors);
    print_message("relative error: median %.3g, worst %.3g\n", median, worst);
    assert_true(worst < 100 * median + 1e-6); /* no position is wrong alone */
    return median;
}

static void check(const char *name, const char *backend, enum sl_dtype kv_dtype, double max_error)
{
    char *folder = sl_xasprintf(SL_TEST_DATA "/golden/model/hf/%s", name),
         *path = sl_xasprintf("%s/logits.bin", folder);
    struct logits_fixture x = logits_fixture_read(path);
    struct rig r;
    struct rig_conf c = {.path = folder,
                         .backend = backend,
                         .n_threads = 1,
                         .page_tokens = 16,
                         .max_rows = x.n_positions,
                         .n_pages = (x.n_positions + 15) / 16,
                         .kv_dtype = kv_dtype};
    uint32_t pages[64];
    assert_in_range(c.n_pages, 1, 64);
    rig_open(&r, &c);
    assert_string_equal(sl_model_conf(r.model)->name, name);
    while (x.kept[x.n_kept - 1] >= sl_model_conf(r.model)->context_length)
        x.n_kept--;
    x.n_positions = x.kept[x.n_kept - 1] + 1;
    for (uint32_t i = 0; i < c.n_pages; i++)
        pages[i] = c.n_pages - 1 - i;
    struct sl_batch_run run = {0, x.n_positions, 0, pages, c.n_pages};
    struct sl_batch b = {x.n_positions, 1, x.n_kept, x.tokens, &run, x.kept};
    sl_model_forward(r.model, r.kv, &b, r.logits, &r.progress);
    double error = median_error(&x, r.logits);
    if (!(error < max_error))
        fail_msg("%s on %s: median relative error %g, at most %g", name, backend, error, max_error);
    rig_close(&r);
    logits_fixture_free(&x);
    sl_free(path);
    sl_free(folder);
}

/* What separates the reference from transformers is the order of sums and exp; the shipped path also
 * quantises activations and keeps K and V in 16 bits. */
static void folder_matches_transformers(void **state)
{
    const char *name = *state;
    check(name, "reference", SL_F32, 1e-4);
    check(name, "portable", SL_F16, 0.1);
}

#define FOLDER(name)                                                                                         \
    {                                                                                                        \
#name "_folder_matches_transformers", folder_matches_transformers, NULL, NULL, #name                 \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {FOLDER(llama3), FOLDER(llama_linear), FOLDER(mistral),
                                       FOLDER(qwen2),  FOLDER(qwen3),        FOLDER(gemma3)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
