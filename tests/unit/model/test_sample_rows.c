/* Rows sampled on one thread and on several, on a device with threads and on one without: the same tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/philox.h"
#include "common/model/sample_rows.h"

#define N_VOCAB 3000U
#define N_ROWS  37U

static float logits[N_ROWS][N_VOCAB];
static struct sl_sampled want[N_ROWS], got[N_ROWS];

static void fill(void)
{
    for (uint32_t r = 0; r < N_ROWS; r++)
        for (uint32_t i = 0; i < N_VOCAB; i++)
            logits[r][i] = sl_philox_uniform(r, 0, i) * 12;
}

/* Greedy, drawn, filtered, with log-probabilities: by row. */
static void rows_of(struct sl_sampling *p, struct sl_sample_row *rows)
{
    static int32_t history[N_ROWS + 8];
    for (uint32_t r = 0; r < N_ROWS; r++) {
        history[r] = (int32_t)(r * 71 % N_VOCAB);
        p[r] = (struct sl_sampling){.temperature = r % 3 ? 0.9F : 0,
                                    .top_p = r % 4 ? 1 : 0.9F,
                                    .top_k = r % 5 ? 0 : 40,
                                    .repetition_penalty = r % 7 ? 1 : 1.2F,
                                    .n_logprobs = r % 2 ? 5 : -1,
                                    .seed = r};
        rows[r] = (struct sl_sample_row){&p[r], history, 4 + r % 3, 2, r % 2};
    }
}

static void sample(const char *backend, uint32_t n_threads, struct sl_sampled *out)
{
    const struct sl_backend_ops *ops;
    struct sl_dev *dev;
    struct sl_why why = {0};
    assert_int_equal(sl_backend_find(backend, &ops, &why), SL_OK);
    struct sl_dev_conf c = {.n_threads = n_threads, .max_rows = 8};
    assert_int_equal(ops->open(&c, &dev, &why), SL_OK);
    assert_non_null(ops->parallel);
    struct sl_samplers *s = sl_samplers_new(ops, dev, n_threads, N_VOCAB);
    struct sl_sampling p[N_ROWS];
    struct sl_sample_row rows[N_ROWS];
    rows_of(p, rows);
    fill();
    sl_sample_rows(s, &logits[0][0], rows, N_ROWS, out);
    sl_samplers_free(s);
    ops->close(dev);
}

static void rows_on_any_number_of_threads_give_the_same_tokens(void **state)
{
    (void)state;
    struct sl_sampler *one = sl_sampler_new(N_VOCAB);
    struct sl_sampling p[N_ROWS];
    struct sl_sample_row rows[N_ROWS];
    rows_of(p, rows);
    fill();
    for (uint32_t r = 0; r < N_ROWS; r++)
        sl_sample(one, logits[r], &p[r], rows[r].history, rows[r].n_history, rows[r].n_prompt,
                  rows[r].want_digest, &want[r]);
    sl_sampler_free(one);
    for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
        sample("portable", n_threads, got);
        assert_memory_equal(got, want, sizeof want);
    }
}

static void device_without_threads_samples_by_the_caller(void **state)
{
    (void)state;
    const struct sl_backend_ops none = {.name = "none"};
    struct sl_samplers *s = sl_samplers_new(&none, NULL, 4, N_VOCAB);
    struct sl_sampling p[N_ROWS];
    struct sl_sample_row rows[N_ROWS];
    rows_of(p, rows);
    fill();
    sl_sample_rows(s, &logits[0][0], rows, N_ROWS, got);
    assert_memory_equal(got, want, sizeof want);
    sl_samplers_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_on_any_number_of_threads_give_the_same_tokens),
        cmocka_unit_test(device_without_threads_samples_by_the_caller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
