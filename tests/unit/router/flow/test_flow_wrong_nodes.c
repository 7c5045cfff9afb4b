/* tests/unit/router/flow/test_flow_wrong_nodes.c - nodes that tell what cannot be: tokens behind the last one, of
 * no vocabulary, from the wrong node; ends without tokens. The client gets the right answer, the node loses
 * the request and is told so, and it is counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tests/unit/router/flow/flow_rig.h"

#define SUBMIT  SLUICE__ENVELOPE__BODY_SUBMIT
#define PREFILL SLUICE__ENVELOPE__BODY_PREFILL
#define CANCEL  SLUICE__ENVELOPE__BODY_CANCEL
#define DUTY_P  SLUICE__ROLE__ROLE_PREFILL
#define DUTY_D  SLUICE__ROLE__ROLE_DECODE
#define STOP    SLUICE__DONE_REASON__DONE_STOP

/* d0, which has the request and is wrong, and d1; with pd also p0. */
struct scene {
    struct rig r;
    struct rig_node *p, *d[2];
    struct rig_client c;
};

static void begin(struct scene *s, bool pd, uint32_t max_tokens, const char *stop)
{
    rig_open(&s->r, pd ? SLUICE__MODE__MODE_PD : SLUICE__MODE__MODE_COLOCATED, NULL);
    if (pd) {
        s->p = rig_node(&s->r, "p0", true);
        s->p->no_decode = true;
        assert_true(rig_join(s->p));
    }
    for (uint32_t i = 2; i-- > 0;) {
        s->d[i] = rig_node(&s->r, i ? "d1" : "d0", false);
        s->d[i]->no_prefill = true;
        assert_true(rig_join(s->d[i]));
    }
    rig_client(&s->c, &s->r);
    struct sl_gen_req *q = rig_request(&s->r, 40);
    q->want_decode_node = "d0";
    q->sampling.max_tokens = max_tokens;
    q->sampling.n_logprobs = 2;
    q->stop[0] = stop;
    q->n_stop = stop != NULL;
    assert_int_equal(rig_submit(&s->c, q), SL_OK);
    rig_accept(s->d[0], SUBMIT, NULL);
    if (pd)
        rig_accept(s->p, PREFILL, NULL);
}

static void end(struct scene *s, const char *text, const char *finish, uint32_t n_tokens, unsigned n_wrong)
{
    rig_wait_end(&s->c);
    assert_int_equal(s->c.err, SL_OK);
    assert_string_equal(s->c.text, text);
    assert_string_equal(s->c.finish, finish);
    assert_int_equal(s->c.n_tokens, n_tokens);
    assert_int_equal(s->c.usage.completion_tokens, n_tokens);
    rig_wait_idle(&s->r);
    struct sl_buf b;
    char line[64];
    snprintf(line, sizeof line, "\nsluice_wrong_tokens_total %u\n", n_wrong);
    sl_buf_init(&b, 1 << 20);
    sl_metrics_render(s->r.metrics, &b);
    assert_non_null(strstr(b.data, line));
    sl_buf_fini(&b);
    rig_client_fini(&s->c);
    rig_close(&s->r);
}

static void more_tokens_than_asked_for_end_with_length(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 3, NULL);
    rig_say(s.d[0], s.c.id, 1, 0, "abcdef"); /* and would go on for ever */
    assert_int_equal(rig_accept(s.d[0], CANCEL, NULL), 1);
    end(&s, "abc", "length", 3, 1);
}

static void tokens_behind_a_stop_token_end_with_stop(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 64, NULL);
    rig_say(s.d[0], s.c.id, 1, 0, "ab.cd.");
    assert_int_equal(rig_accept(s.d[0], CANCEL, NULL), 1);
    end(&s, "ab", "stop", 3, 1);
}

static void tokens_behind_a_stop_string_are_no_fault(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 64, "b");
    rig_say(s.d[0], s.c.id, 1, 0, "abcd");
    assert_int_equal(rig_accept(s.d[0], CANCEL, NULL), 1);
    end(&s, "a", "stop", 2, 0);
}

/* All tokens are here; an end that is lost, or never comes, holds nobody up. */
static void end_that_never_comes_is_not_waited_for(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 3, NULL);
    rig_say(s.d[0], s.c.id, 1, 0, "abc");
    assert_int_equal(rig_accept(s.d[0], CANCEL, NULL), 1);
    end(&s, "abc", "length", 3, 0);
}

static void token_that_cannot_be_loses_the_node_the_request(void **state)
{
    (void)state;
    static const struct {
        uint32_t index;
        int32_t token;
        size_t n_top, n_probs;
    } wrong[] = {
        {64, 1, 0, 0}, {UINT32_MAX, 1, 0, 0}, {1, RIG_VOCAB, 0, 0},
        {1, -1, 0, 0}, {2, INT32_MIN, 0, 0},  {1, 1, 3, 3}, /* two were asked for */
        {1, 1, 2, 1},
    };
    for (size_t i = 0; i < SL_COUNTOF(wrong); i++) {
        struct scene s;
        begin(&s, false, 64, NULL);
        rig_say(s.d[0], s.c.id, 1, 0, "a");
        rig_wait_tokens(&s.c, 1);
        int32_t top[3] = {1, 2, 3};
        float probs[3] = {0};
        struct rig_batch b;
        rig_batch(&b, s.d[0]);
        rig_token(&b, s.c.id, 1, wrong[i].index, wrong[i].token);
        b.tokens[0]->top_tokens = top;
        b.tokens[0]->n_top_tokens = wrong[i].n_top;
        b.tokens[0]->top_logprobs = probs;
        b.tokens[0]->n_top_logprobs = wrong[i].n_probs;
        rig_send(&b);
        assert_int_equal(rig_accept(s.d[0], CANCEL, NULL), 1);
        struct sl_wire_in *in = rig_take(s.d[1], SUBMIT);
        assert_int_equal(in->msg->submit->attempt, 2);
        assert_int_equal(in->msg->submit->n_tokens, 41); /* with the good token, without the wrong one */
        rig_answer(in, SL_OK);
        rig_say(s.d[1], s.c.id, 2, 1, "b.");
        rig_end(s.d[1], s.c.id, 2, DUTY_D, STOP);
        end(&s, "ab", "stop", 3, 1);
    }
}

static void prefill_node_that_tells_wrong_tokens_is_not_needed(void **state)
{
    (void)state;
    static const struct {
        uint32_t index;
        int32_t token;
    } wrong[] = {{0, RIG_VOCAB}, {1, 1}, {70, 1}};
    for (size_t i = 0; i < SL_COUNTOF(wrong); i++) {
        struct scene s;
        begin(&s, true, 64, NULL);
        for (int k = 0; k < 2; k++) { /* said twice, told once */
            struct rig_batch b;
            rig_batch(&b, s.p);
            rig_token(&b, s.c.id, 1, wrong[i].index, wrong[i].token);
            rig_send(&b);
        }
        assert_int_equal(rig_accept(s.p, CANCEL, NULL), 1);
        rig_say(s.d[0], s.c.id, 1, 0, "ab.");
        rig_end(s.d[0], s.c.id, 1, DUTY_D, STOP);
        end(&s, "ab", "stop", 3, 1);
    }
}

static void end_without_its_tokens_is_asked_once_then_placed_again(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 64, NULL);
    rig_end(s.d[0], s.c.id, 1, DUTY_D, STOP);
    rig_answer_resync(s.d[0], s.c.id, 1, 0, "", false);
    assert_int_equal(rig_accept(s.d[1], SUBMIT, NULL), 2);
    rig_say(s.d[1], s.c.id, 2, 0, "ab.");
    rig_end(s.d[1], s.c.id, 2, DUTY_D, STOP);
    end(&s, "ab", "stop", 3, 0);
}

static void decode_leg_that_ends_as_prefilled_is_placed_again(void **state)
{
    (void)state;
    struct scene s;
    begin(&s, false, 64, NULL);
    rig_say(s.d[0], s.c.id, 1, 0, "a");
    rig_end(s.d[0], s.c.id, 1, DUTY_D, SLUICE__DONE_REASON__DONE_PREFILLED);
    assert_int_equal(rig_accept(s.d[1], SUBMIT, NULL), 2);
    rig_say(s.d[1], s.c.id, 2, 1, "b.");
    rig_end(s.d[1], s.c.id, 2, DUTY_D, STOP);
    end(&s, "ab", "stop", 3, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_tokens_than_asked_for_end_with_length),
        cmocka_unit_test(tokens_behind_a_stop_token_end_with_stop),
        cmocka_unit_test(tokens_behind_a_stop_string_are_no_fault),
        cmocka_unit_test(end_that_never_comes_is_not_waited_for),
        cmocka_unit_test(token_that_cannot_be_loses_the_node_the_request),
        cmocka_unit_test(prefill_node_that_tells_wrong_tokens_is_not_needed),
        cmocka_unit_test(end_without_its_tokens_is_asked_once_then_placed_again),
        cmocka_unit_test(decode_leg_that_ends_as_prefilled_is_placed_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
