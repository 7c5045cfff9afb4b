/* tests/unit/bench/test_simulate.c - the simulator against sums done by hand, and against itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "tests/bench/simulate/sim.h"
#include "tests/support/support.h"

static struct sl_trace trace_of(const char *text, const struct sl_trace_conf *conf)
{
    struct sl_trace t;
    struct sl_trace_conf c = conf ? *conf : (struct sl_trace_conf){0};
    struct sl_why why = {{0}};
    char *path = sl_test_temp_file(text, strlen(text));
    c.path = path;
    enum sl_err e = sl_trace_open(&c, &t, &why);
    unlink(path);
    sl_free(path);
    if (e)
        fail_msg("%s", why.text);
    return t;
}

static struct sim_cluster cluster_of(uint32_t n_prefill, uint32_t n_decode)
{
    struct sim_cluster c;
    struct sl_why why = {{0}};
    if (sim_cluster_plain("a100-llama3-8b", n_prefill, n_decode, &c, &why))
        fail_msg("%s", why.text);
    return c;
}

static struct sim_result run(const struct sim_cluster *c, const struct sl_trace *t,
                             const struct sim_conf *conf)
{
    struct sim_result r;
    struct sl_why why = {{0}};
    if (sim_run(c, t, conf, &r, &why))
        fail_msg("%s", why.text);
    return r;
}

static void formats_say_the_same_requests(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "arrival_us,prompt_tokens,output_tokens,blocks512\n0,1100,4,0-1 9\n2000000,512,3,0\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5000000,1100,4\n2023-11-16 "
        "18:15:48.5000000,512,3\n",
        "{\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 4, \"hash_ids\": [0, 1, 9]}\n"
        "{\"timestamp\": 2000, \"input_length\": 512, \"output_length\": 3, \"hash_ids\": [0]}\n"};
    for (size_t i = 0; i < SL_COUNTOF(texts); i++) {
        struct sl_trace t = trace_of(texts[i], NULL);
        assert_int_equal(t.n, 2);
        assert_true(fabs(t.requests[1].at_s - 2) < 1e-6);
        assert_int_equal(t.requests[0].n_prompt, 1100);
        assert_int_equal(t.requests[0].n_output, 4);
        assert_int_equal(t.requests[1].n_prompt, 512);
        if (i != 1) { /* two full blocks and a part of one */
            assert_int_equal(t.requests[0].n_blocks, 2);
            assert_int_equal(t.requests[1].n_blocks, 1);
            assert_int_equal(t.blocks[t.requests[1].first_block], 0);
        }
        sl_trace_close(&t);
    }
}

static void scaled_trace_keeps_its_shape(void **state)
{
    (void)state;
    struct sl_trace t =
        trace_of("arrival_us,prompt_tokens,output_tokens,blocks512\n0,1100,40,0-1 9\n1000000,3,1,5\n",
                 &(struct sl_trace_conf){.token_scale = 1.0 / 16});
    assert_int_equal(t.block_tokens, 32);
    assert_int_equal(t.requests[0].n_prompt, 69);
    assert_int_equal(t.requests[0].n_output, 3); /* 2.5, rounded */
    assert_int_equal(t.requests[0].n_blocks, 2);
    assert_int_equal(t.requests[1].n_prompt, 1); /* never nothing */
    assert_int_equal(t.requests[1].n_blocks, 0);
    sl_trace_close(&t);
}

/* A model in which all is certain: 10 requests in every 10 s, each twice as long as its followers' share. */
static const char fitted[] =
    "[trace]\nrequests = 200\n[arrivals]\nwindow_s = 10\nmemory = 0\ngap_shape = 1\n"
    "counts = 10 10 10 10 10 10 10 10 10 10 10 10 10 10 10 10 10\n[lengths]\n"
    "prompt = 100 100 100 100 100 100 100 100 100 100 100 100 100 100 100 100 100\n"
    "output = 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7\ncorrelation = 0\n[prefix]\nblock_tokens = 10\ncommon = 2\n"
    "reuse = 1\nreuse_correlation = 0\ndepth_correlation = 0\n"
    "depth = .5 .5 .5 .5 .5 .5 .5 .5 .5 .5 .5 .5 .5 .5 .5 .5 .5\n"
    "age = 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n";

static void fitted_trace_has_what_its_model_says(void **state)
{
    (void)state;
    struct sl_trace t = trace_of(fitted, &(struct sl_trace_conf){.seed = 1});
    assert_int_equal(t.n, 200);
    assert_true(t.requests[9].at_s < 10 && t.requests[10].at_s >= 10);
    for (size_t i = 0; i < t.n; i++) {
        const struct sl_trace_request *q = &t.requests[i];
        assert_int_equal(q->n_prompt, 100);
        assert_int_equal(q->n_output, 7);
        assert_int_equal(q->n_blocks, 10);
        for (uint32_t k = 0; k < 5 && i > 0; k++) /* half of them are those of the request before */
            assert_int_equal(t.blocks[q->first_block + k], t.blocks[t.requests[i - 1].first_block + k]);
        if (i > 0)
            assert_int_not_equal(t.blocks[q->first_block + 5], t.blocks[t.requests[i - 1].first_block + 5]);
    }
    sl_trace_close(&t);
}

static void fitted_trace_with_half_a_model_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"[trace]\nrequests = 5\n", "[trace]\nrequests = many\n",
                                        "[trace]\nlength = 5\n", "[trace]\n[arrivals]\ncounts = 3 2 1\n"};
    for (size_t i = 0; i < SL_COUNTOF(texts); i++) {
        struct sl_trace t;
        struct sl_why why = {{0}};
        char *path = sl_test_temp_file(texts[i], strlen(texts[i]));
        assert_int_equal(sl_trace_open(&(struct sl_trace_conf){.path = path}, &t, &why), SL_ECONFIG);
        assert_non_null(strstr(why.text, path));
        unlink(path);
        sl_free(path);
    }
}

static void repeated_trace_shares_nothing_with_itself(void **state)
{
    (void)state;
    struct sl_trace t =
        trace_of("arrival_us,prompt_tokens,output_tokens,blocks512\n0,512,1,7\n1000000,512,1,7\n",
                 &(struct sl_trace_conf){.n = 5, .speed = 2});
    assert_int_equal(t.n, 5);
    assert_true(fabs(t.requests[4].at_s - 2) < 1e-9); /* turns of 2 s, twice as fast */
    assert_int_equal(t.blocks[t.requests[1].first_block], 7);
    assert_int_equal(t.blocks[t.requests[2].first_block], 15);
    sl_trace_close(&t);
}

static void bad_traces_are_refused_by_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } rows[] = {{"when,what\n1,2\n", "first line"},
                {"arrival_us,prompt_tokens,output_tokens\n0,5,1\nx\n", ":3:"},
                {"arrival_us,prompt_tokens,output_tokens\n", "no request"},
                {"num_prefill_tokens,num_decode_tokens\n5,1\n", "rate"},
                {"{\"timestamp\": 0, \"input_length\": 5, \"hash_ids\": [0]}\n", ":1:"}};
    for (size_t i = 0; i < SL_COUNTOF(rows); i++) {
        struct sl_trace t;
        struct sl_why why = {{0}};
        char *path = sl_test_temp_file(rows[i].text, strlen(rows[i].text));
        assert_int_not_equal(sl_trace_open(&(struct sl_trace_conf){.path = path}, &t, &why), SL_OK);
        if (!strstr(why.text, rows[i].says))
            fail_msg("'%s' does not say '%s'", why.text, rows[i].says);
        unlink(path);
        sl_free(path);
    }
}

static void cluster_file_is_read_and_checked(void **state)
{
    (void)state;
    static const char good[] =
        "[cluster]\nlink_bytes_per_s = 25e9\n[group a]\ncount = 3\nmodel = h100-llama2-7b\n"
        "prefers = prefill\npermits = prefill\n[group b]\nmodel = h100-llama2-7b\nchunk_tokens = 0\n";
    static const struct {
        const char *text, *says;
    } bad[] = {{"[group a]\nmodel = a\n", "model"},
               {"[group a]\nmodel = h100-llama2-7b\nspeed = 1\n", "speed"},
               {"[group a]\nmodel = h100-llama2-7b\npermits = prefill\n", "decode"},
               {"[groups]\n", NULL},
               {"[group a]\ncount = 4\n", "names no model"}};
    struct sim_cluster c;
    struct sl_why why = {{0}};
    char *path = sl_test_temp_file(good, strlen(good));
    assert_int_equal(sim_cluster_read(path, &c, &why), SL_OK);
    assert_int_equal(c.n_groups, 2);
    assert_int_equal(c.groups[0].count, 3);
    assert_false(c.groups[0].may_decode);
    assert_int_equal(c.groups[1].chunk_tokens, 0);
    assert_true(c.link_bytes_per_s > 24e9 && c.link_bytes_per_s < 26e9);
    unlink(path);
    sl_free(path);
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        path = sl_test_temp_file(bad[i].text, strlen(bad[i].text));
        assert_int_not_equal(sim_cluster_read(path, &c, &why), SL_OK);
        if (bad[i].says && !strstr(why.text, bad[i].says))
            fail_msg("'%s' does not say '%s'", why.text, bad[i].says);
        unlink(path);
        sl_free(path);
    }
}

static void request_alone_takes_what_the_cost_model_says(void **state)
{
    (void)state;
    struct sim_cluster c = cluster_of(0, 1);
    struct sl_trace t = trace_of("arrival_us,prompt_tokens,output_tokens\n0,1000,4\n", NULL);
    struct sim_result r = run(&c, &t, &(struct sim_conf){.mode = SL_PLACE_COLOCATED, .max_tokens = 64});
    const struct sim_outcome *o = &r.outcomes[0];
    assert_true(o->done);
    assert_true(fabsf(o->ttft - o->alone_ttft) < 1e-3F);
    double longest = sl_cost_predict_ms(&c.groups[0].cost,
                                        &(struct sl_step_load){.decode_rows = 1, .decode_context = 1003});
    assert_true(fabs(o->gap_max - longest) < 1e-3);
    assert_int_equal(r.tokens, 4);
    assert_int_equal(r.steps, 4);
    sim_result_fini(&r);
    sl_trace_close(&t);
}

/* P's step, the pages over the link, D's step. */
static void pd_second_token_waits_for_the_last_pages(void **state)
{
    (void)state;
    struct sim_cluster c = cluster_of(1, 1);
    c.link_bytes_per_s = 1e9;
    struct sl_trace t = trace_of("arrival_us,prompt_tokens,output_tokens\n0,800,3\n", NULL);
    struct sim_result r = run(&c, &t, &(struct sim_conf){.mode = SL_PLACE_PD, .max_tokens = 64});
    const struct sim_outcome *o = &r.outcomes[0];
    assert_int_equal(r.by_mode[SL_PLACE_PD], 1);
    assert_int_equal(r.moved_tokens, 800);
    double travel_ms = 800.0 * c.groups[0].kv_bytes_per_token / 1e9 * 1e3;
    double decode_ms = sl_cost_predict_ms(&c.groups[0].cost,
                                          &(struct sl_step_load){.decode_rows = 1, .decode_context = 801});
    assert_true(fabsf(o->ttft - o->alone_ttft) < 1e-3F);
    double expected = o->ttft + travel_ms + c.link_latency_us / 1e3 + decode_ms;
    if (fabs(o->second - expected) > 0.01)
        fail_msg("second token after %.3f ms, expected %.3f", (double)o->second, expected);
    sim_result_fini(&r);
    sl_trace_close(&t);
}

static void prefix_hits_are_not_computed_again(void **state)
{
    (void)state;
    struct sim_cluster c = cluster_of(0, 1);
    struct sl_trace t = trace_of(
        "arrival_us,prompt_tokens,output_tokens,blocks512\n0,2100,2,1-4\n60000000,2100,2,1-4\n", NULL);
    struct sim_result r = run(&c, &t, &(struct sim_conf){.mode = SL_PLACE_HYBRID, .max_tokens = 64});
    assert_int_equal(r.hit_tokens, 2048);
    assert_true(r.outcomes[1].ttft < r.outcomes[0].ttft / 5);
    sim_result_fini(&r);
    sl_trace_close(&t);
}

/* Overload of a small pool: preemption, recomputation, every token once, every page back; twice the same. */
static void crowded_pools_lose_nothing_and_runs_repeat(void **state)
{
    (void)state;
    static const enum sl_place_mode modes[] = {SL_PLACE_PD, SL_PLACE_COLOCATED, SL_PLACE_HYBRID};
    struct sl_trace t;
    struct sl_why why = {{0}};
    assert_int_equal(
        sl_trace_open(&(struct sl_trace_conf){.rate = 30, .n = 400, .seed = 3, .max_total = 4000}, &t, &why),
        SL_OK);
    uint64_t tokens = 0;
    for (size_t i = 0; i < t.n; i++)
        tokens += t.requests[i].n_output;
    uint64_t preemptions = 0;
    for (size_t m = 0; m < SL_COUNTOF(modes); m++) {
        struct sim_cluster c = cluster_of(2, 2);
        for (uint32_t g = 0; g < c.n_groups; g++)
            c.groups[g].kv_memory_bytes = UINT64_C(12000) * c.groups[g].kv_bytes_per_token;
        struct sim_conf conf = {
            .mode = modes[m], .cost_error = 0.2, .noise = 0.05, .max_tokens = 2000, .seed = 9};
        struct sim_result a = run(&c, &t, &conf), b = run(&c, &t, &conf);
        assert_int_equal(a.n_refused + a.n_unfinished, 0);
        assert_int_equal(a.tokens, tokens);
        assert_memory_equal(a.outcomes, b.outcomes, a.n * sizeof *a.outcomes);
        assert_int_equal(a.steps, b.steps);
        preemptions += a.preemptions;
        sim_result_fini(&a);
        sim_result_fini(&b);
    }
    assert_true(preemptions > 0);
    sl_trace_close(&t);
}

/* A miss counts once, those at the beginning do not, and the run is over with one more than may be. */
static void run_that_misses_too_often_is_stopped(void **state)
{
    (void)state;
    struct sl_trace t;
    struct sl_why why = {{0}};
    assert_int_equal(
        sl_trace_open(&(struct sl_trace_conf){.rate = 30, .n = 200, .seed = 3, .max_total = 4000}, &t, &why),
        SL_OK);
    struct sim_cluster c = cluster_of(2, 2);
    struct sim_conf conf = {.mode = SL_PLACE_HYBRID,
                            .max_tokens = 2000,
                            .limits = {.ttft_times = 1.5, .gap_times = 2, .misses = SIZE_MAX}};
    struct sim_result whole = run(&c, &t, &conf);
    size_t missed = 0, judged = 0;
    for (size_t i = 0; i < whole.n; i++) {
        bool miss =
            sim_is_late(&conf.limits, &whole.outcomes[i]) || sim_is_paused(&conf.limits, &whole.outcomes[i]);
        missed += miss;
        judged += miss && i >= 50;
    }
    assert_true(judged > 20 && judged < missed);
    assert_int_equal(whole.n_missed, missed);
    assert_false(whole.stopped);
    conf.limits.skip = 50;
    conf.limits.misses = judged;
    struct sim_result just = run(&c, &t, &conf);
    assert_false(just.stopped);
    assert_int_equal(just.n_missed, judged);
    conf.limits.misses = 10;
    struct sim_result cut = run(&c, &t, &conf);
    assert_true(cut.stopped);
    assert_int_equal(cut.n_missed, 11);
    assert_true(cut.tokens < whole.tokens);
    sim_result_fini(&whole);
    sim_result_fini(&just);
    sim_result_fini(&cut);
    sl_trace_close(&t);
}

/* A stream that allows longer gaps than the plan's default does lets a prompt beside it go on faster, and one that
 * allows less is not kept waiting for it. */
static void limits_that_are_told_make_the_steps(void **state)
{
    (void)state;
    struct sl_trace t = trace_of("arrival_us,prompt_tokens,output_tokens\n0,100,200\n500000,3000,2\n", NULL);
    float gap[2], ttft[2];
    for (int i = 0; i < 2; i++) {
        struct sim_cluster c = cluster_of(0, 1);
        struct sim_conf conf = {.mode = SL_PLACE_COLOCATED,
                                .max_tokens = 1,
                                .tell = 1,
                                .limits = {.ttft_times = 1.2, .gap_times = i ? 8 : 1.5, .misses = SIZE_MAX}};
        struct sim_result r = run(&c, &t, &conf);
        gap[i] = r.outcomes[0].gap_max / r.outcomes[0].alone_gap;
        ttft[i] = r.outcomes[1].ttft;
        assert_true(gap[i] <= conf.limits.gap_times * 1.001F);
        sim_result_fini(&r);
    }
    assert_true(gap[1] > 4);
    assert_true(ttft[1] < 0.8F * ttft[0]);
    sl_trace_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_say_the_same_requests),
        cmocka_unit_test(scaled_trace_keeps_its_shape),
        cmocka_unit_test(fitted_trace_has_what_its_model_says),
        cmocka_unit_test(fitted_trace_with_half_a_model_is_refused),
        cmocka_unit_test(repeated_trace_shares_nothing_with_itself),
        cmocka_unit_test(bad_traces_are_refused_by_line),
        cmocka_unit_test(cluster_file_is_read_and_checked),
        cmocka_unit_test(request_alone_takes_what_the_cost_model_says),
        cmocka_unit_test(pd_second_token_waits_for_the_last_pages),
        cmocka_unit_test(prefix_hits_are_not_computed_again),
        cmocka_unit_test(run_that_misses_too_often_is_stopped),
        cmocka_unit_test(limits_that_are_told_make_the_steps),
        cmocka_unit_test(crowded_pools_lose_nothing_and_runs_repeat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
