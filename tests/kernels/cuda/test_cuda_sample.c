/* Rows sampled on an emulated CUDA device against sampler.c: token, log-probabilities and digest are equal bit for
 * bit, whatever the logits and the request, in both schedules; and the device leaves few rows to the host. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "common/base/digest.h"
#include "common/base/mem.h"
#include "common/model/sample_rows.h"
#include "kernels/cuda/cu_kernels.h"
#include "kernels/cuda/emulation/cu_emu.h"
#include "tests/kernels/op_setup.h"

#define MAX_VOCAB 5000u
#define N_ROWS    24u
#define N_HISTORY 40u

enum row_kind { USUAL, PEAKED, TIES, FLAT, INFINITE, NOT_NUMBERS, ALL_BANNED, N_KINDS };

static void fill_row(struct op_rand *r, enum row_kind kind, float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float u = op_rand_float(r) + op_rand_float(r) + op_rand_float(r);
        switch (kind) {
        case USUAL:
            x[i] = 3 * u;
            break;
        case PEAKED:
            x[i] = i % 1013 == 7 ? 30 + u : 12 * u - 60;
            break;
        case TIES:
            x[i] = i % 5 == 0 ? -0.0f : floorf(2 * u);
            break;
        case FLAT: /* thousands of members of one bin, where there are that many */
            x[i] = 1.5f;
            break;
        case INFINITE:
            x[i] = i % 700 == 3 ? INFINITY : u;
            break;
        case NOT_NUMBERS:
            x[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? -INFINITY : u;
            break;
        default:
            x[i] = i % 2 ? NAN : -INFINITY;
            break;
        }
    }
}

/* All that a request may ask for, in changing company. */
struct request {
    struct sl_sampling p;
    struct sl_logit_bias bias[6];
    uint64_t allowed[(MAX_VOCAB + 63) / 64];
    int32_t history[N_HISTORY];
};

static struct request requests[N_ROWS];
static float logits[N_ROWS * MAX_VOCAB], copy[N_ROWS * MAX_VOCAB], scratch[N_ROWS * MAX_VOCAB];

static float one_of(struct op_rand *r, const float *values, uint32_t n)
{
    return values[op_rand_u32(r) % n];
}

static void fill_request(struct op_rand *r, struct request *q, uint32_t n_vocab)
{
    static const float temperatures[] = {0, 0.1f, 0.7f, 1, 1, 2.5f, 40},
                       top_ps[] = {1, 1, 0.95f, 0.5f, 0.01f}, min_ps[] = {0, 0, 0.02f, 0.5f, 1},
                       penalties[] = {1, 1, 1.3f, 0.8f}, counts[] = {0, 0, 0.7f, -0.4f};
    const uint32_t top_ks[] = {0, 0, 1, 2, 40, 500, n_vocab - 1, n_vocab};
    memset(q, 0, sizeof *q);
    q->p = (struct sl_sampling){.temperature = one_of(r, temperatures, 7),
                                .top_p = one_of(r, top_ps, 5),
                                .top_k = top_ks[op_rand_u32(r) % 8],
                                .min_p = one_of(r, min_ps, 5),
                                .repetition_penalty = one_of(r, penalties, 4),
                                .presence_penalty = one_of(r, counts, 4),
                                .frequency_penalty = one_of(r, counts, 4),
                                .seed = op_rand_u32(r),
                                .choice = op_rand_u32(r) % 3,
                                .min_tokens = op_rand_u32(r) % 30,
                                .n_stop_ids = 3,
                                .stop_ids = {2, (int32_t)n_vocab, 5 % (int32_t)n_vocab},
                                .n_logprobs = (int32_t)(op_rand_u32(r) % 23) - 2,
                                .bias = q->bias};
    if (q->p.n_logprobs > 5 && op_rand_u32(r) % 4)
        q->p.n_logprobs = -1;
    q->p.n_logprobs = q->p.n_logprobs < -1 ? -1 : q->p.n_logprobs;
    q->p.n_bias = op_rand_u32(r) % 2 ? 6 : 0;
    for (uint32_t i = 0; i < 6; i++) /* some twice, some of no token */
        q->bias[i] =
            (struct sl_logit_bias){(int32_t)(op_rand_u32(r) % (n_vocab + 2)) - 1, 4 * op_rand_float(r)};
    q->bias[3].token = q->bias[1].token;
    for (uint32_t i = 0; i < N_HISTORY; i++)
        q->history[i] = (int32_t)(op_rand_u32(r) % (i % 2 ? 9 : n_vocab)) % (int32_t)n_vocab;
    if (op_rand_u32(r) % 3 == 0) {
        q->p.allowed = q->allowed;
        for (uint32_t i = 0; i < (n_vocab + 63) / 64; i++)
            q->allowed[i] = (uint64_t)op_rand_u32(r) << 32 | op_rand_u32(r);
    }
}

static const struct sl_backend_ops *real;
static uint32_t n_left;

static void counting_sample(struct sl_dev *d, const float *x, uint32_t n_vocab, const struct sl_pick *picks,
                            uint32_t n_rows, struct sl_picked *out)
{
    real->sample(d, x, n_vocab, picks, n_rows, out);
    real->sync(d);
    for (uint32_t i = 0; i < n_rows; i++)
        n_left += out[i].token == SL_PICK_LEFT;
}

static void assert_same(const struct sl_sampled *got, const struct sl_sampled *want, uint32_t row,
                        uint32_t n_vocab)
{
    bool same = got->token == want->token && got->n_top == want->n_top &&
                memcmp(&got->logprob, &want->logprob, sizeof got->logprob) == 0 &&
                got->logits_digest == want->logits_digest &&
                memcmp(got->top_token, want->top_token, sizeof got->top_token) == 0 &&
                memcmp(got->top_logprob, want->top_logprob, sizeof got->top_logprob) == 0;
    const struct sl_sampling *p = &requests[row].p;
    if (!same)
        print_error(
            "row %u of %u entries: token %d for %d, logprob %a for %a, %u top for %u; temperature %g top_k "
            "%u top_p %g min_p %g\n",
            row, n_vocab, got->token, want->token, (double)got->logprob, (double)want->logprob, got->n_top,
            want->n_top, (double)p->temperature, p->top_k, (double)p->top_p, (double)p->min_p);
    assert_true(same);
}

/* Rows of a kind, or of all in turn. */
static void check_rows(uint32_t n_vocab, int kind, uint32_t seed)
{
    struct op_rand r = {seed};
    struct sl_sample_row rows[N_ROWS];
    struct sl_sampled want[N_ROWS], got[N_ROWS];
    struct sl_sampler *host = sl_sampler_new(n_vocab);
    for (uint32_t i = 0; i < N_ROWS; i++) {
        fill_row(&r, (enum row_kind)(kind < 0 ? (int)(i % N_KINDS) : kind), logits + (size_t)i * n_vocab,
                 n_vocab);
        fill_request(&r, &requests[i], n_vocab);
        rows[i] =
            (struct sl_sample_row){&requests[i].p, requests[i].history, N_HISTORY - i % 7, 12, i % 3 == 0};
    }
    size_t bytes = (size_t)N_ROWS * n_vocab * sizeof *logits;
    memcpy(copy, logits, bytes);
    for (uint32_t i = 0; i < N_ROWS; i++)
        sl_sample(host, copy + (size_t)i * n_vocab, rows[i].sampling, rows[i].history, rows[i].n_history,
                  rows[i].n_prompt, rows[i].want_digest, &want[i]);
    sl_sampler_free(host);
    for (int s = CU_EMU_FORWARD; s <= CU_EMU_REVERSE; s++) {
        cu_emu_set_schedule((enum cu_emu_schedule)s);
        struct sl_backend_ops ops = *real;
        struct sl_dev *d = op_open(&ops, 2, N_ROWS);
        ops.sample = counting_sample;
        float *x = ops.buf_alloc(d, bytes);
        struct sl_samplers *samplers = sl_samplers_new(&ops, d, 2, n_vocab);
        ops.upload(d, x, logits, bytes);
        memset(got, 0xff, sizeof got);
        sl_sample_rows_on_device(samplers, x, scratch, rows, N_ROWS, got);
        for (uint32_t i = 0; i < N_ROWS; i++)
            assert_same(&got[i], &want[i], i, n_vocab);
        ops.download(d, copy, x, bytes);
        ops.sync(d);
        assert_memory_equal(copy, logits, bytes); /* the raw rows stay */
        sl_samplers_free(samplers);
        ops.buf_free(d, x, bytes);
        ops.close(d);
    }
}

static void device_gives_what_the_host_gives(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 31, 257, 1024, MAX_VOCAB};
    n_left = 0;
    for (uint32_t i = 0; i < SL_COUNTOF(sizes); i++)
        check_rows(sizes[i], -1, i);
    check_rows(1500, USUAL, 10);
    check_rows(1500, TIES, 11);
    check_rows(3000, PEAKED, 12);
    assert_in_range(n_left, 1, 20); /* of 384: some of thousands of equal logits; the host takes them */
}

/* A history with more distinct tokens than a device takes edits. */
static void row_with_too_many_edits_is_the_hosts(void **state)
{
    (void)state;
    static int32_t history[MAX_VOCAB];
    struct op_rand r = {7};
    struct sl_sampling p = {.temperature = 1, .top_p = 1, .repetition_penalty = 1.2f, .n_logprobs = -1};
    struct sl_sample_row row = {&p, history, MAX_VOCAB, 3, true};
    struct sl_sampled want, got;
    for (uint32_t i = 0; i < MAX_VOCAB; i++)
        history[i] = (int32_t)i;
    fill_row(&r, USUAL, logits, MAX_VOCAB);
    memcpy(copy, logits, MAX_VOCAB * sizeof *copy);
    struct sl_sampler *host = sl_sampler_new(MAX_VOCAB);
    sl_sample(host, copy, &p, history, MAX_VOCAB, 3, true, &want);
    sl_sampler_free(host);
    struct sl_dev *d = op_open(real, 2, 1);
    float *x = real->buf_alloc(d, MAX_VOCAB * sizeof *x);
    struct sl_samplers *samplers = sl_samplers_new(real, d, 2, MAX_VOCAB);
    real->upload(d, x, logits, MAX_VOCAB * sizeof *x);
    sl_sample_rows_on_device(samplers, x, scratch, &row, 1, &got);
    assert_same(&got, &want, 0, MAX_VOCAB);
    sl_samplers_free(samplers);
    real->buf_free(d, x, MAX_VOCAB * sizeof *x);
    real->close(d);
}

/* Every way that the digest takes by length, chained as parts of a page are, at odd addresses. */
static void digest_equals_xxh3_at_every_length(void **state)
{
    (void)state;
    enum { MAX_BYTES = 70000, N = 64 };
    static const uint32_t lengths[] = {0,    1,    2,    3,    4,    5,     7,     8,    9,   12,  16,
                                       17,   31,   32,   33,   63,   64,    65,    96,   97,  128, 129,
                                       143,  144,  239,  240,  241,  256,   257,   511,  512, 513, 1023,
                                       1024, 1025, 1088, 1089, 2048, 65536, 65600, 69999};
    struct cu_stream *s;
    assert_int_equal(cu_stream_open(0, &s, NULL), SL_OK);
    uint8_t *p = cu_alloc(s, MAX_BYTES + 8);
    uint64_t *out = cu_alloc(s, N * sizeof *out), got[N];
    struct cu_digest_item *items = cu_alloc(s, N * sizeof *items);
    struct op_rand r = {9};
    for (uint32_t i = 0; i < MAX_BYTES + 8; i++)
        p[i] = (uint8_t)(op_rand_u32(&r) >> 7);
    for (int way = CU_EMU_FORWARD; way <= CU_EMU_REVERSE; way++) {
        cu_emu_set_schedule((enum cu_emu_schedule)way);
        for (uint32_t i = 0; i < SL_COUNTOF(lengths); i++)
            items[i] = (struct cu_digest_item){.p = p + i % 3 * 2,
                                               .seed = i % 4 ? (uint64_t)i << 33 | i : 0,
                                               .part_bytes = {lengths[i]},
                                               .n_strips = 1,
                                               .n_parts = 1,
                                               .out = out + i};
        struct cu_digest_args a = {items};
        cu_digest(s, SL_COUNTOF(lengths), &a);
        cu_download(s, got, out, sizeof got);
        cu_sync(s);
        for (uint32_t i = 0; i < SL_COUNTOF(lengths); i++) {
            uint64_t want = sl_digest64(items[i].p, lengths[i], items[i].seed);
            if (got[i] != want)
                print_error("digest of %u bytes differs\n", lengths[i]);
            assert_true(got[i] == want);
        }
    }
    cu_free(s, p), cu_free(s, out), cu_free(s, items);
    cu_stream_close(s);
}

int main(void)
{
    real = op_backend("cuda");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_gives_what_the_host_gives),
        cmocka_unit_test(row_with_too_many_edits_is_the_hosts),
        cmocka_unit_test(digest_equals_xxh3_at_every_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
