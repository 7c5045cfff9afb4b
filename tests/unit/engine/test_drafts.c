/* common/engine/drafts.c: guessed tokens save steps, and nothing else is seen of them. Over the fake model,
 * whose text repeats itself when it has few letters. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "tests/support/support.h"
#include "tests/unit/engine/engine_rig.h"

#define OUT 60u

/* A text of one or two letters: looking it up guesses right about every other time. */
static struct sl_seq_spec repeating_spec(int32_t speculation)
{
    struct sl_seq_spec spec = spec_of(30, OUT);
    for (uint32_t i = 0; i < 30; i++)
        text[i] = (int32_t)(i % 3 == 0);
    spec.speculation = speculation;
    return spec;
}

static struct sl_seq *run_alone(struct fixture *f, const struct sl_seq_spec *spec, uint32_t *steps)
{
    struct sl_seq *s = open_seq(f, spec);
    for (*steps = 0; step(f); (*steps)++)
        continue;
    return s;
}

/* The tokens heard of s and what came with each. */
static uint32_t heard(const struct fixture *f, const struct sl_seq *s, struct sl_sampled *out)
{
    uint32_t n = 0;
    for (size_t i = 0; i < f->n_ev; i++)
        if (f->ev[i].seq == s && f->ev[i].kind == SL_EV_TOKEN) {
            assert_int_equal(f->ev[i].token_index, n);
            out[n++] = f->ev[i].sampled;
        }
    return n;
}

static void drafts_save_steps_and_change_no_token(void **state)
{
    (void)state;
    static const int32_t levels[] = {1, 4, SL_SPEC_MAX, SL_SPEC_AUTO};
    fake_alphabet(2);
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_sampled want[OUT], got[OUT];
    struct sl_seq_spec spec = repeating_spec(SL_SPEC_OFF);
    struct sl_sampling sampling = greedy;
    sampling.n_logprobs = 3;
    sampling.repetition_penalty = 1.1F;
    sampling.presence_penalty = 0.3F;
    sampling.frequency_penalty = 0.05F;
    for (uint32_t drawn = 0; drawn < 2; drawn++) {
        sampling.temperature = drawn ? 1.5F : 0;
        spec.sampling = &sampling;
        spec.want_digest = true;
        spec.speculation = SL_SPEC_OFF;
        uint32_t without, with;
        struct sl_seq *s = run_alone(&f, &spec, &without);
        assert_int_equal(heard(&f, s, want), OUT);
        assert_int_equal(view(s).drafted, 0);
        for (size_t i = 0; i < SL_COUNTOF(levels); i++) {
            f.n_ev = 0;
            spec.speculation = levels[i];
            s = run_alone(&f, &spec, &with);
            assert_int_equal(heard(&f, s, got), OUT);
            assert_memory_equal(got, want, sizeof want);
            /* by a coin's guess few pay: SL_SPEC_AUTO has hardly any */
            bool some = levels[i] > 0;
            if ((some && view(s).accepted == 0) || (some && view(s).drafted <= view(s).accepted))
                fail_msg("speculation %d: %u drafts, %u came true", levels[i], view(s).drafted,
                         view(s).accepted);
            assert_int_equal(with + view(s).accepted, without);
            assert_int_equal(view(s).computed_tokens, view(s).n_tokens - 1);
        }
    }
    struct sl_engine_stats st;
    sl_engine_stats(f.e, &st);
    assert_true(st.drafted_tokens > st.accepted_tokens && st.accepted_tokens > 0);
    assert_int_equal(st.sampled_tokens, 2 * (1 + SL_COUNTOF(levels)) * OUT);
    assert_int_equal(st.decode_tokens, st.sampled_tokens - 2 * (1 + SL_COUNTOF(levels)));
    close_engine(&f);
    fake_alphabet(FAKE_VOCAB);
}

static void drafts_are_many_where_they_come_true_and_none_where_not(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = repeating_spec(SL_SPEC_AUTO);
    uint32_t steps;
    fake_alphabet(1);
    struct sl_seq *s = run_alone(&f, &spec, &steps);
    if (view(s).accepted < OUT / 2 || steps > OUT / 2)
        fail_msg("%u of %u drafts came true, %u steps for %u tokens", view(s).accepted, view(s).drafted,
                 steps, OUT);
    fake_alphabet(8); /* pairs recur, and tell nothing */
    spec.max_tokens = 400;
    s = run_alone(&f, &spec, &steps);
    if (view(s).drafted > 20)
        fail_msg("%u drafts, of which %u came true, in %u steps", view(s).drafted, view(s).accepted, steps);
    fake_alphabet(FAKE_VOCAB);
    close_engine(&f);
}

static void drafts_end_where_the_request_ends(void **state)
{
    (void)state;
    fake_alphabet(1); /* everything comes true */
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    for (uint32_t max_tokens = 1; max_tokens < 12; max_tokens++) {
        struct sl_seq_spec spec = repeating_spec(4);
        spec.max_tokens = max_tokens;
        uint32_t steps;
        struct sl_seq *s = run_alone(&f, &spec, &steps);
        assert_int_equal(count(&f, s, SL_EV_TOKEN), max_tokens);
        assert_int_equal(last(&f, s)->reason, SL_FINISH_LENGTH);
        assert_int_equal(view(s).computed_tokens, 30 + max_tokens - 1);
        sl_engine_seq_close(f.e, s);
        f.n_ev = 0;
    }
    struct sl_seq_spec spec = repeating_spec(4);
    struct sl_sampling stops = greedy;
    stops.ignore_eos = false;
    stops.n_stop_ids = 1;
    stops.stop_ids[0] = 0;
    stops.min_tokens = 7; /* banned until then: 1 is sampled in its place */
    spec.sampling = &stops;
    uint32_t steps;
    struct sl_seq *s = run_alone(&f, &spec, &steps);
    assert_int_equal(count(&f, s, SL_EV_TOKEN), 8);
    assert_int_equal(last(&f, s)->reason, SL_FINISH_STOP);
    fake_alphabet(FAKE_VOCAB);
    close_engine(&f);
}

/* What lies in the cache is the KV of the tokens it is found by, drafts or not. */
static void drafts_that_were_wrong_are_never_shared(void **state)
{
    (void)state;
    fake_alphabet(2);
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = repeating_spec(SL_SPEC_MAX);
    struct sl_seq *s = open_seq(&f, &spec);
    uint64_t kv[FAKE_CONTEXT];
    while (step(&f)) {
        struct sl_seq_view v = view(s);
        struct sl_seq_spec again = repeating_spec(SL_SPEC_OFF);
        again.tokens = v.tokens; /* all of it so far, and one page more that only drafts reached */
        again.n_tokens = again.n_prompt = again.compute_to = v.n_tokens;
        again.decode = again.sample = false;
        struct sl_seq *t = open_seq(&f, &again);
        step(&f);
        struct sl_seq_view u = view(t);
        assert_int_equal(u.hit_tokens % PT, 0);
        assert_true(u.hit_tokens <= view(s).computed_tokens);
        fake_kv(u.tokens, u.n_tokens, kv);
        for (uint32_t i = 0; i < u.hit_tokens; i++)
            assert_int_equal(fake_page_get(sl_engine_page_base(f.e), PT, u.pages[i / PT], i % PT), kv[i]);
        sl_engine_seq_close(f.e, t);
        f.n_ev = 0;
    }
    assert_true(view(s).drafted > view(s).accepted && view(s).accepted > 0);
    fake_alphabet(FAKE_VOCAB);
    close_engine(&f);
}

static void drafts_take_no_page_that_others_need(void **state)
{
    (void)state;
    fake_alphabet(1);
    struct sl_engine_conf c = conf_of(6);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = repeating_spec(SL_SPEC_MAX); /* 6 pages at its end: both cannot be whole */
    spec.use_prefix_cache = false;
    spec.max_tokens = 60;
    struct sl_seq *a = open_seq(&f, &spec);
    spec.max_tokens = 20;
    struct sl_seq *b = open_seq(&f, &spec);
    run(&f);
    assert_int_equal(last(&f, a)->kind, SL_EV_FINISHED);
    sl_engine_seq_close(f.e, a);
    run(&f);
    assert_int_equal(last(&f, b)->kind, SL_EV_FINISHED);
    assert_int_equal(view(b).n_tokens, 50);
    fake_alphabet(FAKE_VOCAB);
    close_engine(&f);
}

static void drafts_leave_a_waiting_prompt_its_rows(void **state)
{
    (void)state;
    fake_alphabet(1);
    struct sl_engine_conf c = conf_of(64);
    c.max_batch_tokens = 16; /* 8 sequences and a tile */
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = repeating_spec(SL_SPEC_MAX);
    spec.max_tokens = 200;
    struct sl_seq *s = open_seq(&f, &spec);
    while (view(s).drafted == 0)
        assert_true(step(&f));
    assert_int_equal(view(s).drafted, 15);
    spec = spec_of(100, 1);
    struct sl_seq *big = open_seq(&f, &spec);
    while (view(big).state != SL_SEQ_ENDED) {
        uint32_t computed = view(big).computed_tokens;
        uint32_t tokens = view(s).n_tokens;
        assert_true(step(&f));
        assert_true(view(big).computed_tokens > computed || view(big).state == SL_SEQ_ENDED);
        assert_true(view(s).n_tokens > tokens);
    }
    fake_alphabet(FAKE_VOCAB);
    close_engine(&f);
}

static void open_with_a_wrong_number_of_drafts_is_refused_in_words(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(4);
    struct sl_why why = {0};
    struct sl_engine *e = NULL;
    c.speculation = SL_SPEC_MAX + 1;
    assert_int_equal(sl_engine_open(&c, &e, &why), SL_EINVAL);
    assert_non_null(strstr(why.text, "speculation is 32"));
    c.speculation = SL_SPEC_AUTO;
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(8, 4);
    struct sl_seq *s = NULL;
    spec.speculation = -3;
    assert_int_equal(sl_engine_seq_open(f.e, &spec, &s, &why), SL_EINVAL);
    assert_non_null(strstr(why.text, "speculation -3"));
    close_engine(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_save_steps_and_change_no_token),
        cmocka_unit_test(drafts_are_many_where_they_come_true_and_none_where_not),
        cmocka_unit_test(drafts_end_where_the_request_ends),
        cmocka_unit_test(drafts_that_were_wrong_are_never_shared),
        cmocka_unit_test(drafts_take_no_page_that_others_need),
        cmocka_unit_test(drafts_leave_a_waiting_prompt_its_rows),
        cmocka_unit_test(open_with_a_wrong_number_of_drafts_is_refused_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
