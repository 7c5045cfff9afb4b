/* tests/unit/router/flow/test_request_flow.c - requests that go well: every mode, text, stop strings, cancel,
 * limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "common/base/clock.h"
#include "tests/unit/router/flow/flow_rig.h"

#define SUBMIT  SLUICE__ENVELOPE__BODY_SUBMIT
#define PREFILL SLUICE__ENVELOPE__BODY_PREFILL
#define CANCEL  SLUICE__ENVELOPE__BODY_CANCEL
#define DUTY_P  SLUICE__ROLE__ROLE_PREFILL
#define DUTY_D  SLUICE__ROLE__ROLE_DECODE
#define STOP    SLUICE__DONE_REASON__DONE_STOP
#define LENGTH  SLUICE__DONE_REASON__DONE_LENGTH

static void colocated_request_streams_and_ends(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_COLOCATED, NULL);
    struct rig_node *d = rig_node(&r, "d0", false);
    assert_true(rig_join(d));
    struct rig_client c;
    rig_client(&c, &r);
    struct sl_gen_req *q = rig_request(&r, 20);
    q->want_digest = true;
    q->chunk = 8;
    q->cache_salt = "salt";
    assert_int_equal(rig_submit(&c, q), SL_OK);

    struct sl_wire_in *in = rig_take(d, SUBMIT);
    const Sluice__Submit *m = in->msg->submit;
    assert_string_equal(m->request_id, c.id);
    assert_int_equal(m->attempt, 1);
    assert_int_equal(m->n_tokens, 20);
    assert_int_equal(m->n_prompt, 20);
    assert_int_equal(m->tokens[7], 7);
    assert_int_equal(m->split_tokens, 0);
    assert_null(m->prefill_peer);
    assert_int_equal(m->chunk_tokens, 8);
    assert_true(m->want_digest);
    assert_string_equal(m->cache_salt, "salt");
    assert_int_equal(m->sampling->max_tokens, 64);
    assert_true(m->deadline_ms > 0 && m->deadline_ms <= RIG_WAIT_MS);
    rig_answer(in, SL_OK);

    rig_say(d, c.id, 1, 0, "hello");
    rig_wait_tokens(&c, 5);
    Sluice__LegReport report = SLUICE__LEG_REPORT__INIT;
    report.has_chunks = report.has_largest_chunk = report.has_prompt_tokens_computed =
        report.has_cached_tokens = true;
    report.chunks = 3;
    report.largest_chunk = 8;
    report.prompt_tokens_computed = 4;
    report.cached_tokens = 16;
    struct rig_batch b;
    rig_batch(&b, d);
    rig_token(&b, c.id, 1, 5, RIG_EOS);
    rig_done(&b, c.id, 1, DUTY_D, STOP, SL_OK, &report);
    rig_send(&b);
    rig_wait_end(&c);
    assert_int_equal(c.err, SL_OK);
    assert_string_equal(c.text, "hello");
    assert_string_equal(c.finish, "stop");
    assert_int_equal(c.stop_token, RIG_EOS);
    assert_int_equal(c.usage.prompt_tokens, 20);
    assert_int_equal(c.usage.completion_tokens, 6);
    assert_int_equal(c.usage.cached_tokens, 16);
    for (uint32_t i = 0; i < c.n_tokens; i++)
        assert_int_equal(c.indexes[i], i);

    static const char *const facts[][2] = {
        {"mode", "colocated"},
        {"P", "-"},
        {"s", "0"},
        {"D", "d0"},
        {"attempts", "1"},
        {"prefill_chunks_D", "3"},
        {"prefill_chunks_P", "0"},
        {"largest_chunk_D", "8"},
        {"prompt_tokens_computed_D", "4"},
        {"cached_tokens_D", "16"},
        {"pages_received", "0"},
        {"finish", "stop"},
        {"handover_ms", "-"},
        {"end_D", "stop"},
        {"tokens", "6"},
    };
    for (size_t i = 0; i < SL_COUNTOF(facts); i++)
        assert_string_equal(rig_record(&r, c.id, facts[i][0]), facts[i][1]);
    rig_client_fini(&c);
    rig_close(&r);
}

/* Nodes are told how long outputs of a request's class were, and nothing where none was seen. */
static void output_length_is_learnt_by_class(void **s)
{
    (void)s;
    static const struct {
        const char *class;
        uint32_t expected; /* 0 = not told */
    } rows[] = {{"chat", 0}, {"chat", 5}, {"batch", 0}, {NULL, 0}, {NULL, 5}, {"chat", 5}};
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_COLOCATED, NULL);
    struct rig_node *d = rig_node(&r, "d0", false);
    assert_true(rig_join(d));
    for (size_t i = 0; i < SL_COUNTOF(rows); i++) {
        struct rig_client c;
        rig_client(&c, &r);
        struct sl_gen_req *q = rig_request(&r, 20);
        q->slo_class = rows[i].class;
        assert_int_equal(rig_submit(&c, q), SL_OK);
        struct sl_wire_in *in = rig_take(d, SUBMIT);
        assert_int_equal(in->msg->submit->has_expected_tokens, rows[i].expected > 0);
        assert_int_equal(in->msg->submit->expected_tokens, rows[i].expected);
        rig_answer(in, SL_OK);
        rig_say(d, c.id, 1, 0, "four");
        rig_end(d, c.id, 1, DUTY_D, LENGTH);
        rig_wait_end(&c);
        rig_client_fini(&c);
        rig_wait_idle(&r);
    }
    rig_close(&r);
}

static void pd_request_first_token_comes_from_p(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_PD, NULL);
    struct rig_node *p = rig_node(&r, "p0", true), *d = rig_node(&r, "d0", false);
    assert_true(rig_join(p) && rig_join(d));
    struct rig_client c;
    rig_client(&c, &r);
    assert_int_equal(rig_submit(&c, rig_request(&r, 40)), SL_OK);

    struct sl_wire_in *in = rig_take(d, SUBMIT);
    assert_int_equal(in->msg->submit->split_tokens, 40);
    assert_string_equal(in->msg->submit->prefill_peer->name, "p0");
    assert_true(in->msg->submit->prefill_peer->boot_id == p->boot_id);
    rig_answer(in, SL_OK);
    in = rig_take(p, PREFILL);
    assert_int_equal(in->msg->prefill->split_tokens, 40);
    assert_int_equal(in->msg->prefill->n_tokens, 40);
    assert_string_equal(in->msg->prefill->decode_peer->name, "d0");
    assert_string_equal(in->msg->prefill->decode_peer->transfer_address, "127.0.0.1:1");
    rig_answer(in, SL_OK);

    rig_say(p, c.id, 1, 0, "a");
    rig_wait_tokens(&c, 1);
    Sluice__LegReport at_p = SLUICE__LEG_REPORT__INIT, at_d = SLUICE__LEG_REPORT__INIT;
    at_p.has_chunks = at_p.has_pages_sent = at_p.has_cached_tokens = true;
    at_p.chunks = 2;
    at_p.pages_sent = 3;
    at_p.cached_tokens = 0;
    at_d.has_pages_received = true;
    at_d.pages_received = 3;
    struct rig_batch b;
    rig_batch(&b, p);
    rig_done(&b, c.id, 1, DUTY_P, SLUICE__DONE_REASON__DONE_PREFILLED, SL_OK, &at_p);
    rig_send(&b);
    rig_say(d, c.id, 1, 0, "abcd"); /* D tells the first one too */
    rig_wait_tokens(&c, 4);
    rig_batch(&b, d);
    rig_done(&b, c.id, 1, DUTY_D, LENGTH, SL_OK, &at_d);
    rig_send(&b);
    rig_wait_end(&c);
    assert_string_equal(c.text, "abcd");
    assert_string_equal(c.finish, "length");
    assert_int_equal(c.n_tokens, 4);
    assert_string_equal(rig_record(&r, c.id, "mode"), "pd");
    assert_string_equal(rig_record(&r, c.id, "s"), "40");
    assert_string_equal(rig_record(&r, c.id, "pages_sent"), "3");
    assert_string_equal(rig_record(&r, c.id, "pages_received"), "3");
    assert_string_equal(rig_record(&r, c.id, "duplicates"), "1");
    assert_string_equal(rig_record(&r, c.id, "resyncs"), "0");
    rig_client_fini(&c);
    rig_close(&r);
}

static void pd_end_of_d_waits_for_the_report_of_p(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_PD, NULL);
    struct rig_node *p = rig_node(&r, "p0", true), *d = rig_node(&r, "d0", false);
    assert_true(rig_join(p) && rig_join(d));
    struct rig_client c;
    rig_client(&c, &r);
    assert_int_equal(rig_submit(&c, rig_request(&r, 40)), SL_OK);
    rig_accept(d, SUBMIT, NULL);
    rig_accept(p, PREFILL, NULL);
    rig_say(d, c.id, 1, 0, "ab.");
    rig_end(d, c.id, 1, DUTY_D, STOP);
    Sluice__LegReport report = SLUICE__LEG_REPORT__INIT;
    report.has_cached_tokens = true;
    report.cached_tokens = 32;
    struct rig_batch b;
    rig_batch(&b, p);
    rig_done(&b, c.id, 1, DUTY_P, SLUICE__DONE_REASON__DONE_PREFILLED, SL_OK, &report);
    rig_send(&b);
    rig_wait_end(&c);
    assert_string_equal(c.text, "ab");
    assert_int_equal(c.usage.completion_tokens, 3);
    rig_client_fini(&c);
    rig_close(&r);
}

static void pd_first_token_is_the_last_one_ends_by_p(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_PD, NULL);
    struct rig_node *p = rig_node(&r, "p0", true), *d = rig_node(&r, "d0", false);
    assert_true(rig_join(p) && rig_join(d));
    struct rig_client c;
    rig_client(&c, &r);
    struct sl_gen_req *q = rig_request(&r, 40);
    q->sampling.max_tokens = 1;
    assert_int_equal(rig_submit(&c, q), SL_OK);
    rig_accept(d, SUBMIT, NULL);
    rig_accept(p, PREFILL, NULL);
    rig_end(d, c.id, 1, DUTY_D, LENGTH); /* told by P before P's own message is here */
    struct rig_batch b;
    rig_batch(&b, p);
    rig_token(&b, c.id, 1, 0, 4);
    rig_done(&b, c.id, 1, DUTY_P, LENGTH, SL_OK, NULL);
    rig_send(&b);
    rig_wait_end(&c);
    assert_string_equal(c.text, "e");
    assert_string_equal(c.finish, "length");
    assert_int_equal(c.usage.completion_tokens, 1);
    rig_client_fini(&c);
    rig_close(&r);
}

static void hybrid_split_asked_is_sent_to_both(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_COLOCATED, NULL);
    struct rig_node *p = rig_node(&r, "p0", true), *d = rig_node(&r, "d0", false);
    assert_true(rig_join(p) && rig_join(d));
    struct rig_client c;
    rig_client(&c, &r);
    struct sl_gen_req *q = rig_request(&r, 40);
    q->mode = SL_MODE_HYBRID;
    q->split = 35;
    q->want_prefill_node = "p0";
    q->want_decode_node = "d0";
    assert_int_equal(rig_submit(&c, q), SL_OK);
    struct sl_wire_in *in = rig_take(d, SUBMIT);
    assert_int_equal(in->msg->submit->split_tokens, 32);
    rig_answer(in, SL_OK);
    in = rig_take(p, PREFILL);
    assert_int_equal(in->msg->prefill->split_tokens, 32);
    assert_int_equal(in->msg->prefill->n_tokens, 40);
    rig_answer(in, SL_OK);
    rig_end(p, c.id, 1, DUTY_P, SLUICE__DONE_REASON__DONE_PREFILLED);
    rig_say(d, c.id, 1, 0, "xy");
    rig_end(d, c.id, 1, DUTY_D, LENGTH);
    rig_wait_end(&c);
    assert_string_equal(c.text, "xy");
    assert_string_equal(rig_record(&r, c.id, "mode"), "hybrid");
    assert_string_equal(rig_record(&r, c.id, "asked_mode"), "hybrid");
    assert_string_equal(rig_record(&r, c.id, "asked_split"), "35");
    rig_client_fini(&c);
    rig_close(&r);
}

static void stop_string_across_tokens_cancels_and_counts(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_PD, NULL);
    struct rig_node *p = rig_node(&r, "p0", true), *d = rig_node(&r, "d0", false);
    assert_true(rig_join(p) && rig_join(d));
    struct rig_client c;
    rig_client(&c, &r);
    struct sl_gen_req *q = rig_request(&r, 40);
    q->stop[0] = "lo w";
    q->n_stop = 1;
    assert_int_equal(rig_submit(&c, q), SL_OK);
    rig_accept(d, SUBMIT, NULL);
    rig_accept(p, PREFILL, NULL);
    rig_say(d, c.id, 1, 0, "hello world");
    char id[64];
    assert_int_equal(rig_accept(d, CANCEL, id), 1);
    assert_string_equal(id, c.id);
    rig_accept(p, CANCEL, NULL);
    rig_end(d, c.id, 1, DUTY_D, SLUICE__DONE_REASON__DONE_CANCELED);
    rig_end(p, c.id, 1, DUTY_P, SLUICE__DONE_REASON__DONE_CANCELED);
    rig_wait_end(&c);
    assert_string_equal(c.text, "hel");
    assert_string_equal(c.finish, "stop");
    assert_string_equal(c.stop_reason, "lo w");
    assert_int_equal(c.stop_token, -1);
    assert_int_equal(c.usage.completion_tokens, 7); /* up to the match, not what came behind it */
    rig_client_fini(&c);
    rig_close(&r);
}

static uint64_t cpu_us(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000u +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* A token behind a hole was waited for when the stop string came: that wait is over with it. */
static void end_that_waits_for_facts_takes_no_cpu(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_COLOCATED, NULL);
    struct rig_node *d = rig_node(&r, "d0", false);
    assert_true(rig_join(d));
    struct rig_client c;
    rig_client(&c, &r);
    struct sl_gen_req *q = rig_request(&r, 40);
    q->stop[0] = "ab";
    q->n_stop = 1;
    assert_int_equal(rig_submit(&c, q), SL_OK);
    rig_accept(d, SUBMIT, NULL);
    struct rig_batch b;
    rig_batch(&b, d);
    rig_token(&b, c.id, 1, 9, 4);
    rig_token(&b, c.id, 1, 0, 0);
    rig_token(&b, c.id, 1, 1, 1);
    rig_send(&b);
    rig_accept(d, CANCEL, NULL);
    uint64_t wall = sl_now_us(), cpu = cpu_us();
    rig_wait_end(&c); /* the leg says nothing more */
    wall = sl_now_us() - wall;
    cpu = cpu_us() - cpu;
    assert_string_equal(c.stop_reason, "ab");
    print_message("an end that waits: %.2f %% of a CPU\n", (double)cpu * 100 / (double)wall);
    assert_true(cpu * 4 < wall); /* a busy loop takes most of it */
    rig_client_fini(&c);
    rig_close(&r);
}

static void client_leaves_both_legs_are_canceled_with_a_tombstone(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_PD, NULL);
    struct rig_node *p = rig_node(&r, "p0", true), *d = rig_node(&r, "d0", false);
    assert_true(rig_join(p) && rig_join(d));
    struct rig_client c;
    rig_client(&c, &r);
    assert_int_equal(rig_submit(&c, rig_request(&r, 40)), SL_OK);
    rig_accept(d, SUBMIT, NULL);
    rig_accept(p, PREFILL, NULL);
    rig_say(p, c.id, 1, 0, "a");
    rig_wait_tokens(&c, 1);
    sl_flow_cancel(r.flow, c.id);
    c.done = true; /* any event from here on is a failure: on_event asserts */
    rig_say(d, c.id, 1, 1, "bcd");
    struct sl_wire_in *in = rig_take(d, CANCEL);
    assert_string_equal(in->msg->cancel->request_id, c.id);
    assert_int_equal(in->msg->cancel->attempt, 1);
    assert_true(in->msg->cancel->tombstone_ms >= 1000);
    rig_answer(in, SL_OK);
    rig_accept(p, CANCEL, NULL);
    rig_wait_idle(&r);
    assert_string_equal(rig_record(&r, c.id, "finish"), "canceled");
    sl_flow_cancel(r.flow, c.id); /* a second time, and after the end: nothing */
    rig_client_fini(&c);
    rig_close(&r);
}

/* It may have heard of the end before it heard of the request, and have forgotten that. */
static void node_that_takes_a_request_after_its_end_is_told_again(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_COLOCATED, NULL);
    struct rig_node *d = rig_node(&r, "d0", false);
    assert_true(rig_join(d));
    struct rig_client c;
    rig_client(&c, &r);
    assert_int_equal(rig_submit(&c, rig_request(&r, 40)), SL_OK);
    struct sl_wire_in *submit = rig_take(d, SUBMIT);
    sl_flow_cancel(r.flow, c.id);
    c.done = true;
    rig_accept(d, CANCEL, NULL);
    rig_wait_idle(&r);
    rig_answer(submit, SL_OK);
    struct sl_wire_in *in = rig_take(d, CANCEL);
    assert_string_equal(in->msg->cancel->request_id, c.id);
    assert_int_equal(in->msg->cancel->attempt, 1);
    rig_answer(in, SL_OK);
    rig_client_fini(&c);
    rig_close(&r);
}

static void few_requests(struct sl_flow_conf *conf)
{
    conf->max_requests = 2;
}

static void submit_over_the_limit_is_refused(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_COLOCATED, few_requests);
    struct rig_node *d = rig_node(&r, "d0", false);
    assert_true(rig_join(d));
    struct rig_client c[3];
    for (int i = 0; i < 3; i++)
        rig_client(&c[i], &r);
    assert_int_equal(rig_submit(&c[0], rig_request(&r, 4)), SL_OK);
    assert_int_equal(rig_submit(&c[1], rig_request(&r, 4)), SL_OK);
    assert_int_equal(rig_submit(&c[2], rig_request(&r, 4)), SL_EAGAIN);
    assert_non_null(strstr(c[2].why, "2 requests"));
    rig_accept(d, SUBMIT, NULL);
    rig_accept(d, SUBMIT, NULL);
    sl_flow_cancel(r.flow, c[0].id);
    rig_accept(d, CANCEL, NULL);
    rig_say(d, c[1].id, 1, 0, "a.");
    rig_end(d, c[1].id, 1, DUTY_D, STOP);
    rig_wait_end(&c[1]);
    rig_wait_idle(&r);
    assert_int_equal(rig_submit(&c[2], rig_request(&r, 4)), SL_OK);
    for (int i = 0; i < 2; i++)
        rig_client_fini(&c[i]);
    rig_close(&r); /* ends c[2] with an error */
    assert_true(c[2].done);
    assert_int_equal(c[2].err, SL_EDRAINING);
    rig_client_fini(&c[2]);
}

static void submit_without_nodes_is_refused(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_PD, NULL);
    struct rig_client c;
    rig_client(&c, &r);
    struct sl_why why = {{0}};
    assert_false(sl_flow_ready(r.flow, &why));
    assert_int_equal(rig_submit(&c, rig_request(&r, 4)), SL_ENOTREADY);
    assert_true(c.why[0]);
    struct rig_node *p = rig_node(&r, "p0", true);
    p->no_decode = true;
    assert_true(rig_join(p));
    assert_false(sl_flow_ready(r.flow, &why)); /* nobody decodes */
    assert_true(rig_join(rig_node(&r, "d0", false)));
    assert_true(sl_flow_ready(r.flow, &why));
    uint32_t open;
    sl_flow_drain(r.flow, &open);
    assert_int_equal(open, 0);
    assert_int_equal(rig_submit(&c, rig_request(&r, 4)), SL_EDRAINING);
    rig_client_fini(&c);
    rig_close(&r);
}

static void demanded_mode_impossible_is_an_error_event(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_COLOCATED, NULL);
    assert_true(rig_join(rig_node(&r, "d0", false)));
    struct rig_client c;
    rig_client(&c, &r);
    struct sl_gen_req *q = rig_request(&r, 40);
    q->mode = SL_MODE_PD;
    assert_int_equal(rig_submit(&c, q), SL_OK);
    rig_wait_end(&c);
    assert_int_equal(c.err, SL_ENOTREADY);
    assert_non_null(strstr(c.why, "pd"));
    rig_client_fini(&c);
    rig_client(&c, &r);
    q = rig_request(&r, 40);
    q->split = 41;
    assert_int_equal(rig_submit(&c, q), SL_OK);
    rig_wait_end(&c);
    assert_int_equal(c.err, SL_EINVAL);
    rig_client_fini(&c);
    rig_close(&r);
}

static void two_choices_of_one_burst_go_to_two_nodes(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_COLOCATED, NULL);
    struct rig_node *d[2] = {rig_node(&r, "d0", false), rig_node(&r, "d1", false)};
    assert_true(rig_join(d[0]) && rig_join(d[1]));
    struct rig_client c[8];
    for (int i = 0; i < 8; i++) {
        rig_client(&c[i], &r);
        assert_int_equal(rig_submit(&c[i], rig_request(&r, 40)), SL_OK);
    }
    /* no heartbeat in between: the ledger alone spreads them */
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 4; i++) {
            char id[64];
            uint32_t attempt = rig_accept(d[k], SUBMIT, id);
            rig_say(d[k], id, attempt, 0, "a.");
            rig_end(d[k], id, attempt, DUTY_D, STOP);
        }
    for (int i = 0; i < 8; i++) {
        rig_wait_end(&c[i]);
        assert_string_equal(c[i].text, "a");
        rig_client_fini(&c[i]);
    }
    rig_close(&r);
}

static void metrics_count_each_request_once(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_COLOCATED, NULL);
    struct rig_node *d = rig_node(&r, "d0", false);
    assert_true(rig_join(d));
    for (int i = 0; i < 3; i++) {
        struct rig_client c;
        rig_client(&c, &r);
        assert_int_equal(rig_submit(&c, rig_request(&r, 20)), SL_OK);
        rig_accept(d, SUBMIT, NULL);
        rig_say(d, c.id, 1, 0, "abc.");
        rig_end(d, c.id, 1, DUTY_D, STOP);
        rig_wait_end(&c);
        rig_client_fini(&c);
    }
    rig_wait_idle(&r);
    struct sl_buf b;
    sl_buf_init(&b, 1 << 20);
    sl_metrics_render(r.metrics, &b);
#define MODEL "{model_name=\"m\\\"odel\",engine=\"0\"}"
    static const char *const lines[] = {
        "vllm:time_to_first_token_seconds_count" MODEL " 3\n",
        "vllm:e2e_request_latency_seconds_count" MODEL " 3\n",
        "vllm:inter_token_latency_seconds_count" MODEL " 9\n",
        "vllm:prompt_tokens_total" MODEL " 60\n",
        "vllm:generation_tokens_total" MODEL " 12\n",
        "vllm:time_per_output_token_seconds_count" MODEL " 9\n",
        "vllm:request_queue_time_seconds_count" MODEL " 3\n",
        "vllm:request_inference_time_seconds_count" MODEL " 3\n",
        "vllm:kv_cache_usage_perc" MODEL " ",
        "vllm:gpu_cache_usage_perc" MODEL " ",
        "vllm:request_success_total{finished_reason=\"stop\",model_name=\"m\\\"odel\",engine=\"0\"} 3\n",
        "sluice_requests_finished_total{finish=\"stop\"} 3\n",
        "sluice_placements_total{mode=\"colocated\"} 3\n",
        "sluice_token_mismatches_total 0\n",
    };
    for (size_t i = 0; i < SL_COUNTOF(lines); i++)
        if (!strstr(b.data, lines[i]))
            fail_msg("no line %s in\n%s", lines[i], b.data);
    sl_buf_fini(&b);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(colocated_request_streams_and_ends),
        cmocka_unit_test(output_length_is_learnt_by_class),
        cmocka_unit_test(pd_request_first_token_comes_from_p),
        cmocka_unit_test(pd_end_of_d_waits_for_the_report_of_p),
        cmocka_unit_test(pd_first_token_is_the_last_one_ends_by_p),
        cmocka_unit_test(hybrid_split_asked_is_sent_to_both),
        cmocka_unit_test(stop_string_across_tokens_cancels_and_counts),
        cmocka_unit_test(end_that_waits_for_facts_takes_no_cpu),
        cmocka_unit_test(client_leaves_both_legs_are_canceled_with_a_tombstone),
        cmocka_unit_test(node_that_takes_a_request_after_its_end_is_told_again),
        cmocka_unit_test(submit_over_the_limit_is_refused),
        cmocka_unit_test(submit_without_nodes_is_refused),
        cmocka_unit_test(demanded_mode_impossible_is_an_error_event),
        cmocka_unit_test(two_choices_of_one_burst_go_to_two_nodes),
        cmocka_unit_test(metrics_count_each_request_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
