/* tests/unit/router/place/test_place.c - placement as a table of clusters and requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "common/sched/cost_presets.h"
#include "common/sched/step_plan.h"
#include "router/place/candidates.h"
#include "router/place/prefix_index.h"

/* A cluster of a prefill-preferring and some decode-preferring nodes, all idle, all permitted both duties. */
struct cluster {
    struct sl_place_node nodes[SL_PLACE_MAX_NODES];
    struct sl_place_link links[SL_PLACE_MAX_LINKS];
    struct sl_place_state state;
    struct sl_cost_model cost;
};

static const char *const names[] = {"p0", "d0", "d1", "d2", "d3", "d4"};

static void make(struct cluster *c, uint32_t n)
{
    memset(c, 0, sizeof *c);
    for (uint32_t i = 0; i < n; i++) {
        c->nodes[i] = (struct sl_place_node){.name = names[i],
                                             .may_prefill = true,
                                             .may_decode = true,
                                             .prefers_prefill = i == 0,
                                             .page_tokens = 16,
                                             .page_bytes = 1 << 20,
                                             .free_pages = 1000,
                                             .total_pages = 1000,
                                             .chunk_tokens = -1,
                                             .max_batch_tokens = 512};
        c->nodes[i].cost = &c->cost;
    }
    sl_cost_init_linear(&c->cost, 5, 1);
    c->state = (struct sl_place_state){.nodes = c->nodes, .n_nodes = n, .links = c->links};
}

static struct sl_place_req request(enum sl_place_mode mode, uint32_t n_tokens)
{
    return (struct sl_place_req){.n_tokens = n_tokens,
                                 .n_prompt = n_tokens,
                                 .max_new = 32,
                                 .mode = mode,
                                 .strict = true,
                                 .split = -1,
                                 .chunk = -2};
}

static struct sl_place_choice placed(const struct cluster *c, const struct sl_place_req *r)
{
    struct sl_place_choice out;
    struct sl_why why = {{0}};
    enum sl_err err = sl_place(&c->state, r, &out, &why);
    if (err)
        fail_msg("not placed: %s", why.text);
    return out;
}

static enum sl_err refused(const struct cluster *c, const struct sl_place_req *r, struct sl_why *why)
{
    struct sl_place_choice out;
    memset(why, 0, sizeof *why);
    enum sl_err err = sl_place(&c->state, r, &out, why);
    assert_int_not_equal(err, SL_OK);
    assert_true(why->text[0] != '\0');
    return err;
}

/* 1000 tokens beside 7 decode rows go in small chunks: each reads the history again and runs the head. */
static double prefill_ms(const struct cluster *c, const struct sl_place_req *r)
{
    struct sl_predictor x = {.state = &c->state, .req = r};
    return sl_predict_prefill_ms(&x, 0);
}

static void predict_counts_history_read_by_chunks_and_the_head(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 1);
    struct sl_place_req r = request(SL_PLACE_COLOCATED, 1000);
    c.nodes[0].decode_rows = 7;
    r.chunk = 100;
    double plain = prefill_ms(&c, &r);
    c.cost.prompt_read_ms_per_mtoken = 1000;
    double read = prefill_ms(&c, &r) - plain;
    assert_true(read > 4.499 && read < 4.501); /* histories of 0, 100 .. 900: 4500 positions */
    c.cost.prompt_read_ms_per_mtoken = 0;
    c.cost.head_ms_per_row = 1;
    double head = prefill_ms(&c, &r) - plain;
    assert_true(head > 69.999 && head < 70.001); /* 10 steps with 7 decode rows */
}

static void pd_two_nodes_splits_at_the_end(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 2);
    struct sl_place_req r = request(SL_PLACE_PD, 100);
    struct sl_place_choice out = placed(&c, &r);
    assert_int_equal(out.best.p, 0);
    assert_int_equal(out.best.split, 100); /* not a page multiple: the last page is partial */
    assert_int_equal(out.best.d, 1);
    assert_int_equal(out.mode, SL_PLACE_PD);
}

static void pd_busy_prefill_node_is_left_for_the_idle_one(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 3);
    c.nodes[1].prefers_prefill = true;
    c.nodes[0].queued_prompt_tokens = 4000;
    struct sl_place_req r = request(SL_PLACE_PD, 100);
    struct sl_place_choice out = placed(&c, &r);
    assert_int_equal(out.best.p, 1);
    assert_int_equal(out.best.d, 2);
}

static void pd_full_decode_node_is_left_for_the_free_one(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 3);
    c.nodes[1].free_pages = 2;
    struct sl_place_req r = request(SL_PLACE_PD, 100);
    assert_int_equal(placed(&c, &r).best.d, 2);
    c.nodes[1].free_pages = 1000;
    c.nodes[1].decode_rows = 20;
    assert_int_equal(placed(&c, &r).best.d, 2);
}

static void pd_one_node_falls_back_and_says_so(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 1);
    struct sl_place_req r = request(SL_PLACE_PD, 100);
    struct sl_place_choice out = placed(&c, &r);
    assert_int_equal(out.best.p, -1);
    assert_int_equal(out.best.split, 0);
    assert_int_equal(out.mode, SL_PLACE_COLOCATED);
    assert_non_null(strstr(out.reason, "no pair of nodes for pd"));
}

static void pd_demanded_with_one_node_is_refused(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 1);
    struct sl_place_req r = request(SL_PLACE_PD, 100);
    r.demanded = true;
    struct sl_why why;
    assert_int_equal(refused(&c, &r, &why), SL_ENOTREADY);
    assert_non_null(strstr(why.text, "pd"));
}

static void pd_demanded_after_a_fault_is_a_wish(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 2);
    c.nodes[0].unusable = "dead";
    struct sl_place_req r = request(SL_PLACE_PD, 100);
    r.demanded = true;
    r.want_p = "p0";
    r.strict = false;
    struct sl_place_choice out = placed(&c, &r);
    assert_int_equal(out.best.d, 1);
    assert_int_equal(out.best.split, 0);
}

static void pd_no_preferred_decode_node_takes_any_two(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 2);
    c.nodes[1].prefers_prefill = true;
    struct sl_place_req r = request(SL_PLACE_PD, 100);
    struct sl_place_choice out = placed(&c, &r);
    assert_true(out.best.p >= 0 && out.best.p != out.best.d);
}

static void pd_refused_link_is_not_used(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 3);
    c.links[0] = (struct sl_place_link){.p = 0, .d = 1, .unusable = "refused"};
    c.state.n_links = 1;
    struct sl_place_req r = request(SL_PLACE_PD, 100);
    assert_int_equal(placed(&c, &r).best.d, 2);
}

static void pd_degraded_link_is_the_last_resort(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 3);
    c.links[0] = (struct sl_place_link){.p = 0, .d = 1, .degraded = true, .bytes_per_s = 1e12};
    c.links[1] = (struct sl_place_link){.p = 0, .d = 2, .bytes_per_s = 1e6};
    c.state.n_links = 2;
    struct sl_place_req r = request(SL_PLACE_PD, 100);
    assert_int_equal(placed(&c, &r).best.d, 2);
    c.links[1].unusable = "down";
    assert_int_equal(placed(&c, &r).best.d, 1);
}

static void colocated_prefill_node_is_a_candidate(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 2);
    c.nodes[1].decode_rows = 8;
    struct sl_place_req r = request(SL_PLACE_COLOCATED, 100);
    struct sl_place_choice out = placed(&c, &r);
    assert_int_equal(out.best.p, -1);
    assert_int_equal(out.best.d, 0);
    assert_int_equal(out.n_candidates, 2);
    c.nodes[0].may_decode = false;
    assert_int_equal(placed(&c, &r).best.d, 1);
}

static void hybrid_idle_equal_nodes_stays_on_one(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 2);
    struct sl_place_req r = request(SL_PLACE_HYBRID, 64);
    assert_int_equal(placed(&c, &r).mode, SL_PLACE_COLOCATED); /* moving pages gains nothing */
}

static void hybrid_decoding_node_gets_the_prompt_computed_elsewhere(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 2);
    c.nodes[0].may_decode = false; /* else the idle node would take it all */
    c.nodes[1].decode_rows = 8;
    c.nodes[1].decode_context_tokens = 8000;
    struct sl_place_req r = request(SL_PLACE_HYBRID, 2000);
    struct sl_place_choice out = placed(&c, &r);
    assert_int_equal(out.best.p, 0);
    assert_true(out.best.split > 1000);
    assert_true(out.n_candidates > 3);
}

static void hybrid_prompt_of_one_page_stays_where_it_decodes(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 2);
    c.nodes[1].decode_rows = 8;
    c.nodes[1].decode_context_tokens = 8000;
    c.nodes[1].queued_prompt_tokens = 4000;
    struct sl_place_req r = request(SL_PLACE_HYBRID, 16);
    struct sl_place_choice out = placed(&c, &r);
    for (uint32_t i = 0; i < out.n_kept; i++)
        assert_int_equal(out.kept[i].p, -1); /* a first token from elsewhere would be followed by a pause */
    c.nodes[1].may_prefill = false;
    r.want_d = "d0";
    assert_int_equal(placed(&c, &r).kept[1].p + placed(&c, &r).kept[0].p, -1); /* alone, and by p0 */
}

static void hybrid_slow_link_lets_the_decode_node_give_the_first_token(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 2);
    c.nodes[0].may_decode = false;
    c.nodes[0].hit_tokens = 1984; /* computed at once, but 125 pages of 1 MiB have to travel */
    c.links[0] = (struct sl_place_link){.p = 0, .d = 1, .bytes_per_s = 1e9};
    c.state.n_links = 1;
    struct sl_place_req r = request(SL_PLACE_HYBRID, 2000);
    struct sl_place_choice out = placed(&c, &r);
    assert_int_equal(out.best.p, 0);
    assert_int_equal(out.best.split, 1984); /* all but the last page: no pause behind the first token */
}

static void queue_of_less_than_a_token_has_a_price(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 2);
    c.nodes[0].queued_prompt_tokens = 0.5;
    struct sl_place_req r = request(SL_PLACE_HYBRID, 100);
    struct sl_place_choice out = placed(&c, &r);
    for (uint32_t i = 0; i < out.n_kept; i++)
        assert_true(isfinite(out.kept[i].predicted.cost_ms));
}

static void wishes_go_before_the_price(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 3);
    c.nodes[0].may_decode = c.nodes[0].may_prefill = false;
    c.nodes[1].decode_rows = 30; /* its steps are too long for the wish, but nothing is queued */
    c.nodes[2].queued_prompt_tokens = 4000;
    struct sl_place_req r = request(SL_PLACE_COLOCATED, 50);
    assert_int_equal(placed(&c, &r).best.d, 1);
    r.tpot_ms = 20;
    struct sl_place_choice out = placed(&c, &r);
    assert_int_equal(out.best.d, 2);
    assert_true(out.best.predicted.miss <= 0);
    r.ttft_ms = 1; /* nobody can: who misses least */
    assert_true(placed(&c, &r).best.predicted.miss > 0);
}

static void node_where_others_wait_is_left_for_the_free_one(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 3);
    c.nodes[0].may_decode = c.nodes[0].may_prefill = false;
    c.nodes[1].decode_rows = c.nodes[2].decode_rows = 4;
    c.nodes[1].decode_context_tokens = c.nodes[2].decode_context_tokens = 4000;
    struct sl_place_req r = request(SL_PLACE_COLOCATED, 300);
    assert_int_equal(placed(&c, &r).best.d, 1); /* of equals the first */
    c.nodes[1].waiting = 3;
    struct sl_place_choice out = placed(&c, &r);
    assert_int_equal(out.best.d, 2);
    assert_false(out.best.tight);
}

static void hybrid_prefix_on_the_decode_node_becomes_colocated(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 2);
    c.nodes[0].may_decode = false;
    c.nodes[1].hit_tokens = 1984;
    struct sl_place_req r = request(SL_PLACE_HYBRID, 2000);
    assert_int_equal(placed(&c, &r).mode, SL_PLACE_COLOCATED);
}

static void split_asked_is_rounded_down_to_a_page(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 2);
    static const struct {
        int64_t asked;
        uint32_t split;
        enum sl_place_mode mode;
    } rows[] = {{0, 0, SL_PLACE_COLOCATED}, {15, 0, SL_PLACE_COLOCATED}, {16, 16, SL_PLACE_HYBRID},
                {47, 32, SL_PLACE_HYBRID},  {99, 96, SL_PLACE_HYBRID},   {100, 100, SL_PLACE_PD}};
    for (size_t i = 0; i < SL_COUNTOF(rows); i++) {
        struct sl_place_req r = request(SL_PLACE_COLOCATED, 100);
        r.split = rows[i].asked;
        struct sl_place_choice out = placed(&c, &r);
        assert_int_equal(out.best.split, rows[i].split);
        assert_int_equal(out.mode, rows[i].mode);
    }
}

static void split_of_the_whole_prompt_covers_received_tokens_too(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 2);
    struct sl_place_req r = request(SL_PLACE_HYBRID, 110);
    r.n_prompt = 100;
    r.split = 100;
    r.strict = false;
    assert_int_equal(placed(&c, &r).best.split, 110);
}

static void split_wrong_wishes_are_refused(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 2);
    struct sl_why why;
    struct sl_place_req r = request(SL_PLACE_PD, 100);
    r.split = 101;
    assert_int_equal(refused(&c, &r, &why), SL_EINVAL);
    r.split = 32;
    r.demanded = true;
    assert_int_equal(refused(&c, &r, &why), SL_EINVAL);
    r.mode = SL_PLACE_COLOCATED;
    assert_int_equal(refused(&c, &r, &why), SL_EINVAL);
    make(&c, 1);
    r = request(SL_PLACE_HYBRID, 100);
    r.split = 32;
    assert_int_equal(refused(&c, &r, &why), SL_ENOTREADY);
}

static void wanted_nodes_are_taken_or_refused(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 4);
    struct sl_place_req r = request(SL_PLACE_PD, 100);
    r.want_d = "d2";
    assert_int_equal(placed(&c, &r).best.d, 3);
    r.want_d = "d0";
    r.want_p = "d1";
    struct sl_place_choice out = placed(&c, &r);
    assert_int_equal(out.best.p, 2); /* permitted, though it prefers to decode */
    assert_int_equal(out.best.d, 1);
    struct sl_why why;
    r.want_d = "d9";
    assert_int_equal(refused(&c, &r, &why), SL_ENOTREADY);
    assert_non_null(strstr(why.text, "d9"));
    r.want_p = r.want_d = "d1"; /* P == D: one node does all */
    out = placed(&c, &r);
    assert_int_equal(out.best.d, 2);
    assert_int_equal(out.best.split, 0);
}

static void excluded_and_draining_nodes_get_nothing(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 3);
    c.nodes[1].unusable = "draining";
    c.nodes[1].hit_tokens = 288; /* its cache has almost all: it is left all the same */
    for (unsigned m = SL_PLACE_PD; m <= SL_PLACE_HYBRID; m++) {
        struct sl_place_req r = request((enum sl_place_mode)m, 300);
        struct sl_place_choice out = placed(&c, &r);
        assert_true(out.best.d != 1 && out.best.p != 1);
    }
    struct sl_place_req pd = request(SL_PLACE_PD, 300);
    assert_int_equal(placed(&c, &pd).best.p, 0); /* which prefers it */
    c.nodes[0].may_prefill = false;
    assert_int_equal(placed(&c, &pd).best.p, 2);
    c.nodes[0].excluded = c.nodes[2].excluded = "failed before";
    struct sl_place_req r = request(SL_PLACE_HYBRID, 300);
    struct sl_why why;
    assert_int_equal(refused(&c, &r, &why), SL_ENOTREADY);
    assert_non_null(strstr(why.text, "d0: draining"));
}

static void pd_prefill_node_has_room_and_pages_of_the_same_size(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 3);
    struct sl_place_req r = request(SL_PLACE_PD, 100);
    assert_int_equal(placed(&c, &r).best.p, 0);
    c.nodes[0].total_pages = 4; /* 64 tokens */
    assert_int_not_equal(placed(&c, &r).best.p, 0);
    make(&c, 3);
    c.nodes[0].page_tokens = 32;
    assert_int_not_equal(placed(&c, &r).best.p, 0);
}

static void no_nodes_and_too_big_are_refused_in_words(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 0);
    struct sl_place_req r = request(SL_PLACE_PD, 100);
    struct sl_why why;
    assert_int_equal(refused(&c, &r, &why), SL_ENOTREADY);
    make(&c, 2);
    c.nodes[0].total_pages = c.nodes[1].total_pages = 8; /* 128 tokens */
    assert_int_equal(refused(&c, &r, &why), SL_ETOOBIG); /* 100 and 32 to come */
    assert_non_null(strstr(why.text, "128"));
    r.max_new = 28;
    placed(&c, &r);
    r.n_tokens = 0;
    assert_int_equal(refused(&c, &r, &why), SL_EINVAL);
}

/* What the ledger is for: the same cluster seen again after each placement spreads a burst. */
static void burst_with_ledger_counted_spreads(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 5);
    uint32_t taken[5] = {0};
    for (int i = 0; i < 40; i++) {
        struct sl_place_req r = request(SL_PLACE_COLOCATED, 200);
        struct sl_place_choice out = placed(&c, &r);
        taken[out.best.d]++;
        c.nodes[out.best.d].queued_prompt_tokens += 200;
        c.nodes[out.best.d].decode_rows++;
    }
    for (int i = 0; i < 5; i++)
        assert_int_equal(taken[i], 8);
}

static void kept_candidates_are_the_cheapest_in_order(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 6);
    for (uint32_t i = 0; i < 6; i++)
        c.nodes[i].queued_prompt_tokens = 100 * (7 - i);
    struct sl_place_req r = request(SL_PLACE_HYBRID, 1000);
    struct sl_place_choice out = placed(&c, &r);
    assert_true(out.n_candidates > SL_PLACE_KEEP);
    assert_int_equal(out.n_kept, SL_PLACE_KEEP);
    for (uint32_t i = 1; i < out.n_kept; i++)
        assert_true(out.kept[i - 1].predicted.cost_ms <= out.kept[i].predicted.cost_ms);
    assert_memory_equal(&out.best, &out.kept[0], sizeof out.best);
}

static void predict(const struct cluster *c, const struct sl_place_req *r, struct sl_place_candidate *cand)
{
    struct sl_predictor x = {.state = &c->state, .req = r};
    sl_predict(&x, cand);
}

static void prediction_slow_link_delays_the_second_token_only(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 2);
    c.links[0] = (struct sl_place_link){.p = 0, .d = 1, .bytes_per_s = 1e9};
    c.state.n_links = 1;
    struct sl_place_req r = request(SL_PLACE_PD, 400);
    struct sl_place_candidate fast = {.p = 0, .split = 400, .d = 1}, slow = fast;
    predict(&c, &r, &fast);
    c.links[0].bytes_per_s = 1e7;
    predict(&c, &r, &slow);
    assert_true(fast.predicted.ttft_ms == slow.predicted.ttft_ms);
    assert_true(slow.predicted.second_ms > fast.predicted.second_ms + 1000);
}

static void prediction_prefix_hit_shortens_the_prompt(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 1);
    struct sl_place_req r = request(SL_PLACE_COLOCATED, 400);
    struct sl_place_candidate cold = {.p = -1, .d = 0}, warm = cold;
    predict(&c, &r, &cold);
    c.nodes[0].hit_tokens = 400; /* all of it: the last token is computed still */
    predict(&c, &r, &warm);
    assert_true(warm.predicted.ttft_ms < cold.predicted.ttft_ms / 10);
    assert_true(warm.predicted.ttft_ms > 0);
}

/* 7 rows decode in 12 ms. A step of up to 2.7 times that takes a chunk of 20, one of 100 ms a chunk of 88, less what makes
 * all rows a multiple of a tile. */
static void prompts_are_priced_at_the_chunks_that_wishes_leave(void **s)
{
    (void)s;
    static const struct {
        double target_ms, stretch, wish_ms;
        uint32_t without_wish, chunk;
    } rows[] = {{0, 0, 0, 7, 19},   {0, 0, 100, 0, 81}, /* all that decode there wish for no more */
                {0, 0, 100, 1, 19},                     /* one does not: the wish loosens nothing */
                {0, 10, 0, 7, 105}, {90, 0, 0, 7, 73},  {90, 0, 30, 7, 17}};
    for (size_t i = 0; i < SL_COUNTOF(rows); i++) {
        struct cluster c;
        make(&c, 1);
        c.nodes[0].decode_rows = 7;
        c.nodes[0].tpot_target_ms = rows[i].target_ms;
        c.nodes[0].chunk_stretch = rows[i].stretch;
        c.nodes[0].tpot_wish_ms = rows[i].wish_ms;
        c.nodes[0].rows_without_wish = rows[i].without_wish;
        const struct sl_place_req r = request(SL_PLACE_COLOCATED, 640);
        double steps = ceil(640.0 / rows[i].chunk), expected = steps * 12 + 640;
        assert_true(fabs(prefill_ms(&c, &r) - expected) < 1e-6);
    }
}

/* 40 rows decode in 45 ms, so that prompts get 121 ms and chunks of 72; a wish for 70 ms leaves them 24. */
static void wish_counts_as_damage_to_prompts_that_wait(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 2);
    c.nodes[1].decode_rows = c.nodes[1].rows_without_wish = 40;
    struct sl_place_req r = request(SL_PLACE_COLOCATED, 64);
    r.want_d = "d0";
    double idle = placed(&c, &r).best.predicted.damage_ms;
    c.nodes[1].queued_prompt_tokens = 7200; /* the steps that compute it are full */
    assert_true(fabs(placed(&c, &r).best.predicted.damage_ms - idle) < 1e-6);
    r.tpot_ms = 70;
    double damage = placed(&c, &r).best.predicted.damage_ms - idle;
    assert_true(fabs(damage - 45.0 * (300 - 100)) < 1e-6); /* so many steps more */
}

#define QUEUE_MOST 8u

/* What really happens: a step under way, half over, with the queue's first rows; then the request's prompt, the last
 * of all, takes part. Milliseconds from now until it is computed, by the node's own plan. */
static double planned_ms(const struct sl_place_node *n, uint32_t n_queued, uint32_t length, uint32_t own)
{
    struct sl_plan_prompt prompts[QUEUE_MOST + 1];
    struct sl_plan_chunk chunks[QUEUE_MOST + 1];
    double ms = 0;
    for (uint32_t i = 0; i <= n_queued; i++) {
        uint32_t tokens = i < n_queued ? length : own;
        prompts[i] = (struct sl_plan_prompt){.remaining = tokens,
                                             .total = tokens,
                                             .chunk_tokens = SL_CHUNK_AUTO,
                                             .arrived_us = i,
                                             .priority = i == n_queued};
    }
    for (uint32_t step = 0, done = 0; done <= n_queued; step++) {
        struct sl_plan plan = {.chunks = chunks};
        sl_plan_step(&(struct sl_plan_state){.cost = n->cost,
                                             .pace_cost = n->cost,
                                             .prompts = prompts + done,
                                             .n_prompts = n_queued - done + (step > 0),
                                             .decode_rows = n->decode_rows,
                                             .decode_context = n->decode_context_tokens,
                                             .pace_context = n->decode_context_tokens,
                                             .max_rows = n->max_batch_tokens,
                                             .align = SL_PLAN_ALIGN,
                                             .tpot_target_ms = n->tpot_target_ms,
                                             .prompt_step_ms = SL_PLAN_PROMPT_STEP_MS},
                     0, &plan);
        ms += step ? plan.predicted_ms : plan.predicted_ms / 2;
        uint32_t ended = 0;
        for (uint32_t k = 0; k < plan.n_chunks; k++) {
            struct sl_plan_prompt *p = &prompts[done + chunks[k].prompt];
            p->history += chunks[k].n_tokens;
            p->remaining -= chunks[k].n_tokens;
            ended += p->remaining == 0;
        }
        done += ended; /* the plan finishes them in order */
    }
    return ms;
}

/* Prompts that wait are computed together, up to the time target, and are priced so. */
static void queue_is_priced_as_the_steps_that_the_plan_makes(void **s)
{
    (void)s;
    static const uint32_t rows[] = {0, 7, 40, 100}, lengths[] = {64, 128, 256, 512, 2048, 8192},
                          queued[] = {0, 1, 2, 3, 5, 8};
    struct cluster c;
    make(&c, 1);
    c.cost = sl_cost_preset_find("h100-llama2-70b-tp4")->cost;
    struct sl_place_node *n = &c.nodes[0];
    n->max_batch_tokens = 8192;
    n->total_pages = n->free_pages = 1000000;
    n->tpot_target_ms = 40;
    double worst = 0;
    for (size_t i = 0; i < SL_COUNTOF(rows); i++)
        for (size_t k = 0; k < SL_COUNTOF(lengths); k++)
            for (size_t q = 0; q < SL_COUNTOF(queued); q++) {
                n->decode_rows = n->rows_without_wish = rows[i];
                n->decode_context_tokens = 1000.0 * rows[i];
                n->queued_prompts = queued[q];
                n->queued_prompt_tokens = (double)queued[q] * lengths[k];
                const struct sl_place_req r = request(SL_PLACE_COLOCATED, lengths[k]);
                double predicted = placed(&c, &r).best.predicted.ttft_ms,
                       planned = planned_ms(n, queued[q], lengths[k], lengths[k]),
                       error = fabs(predicted - planned) / planned;
                worst = fmax(worst, error);
            }
    assert_true(worst < 0.1);
}

/* A step of 300 tokens beside 7 rows takes as long as one of 450: what joins it costs the streams nothing. */
static void prompt_that_fits_into_a_step_that_comes_anyway_costs_little(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 1);
    c.cost = sl_cost_preset_find("h100-llama2-70b-tp4")->cost;
    c.nodes[0].max_batch_tokens = 8192;
    c.nodes[0].tpot_target_ms = 40;
    c.nodes[0].decode_rows = c.nodes[0].rows_without_wish = 7;
    const struct sl_place_req r = request(SL_PLACE_COLOCATED, 150);
    double alone = placed(&c, &r).best.predicted.damage_ms;
    c.nodes[0].queued_prompts = 3;
    c.nodes[0].queued_prompt_tokens = 800; /* one step of 505, one of 295 */
    double shared = placed(&c, &r).best.predicted.damage_ms;
    assert_true(shared < alone);
}

/* 40 streams wait 14 ms longer for a prompt's step, which is more delay in sum than one first token of 250 ms: but no
 * first token shall be late for that. */
static void prompts_do_not_gather_where_the_fewest_streams_are(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 3);
    c.cost = sl_cost_preset_find("h100-llama2-70b-tp4")->cost;
    for (uint32_t i = 0; i < 3; i++) {
        c.nodes[i].max_batch_tokens = 8192;
        c.nodes[i].tpot_target_ms = 40;
        c.nodes[i].decode_rows = c.nodes[i].rows_without_wish = i == 1 ? 7 : 40;
        c.nodes[i].decode_context_tokens = 300.0 * c.nodes[i].decode_rows;
    }
    for (unsigned m = 2 * SL_PLACE_COLOCATED; m < 2 * (SL_PLACE_HYBRID + 1); m++) {
        struct sl_place_req r = request((enum sl_place_mode)(m / 2), 256);
        r.ttft_ms = m % 2 ? 10000 : 0; /* it may take its time: no reason to let it */
        c.nodes[1].queued_prompt_tokens = c.nodes[1].queued_prompts = 0;
        assert_int_equal(placed(&c, &r).best.d, 1);
        c.nodes[1].queued_prompts = 6;
        c.nodes[1].queued_prompt_tokens = 6 * 256;
        assert_int_not_equal(placed(&c, &r).best.d, 1);
    }
}

/* A class of short outputs is waited for less where pages are short. */
static void expected_output_is_what_pages_are_waited_for(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 2);
    c.nodes[1].free_pages = 0;
    c.nodes[1].decode_rows = c.nodes[1].rows_without_wish = 10;
    c.nodes[1].decode_context_tokens = 1000;
    struct sl_place_req r = request(SL_PLACE_COLOCATED, 64);
    r.want_d = "d0";
    r.max_new = 600;
    double unknown = placed(&c, &r).best.predicted.wait_ms;
    r.expected_new = 32;
    double eighth = placed(&c, &r).best.predicted.wait_ms;
    assert_true(eighth > 0 && unknown > 8 * eighth); /* what decodes there grows by more, too */
}

/* 100 streams of 300 tokens leave half of the pool, but are expected to fill it. */
static void outputs_to_come_count_as_pages_taken(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 3);
    c.nodes[0].may_decode = c.nodes[0].may_prefill = false;
    for (uint32_t i = 1; i < 3; i++) {
        c.nodes[i].total_pages = 4000;
        c.nodes[i].free_pages = 2000;
        c.nodes[i].decode_rows = c.nodes[i].rows_without_wish = 100;
        c.nodes[i].decode_context_tokens = 30000;
    }
    c.nodes[2].free_pages = 4000; /* room, but a longer queue */
    c.nodes[2].queued_prompt_tokens = 300;
    struct sl_place_req r = request(SL_PLACE_COLOCATED, 64);
    r.max_new = 2000;
    r.expected_new = 100; /* 5000 tokens and its own: both have room */
    assert_int_equal(placed(&c, &r).best.d, 1);
    assert_false(placed(&c, &r).best.tight);
    r.expected_new = 1000; /* 51000: 3188 pages */
    assert_int_equal(placed(&c, &r).best.d, 2);
    assert_false(placed(&c, &r).best.tight);
    c.nodes[1].decode_rows = 0; /* an empty node lets in what fits */
    c.nodes[1].free_pages = 5;
    r.want_d = "d0";
    assert_false(placed(&c, &r).best.tight);
}

static void wait_is_that_of_the_least_busy_node(void **s)
{
    (void)s;
    struct cluster c;
    make(&c, 0);
    assert_true(sl_place_wait_ms(&c.state) == 0);
    make(&c, 3);
    c.nodes[0].queued_prompt_tokens = 9000;
    c.nodes[1].queued_prompt_tokens = 3000;
    c.nodes[2].unusable = "draining";
    double ms = sl_place_wait_ms(&c.state);
    assert_true(ms > 3000 && ms < 4000); /* 1 ms per token, 5 per step */
    c.nodes[1].queued_prompt_tokens =
        40; /* less than one step: work all the same, requests wait at the router for it */
    ms = sl_place_wait_ms(&c.state);
    assert_true(ms > 44 && ms < 46);
    struct sl_place_req r = request(SL_PLACE_COLOCATED, 8);
    r.want_d = "d0";
    assert_true(fabs(placed(&c, &r).best.predicted.wait_ms - ms) < 1e-6);
}

static void prefix_set_counts_leading_pages(void **s)
{
    (void)s;
    struct sl_prefix_set set = {0};
    const uint64_t chain[] = {9, 3, 7, 1};
    assert_int_equal(sl_prefix_set_hit(&set, chain, 4), 0);
    sl_prefix_set_update(&set, (const uint64_t[]){7, 9, 3}, 3);
    assert_int_equal(sl_prefix_set_hit(&set, chain, 4), 3);
    assert_int_equal(sl_prefix_set_hit(&set, chain, 2), 2);
    sl_prefix_set_update(&set, (const uint64_t[]){3, 7}, 2);
    assert_int_equal(sl_prefix_set_hit(&set, chain, 4), 0); /* the first page is gone */
    sl_prefix_set_update(&set, NULL, 0);
    assert_int_equal(sl_prefix_set_hit(&set, chain, 4), 0);
    sl_prefix_set_fini(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predict_counts_history_read_by_chunks_and_the_head),
        cmocka_unit_test(pd_two_nodes_splits_at_the_end),
        cmocka_unit_test(pd_busy_prefill_node_is_left_for_the_idle_one),
        cmocka_unit_test(pd_full_decode_node_is_left_for_the_free_one),
        cmocka_unit_test(pd_one_node_falls_back_and_says_so),
        cmocka_unit_test(pd_demanded_with_one_node_is_refused),
        cmocka_unit_test(pd_demanded_after_a_fault_is_a_wish),
        cmocka_unit_test(pd_no_preferred_decode_node_takes_any_two),
        cmocka_unit_test(pd_refused_link_is_not_used),
        cmocka_unit_test(pd_degraded_link_is_the_last_resort),
        cmocka_unit_test(colocated_prefill_node_is_a_candidate),
        cmocka_unit_test(hybrid_idle_equal_nodes_stays_on_one),
        cmocka_unit_test(hybrid_decoding_node_gets_the_prompt_computed_elsewhere),
        cmocka_unit_test(hybrid_prompt_of_one_page_stays_where_it_decodes),
        cmocka_unit_test(hybrid_slow_link_lets_the_decode_node_give_the_first_token),
        cmocka_unit_test(queue_of_less_than_a_token_has_a_price),
        cmocka_unit_test(wishes_go_before_the_price),
        cmocka_unit_test(prompts_are_priced_at_the_chunks_that_wishes_leave),
        cmocka_unit_test(wish_counts_as_damage_to_prompts_that_wait),
        cmocka_unit_test(queue_is_priced_as_the_steps_that_the_plan_makes),
        cmocka_unit_test(prompt_that_fits_into_a_step_that_comes_anyway_costs_little),
        cmocka_unit_test(prompts_do_not_gather_where_the_fewest_streams_are),
        cmocka_unit_test(expected_output_is_what_pages_are_waited_for),
        cmocka_unit_test(outputs_to_come_count_as_pages_taken),
        cmocka_unit_test(node_where_others_wait_is_left_for_the_free_one),
        cmocka_unit_test(hybrid_prefix_on_the_decode_node_becomes_colocated),
        cmocka_unit_test(split_asked_is_rounded_down_to_a_page),
        cmocka_unit_test(split_of_the_whole_prompt_covers_received_tokens_too),
        cmocka_unit_test(split_wrong_wishes_are_refused),
        cmocka_unit_test(wanted_nodes_are_taken_or_refused),
        cmocka_unit_test(excluded_and_draining_nodes_get_nothing),
        cmocka_unit_test(pd_prefill_node_has_room_and_pages_of_the_same_size),
        cmocka_unit_test(no_nodes_and_too_big_are_refused_in_words),
        cmocka_unit_test(burst_with_ledger_counted_spreads),
        cmocka_unit_test(kept_candidates_are_the_cheapest_in_order),
        cmocka_unit_test(prediction_slow_link_delays_the_second_token_only),
        cmocka_unit_test(prediction_prefix_hit_shortens_the_prompt),
        cmocka_unit_test(wait_is_that_of_the_least_busy_node),
        cmocka_unit_test(prefix_set_counts_leading_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
