/* common/engine: what the owner of sequences sees - events, states, refusals, both duties, grants, closing
 * during a step. Over the fake model (tests/sim/fake_model.h), whose passes can be held. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/engine/engine_impl.h"
#include "tests/support/support.h"
#include "tests/unit/engine/engine_rig.h"

/* ---- opening ---- */

static void open_with_a_pool_below_one_page_says_sizes(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(1);
    c.kv_memory_bytes--;
    struct sl_engine *e = NULL;
    struct sl_why why = {0};
    assert_int_equal(sl_engine_open(&c, &e, &why), SL_ETOOBIG);
    assert_non_null(strstr(why.text, "255"));
    assert_non_null(strstr(why.text, "256"));
    assert_null(e);
}

static void open_with_wrong_settings_is_refused_in_words(void **state)
{
    (void)state;
    struct sl_engine *e = NULL;
    struct sl_why why = {0};
    struct sl_engine_conf c = conf_of(1);
    c.backend = "abacus";
    assert_int_equal(sl_engine_open(&c, &e, &why), SL_ENOTFOUND);
    assert_non_null(strstr(why.text, "abacus"));
    c = conf_of(1);
    c.page_tokens = 0;
    assert_int_equal(sl_engine_open(&c, &e, &why), SL_EINVAL);
    c = conf_of(1);
    c.chunk_tokens = -7;
    assert_int_equal(sl_engine_open(&c, &e, &why), SL_EINVAL);
    assert_null(e);
    sl_engine_close(NULL);
}

static void profile_runs_within_small_pools(void **state)
{
    (void)state;
    static const uint32_t pools[] = {1, 2, 3, 9, 64};
    for (size_t i = 0; i < SL_COUNTOF(pools); i++) {
        struct sl_engine_conf c = conf_of(pools[i]);
        c.skip_profile = false;
        struct fixture f = open_engine(&c);
        const struct sl_cost_model *m = sl_engine_cost(f.e);
        assert_true(m->n_points >= 1 && m->rows[0] == 1 && m->ms[0] > 0);
        struct sl_seq_spec spec = spec_of(8, 4);
        struct sl_seq *s = open_seq(&f, &spec);
        run(&f);
        assert_int_equal(last(&f, s)->kind, SL_EV_FINISHED);
        close_engine(&f);
    }
}

static void paced_steps_take_as_long_as_the_pace_says(void **state)
{
    (void)state;
    struct sl_cost_model pace;
    sl_cost_init_linear(&pace, 5, 1); /* 8 rows of prompt: 13 ms; then three of one row: 6 ms */
    struct sl_engine_conf c = conf_of(4);
    c.pace = &pace;
    struct fixture f = open_engine(&c);
    assert_true(sl_engine_cost(f.e)->ms[0] == pace.ms[0]); /* known from the start */
    struct sl_seq_spec spec = spec_of(8, 4);
    struct sl_seq *s = open_seq(&f, &spec);
    uint64_t began_us = sl_now_us();
    run(&f);
    assert_int_equal(last(&f, s)->kind, SL_EV_FINISHED);
    /* whole microseconds, of four steps; the first could have begun a tick of 1 ms earlier */
    assert_true(sl_now_us() - began_us >= (12 + 3 * 6) * 1000 - 4);
    close_engine(&f);
}

static void paced_step_begins_where_another_machine_would_begin_it(void **state)
{
    (void)state;
    static const struct {
        uint64_t due, ready, now, begins;
    } cases[] = {
        {1000, 500, 1000, 1000},         /* at once */
        {1000, 500, 90000, 1000},        /* woken late, with work all the time */
        {1000, 80000, 90000, 80000},     /* idle until work came */
        {1000, 500, 10001000, 10001000}, /* stood still for longer than it makes up for */
        {90000, 500, 80000, 80000},      /* a clock that was turned back */
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++)
        assert_int_equal(sl_pace_start_us(cases[i].due, cases[i].ready, cases[i].now), cases[i].begins);
}

/* What a paced step may not begin before: the time its work was there. */
static void step_knows_since_when_it_could_have_run(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec remote = spec_of(32, 4), local = spec_of(16, 2);
    remote.remote_to = 32;
    struct sl_seq *r = open_seq(&f, &remote);
    assert_false(step(&f));
    uint64_t came = fake_tick_us();
    fill(&f, r, 0, 32);
    sl_engine_seq_ready(f.e, r, 32);
    sl_engine_seq_first_token(f.e, r, &(struct sl_sampled){.token = 1});
    assert_true(step(&f));
    assert_int_equal(f.e->step.ready_us, came);
    fake_tick_us();
    open_seq(&f, &local);
    assert_true(step(&f)); /* both: the older one decodes without a pause */
    assert_int_equal(f.e->step.ready_us, came);
    close_engine(&f);
}

static void seq_open_of_bad_input_is_refused_in_words(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(4);
    struct fixture f = open_engine(&c);
    struct sl_seq *s = NULL;
    struct {
        struct sl_seq_spec spec;
        enum sl_err err;
        const char *says;
    } bad[] = {
        {spec_of(0, 4), SL_EINVAL, "0"},
        {spec_of(FAKE_CONTEXT + 1, 4), SL_EINVAL, "context"},
        {spec_of(FAKE_CONTEXT, 4), SL_EINVAL, "nothing to generate"},
        {spec_of(8, 0), SL_EINVAL, "nothing to generate"},
        {spec_of(60, 6), SL_ETOOBIG, "5 KV pages"}, /* 65 tokens of KV, the pool holds 64 */
        {spec_of(8, 4), SL_EINVAL, "vocabulary"},
        {spec_of(40, 4), SL_EINVAL, "multiple of 16"},
        {spec_of(8, 4), SL_EINVAL, "compute_to"},
        {spec_of(8, 4), SL_EINVAL, "chunk_tokens"},
    };
    int32_t wild[8] = {0, 1, 2, FAKE_VOCAB};
    bad[5].spec.tokens = wild;
    bad[6].spec.remote_to = 17;
    bad[7].spec.compute_to = 7;
    bad[8].spec.chunk_tokens = -3;
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        struct sl_why why = {0};
        if (sl_engine_seq_open(f.e, &bad[i].spec, &s, &why) != bad[i].err || !strstr(why.text, bad[i].says))
            fail_msg("case %zu: %s", i, why.text);
    }
    assert_null(s);
    struct sl_seq_spec fits = spec_of(60, 5);
    open_seq(&f, &fits);
    close_engine(&f);
}

static void seq_open_beyond_max_waiting_is_eagain(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(8, 4);
    struct sl_seq *s;
    struct sl_why why = {0};
    for (int i = 0; i < 4; i++)
        open_seq(&f, &spec);
    assert_int_equal(sl_engine_seq_open(f.e, &spec, &s, &why), SL_EAGAIN);
    assert_true(sl_engine_step(f.e, fake_tick_us())); /* admits all four */
    open_seq(&f, &spec);
    close_engine(&f);
}

/* ---- the decode duty ---- */

static void colocated_request_tells_its_life_in_order(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(40, 3);
    struct sl_seq *s = open_seq(&f, &spec);
    assert_int_equal(view(s).state, SL_SEQ_WAITING);
    assert_true(sl_engine_step(f.e, fake_tick_us()));
    f.n_ev = sl_engine_poll(f.e, f.ev, 1); /* at once, with the step in flight */
    assert_int_equal(f.n_ev, 1);
    assert_int_equal(f.ev[0].kind, SL_EV_ADMITTED);
    assert_int_equal(view(s).n_pages, 3);
    run(&f);
    static const enum sl_engine_event_kind want[] = {SL_EV_ADMITTED, SL_EV_COMPUTED, SL_EV_TOKEN,
                                                     SL_EV_TOKEN,    SL_EV_TOKEN,    SL_EV_FINISHED};
    assert_int_equal(f.n_ev, SL_COUNTOF(want));
    uint64_t kv[FAKE_CONTEXT];
    for (size_t i = 0; i < SL_COUNTOF(want); i++) {
        assert_int_equal(f.ev[i].kind, want[i]);
        assert_ptr_equal(f.ev[i].owner, text);
        if (want[i] != SL_EV_TOKEN)
            continue;
        assert_int_equal(f.ev[i].token_index, i - 2);
        fake_kv(view(s).tokens, 40 + (uint32_t)i - 2, kv);
        assert_int_equal(f.ev[i].sampled.token, fake_next_token(kv[40 + i - 3]));
    }
    assert_int_equal(f.ev[5].reason, SL_FINISH_LENGTH);
    struct sl_seq_view v = view(s);
    assert_int_equal(v.state, SL_SEQ_ENDED);
    assert_int_equal(v.n_tokens, 43);
    assert_int_equal(v.computed_tokens, 42);
    assert_true(v.opened_us <= v.admitted_us && v.admitted_us <= v.prefilled_us);
    sl_engine_seq_close(f.e, s);
    check(&f);
    struct sl_engine_stats st;
    sl_engine_stats(f.e, &st);
    assert_int_equal(st.prompt_tokens, 40);
    assert_int_equal(st.decode_tokens, 2);
    assert_int_equal(st.sampled_tokens, 3);
    assert_int_equal(st.steps, 3);
    assert_int_equal(st.cached_pages, 2);
    assert_int_equal(st.free_pages + st.evictable_pages, 64);
    close_engine(&f);
}

static void stop_token_ends_unless_ignored(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(20, 10);
    struct sl_seq *s = open_seq(&f, &spec);
    run(&f);
    struct sl_sampling stops = greedy;
    stops.stop_ids[0] = view(s).tokens[22]; /* the third one generated, perhaps earlier */
    stops.n_stop_ids = 1;
    spec.sampling = &stops;
    struct sl_seq *ignores = open_seq(&f, &spec);
    stops.ignore_eos = false;
    struct sl_seq *obeys = open_seq(&f, &spec);
    run(&f);
    assert_int_equal(last(&f, ignores)->reason, SL_FINISH_LENGTH);
    assert_int_equal(last(&f, obeys)->reason, SL_FINISH_STOP);
    assert_true(view(obeys).n_tokens <= 23);
    assert_int_equal(view(obeys).tokens[view(obeys).n_tokens - 1], stops.stop_ids[0]);
    close_engine(&f);
}

static void context_end_is_a_length_end(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(FAKE_CONTEXT - 2, 100);
    struct sl_seq *s = open_seq(&f, &spec);
    run(&f);
    assert_int_equal(view(s).n_tokens, FAKE_CONTEXT);
    assert_int_equal(last(&f, s)->reason, SL_FINISH_LENGTH);
    close_engine(&f);
}

static void migrated_request_counts_from_its_prompt(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(20, 5);
    spec.n_prompt = 18; /* two were generated elsewhere */
    struct sl_seq *s = open_seq(&f, &spec);
    run(&f);
    assert_int_equal(count(&f, s, SL_EV_TOKEN), 3);
    assert_int_equal(view(s).n_tokens, 23);
    for (size_t i = 0; i < f.n_ev; i++)
        if (f.ev[i].kind == SL_EV_TOKEN) {
            assert_int_equal(f.ev[i].token_index, 2);
            break;
        }
    close_engine(&f);
}

static void second_request_hits_all_but_the_last_token(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(48, 2);
    struct sl_seq *a = open_seq(&f, &spec);
    run(&f);
    struct sl_seq *b = open_seq(&f, &spec);
    spec.cache_salt = "other";
    struct sl_seq *other = open_seq(&f, &spec);
    spec.use_prefix_cache = false;
    struct sl_seq *off = open_seq(&f, &spec);
    run(&f);
    assert_int_equal(view(b).hit_tokens, 32); /* the page of token 47 is computed again */
    assert_int_equal(view(b).prompt_tokens_computed, 16);
    assert_int_equal(view(b).pages[1], view(a).pages[1]);
    assert_int_equal(view(other).hit_tokens, 0);
    assert_int_equal(view(off).hit_tokens, 0);
    assert_memory_equal(view(a).tokens, view(b).tokens, 50 * sizeof(int32_t));
    assert_memory_equal(view(a).tokens, view(off).tokens, 50 * sizeof(int32_t));
    uint64_t names[8];
    assert_int_equal(sl_engine_prefix_hashes(f.e, names, 8), 6); /* three pages in each of two salts */
    close_engine(&f);
}

static void twin_waits_and_takes_the_pages(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(100, 2);
    struct sl_seq *a = open_seq(&f, &spec), *b = open_seq(&f, &spec);
    run(&f);
    assert_int_equal(view(a).prompt_tokens_computed, 100);
    assert_int_equal(view(b).prompt_tokens_computed, 4);
    assert_int_equal(view(b).hit_tokens, 96);
    close_engine(&f);
}

/* The pool holds a sequence that waits for a prefill node, and granted work of another node waits for pages.
 */
static void blocking_is_told_only_when_nothing_else_goes_on(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(4);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec remote = spec_of(48, 4), work = prefill_spec(48, 48);
    remote.remote_to = 48;
    work.granted = true;
    struct sl_seq *r = open_seq(&f, &remote);
    assert_false(sl_engine_step(f.e, fake_tick_us()));
    assert_null(sl_engine_blocking(f.e));
    struct sl_seq *w = open_seq(&f, &work);
    assert_false(sl_engine_step(f.e, fake_tick_us()));
    assert_int_equal(view(w).state, SL_SEQ_WAITING);
    assert_ptr_equal(sl_engine_blocking(f.e), r);
    sl_engine_seq_go_local(f.e, r);
    run(&f);
    assert_int_equal(view(r).state, SL_SEQ_ENDED);
    assert_null(sl_engine_blocking(f.e));
    sl_engine_seq_close(f.e, r);
    run(&f);
    assert_int_equal(view(w).computed_tokens, 48);
    close_engine(&f);
}

/* A decoding sequence's wish sets the time of the steps: small chunks, or the whole prompt at once. */
static void tpot_wish_of_a_decoding_sequence_bounds_the_chunks_beside_it(void **state)
{
    (void)state;
    for (uint32_t wish = 0; wish < 2; wish++) {
        struct sl_engine_conf c = conf_of(64);
        struct fixture f = open_engine(&c);
        struct sl_seq_spec a = spec_of(8, 200), b = spec_of(48, 1);
        a.max_tokens = 60;
        a.tpot_ms = wish ? 1e-6 : 1e6;
        b.chunk_tokens = SL_CHUNK_AUTO;
        open_seq(&f, &a);
        step(&f);
        struct sl_seq *s = open_seq(&f, &b);
        run(&f);
        if (wish)
            assert_true(view(s).chunks > 1);
        else
            assert_int_equal(view(s).chunks, 1);
        close_engine(&f);
    }
}

static void chunk_setting_of_the_sequence_is_kept(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(100, 1);
    spec.chunk_tokens = 30;
    struct sl_seq *s = open_seq(&f, &spec);
    run(&f);
    assert_int_equal(view(s).chunks, 4);
    assert_int_equal(view(s).largest_chunk, 30);
    assert_int_equal(count(&f, s, SL_EV_COMPUTED), 4);
    close_engine(&f);
}

static void decode_rows_run_in_every_step_beside_a_long_prompt(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(8, 60);
    struct sl_seq *s = open_seq(&f, &spec);
    step(&f);
    spec = spec_of(400, 1);
    spec.use_prefix_cache = false;
    struct sl_seq *big = open_seq(&f, &spec);
    uint32_t before = count(&f, s, SL_EV_TOKEN), steps = 0;
    for (; view(big).state != SL_SEQ_ENDED && view(s).state != SL_SEQ_ENDED; steps++)
        step(&f);
    assert_true(steps > 1);
    assert_int_equal(count(&f, s, SL_EV_TOKEN) - before, steps);
    close_engine(&f);
}

/* ---- KV from elsewhere ---- */

static void steps_are_taken_down_and_the_last_ones_kept(void **state)
{
    (void)state;
    struct sl_engine_conf conf = conf_of(64);
    struct fixture f = open_engine(&conf);
    struct sl_step_record r[SL_STEP_RECORDS];
    assert_int_equal(sl_engine_step_records(f.e, 0, r, SL_STEP_RECORDS), 0);
    struct sl_seq_spec spec = spec_of(10, 40);
    struct sl_seq *a = open_seq(&f, &spec);
    while (count(&f, a, SL_EV_TOKEN) == 0)
        step(&f);
    spec = spec_of(50, 2);
    spec.chunk_tokens = 8;
    struct sl_seq *b = open_seq(&f, &spec);
    run(&f);
    struct sl_engine_stats s;
    sl_engine_stats(f.e, &s);
    size_t n = sl_engine_step_records(f.e, 0, r, SL_STEP_RECORDS), mixed = 0;
    assert_int_equal(n, s.steps);
    uint64_t prompt = 0, decode = 0;
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(r[i].seq, i + 1);
        assert_true(r[i].ended_us <= sl_engine_uptime_us(f.e) &&
                    (i == 0 || r[i].ended_us >= r[i - 1].ended_us));
        prompt += r[i].prompt_rows;
        decode += r[i].decode_rows;
        mixed += r[i].decode_rows == 1 && r[i].prompt_rows && r[i].n_prompts == 1;
    }
    assert_int_equal(prompt, s.prompt_tokens);
    assert_int_equal(decode, s.decode_tokens);
    assert_true(mixed >= 6); /* 50 tokens, 8 a step, beside the row of a */
    assert_int_equal(sl_engine_step_records(f.e, n - 3, r, SL_STEP_RECORDS), 3);
    assert_int_equal(r[0].seq, n - 2);
    assert_int_equal(sl_engine_step_records(f.e, n, r, SL_STEP_RECORDS), 0);
    assert_int_equal(sl_engine_step_records(f.e, n + 9, r, 5), 5); /* asked by a number of a life before */
    assert_int_equal(r[0].seq, 1);
    sl_engine_seq_close(f.e, a);
    sl_engine_seq_close(f.e, b);
    close_engine(&f);
}

static void split_request_waits_for_pages_and_goes_on(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(40, 2);
    spec.remote_to = 32;
    struct sl_seq *s = open_seq(&f, &spec);
    run(&f);
    assert_int_equal(view(s).state, SL_SEQ_REMOTE);
    assert_int_equal(view(s).n_pages, 3);
    fill(&f, s, 0, 32);
    sl_engine_seq_ready(f.e, s, 16);
    assert_int_equal(view(s).state, SL_SEQ_REMOTE);
    sl_engine_seq_ready(f.e, s, 16); /* said again: nothing */
    sl_engine_seq_ready(f.e, s, 32);
    assert_int_equal(view(s).state, SL_SEQ_PREFILL);
    run(&f);
    assert_int_equal(view(s).prompt_tokens_computed, 8);
    assert_int_equal(last(&f, s)->kind, SL_EV_FINISHED);
    close_engine(&f);
}

static void first_token_from_elsewhere_is_decoded_on_without_a_prompt_row(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(40, 3);
    struct sl_seq *local = open_seq(&f, &spec);
    run(&f);
    spec.remote_to = 40;
    spec.use_prefix_cache = false;
    struct sl_seq *s = open_seq(&f, &spec);
    run(&f);
    struct sl_sampled first = {.token = view(local).tokens[40]};
    sl_engine_seq_first_token(f.e, s, &first); /* too early: ignored */
    assert_int_equal(view(s).n_tokens, 40);
    fill(&f, s, 0, 40);
    sl_engine_seq_ready(f.e, s, 40);
    assert_int_equal(view(s).state, SL_SEQ_REMOTE);
    sl_engine_seq_first_token(f.e, s, &first);
    assert_int_equal(view(s).state, SL_SEQ_DECODE);
    run(&f);
    assert_int_equal(view(s).prompt_tokens_computed, 0);
    assert_int_equal(count(&f, s, SL_EV_TOKEN), 2); /* the first was told by who sampled it */
    assert_memory_equal(view(s).tokens, view(local).tokens, 43 * sizeof(int32_t));
    close_engine(&f);
}

static void first_token_that_ends_the_request_finishes_at_once(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(16, 1);
    spec.remote_to = 16;
    struct sl_seq *s = open_seq(&f, &spec);
    run(&f);
    sl_engine_seq_ready(f.e, s, 16);
    sl_engine_seq_first_token(f.e, s, &(struct sl_sampled){.token = 3});
    struct pollfd p = {.fd = sl_engine_fd(f.e), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 0), 1); /* an event with no step to end */
    hear(&f);
    assert_int_equal(last(&f, s)->kind, SL_EV_FINISHED);
    assert_int_equal(last(&f, s)->reason, SL_FINISH_LENGTH);
    close_engine(&f);
}

static void go_local_computes_the_rest_here(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(48, 2);
    struct sl_seq *want = open_seq(&f, &spec);
    run(&f);
    spec.remote_to = 48;
    spec.use_prefix_cache = false;
    static const uint32_t ready[] = {0, 16, 48};
    for (size_t i = 0; i < SL_COUNTOF(ready); i++) {
        struct sl_seq *s = open_seq(&f, &spec);
        run(&f);
        fill(&f, s, 0, ready[i]);
        sl_engine_seq_ready(f.e, s, ready[i]);
        sl_engine_seq_go_local(f.e, s);
        sl_engine_seq_ready(f.e, s, 48); /* late word of it: ignored */
        run(&f);
        assert_memory_equal(view(s).tokens, view(want).tokens, 50 * sizeof(int32_t));
        assert_int_equal(view(s).prompt_tokens_computed, ready[i] < 48 ? 48 - ready[i] : 1);
        assert_int_equal(count(&f, s, SL_EV_TOKEN), 2);
    }
    struct sl_seq *early = open_seq(&f, &spec); /* before it was admitted */
    sl_engine_seq_go_local(f.e, early);
    run(&f);
    assert_int_equal(last(&f, early)->kind, SL_EV_FINISHED);
    close_engine(&f);
}

/* ---- the prefill duty ---- */

static void prefill_duty_computes_to_s_and_keeps_its_pages(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = prefill_spec(40, 32);
    struct sl_seq *s = open_seq(&f, &spec);
    run(&f);
    assert_int_equal(view(s).state, SL_SEQ_IDLE);
    assert_int_equal(view(s).computed_tokens, 32);
    assert_int_equal(view(s).n_pages, 2);
    assert_int_equal(count(&f, s, SL_EV_TOKEN), 0);
    assert_int_equal(last(&f, s)->reason, SL_FINISH_COMPUTED);
    struct sl_seq *hit = open_seq(&f, &spec); /* everything is there: done at once */
    assert_false(step(&f));
    assert_int_equal(last(&f, hit)->reason, SL_FINISH_COMPUTED);
    assert_int_equal(view(hit).hit_tokens, 32);
    assert_int_equal(count(&f, hit, SL_EV_COMPUTED), 1); /* its owner can send the pages */
    assert_int_equal(last(&f, hit)->computed_tokens, 32);
    close_engine(&f);
}

static void prefill_duty_of_a_whole_prompt_samples_the_first_token(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = prefill_spec(40, 40);
    struct sl_seq *s = open_seq(&f, &spec);
    run(&f);
    assert_int_equal(count(&f, s, SL_EV_TOKEN), 1);
    assert_int_equal(last(&f, s)->reason, SL_FINISH_COMPUTED);
    assert_int_equal(view(s).n_tokens, 41);
    assert_int_equal(view(s).computed_tokens, 40);
    spec.max_tokens = 1;
    struct sl_seq *only = open_seq(&f, &spec);
    run(&f);
    assert_int_equal(last(&f, only)->reason, SL_FINISH_LENGTH);
    close_engine(&f);
}

static void ungranted_work_stays_within_its_pages(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64); /* 8 of them for ungranted work */
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = prefill_spec(80, 80); /* 5 pages */
    spec.granted = false;
    spec.use_prefix_cache = false;
    struct sl_seq *a = open_seq(&f, &spec), *b = open_seq(&f, &spec);
    spec = prefill_spec(160, 160); /* 10: only when granted */
    spec.granted = false;
    spec.use_prefix_cache = false;
    struct sl_seq *big = open_seq(&f, &spec);
    run(&f);
    assert_int_equal(view(a).state, SL_SEQ_IDLE);
    assert_int_equal(view(b).state, SL_SEQ_WAITING);
    assert_int_equal(view(big).state, SL_SEQ_WAITING);
    sl_engine_seq_grant(f.e, big);
    run(&f);
    assert_int_equal(view(big).state, SL_SEQ_IDLE);
    sl_engine_seq_grant(f.e, a);
    run(&f);
    assert_int_equal(view(b).state, SL_SEQ_IDLE);
    close_engine(&f);
}

static void granted_work_evicts_ungranted_even_when_it_is_done(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(12);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = prefill_spec(100, 100); /* 7 pages */
    spec.granted = false;
    spec.use_prefix_cache = false;
    struct sl_seq *a = open_seq(&f, &spec);
    run(&f);
    assert_int_equal(view(a).state, SL_SEQ_IDLE);
    spec.granted = true;
    struct sl_seq *b = open_seq(&f, &spec);
    run(&f);
    assert_int_equal(count(&f, a, SL_EV_PREEMPTED), 1);
    assert_int_equal(view(a).state, SL_SEQ_WAITING);
    assert_int_equal(view(a).n_pages, 0);
    assert_int_equal(view(b).state, SL_SEQ_IDLE);
    sl_engine_seq_close(f.e, b);
    sl_engine_seq_grant(f.e, a);
    run(&f);
    assert_int_equal(view(a).state, SL_SEQ_IDLE);
    assert_int_equal(count(&f, a, SL_EV_TOKEN), 1); /* sampled once */
    assert_int_equal(count(&f, a, SL_EV_FINISHED), 2);
    close_engine(&f);
}

static void pinned_ungranted_work_is_not_evicted(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(12);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = prefill_spec(100, 100);
    spec.granted = false;
    spec.use_prefix_cache = false;
    struct sl_seq *a = open_seq(&f, &spec);
    run(&f);
    sl_engine_seq_pin(f.e, a, true);
    spec.granted = true;
    struct sl_seq *b = open_seq(&f, &spec);
    run(&f);
    assert_int_equal(view(b).state, SL_SEQ_WAITING);
    sl_engine_seq_pin(f.e, a, false);
    run(&f);
    assert_int_equal(view(b).state, SL_SEQ_IDLE);
    close_engine(&f);
}

/* ---- preemption ---- */

static void preempted_request_comes_back_and_ends_the_same(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(20, 100);
    spec.use_prefix_cache = false;
    struct sl_seq *want = open_seq(&f, &spec);
    run(&f);
    int32_t tokens[120];
    memcpy(tokens, view(want).tokens, sizeof tokens);
    close_engine(&f);

    c = conf_of(13); /* 8 pages each at the end */
    f = open_engine(&c);
    struct sl_seq_spec brief = spec_of(4, 2); /* teaches short outputs */
    for (int i = 0; i < 3; i++) {
        struct sl_seq *s = open_seq(&f, &brief);
        run(&f);
        sl_engine_seq_close(f.e, s);
    }
    f.n_ev = 0;
    struct sl_seq *a = open_seq(&f, &spec), *b = open_seq(&f, &spec);
    run(&f);
    assert_int_equal(view(a).preemptions, 0); /* never the oldest */
    assert_memory_equal(view(a).tokens, tokens, sizeof tokens);
    assert_int_equal(view(b).state, SL_SEQ_WAITING);
    sl_engine_seq_close(f.e, a);
    run(&f);
    assert_true(view(b).preemptions > 0);
    assert_memory_equal(view(b).tokens, tokens, sizeof tokens);
    assert_int_equal(count(&f, b, SL_EV_PREEMPTED), view(b).preemptions);
    close_engine(&f);
}

static void preempted_request_finds_its_pages_again(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(13);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec brief = spec_of(4, 2); /* teaches short outputs */
    for (int i = 0; i < 3; i++) {
        struct sl_seq *s = open_seq(&f, &brief);
        run(&f);
        sl_engine_seq_close(f.e, s);
    }
    f.n_ev = 0;
    struct sl_seq_spec spec = spec_of(40, 80);
    spec.cache_salt = "a";
    struct sl_seq *a = open_seq(&f, &spec);
    spec.cache_salt = "b";
    struct sl_seq *b = open_seq(&f, &spec);
    while (!count(&f, b, SL_EV_PREEMPTED))
        assert_true(step(&f));
    uint32_t n_tokens = view(b).n_tokens;
    int32_t tokens[120];
    sl_engine_seq_close(f.e, a);
    step(&f);
    /* all but the pages that its victor took meanwhile, and the private one */
    assert_true(view(b).hit_tokens >= PT && view(b).hit_tokens < n_tokens);
    assert_int_equal(view(b).preemptions, 1);
    run(&f);
    assert_int_equal(view(b).n_tokens, 120);
    memcpy(tokens, view(b).tokens, sizeof tokens);
    sl_engine_seq_close(f.e, b);
    spec.use_prefix_cache = false;
    struct sl_seq *want = open_seq(&f, &spec);
    run(&f);
    assert_memory_equal(view(want).tokens, tokens, sizeof tokens);
    close_engine(&f);
}

/* ---- closing ---- */

static void close_during_a_step_gives_pages_back_after_it(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(40, 4);
    struct sl_seq *s = open_seq(&f, &spec);
    spec.cache_salt = "b";
    struct sl_seq *t = open_seq(&f, &spec);
    fake_hold();
    assert_true(sl_engine_step(f.e, fake_tick_us()));
    assert_true(sl_engine_step(f.e, fake_tick_us())); /* still in flight */
    sl_engine_seq_close(f.e, s);
    hear(&f);
    for (size_t i = 0; i < f.n_ev; i++)
        assert_ptr_equal(f.ev[i].seq, t); /* nothing of s, not even what was queued */
    struct sl_engine_stats st;
    sl_engine_stats(f.e, &st);
    assert_int_equal(st.free_pages, 58);
    fake_release();
    sl_engine_wait(f.e);
    hear(&f);
    sl_engine_stats(f.e, &st);
    assert_int_equal(st.free_pages, 61);
    run(&f);
    assert_int_equal(last(&f, t)->kind, SL_EV_FINISHED);
    close_engine(&f);
}

static void close_of_the_engine_ends_what_is_in_flight(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(40, 4);
    struct sl_seq *s = open_seq(&f, &spec);
    open_seq(&f, &spec);
    assert_true(sl_engine_step(f.e, fake_tick_us()));
    sl_engine_seq_close(f.e, s);
    close_engine(&f); /* sanitizers see what is left */
}

static void fd_is_readable_when_a_step_ended(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct pollfd p = {.fd = sl_engine_fd(f.e), .events = POLLIN};
    struct sl_seq_spec spec = spec_of(4, 1);
    open_seq(&f, &spec);
    assert_int_equal(poll(&p, 1, 0), 0);
    fake_hold();
    assert_true(sl_engine_step(f.e, fake_tick_us()));
    hear(&f); /* admission was told */
    assert_int_equal(poll(&p, 1, 0), 0);
    fake_release();
    assert_int_equal(poll(&p, 1, 60000), 1);
    assert_true(sl_engine_progress(f.e) > 0);
    sl_engine_wait(f.e);
    hear(&f);
    assert_int_equal(poll(&p, 1, 0), 0);
    close_engine(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_with_a_pool_below_one_page_says_sizes),
        cmocka_unit_test(open_with_wrong_settings_is_refused_in_words),
        cmocka_unit_test(profile_runs_within_small_pools),
        cmocka_unit_test(paced_steps_take_as_long_as_the_pace_says),
        cmocka_unit_test(paced_step_begins_where_another_machine_would_begin_it),
        cmocka_unit_test(step_knows_since_when_it_could_have_run),
        cmocka_unit_test(seq_open_of_bad_input_is_refused_in_words),
        cmocka_unit_test(seq_open_beyond_max_waiting_is_eagain),
        cmocka_unit_test(colocated_request_tells_its_life_in_order),
        cmocka_unit_test(stop_token_ends_unless_ignored),
        cmocka_unit_test(context_end_is_a_length_end),
        cmocka_unit_test(migrated_request_counts_from_its_prompt),
        cmocka_unit_test(second_request_hits_all_but_the_last_token),
        cmocka_unit_test(twin_waits_and_takes_the_pages),
        cmocka_unit_test(blocking_is_told_only_when_nothing_else_goes_on),
        cmocka_unit_test(tpot_wish_of_a_decoding_sequence_bounds_the_chunks_beside_it),
        cmocka_unit_test(chunk_setting_of_the_sequence_is_kept),
        cmocka_unit_test(decode_rows_run_in_every_step_beside_a_long_prompt),
        cmocka_unit_test(steps_are_taken_down_and_the_last_ones_kept),
        cmocka_unit_test(split_request_waits_for_pages_and_goes_on),
        cmocka_unit_test(first_token_from_elsewhere_is_decoded_on_without_a_prompt_row),
        cmocka_unit_test(first_token_that_ends_the_request_finishes_at_once),
        cmocka_unit_test(go_local_computes_the_rest_here),
        cmocka_unit_test(prefill_duty_computes_to_s_and_keeps_its_pages),
        cmocka_unit_test(prefill_duty_of_a_whole_prompt_samples_the_first_token),
        cmocka_unit_test(ungranted_work_stays_within_its_pages),
        cmocka_unit_test(granted_work_evicts_ungranted_even_when_it_is_done),
        cmocka_unit_test(pinned_ungranted_work_is_not_evicted),
        cmocka_unit_test(preempted_request_comes_back_and_ends_the_same),
        cmocka_unit_test(preempted_request_finds_its_pages_again),
        cmocka_unit_test(close_during_a_step_gives_pages_back_after_it),
        cmocka_unit_test(close_of_the_engine_ends_what_is_in_flight),
        cmocka_unit_test(fd_is_readable_when_a_step_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
