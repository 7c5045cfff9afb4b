/* Passes kept as graphs on an emulated device: one graph for a number of rows gives every mix of prompt chunks and
 * decode rows the logits that the ops give one by one, and where it cannot be made the ops are called. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "common/base/mem.h"
#include "kernels/cuda/cuda_dev.h"
#include "kernels/cuda/emulation/cu_emu.h"
#include "tests/kernels/op_setup.h"
#include "tests/unit/model/model_rig.h"

#define PAGE_TOKENS 16u
#define N_SEQS      4u
#define SEQ_PAGES   6u
#define MAX_ROWS    40u /* the largest number of rows that is kept is no power of 2 */

/* The attention of the tiles cuts positions by what else is in the batch. */
#define MAX_ERROR 5e-3

/* Rows of a step, by sequence; n_out: those of the last sequences have logits. */
struct step {
    uint32_t n_rows[N_SEQS], n_out;
};

static const struct step steps[] = {
    {{10, 0, 0, 0}, 1}, /* 16 rows: op by op */
    {{1, 5, 0, 0}, 2},  /* 16: captured */
    {{1, 1, 9, 0}, 3},  /* 16: launched, from here on */
    {{1, 0, 1, 0}, 2},  {{0, 1, 0, 15}, 1}, {{3, 1, 1, 1}, 4}, {{0, 20, 0, 0}, 1},  /* 32 */
    {{1, 1, 17, 1}, 4}, {{20, 1, 1, 1}, 3}, {{1, 1, 1, 1}, 4}, {{10, 10, 5, 0}, 0}, /* no logits: not kept */
    {{35, 1, 1, 1}, 4},                                                             /* 40 */
    {{0, 0, 0, 40}, 1}, {{1, 36, 1, 1}, 2}, {{1, 1, 1, 1}, 4},
};

struct runner {
    struct rig r;
    uint32_t n_tokens[N_SEQS];
};

static void runner_open(struct runner *x, const char *path, const char *backend, int no_graphs)
{
    *x = (struct runner){.n_tokens = {0}};
    rig_open(&x->r, &(struct rig_conf){.path = path,
                                       .backend = backend,
                                       .n_threads = 2,
                                       .page_tokens = PAGE_TOKENS,
                                       .max_rows = MAX_ROWS,
                                       .n_pages = N_SEQS * SEQ_PAGES,
                                       .kv_dtype = SL_BF16,
                                       .no_graphs = no_graphs});
    rig_pages_poison(&x->r);
}

/* Logits of the step in x->r.logits; returns how many numbers. */
static size_t run_step(struct runner *x, const struct step *s)
{
    uint32_t n_vocab = sl_model_conf(x->r.model)->n_vocab, pages[N_SEQS][SEQ_PAGES], out_rows[MAX_ROWS];
    int32_t tokens[MAX_ROWS];
    struct sl_batch_run runs[N_SEQS];
    struct sl_batch b = {.tokens = tokens, .runs = runs, .out_rows = out_rows};
    for (uint32_t q = 0; q < N_SEQS; q++) {
        if (s->n_rows[q] == 0)
            continue;
        for (uint32_t i = 0; i < SEQ_PAGES; i++)
            pages[q][i] = i * N_SEQS + (q + i) % N_SEQS;
        uint32_t n_pages = (x->n_tokens[q] + s->n_rows[q] + PAGE_TOKENS - 1) / PAGE_TOKENS;
        assert_true(n_pages <= SEQ_PAGES);
        for (uint32_t i = 0; i < s->n_rows[q]; i++)
            tokens[b.n_rows + i] = (int32_t)((q * 31 + (x->n_tokens[q] + i) * 97) % n_vocab);
        runs[b.n_runs++] = (struct sl_batch_run){b.n_rows, s->n_rows[q], x->n_tokens[q], pages[q], n_pages};
        b.n_rows += s->n_rows[q];
        x->n_tokens[q] += s->n_rows[q];
    }
    for (; b.n_out < s->n_out; b.n_out++)
        out_rows[b.n_out] =
            runs[b.n_runs - s->n_out + b.n_out].first_row + runs[b.n_runs - s->n_out + b.n_out].n_rows - 1;
    sl_model_forward(x->r.model, x->r.kv, &b, x->r.logits, &x->r.progress);
    return (size_t)b.n_out * n_vocab;
}

static void assert_equal_logits(const struct runner *got, const struct runner *want, size_t n,
                                const char *table, size_t step)
{
    if (strcmp(table, "cuda-plain") == 0) {
        op_assert_same_bits(got->r.logits, want->r.logits, n, "logits of a kept pass");
        return;
    }
    double error = n ? op_relative_error(got->r.logits, want->r.logits, n) : 0;
    if (!(error < MAX_ERROR))
        print_error("%s, step %zu: relative error %g\n", table, step, error);
    assert_true(error < MAX_ERROR);
}

/* Heads that the tiles take; window: of every other layer. */
static char *model_file(uint32_t window)
{
    struct sl_make_model m;
    assert_true(sl_make_model_preset("tiny", &m));
    m.n_layers = 2;
    m.d_ff = 64;
    m.head_dim = 64;
    m.arch = window ? "gemma3" : "llama";
    m.sliding_window = window;
    m.window_pattern = window ? 2 : 0;
    return rig_model_file(&m);
}

/* All steps on a table, kept and not; returns graphs launched. */
static uint64_t check_steps(const char *path, const char *table, unsigned captures_to_fail, bool refused,
                            uint64_t *n_failed)
{
    struct runner kept, plain;
    runner_open(&kept, path, table, 0);
    runner_open(&plain, path, table, 1);
    cu_emu_fail_captures(captures_to_fail, refused);
    for (size_t i = 0; i < SL_COUNTOF(steps); i++) {
        size_t n = run_step(&plain, &steps[i]);
        assert_int_equal(run_step(&kept, &steps[i]), n);
        assert_equal_logits(&kept, &plain, n, table, i);
        if (i == 8) /* memory goes: all of them are made anew */
            kept.r.ops->buf_free(kept.r.dev, kept.r.ops->buf_alloc(kept.r.dev, 16), 16);
    }
    uint64_t n_launched = kept.r.dev->passes.n_launched;
    *n_failed = kept.r.dev->passes.n_failed;
    assert_int_equal(plain.r.dev->passes.n_launched, 0);
    assert_true(kept.r.dev->passes.n_kept > 0);
    kept.r.ops->kv_close(kept.r.dev, kept.r.kv); /* its pages are gone, and so are passes over them */
    kept.r.kv = NULL;
    assert_int_equal(kept.r.dev->passes.n_kept, 0);
    rig_close(&kept.r);
    rig_close(&plain.r);
    return n_launched;
}

static void kept_passes_serve_every_mix(void **state)
{
    (void)state;
    static const char *const tables[] = {"cuda", "cuda-plain"};
    char *path = model_file(0);
    for (size_t t = 0; t < SL_COUNTOF(tables); t++) {
        cu_emu_set_schedule(t ? CU_EMU_REVERSE : CU_EMU_FORWARD);
        uint64_t failed;
        /* 16 rows: steps 1..5; 32: 7, 8; after the drop 40: 12, 13; 16: none but the first two */
        assert_int_equal(check_steps(path, tables[t], 0, false, &failed), 10);
        assert_int_equal(failed, 0);
    }
    unlink(path);
    sl_free(path);
}

/* Layers of two windows have two plans. */
static void kept_passes_have_a_plan_for_each_window(void **state)
{
    (void)state;
    char *path = model_file(20);
    uint64_t failed;
    assert_int_equal(check_steps(path, "cuda", 0, false, &failed), 10);
    assert_int_equal(failed, 0);
    unlink(path);
    sl_free(path);
}

static void pass_that_cannot_be_captured_runs_op_by_op(void **state)
{
    (void)state;
    char *path = model_file(0);
    for (int refused = 0; refused < 2; refused++) {
        uint64_t failed, n = check_steps(path, "cuda", 1, refused, &failed);
        assert_int_equal(failed, 1);
        assert_int_equal(n, 5); /* 16 rows are not kept any more, until the drop */
    }
    unlink(path);
    sl_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_passes_serve_every_mix),
        cmocka_unit_test(kept_passes_have_a_plan_for_each_window),
        cmocka_unit_test(pass_that_cannot_be_captured_runs_op_by_op),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
