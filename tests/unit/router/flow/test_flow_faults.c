/* tests/unit/router/flow/test_flow_faults.c - requests that meet a fault: lost events, dead nodes, refusals,
 * deadlines. The stream goes on without a token lost, doubled or changed, or ends with a clear error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/unit/router/flow/flow_rig.h"

#define SUBMIT  SLUICE__ENVELOPE__BODY_SUBMIT
#define PREFILL SLUICE__ENVELOPE__BODY_PREFILL
#define CANCEL  SLUICE__ENVELOPE__BODY_CANCEL
#define RESYNC  SLUICE__ENVELOPE__BODY_RESYNC
#define DUTY_P  SLUICE__ROLE__ROLE_PREFILL
#define DUTY_D  SLUICE__ROLE__ROLE_DECODE
#define STOP    SLUICE__DONE_REASON__DONE_STOP
#define LENGTH  SLUICE__DONE_REASON__DONE_LENGTH

/* One P (with pd) and n D's; a request on its way to d0. d1 stands first in the table: of equals it is
 * chosen. */
struct scene {
    struct rig r;
    struct rig_node *p, *d[2];
    struct rig_client c;
};

static void begin_with(struct scene *s, bool pd, uint32_t n_d, const char *stop,
                       void (*change)(struct sl_flow_conf *conf))
{
    rig_open(&s->r, pd ? SLUICE__MODE__MODE_PD : SLUICE__MODE__MODE_COLOCATED, change);
    s->p = NULL;
    if (pd) {
        s->p = rig_node(&s->r, "p0", true);
        s->p->no_decode = true;
        assert_true(rig_join(s->p));
    }
    for (uint32_t i = n_d; i-- > 0;) {
        s->d[i] = rig_node(&s->r, i ? "d1" : "d0", false);
        s->d[i]->no_prefill = true;
        assert_true(rig_join(s->d[i]));
    }
    rig_client(&s->c, &s->r);
    struct sl_gen_req *q = rig_request(&s->r, 40);
    q->want_decode_node = "d0";
    q->stop[0] = stop;
    q->n_stop = stop != NULL;
    assert_int_equal(rig_submit(&s->c, q), SL_OK);
}

static void begin(struct scene *s, bool pd, uint32_t n_d)
{
    begin_with(s, pd, n_d, NULL, NULL);
}

static void end(struct scene *s)
{
    rig_wait_idle(&s->r);
    rig_client_fini(&s->c);
    rig_close(&s->r);
}

static void lost_batch_is_asked_for_again(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 1);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_say(s.d[0], s.c.id, 1, 0, "ab");
    rig_wait_tokens(&s.c, 2);
    struct rig_batch b;
    rig_batch(&b, s.d[0]);
    rig_token(&b, s.c.id, 1, 2, 2);
    rig_lose(&b);
    rig_say(s.d[0], s.c.id, 1, 3, "def"); /* held, and the gap in the numbers asks at once */
    rig_answer_resync(s.d[0], s.c.id, 1, 2, "cde", false);
    rig_wait_tokens(&s.c, 6);
    rig_say(s.d[0], s.c.id, 1, 6, "g.");
    rig_end(s.d[0], s.c.id, 1, DUTY_D, STOP);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "abcdefg");
    assert_int_equal(s.c.usage.completion_tokens, 8);
    assert_string_equal(rig_record(&s.r, s.c.id, "resyncs"), "1");
    assert_string_equal(rig_record(&s.r, s.c.id, "attempts"), "1");
    end(&s);
}

static void wait_metric(struct rig *r, const char *line)
{
    for (uint64_t end = sl_now_ms() + RIG_WAIT_MS;;) {
        struct sl_buf b;
        sl_buf_init(&b, 1 << 20);
        sl_metrics_render(r->metrics, &b);
        bool there = strstr(b.data, line) != NULL;
        sl_buf_fini(&b);
        if (there)
            return;
        assert_true(sl_now_ms() < end);
        usleep(5000);
    }
}

/* A node counts its batches over all routers that it had: here the numbers up to 40 went to another. */
static void numbers_of_batches_for_another_router_cost_nothing(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_COLOCATED, NULL);
    struct rig_node *d = rig_node(&r, "d0", false);
    assert_true(rig_join(d));
    struct rig_batch b;
    d->seq = 40;
    rig_batch(&b, d);
    rig_send(&b);
    d->seq = 40;
    rig_batch(&b, d);
    rig_send(&b);
    wait_metric(&r, "\nsluice_control_replays_total 1\n"); /* so the first was taken */
    struct rig_client c;
    rig_client(&c, &r);
    assert_int_equal(rig_submit(&c, rig_request(&r, 40)), SL_OK);
    rig_accept(d, SUBMIT, NULL);
    rig_say(d, c.id, 1, 0, "ab.");
    rig_end(d, c.id, 1, DUTY_D, STOP);
    rig_wait_end(&c);
    assert_string_equal(c.text, "ab");
    assert_string_equal(rig_record(&r, c.id, "resyncs"), "0");
    rig_wait_idle(&r);
    rig_client_fini(&c);
    rig_close(&r);
}

static void lost_end_is_found_by_the_next_batch(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 1);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_say(s.d[0], s.c.id, 1, 0, "ab");
    rig_wait_tokens(&s.c, 2);
    struct rig_batch b;
    rig_batch(&b, s.d[0]);
    rig_token(&b, s.c.id, 1, 2, RIG_EOS);
    rig_done(&b, s.c.id, 1, DUTY_D, STOP, SL_OK, NULL);
    rig_lose(&b);
    rig_batch(&b, s.d[0]); /* an empty one, as nodes send after a loss */
    rig_send(&b);
    rig_answer_resync(s.d[0], s.c.id, 1, 2, ".", true);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "ab");
    assert_string_equal(s.c.finish, "stop");
    end(&s);
}

static void end_behind_a_lost_token_waits_for_it(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 1);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_say(s.d[0], s.c.id, 1, 0, "a");
    rig_wait_tokens(&s.c, 1);
    struct rig_batch b;
    rig_batch(&b, s.d[0]);
    rig_token(&b, s.c.id, 1, 1, 1);
    rig_lose(&b);
    rig_batch(&b, s.d[0]);
    rig_token(&b, s.c.id, 1, 2, RIG_EOS);
    rig_done(&b, s.c.id, 1, DUTY_D, STOP, SL_OK, NULL);
    rig_send(&b);
    rig_answer_resync(s.d[0], s.c.id, 1, 1, "b.", true);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "ab");
    assert_int_equal(s.c.usage.completion_tokens, 3);
    end(&s);
}

/* A node tells so many tokens at once, and its end with the last of them. */
static void answer_that_is_cut_is_asked_on_from_there(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 1);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_say(s.d[0], s.c.id, 1, 0, "a");
    rig_wait_tokens(&s.c, 1);
    struct rig_batch b;
    rig_batch(&b, s.d[0]);
    rig_lose(&b);
    rig_end(s.d[0], s.c.id, 1, DUTY_D, STOP);
    rig_answer_resync(s.d[0], s.c.id, 1, 1, "bc", false);
    rig_answer_resync(s.d[0], s.c.id, 1, 3, "d.", true);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "abcd");
    assert_string_equal(rig_record(&s.r, s.c.id, "attempts"), "1");
    end(&s);
}

/* The last token is both the longest allowed and the end of a stop string, and it comes behind D's end. */
static void stop_string_in_a_resync_behind_the_end_is_the_reason(void **state)
{
    (void)state;
    struct scene s;
    begin_with(&s, true, 1, "ab", NULL);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_accept(s.p, PREFILL, NULL);
    rig_say(s.p, s.c.id, 1, 0, "a");
    rig_wait_tokens(&s.c, 1);
    struct rig_batch b;
    rig_batch(&b, s.d[0]);
    rig_token(&b, s.c.id, 1, 1, 1);
    rig_lose(&b);
    rig_end(s.d[0], s.c.id, 1, DUTY_D, LENGTH);
    rig_answer_resync(s.d[0], s.c.id, 1, 1, "b", false);
    rig_accept(s.p, CANCEL, NULL);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.finish, "stop");
    assert_string_equal(s.c.stop_reason, "ab");
    end(&s);
}

static void usage_is_known_without_the_last_report(void **state)
{
    (void)state;
    struct scene s;
    begin_with(&s, false, 1, "ab", NULL);
    rig_accept(s.d[0], SUBMIT, NULL);
    Sluice__LegEvent admitted = SLUICE__LEG_EVENT__INIT, *legs[] = {&admitted};
    admitted.request_id = s.c.id;
    admitted.attempt = 1;
    admitted.duty = DUTY_D;
    admitted.state = (char *)"admitted";
    admitted.has_cached_tokens = true;
    admitted.cached_tokens = 32;
    struct rig_batch b;
    rig_batch(&b, s.d[0]);
    b.m.n_legs = 1;
    b.m.legs = legs;
    rig_send(&b);
    rig_say(s.d[0], s.c.id, 1, 0, "ab"); /* the stop string; the node's own end never comes */
    rig_accept(s.d[0], CANCEL, NULL);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.finish, "stop");
    assert_int_equal(s.c.usage.cached_tokens, 32);
    end(&s);
}

/* D's answer to the Submit is slower than its events: what was lost before it is known to be there is asked for
 * as well. */
static void events_lost_before_the_submit_is_answered_are_asked_for(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, true, 1);
    struct sl_wire_in *submit = rig_take(s.d[0], SUBMIT);
    rig_accept(s.p, PREFILL, NULL);
    rig_say(s.p, s.c.id, 1, 0, "a");
    rig_wait_tokens(&s.c, 1);
    struct rig_batch b;
    rig_batch(&b, s.d[0]);
    rig_token(&b, s.c.id, 1, 1, 1);
    rig_lose(&b);
    rig_end(s.d[0], s.c.id, 1, DUTY_D, LENGTH);
    rig_answer_resync(s.d[0], s.c.id, 1, 1, "b", true);
    rig_answer(submit, SL_OK);
    rig_end(s.p, s.c.id, 1, DUTY_P, SLUICE__DONE_REASON__DONE_PREFILLED);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "ab");
    assert_string_equal(s.c.finish, "length");
    end(&s);
}

static void first_token_of_p_lost_is_asked_of_d(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, true, 1);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_accept(s.p, PREFILL, NULL);
    rig_say(s.d[0], s.c.id, 1, 1, "b"); /* P's batch with the first one never comes */
    rig_answer_resync(s.d[0], s.c.id, 1, 0, "ab", false);
    rig_wait_tokens(&s.c, 2);
    rig_say(s.d[0], s.c.id, 1, 2, "c");
    rig_end(s.d[0], s.c.id, 1, DUTY_D, LENGTH);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "abc");
    end(&s);
}

static void node_that_lost_it_makes_it_be_placed_again(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 2);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_say(s.d[0], s.c.id, 1, 0, "ab");
    rig_wait_tokens(&s.c, 2);
    struct rig_batch b;
    rig_batch(&b, s.d[0]);
    rig_token(&b, s.c.id, 1, 2, 2);
    rig_lose(&b);
    rig_batch(&b, s.d[0]);
    rig_send(&b);
    rig_answer_resync(s.d[0], s.c.id, 1, 2, NULL, false);
    assert_int_equal(rig_accept(s.d[1], SUBMIT, NULL), 2);
    rig_say(s.d[1], s.c.id, 2, 2, "c.");
    rig_end(s.d[1], s.c.id, 2, DUTY_D, STOP);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "abc");
    end(&s);
}

/* An answer of another kind says nothing about the tokens; asking on would never end. */
static void node_that_cannot_tell_what_is_missing_has_lost_it(void **state)
{
    static const enum sl_err answers[] = {SL_OK, SL_EUNSUPPORTED};
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(answers); i++) {
        struct scene s;
        begin(&s, false, 2);
        rig_accept(s.d[0], SUBMIT, NULL);
        rig_say(s.d[0], s.c.id, 1, 0, "ab");
        rig_wait_tokens(&s.c, 2);
        struct rig_batch b;
        rig_batch(&b, s.d[0]);
        rig_token(&b, s.c.id, 1, 2, 2);
        rig_lose(&b);
        rig_batch(&b, s.d[0]);
        rig_send(&b);
        rig_answer(rig_take(s.d[0], RESYNC), answers[i]);
        rig_accept(s.d[0], CANCEL, NULL);
        assert_int_equal(rig_accept(s.d[1], SUBMIT, NULL), 2);
        rig_say(s.d[1], s.c.id, 2, 2, "c.");
        rig_end(s.d[1], s.c.id, 2, DUTY_D, STOP);
        rig_wait_end(&s.c);
        assert_string_equal(s.c.text, "abc");
        end(&s);
    }
}

static void node_that_gives_no_answer_is_asked_ever_later(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 1);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_say(s.d[0], s.c.id, 1, 0, "a");
    rig_wait_tokens(&s.c, 1);
    rig_say(s.d[0], s.c.id, 1, 2, "c");
    struct sl_wire_in *in = rig_take(s.d[0], RESYNC);
    for (uint64_t wait_ms = 100; wait_ms <= 400; wait_ms *= 2) {
        uint64_t since_us = sl_now_us();
        rig_answer(in, SL_EAGAIN);
        in = rig_take(s.d[0], RESYNC);
        assert_true(sl_now_us() - since_us >= wait_ms * 1000);
    }
    rig_answer(in, SL_EAGAIN);
    rig_answer_resync(s.d[0], s.c.id, 1, 1, "bc.", true);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "abc");
    end(&s);
}

static void decode_node_dies_mid_stream_tokens_go_on(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 2);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_say(s.d[0], s.c.id, 1, 0, "abc");
    rig_wait_tokens(&s.c, 3);
    uint64_t old_boot = s.d[0]->boot_id, old_seq = s.d[0]->seq;
    rig_restart(s.d[0]);

    struct sl_wire_in *in = rig_take(s.d[1], SUBMIT);
    const Sluice__Submit *m = in->msg->submit;
    assert_int_equal(m->attempt, 2);
    assert_int_equal(m->n_prompt, 40);
    assert_int_equal(m->n_tokens, 43);
    assert_int_equal(m->tokens[39], 39 % 26);
    assert_int_equal(m->tokens[40], 0);
    assert_int_equal(m->tokens[42], 2);
    assert_int_equal(m->sampling->max_tokens, 64); /* counts from n_prompt */
    rig_answer(in, SL_OK);

    uint64_t new_boot = s.d[0]->boot_id, new_seq = s.d[0]->seq;
    s.d[0]->boot_id = old_boot; /* what the old life still had in its socket */
    s.d[0]->seq = old_seq;
    rig_say(s.d[0], s.c.id, 1, 3, "xyz");
    s.d[0]->boot_id = new_boot;
    s.d[0]->seq = new_seq;

    rig_say(s.d[1], s.c.id, 2, 3, "de.");
    rig_end(s.d[1], s.c.id, 2, DUTY_D, STOP);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "abcde");
    assert_int_equal(s.c.n_tokens, 6);
    for (uint32_t i = 0; i < s.c.n_tokens; i++)
        assert_int_equal(s.c.indexes[i], i);
    assert_int_equal(s.c.usage.prompt_tokens, 40);
    assert_int_equal(s.c.usage.completion_tokens, 6);
    assert_string_equal(rig_record(&s.r, s.c.id, "attempts"), "2");
    assert_string_equal(rig_record(&s.r, s.c.id, "D"), "d1");
    end(&s);
}

static void stalls_soon(struct sl_flow_conf *conf)
{
    conf->node_stall_ms = 1;
}

/* It goes on reporting, with work at hand and no layer computed. */
static void stall(struct rig_node *n)
{
    n->decode_rows = 1;
    for (int i = 0; i < 2; i++) {
        for (uint64_t since = sl_now_ms(); sl_now_ms() < since + 2;)
            sched_yield();
        rig_heartbeat(n);
    }
}

static void decode_node_stalls_tokens_go_on(void **state)
{
    (void)state;
    struct scene s;
    begin_with(&s, false, 2, NULL, stalls_soon);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_say(s.d[0], s.c.id, 1, 0, "ab");
    rig_wait_tokens(&s.c, 2);
    stall(s.d[0]);
    assert_int_equal(rig_accept(s.d[0], CANCEL, NULL), 1);
    assert_int_equal(rig_accept(s.d[1], SUBMIT, NULL), 2);
    stall(s.d[0]); /* told once */
    rig_say(s.d[1], s.c.id, 2, 2, "c.");
    rig_end(s.d[1], s.c.id, 2, DUTY_D, STOP);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "abc");
    assert_string_equal(rig_record(&s.r, s.c.id, "attempts"), "2");
    end(&s);
}

static void prefill_node_stalls_its_leg_is_canceled_and_d_goes_on(void **state)
{
    (void)state;
    struct scene s;
    begin_with(&s, true, 1, NULL, stalls_soon);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_accept(s.p, PREFILL, NULL);
    rig_record(&s.r, s.c.id, "attempts"); /* both answers are taken */
    stall(s.p);
    assert_int_equal(rig_accept(s.p, CANCEL, NULL), 1);
    rig_say(s.d[0], s.c.id, 1, 0, "ab."); /* its transfer told it; it computed all */
    rig_end(s.d[0], s.c.id, 1, DUTY_D, STOP);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "ab");
    assert_string_equal(rig_record(&s.r, s.c.id, "attempts"), "1");
    end(&s);
}

static void decode_node_restarted_alone_serves_again(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 1);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_say(s.d[0], s.c.id, 1, 0, "a");
    rig_wait_tokens(&s.c, 1);
    rig_restart(s.d[0]); /* its new life is another node */
    assert_int_equal(rig_accept(s.d[0], SUBMIT, NULL), 2);
    rig_say(s.d[0], s.c.id, 2, 1, "b.");
    rig_end(s.d[0], s.c.id, 2, DUTY_D, STOP);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "ab");
    end(&s);
}

/* Its new life is refused, and the old one is over all the same. */
static void decode_node_restarted_at_no_address_is_lost(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 2);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_say(s.d[0], s.c.id, 1, 0, "a");
    rig_wait_tokens(&s.c, 1);
    s.d[0]->boot_id += 1000;
    snprintf(s.d[0]->command_url, sizeof s.d[0]->command_url, "nowhere");
    assert_false(rig_join(s.d[0]));
    assert_non_null(strstr(s.d[0]->why, "nowhere"));
    assert_int_equal(rig_accept(s.d[1], SUBMIT, NULL), 2);
    rig_say(s.d[1], s.c.id, 2, 1, "b.");
    rig_end(s.d[1], s.c.id, 2, DUTY_D, STOP);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "ab");
    end(&s);
}

static void decode_node_dies_after_the_last_token_ends_well(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 1);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_say(s.d[0], s.c.id, 1, 0, "ab.");
    rig_wait_tokens(&s.c, 3);
    rig_restart(s.d[0]); /* only the end was lost with it */
    rig_wait_end(&s.c);
    assert_int_equal(s.c.err, SL_OK);
    assert_string_equal(s.c.finish, "stop");
    assert_string_equal(s.c.text, "ab");
    end(&s);
}

static void decode_node_dies_in_pd_the_prefill_is_placed_again_too(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, true, 2);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_accept(s.p, PREFILL, NULL);
    rig_say(s.p, s.c.id, 1, 0, "a");
    rig_wait_tokens(&s.c, 1);
    rig_restart(s.d[0]);
    assert_int_equal(rig_accept(s.p, CANCEL, NULL), 1);
    struct sl_wire_in *in = rig_take(s.d[1], SUBMIT);
    assert_int_equal(in->msg->submit->split_tokens, 41); /* all of prompt and received */
    rig_answer(in, SL_OK);
    in = rig_take(s.p, PREFILL);
    assert_int_equal(in->msg->prefill->attempt, 2);
    assert_int_equal(in->msg->prefill->n_tokens, 41);
    assert_int_equal(in->msg->prefill->n_prompt, 40);
    rig_answer(in, SL_OK);
    rig_say(s.p, s.c.id, 2, 1, "b");
    rig_end(s.p, s.c.id, 2, DUTY_P, SLUICE__DONE_REASON__DONE_PREFILLED);
    rig_say(s.d[1], s.c.id, 2, 2, "c.");
    rig_end(s.d[1], s.c.id, 2, DUTY_D, STOP);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "abc");
    end(&s);
}

static void prefill_node_dies_is_recorded(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, true, 1);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_accept(s.p, PREFILL, NULL);
    rig_say(s.d[0], s.c.id, 1, 0, "a"); /* D computes already: P's death is D's to handle */
    rig_wait_tokens(&s.c, 1);
    rig_restart(s.p);
    Sluice__LegReport report = SLUICE__LEG_REPORT__INIT;
    report.has_recovered_tokens = true;
    report.recovered_tokens = 24;
    rig_say(s.d[0], s.c.id, 1, 1, "b.");
    struct rig_batch b;
    rig_batch(&b, s.d[0]);
    rig_done(&b, s.c.id, 1, DUTY_D, STOP, SL_OK, &report);
    rig_send(&b);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "ab");
    assert_string_equal(rig_record(&s.r, s.c.id, "attempts"), "1");
    assert_string_equal(rig_record(&s.r, s.c.id, "recovered_tokens"), "24");
    assert_string_equal(rig_record(&s.r, s.c.id, "faults"), "1");
    end(&s);
}

static void prefill_leg_error_is_recorded(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, true, 1);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_accept(s.p, PREFILL, NULL);
    struct rig_batch b;
    rig_batch(&b, s.p);
    rig_done(&b, s.c.id, 1, DUTY_P, SLUICE__DONE_REASON__DONE_ERROR, SL_EDEVICE, NULL);
    rig_send(&b);
    rig_say(s.d[0], s.c.id, 1, 0, "ab.");
    rig_end(s.d[0], s.c.id, 1, DUTY_D, STOP);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "ab");
    assert_string_equal(rig_record(&s.r, s.c.id, "end_P"), "error EDEVICE");
    end(&s);
}

static void prefill_refused_is_placed_again_without_it(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, true, 1);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_answer(rig_take(s.p, PREFILL), SL_EDRAINING);
    assert_int_equal(rig_accept(s.d[0], CANCEL, NULL), 1);
    struct sl_wire_in *in = rig_take(s.d[0], SUBMIT);
    assert_int_equal(in->msg->submit->attempt, 2);
    assert_int_equal(in->msg->submit->split_tokens, 0);
    rig_answer(in, SL_OK);
    rig_say(s.d[0], s.c.id, 2, 0, "ab.");
    rig_end(s.d[0], s.c.id, 2, DUTY_D, STOP);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "ab");
    assert_string_equal(rig_record(&s.r, s.c.id, "mode"), "colocated");
    end(&s);
}

static void decode_refused_goes_elsewhere_and_p_is_canceled(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, true, 2);
    struct sl_wire_in *p1 = rig_take(s.p, PREFILL);
    rig_answer(p1, SL_OK);
    rig_answer(rig_take(s.d[0], SUBMIT), SL_ENOPAGES);
    assert_int_equal(rig_accept(s.p, CANCEL, NULL), 1);
    assert_int_equal(rig_accept(s.d[1], SUBMIT, NULL), 2);
    assert_int_equal(rig_accept(s.p, PREFILL, NULL), 2);
    rig_say(s.p, s.c.id, 2, 0, "a");
    rig_end(s.p, s.c.id, 2, DUTY_P, SLUICE__DONE_REASON__DONE_PREFILLED);
    rig_say(s.d[1], s.c.id, 2, 1, "b.");
    rig_end(s.d[1], s.c.id, 2, DUTY_D, STOP);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "ab");
    end(&s);
}

static void all_full_before_the_first_token_is_told_the_client(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 2);
    rig_answer(rig_take(s.d[0], SUBMIT), SL_EAGAIN);
    rig_answer(rig_take(s.d[1], SUBMIT), SL_EAGAIN);
    rig_wait_end(&s.c);
    assert_int_equal(s.c.err, SL_EAGAIN);
    assert_true(s.c.why[0]);
    end(&s);
}

static void all_full_in_mid_stream_waits_for_room(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 2);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_say(s.d[0], s.c.id, 1, 0, "a");
    rig_wait_tokens(&s.c, 1);
    struct rig_batch b;
    rig_batch(&b, s.d[0]);
    rig_done(&b, s.c.id, 1, DUTY_D, SLUICE__DONE_REASON__DONE_ERROR, SL_ENOPAGES, NULL);
    rig_send(&b);
    rig_answer(rig_take(s.d[1], SUBMIT), SL_EAGAIN);
    struct rig_node *n = s.d[1]; /* then both may be asked again, after a pause */
    struct sl_wire_in *in = rig_take(n, SUBMIT);
    assert_int_equal(in->msg->submit->attempt, 3);
    rig_answer(in, SL_OK);
    rig_say(n, s.c.id, 3, 1, "b.");
    rig_end(n, s.c.id, 3, DUTY_D, STOP);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "ab");
    end(&s);
}

static void bad_request_is_not_tried_elsewhere(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 2);
    rig_answer(rig_take(s.d[0], SUBMIT), SL_EINVAL);
    rig_wait_end(&s.c);
    assert_int_equal(s.c.err, SL_EINVAL);
    assert_string_equal(s.c.why, "The test refuses.");
    end(&s);
}

/* Short, and yet long enough for a thread of this test that gets no CPU for a while. */
static void short_timeout(struct sl_flow_conf *conf)
{
    conf->command_timeout_ms = 2000;
}

static void command_unanswered_is_sent_once_more_then_elsewhere(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_COLOCATED, short_timeout);
    struct rig_node *d[2] = {rig_node(&r, "d0", false), rig_node(&r, "d1", false)};
    assert_true(rig_join(d[0]) && rig_join(d[1]));
    struct rig_client c;
    rig_client(&c, &r);
    assert_int_equal(rig_submit(&c, rig_request(&r, 40)), SL_OK);
    struct sl_wire_in *first = rig_take(d[0], SUBMIT), *second = rig_take(d[0], SUBMIT);
    assert_int_equal(first->msg->submit->attempt, 1);
    assert_int_equal(second->msg->submit->attempt, 1); /* the same command */
    struct sl_wire_in *in = rig_take(d[1], SUBMIT);
    assert_int_equal(in->msg->submit->attempt, 2);
    rig_answer(in, SL_OK);
    sl_wire_in_free(first);
    sl_wire_in_free(second);
    struct sl_wire_in *cancel = rig_take(d[0], CANCEL); /* it may have got one of them */
    assert_int_equal(cancel->msg->cancel->attempt, 1);
    rig_answer(cancel, SL_OK);
    rig_say(d[1], c.id, 2, 0, "a.");
    rig_end(d[1], c.id, 2, DUTY_D, STOP);
    rig_wait_end(&c);
    assert_string_equal(c.text, "a");
    assert_string_equal(rig_record(&r, c.id, "command_retries"), "1");
    rig_client_fini(&c);
    rig_close(&r);
}

static void deadline_passes_both_legs_are_canceled(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_PD, NULL);
    struct rig_node *p = rig_node(&r, "p0", true), *d = rig_node(&r, "d0", false);
    assert_true(rig_join(p) && rig_join(d));
    struct rig_client c;
    rig_client(&c, &r);
    struct sl_gen_req *q = rig_request(&r, 40);
    q->deadline_ms = 300;
    assert_int_equal(rig_submit(&c, q), SL_OK);
    rig_accept(d, SUBMIT, NULL);
    rig_accept(p, PREFILL, NULL);
    rig_accept(d, CANCEL, NULL);
    rig_accept(p, CANCEL, NULL);
    rig_wait_end(&c);
    assert_int_equal(c.err, SL_EDEADLINE);
    rig_client_fini(&c);
    rig_close(&r);
}

/* Each of n nodes, which all live, loses it once after two tokens. */
static void lose_once_at_each(uint32_t n)
{
    struct scene s;
    begin(&s, false, n);
    for (uint32_t i = 0; i < 3; i++) {
        struct rig_node *d = s.d[i % n];
        struct rig_batch b;
        assert_int_equal(rig_accept(d, SUBMIT, NULL), i + 1);
        rig_say(d, s.c.id, i + 1, 2 * i, (const char *[]){"ab", "cd", "e."}[i]);
        rig_wait_tokens(&s.c, 2 * (i + 1));
        rig_batch(&b, d);
        rig_done(&b, s.c.id, i + 1, DUTY_D, SLUICE__DONE_REASON__DONE_ERROR, SL_ELOST, NULL);
        rig_send(&b);
    }
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "abcde");
    assert_string_equal(s.c.finish, "stop");
    end(&s);
}

/* One node alone: as when it took the router for dead, which only slept. */
static void node_that_lost_it_before_the_last_token_is_tried_again(void **state)
{
    (void)state;
    lose_once_at_each(2);
    lose_once_at_each(1);
}

static void last_node_dies_client_gets_a_clear_error(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, true, 1); /* p0 may not decode */
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_accept(s.p, PREFILL, NULL);
    rig_say(s.p, s.c.id, 1, 0, "a");
    rig_wait_tokens(&s.c, 1);
    s.d[0]->numerics_id = 8; /* comes back as another kind: refused, so its old life stays the last */
    uint64_t seq = s.d[0]->seq;
    s.d[0]->boot_id++;
    assert_false(rig_join(s.d[0]));
    struct rig_batch b;
    s.d[0]->boot_id--;
    s.d[0]->seq = seq;
    rig_batch(&b, s.d[0]);
    rig_done(&b, s.c.id, 1, DUTY_D, SLUICE__DONE_REASON__DONE_ERROR, SL_EDEVICE, NULL);
    rig_send(&b);
    rig_wait_end(&s.c);
    assert_int_equal(s.c.err, SL_EPEER);
    assert_string_equal(
        s.c.why, "The answer cannot go on, as no compatible node is left (d0: the decode node failed).");
    end(&s);
}

static void dies_soon(struct sl_flow_conf *conf)
{
    conf->heartbeat_ms = 50;
    conf->node_dead_ms = 3000; /* and no less: this test must report for d1 within it */
}

static void silent_node_is_dead_and_its_requests_move(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_COLOCATED, dies_soon);
    struct rig_node *d[2] = {rig_node(&r, "d0", false), rig_node(&r, "d1", false)};
    assert_true(rig_join(d[0]));
    struct rig_client c;
    rig_client(&c, &r);
    assert_int_equal(rig_submit(&c, rig_request(&r, 40)), SL_OK);
    rig_accept(d[0], SUBMIT, NULL);
    rig_say(d[0], c.id, 1, 0, "ab");
    rig_wait_tokens(&c, 2);
    assert_true(rig_join(d[1]));
    while (sl_queue_len(d[1]->queue) == 0) { /* d1 reports, d0 is silent */
        rig_heartbeat(d[1]);
        sl_queue_wait(d[1]->queue, 50);
    }
    assert_int_equal(rig_accept(d[1], SUBMIT, NULL), 2);
    rig_say(d[1], c.id, 2, 2, "c.");
    rig_end(d[1], c.id, 2, DUTY_D, STOP);
    rig_wait_end(&c);
    assert_string_equal(c.text, "abc");
    rig_client_fini(&c);
    rig_close(&r);
}

static void tokens_that_differ_are_counted(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, true, 1);
    rig_accept(s.d[0], SUBMIT, NULL);
    rig_accept(s.p, PREFILL, NULL);
    rig_say(s.p, s.c.id, 1, 0, "a");
    rig_wait_tokens(&s.c, 1);
    rig_say(s.d[0], s.c.id, 1, 0, "xb.");
    rig_end(s.d[0], s.c.id, 1, DUTY_D, STOP);
    rig_wait_end(&s.c);
    assert_string_equal(s.c.text, "ab"); /* what was shown stays */
    struct sl_buf b;
    sl_buf_init(&b, 1 << 20);
    sl_metrics_render(s.r.metrics, &b);
    assert_non_null(strstr(b.data, "sluice_token_mismatches_total 1\n"));
    sl_buf_fini(&b);
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lost_batch_is_asked_for_again),
        cmocka_unit_test(numbers_of_batches_for_another_router_cost_nothing),
        cmocka_unit_test(lost_end_is_found_by_the_next_batch),
        cmocka_unit_test(end_behind_a_lost_token_waits_for_it),
        cmocka_unit_test(answer_that_is_cut_is_asked_on_from_there),
        cmocka_unit_test(stop_string_in_a_resync_behind_the_end_is_the_reason),
        cmocka_unit_test(usage_is_known_without_the_last_report),
        cmocka_unit_test(events_lost_before_the_submit_is_answered_are_asked_for),
        cmocka_unit_test(first_token_of_p_lost_is_asked_of_d),
        cmocka_unit_test(node_that_lost_it_makes_it_be_placed_again),
        cmocka_unit_test(node_that_cannot_tell_what_is_missing_has_lost_it),
        cmocka_unit_test(node_that_gives_no_answer_is_asked_ever_later),
        cmocka_unit_test(decode_node_dies_mid_stream_tokens_go_on),
        cmocka_unit_test(decode_node_stalls_tokens_go_on),
        cmocka_unit_test(prefill_node_stalls_its_leg_is_canceled_and_d_goes_on),
        cmocka_unit_test(decode_node_restarted_alone_serves_again),
        cmocka_unit_test(decode_node_restarted_at_no_address_is_lost),
        cmocka_unit_test(decode_node_dies_after_the_last_token_ends_well),
        cmocka_unit_test(decode_node_dies_in_pd_the_prefill_is_placed_again_too),
        cmocka_unit_test(prefill_node_dies_is_recorded),
        cmocka_unit_test(prefill_leg_error_is_recorded),
        cmocka_unit_test(prefill_refused_is_placed_again_without_it),
        cmocka_unit_test(decode_refused_goes_elsewhere_and_p_is_canceled),
        cmocka_unit_test(all_full_before_the_first_token_is_told_the_client),
        cmocka_unit_test(all_full_in_mid_stream_waits_for_room),
        cmocka_unit_test(bad_request_is_not_tried_elsewhere),
        cmocka_unit_test(command_unanswered_is_sent_once_more_then_elsewhere),
        cmocka_unit_test(deadline_passes_both_legs_are_canceled),
        cmocka_unit_test(node_that_lost_it_before_the_last_token_is_tried_again),
        cmocka_unit_test(last_node_dies_client_gets_a_clear_error),
        cmocka_unit_test(silent_node_is_dead_and_its_requests_move),
        cmocka_unit_test(tokens_that_differ_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
