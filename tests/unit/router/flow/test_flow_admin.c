/* tests/unit/router/flow/test_flow_admin.c - sluicectl's operations, over the socket and from another thread;
 * drain; who may join. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/thread.h"
#include "tests/unit/router/flow/flow_rig.h"

#define SUBMIT SLUICE__ENVELOPE__BODY_SUBMIT
#define CANCEL SLUICE__ENVELOPE__BODY_CANCEL
#define DRAIN  SLUICE__ENVELOPE__BODY_DRAIN

static const Sluice__AdminTable *table(const Sluice__AdminReply *r, const char *title)
{
    for (size_t i = 0; i < r->n_tables; i++)
        if (strcmp(r->tables[i]->title, title) == 0)
            return r->tables[i];
    fail_msg("no table %s", title);
    return NULL;
}

static const char *cell(const Sluice__AdminTable *t, size_t row, const char *column)
{
    for (size_t c = 0; c < t->n_columns; c++)
        if (strcmp(t->columns[c], column) == 0)
            return t->rows[row]->cells[c];
    fail_msg("no column %s", column);
    return NULL;
}

static void expect_code(struct rig *r, const char *op, const char *arg, enum sl_err code)
{
    Sluice__AdminReply *reply = rig_admin(r, op, arg);
    if (reply->code != code)
        fail_msg("%s %s: %s, %s", op, arg ? arg : "", sl_err_name((enum sl_err)reply->code), reply->text);
    assert_true(code == SL_OK || (reply->text && reply->text[0]));
    sluice__admin_reply__free_unpacked(reply, NULL);
}

static void admin_wrong_questions_are_refused_in_words(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_PD, NULL);
    expect_code(&r, "dance", NULL, SL_EUNSUPPORTED);
    expect_code(&r, "drain", NULL, SL_EINVAL);
    expect_code(&r, "drain", "d9", SL_ENOTFOUND);
    expect_code(&r, "mode", "fast", SL_EINVAL);
    expect_code(&r, "explain", "nobody", SL_ENOTFOUND);
    expect_code(&r, "explain", "last", SL_ENOTFOUND);
    expect_code(&r, "cancel", "nobody", SL_ENOTFOUND);
    expect_code(&r, "requests", "many", SL_EINVAL);
    expect_code(&r, "requests", "-1", SL_EINVAL);
    expect_code(&r, "events", "many", SL_EINVAL);
    expect_code(&r, "status", NULL, SL_ENOTREADY);
    expect_code(&r, "nodes", NULL, SL_OK);
    expect_code(&r, "links", NULL, SL_OK);
    rig_close(&r);
}

static void admin_over_the_socket_answers_the_same(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_PD, NULL);
    assert_true(rig_join(rig_node(&r, "d0", false)));
    Sluice__AdminRequest m = SLUICE__ADMIN_REQUEST__INIT;
    m.op = (char *)"nodes";
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT, *a;
    e.body_case = SLUICE__ENVELOPE__BODY_ADMIN;
    e.admin = &m;
    assert_int_equal(sl_wire_call_wait(r.admin_url, NULL, &e, RIG_WAIT_MS, &a, NULL), SL_OK);
    assert_int_equal(a->body_case, SLUICE__ENVELOPE__BODY_ADMIN_REPLY);
    const Sluice__AdminTable *t = table(a->admin_reply, "nodes");
    assert_int_equal(t->n_rows, 1);
    assert_string_equal(cell(t, 0, "node"), "d0");
    assert_string_equal(cell(t, 0, "state"), "up");
    assert_string_equal(cell(t, 0, "prefers"), "decode");
    assert_string_equal(cell(t, 0, "permits"), "prefill+decode");
    assert_string_equal(cell(t, 0, "tensor_parallel"), "2");
    sl_wire_free(a);
    /* not an admin's message */
    Sluice__HeartbeatReply wrong = SLUICE__HEARTBEAT_REPLY__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_HEARTBEAT_REPLY;
    e.heartbeat_reply = &wrong;
    assert_int_equal(sl_wire_call_wait(r.admin_url, NULL, &e, RIG_WAIT_MS, &a, NULL), SL_OK);
    assert_int_equal(a->body_case, SLUICE__ENVELOPE__BODY_COMMAND_REPLY);
    assert_int_equal(a->command_reply->code, SL_EUNSUPPORTED);
    sl_wire_free(a);
    rig_close(&r);
}

static void expect_sentence(struct rig *r, const char *id, const char *const *parts, size_t n)
{
    Sluice__AdminReply *reply = rig_admin(r, "explain", id);
    for (size_t i = 0; i < n; i++)
        if (!reply->text || !strstr(reply->text, parts[i]))
            fail_msg("'%s' does not say '%s'", reply->text, parts[i]);
    sluice__admin_reply__free_unpacked(reply, NULL);
}

static void explain_says_why_in_one_sentence(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_HYBRID, NULL);
    struct rig_node *d = rig_node(&r, "d0", false), *other = rig_node(&r, "d1", false);
    assert_true(rig_join(d) && rig_join(other));
    struct rig_client c;
    rig_client(&c, &r);
    assert_int_equal(rig_submit(&c, rig_request(&r, 40)), SL_OK);
    rig_accept(d, SUBMIT, NULL); /* the first of equals */
    static const char *const placed[] = {"ran as colocated: all on d0, 0 tokens decoded", "It was to cost ",
                                         "the next best (", "The first token is predicted "};
    expect_sentence(&r, c.id, placed, SL_COUNTOF(placed));
    rig_say(d, c.id, 1, 0, "a");
    rig_wait_tokens(&c, 1);
    rig_end(d, c.id, 1, SLUICE__ROLE__ROLE_DECODE, SLUICE__DONE_REASON__DONE_LENGTH);
    rig_wait_end(&c);
    static const char *const over[] = {"1 tokens decoded", "for its turn; the first token was predicted ",
                                       " and came after "};
    expect_sentence(&r, c.id, over, SL_COUNTOF(over));
    rig_client_fini(&c);
    rig_close(&r);
}

static void mode_switch_holds_for_the_next_request(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_COLOCATED, NULL);
    struct rig_node *p = rig_node(&r, "p0", true), *d = rig_node(&r, "d0", false);
    p->no_decode = true;
    assert_true(rig_join(p) && rig_join(d));
    expect_code(&r, "mode", "pd", SL_OK);
    struct rig_client c;
    rig_client(&c, &r);
    assert_int_equal(rig_submit(&c, rig_request(&r, 40)), SL_OK);
    struct sl_wire_in *in = rig_take(d, SUBMIT);
    assert_int_equal(in->msg->submit->split_tokens, 40);
    rig_answer(in, SL_OK);
    rig_accept(p, SLUICE__ENVELOPE__BODY_PREFILL, NULL);
    Sluice__AdminReply *reply = rig_admin(&r, "requests", NULL);
    const Sluice__AdminTable *t = table(reply, "requests");
    assert_string_equal(cell(t, 0, "id"), c.id);
    assert_string_equal(cell(t, 0, "state"), "placed");
    assert_string_equal(cell(t, 0, "P"), "p0");
    sluice__admin_reply__free_unpacked(reply, NULL);
    expect_code(&r, "cancel", c.id, SL_OK);
    rig_wait_end(&c);
    assert_int_equal(c.err, SL_ECANCELED);
    rig_accept(d, CANCEL, NULL);
    rig_accept(p, CANCEL, NULL);
    rig_client_fini(&c);
    rig_close(&r);
}

struct admin_job {
    struct rig *r;
    const char *op, *arg;
    uint32_t code;
};

static void ask_later(void *arg)
{
    struct admin_job *j = arg;
    Sluice__AdminReply *reply = rig_admin(j->r, j->op, j->arg);
    j->code = reply->code;
    sluice__admin_reply__free_unpacked(reply, NULL);
}

/* Drain and undrain wait for the node: the test is the node, another thread the admin. */
static void drain_node(struct rig *r, struct rig_node *n, bool on)
{
    struct admin_job j = {.r = r, .op = on ? "drain" : "undrain", .arg = n->name};
    struct sl_thread t = {0};
    assert_int_equal(sl_thread_start(&t, "admin", ask_later, &j), SL_OK);
    struct sl_wire_in *in = rig_take(n, DRAIN);
    assert_int_equal(in->msg->drain->on, on);
    rig_answer(in, SL_OK);
    sl_thread_join(&t);
    assert_int_equal(j.code, SL_OK);
}

static void drained_node_finishes_and_gets_nothing_new(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_COLOCATED, NULL);
    struct rig_node *d[2] = {rig_node(&r, "d0", false), rig_node(&r, "d1", false)};
    assert_true(rig_join(d[0]));
    struct rig_client c[3];
    for (int i = 0; i < 3; i++)
        rig_client(&c[i], &r);
    assert_int_equal(rig_submit(&c[0], rig_request(&r, 40)), SL_OK);
    rig_accept(d[0], SUBMIT, NULL);
    assert_true(rig_join(d[1]));
    drain_node(&r, d[0], true);
    assert_int_equal(rig_submit(&c[1], rig_request(&r, 40)), SL_OK);
    assert_int_equal(rig_submit(&c[2], rig_request(&r, 40)), SL_OK);
    for (int i = 1; i < 3; i++) {
        rig_accept(d[1], SUBMIT, NULL);
        rig_say(d[1], c[i].id, 1, 0, "b.");
        rig_end(d[1], c[i].id, 1, SLUICE__ROLE__ROLE_DECODE, SLUICE__DONE_REASON__DONE_STOP);
        rig_wait_end(&c[i]);
    }
    rig_say(d[0], c[0].id, 1, 0, "a."); /* what ran there ends there */
    rig_end(d[0], c[0].id, 1, SLUICE__ROLE__ROLE_DECODE, SLUICE__DONE_REASON__DONE_STOP);
    rig_wait_end(&c[0]);
    assert_string_equal(c[0].text, "a");
    Sluice__AdminReply *reply = rig_admin(&r, "nodes", NULL);
    assert_string_equal(cell(table(reply, "nodes"), 0, "state"), "draining");
    sluice__admin_reply__free_unpacked(reply, NULL);

    drain_node(&r, d[1], true); /* nobody takes work now */
    struct sl_why why = {{0}};
    assert_false(sl_flow_ready(r.flow, &why));
    drain_node(&r, d[0], false);
    assert_true(sl_flow_ready(r.flow, &why));
    for (int i = 0; i < 3; i++)
        rig_client_fini(&c[i]);
    rig_close(&r);
}

static void drain_reported_by_the_node_counts_too(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_COLOCATED, NULL);
    struct rig_node *d = rig_node(&r, "d0", false);
    assert_true(rig_join(d));
    d->draining = true;
    rig_heartbeat(d);
    struct sl_why why = {{0}};
    assert_false(sl_flow_ready(r.flow, &why));
    d->draining = false;
    rig_heartbeat(d);
    assert_true(sl_flow_ready(r.flow, &why));
    rig_close(&r);
}

static void close_while_a_drain_waits_answers_it(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_COLOCATED, NULL);
    struct rig_node *d = rig_node(&r, "d0", false);
    assert_true(rig_join(d));
    struct admin_job j = {.r = &r, .op = "drain", .arg = "d0"};
    struct sl_thread t = {0};
    assert_int_equal(sl_thread_start(&t, "admin", ask_later, &j), SL_OK);
    struct sl_wire_in *in = rig_take(d, DRAIN); /* never answered in time */
    rig_close(&r);
    sl_thread_join(&t);
    assert_int_not_equal(j.code, SL_OK);
    sl_wire_in_free(in);
}

static void nodes_that_do_not_fit_are_refused_naming_both_values(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_PD, NULL);
    assert_true(rig_join(rig_node(&r, "d0", false)));
    struct rig_node *model = rig_node(&r, "p1", true);
    model->digest = 0xab;
    assert_false(rig_join(model));
    assert_non_null(strstr(model->why, "ab0000"));
    assert_non_null(strstr(model->why, "d0"));
    struct rig_node *numerics = rig_node(&r, "p2", true);
    numerics->numerics_id = 0xbeef;
    assert_false(rig_join(numerics));
    assert_non_null(strstr(numerics->why, "000000000000beef"));
    assert_non_null(strstr(numerics->why, "0000000000000007"));
    Sluice__AdminReply *reply = rig_admin(&r, "nodes", NULL);
    assert_int_equal(table(reply, "nodes")->n_rows, 1);
    sluice__admin_reply__free_unpacked(reply, NULL);
    rig_close(&r);
}

/* The row of a table that has this text in a column; -1 when none has. */
static int row_with(const Sluice__AdminTable *t, const char *column, const char *text)
{
    for (size_t i = 0; i < t->n_rows; i++)
        if (strstr(cell(t, i, column), text))
            return (int)i;
    return -1;
}

static void expect_problem(struct rig *r, const char *level, const char *problem, const char *todo)
{
    Sluice__AdminReply *reply = rig_admin(r, "status", NULL);
    const Sluice__AdminTable *t = table(reply, "problems");
    int at = row_with(t, "problem", problem);
    if (at < 0)
        fail_msg("no problem '%s'", problem);
    assert_string_equal(cell(t, (size_t)at, "level"), level);
    assert_non_null(strstr(cell(t, (size_t)at, "do"), todo));
    sluice__admin_reply__free_unpacked(reply, NULL);
}

static void status_says_what_is_wrong_and_what_to_do(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_PD, NULL);
    expect_problem(&r, "error", "No node has registered", "register_url");
    struct rig_node *d = rig_node(&r, "d0", false);
    d->no_prefill = true;
    assert_true(rig_join(d));
    expect_problem(&r, "warning", "mode is pd and no node", "mode colocated");
    struct rig_node *odd = rig_node(&r, "p1", true);
    odd->digest = 0xab;
    assert_false(rig_join(odd));
    expect_problem(&r, "warning", "A node p1 asks to join and is refused", "config");
    d->draining = true;
    rig_heartbeat(d);
    expect_problem(&r, "note", "Node d0 drains", "node undrain d0");
    d->draining = false;
    d->free_pages = 1;
    rig_heartbeat(d);
    expect_problem(&r, "warning", "KV memory is nearly full: 1 of", "kv_memory");
    Sluice__AdminReply *reply = rig_admin(&r, "status", NULL);
    assert_int_equal(reply->code, SL_OK);
    assert_non_null(strstr(reply->text, "3 warnings"));
    assert_int_equal(table(reply, "problems")->n_rows, 3);
    sluice__admin_reply__free_unpacked(reply, NULL);
    rig_close(&r);
}

static void events_tell_what_happened_and_each_refusal_once(void **s)
{
    (void)s;
    struct rig r;
    rig_open(&r, SLUICE__MODE__MODE_PD, NULL);
    assert_true(rig_join(rig_node(&r, "d0", false)));
    struct rig_node *odd[] = {rig_node(&r, "p1", true), rig_node(&r, "p2", true)};
    for (int i = 0; i < 6; i++) {
        odd[i % 2]->digest = 0xab;
        assert_false(rig_join(odd[i % 2]));
    }
    expect_code(&r, "mode", "colocated", SL_OK);
    Sluice__AdminReply *reply = rig_admin(&r, "events", "100");
    const Sluice__AdminTable *t = table(reply, "events");
    assert_true(row_with(t, "text", "joined, boot") >= 0);
    assert_true(row_with(t, "text", "ready: requests can be served") >= 0);
    assert_true(row_with(t, "text", "mode colocated instead of pd") >= 0);
    int refused = 0;
    for (size_t i = 0; i < t->n_rows; i++) {
        refused += strstr(cell(t, i, "text"), "refused") != NULL;
        assert_int_equal(strtoul(cell(t, i, "seq"), NULL, 10), i + 1);
    }
    assert_int_equal(refused, 2);
    sluice__admin_reply__free_unpacked(reply, NULL);
    rig_close(&r);
}

/* One row of a trace: its times, as told. */
static void expect_span(const Sluice__AdminTable *t, const char *lane, const char *what, double ms)
{
    for (size_t i = 0; i < t->n_rows; i++)
        if (strcmp(cell(t, i, "lane"), lane) == 0 && strcmp(cell(t, i, "what"), what) == 0) {
            double got = strtod(cell(t, i, "ms"), NULL);
            if (got < ms - 0.01 || got > ms + 0.01)
                fail_msg("%s %s took %s ms", lane, what, cell(t, i, "ms"));
            return;
        }
    fail_msg("no %s on lane %s", what, lane);
}

static void trace_has_the_chunks_of_both_nodes_and_every_token(void **s)
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
    rig_accept(p, SLUICE__ENVELOPE__BODY_PREFILL, NULL);
    uint32_t tokens[] = {32, 8}, ends[] = {7000, 9000}, steps[] = {5000, 1500};
    Sluice__LegReport of_p = SLUICE__LEG_REPORT__INIT, of_d = SLUICE__LEG_REPORT__INIT;
    of_p.n_chunk_tokens = of_p.n_chunk_end_us = of_p.n_chunk_us = 2;
    of_p.chunk_tokens = tokens;
    of_p.chunk_end_us = ends;
    of_p.chunk_us = steps;
    of_p.has_granted_us = of_p.has_age_us = of_p.has_queue_ms = true;
    of_p.granted_us = 1000;
    of_p.age_us = 9500;
    of_p.queue_ms = 2;
    of_d.has_received_us = of_d.has_age_us = of_d.has_queue_ms = true;
    of_d.queue_ms = 1;
    of_d.received_us = 9600;
    of_d.age_us = 20000;
    struct rig_batch b;
    rig_batch(&b, p);
    rig_token(&b, c.id, 1, 0, 0);
    rig_done(&b, c.id, 1, SLUICE__ROLE__ROLE_PREFILL, SLUICE__DONE_REASON__DONE_PREFILLED, SL_OK, &of_p);
    rig_send(&b);
    rig_wait_tokens(&c, 1);
    rig_say(d, c.id, 1, 1, "bc");
    rig_wait_tokens(&c, 3);
    Sluice__AdminReply *reply = rig_admin(&r, "trace", c.id); /* while it runs */
    assert_int_equal(table(reply, "tokens")->n_rows, 3);
    sluice__admin_reply__free_unpacked(reply, NULL);
    rig_batch(&b, d);
    rig_done(&b, c.id, 1, SLUICE__ROLE__ROLE_DECODE, SLUICE__DONE_REASON__DONE_LENGTH, SL_OK, &of_d);
    rig_send(&b);
    rig_wait_end(&c);
    reply = rig_admin(&r, "trace", "last");
    const Sluice__AdminTable *t = table(reply, "trace");
    assert_int_equal(table(reply, "tokens")->n_rows, 3);
    expect_span(t, "p0", "queue", 2);
    expect_span(t, "p0", "chunk", 5);
    expect_span(t, "p0", "transfer", 8.5);
    expect_span(t, "d0", "receive", 8.6);
    assert_true(row_with(t, "detail", "8 tokens, 40 so far") > row_with(t, "detail", "32 tokens, 32 so far"));
    assert_true(row_with(t, "what", "decode") > 0 && row_with(t, "what", "first token") > 0);
    sluice__admin_reply__free_unpacked(reply, NULL);
    expect_code(&r, "trace", "nobody", SL_ENOTFOUND);
    rig_client_fini(&c);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(admin_wrong_questions_are_refused_in_words),
        cmocka_unit_test(admin_over_the_socket_answers_the_same),
        cmocka_unit_test(explain_says_why_in_one_sentence),
        cmocka_unit_test(mode_switch_holds_for_the_next_request),
        cmocka_unit_test(drained_node_finishes_and_gets_nothing_new),
        cmocka_unit_test(drain_reported_by_the_node_counts_too),
        cmocka_unit_test(close_while_a_drain_waits_answers_it),
        cmocka_unit_test(nodes_that_do_not_fit_are_refused_naming_both_values),
        cmocka_unit_test(status_says_what_is_wrong_and_what_to_do),
        cmocka_unit_test(events_tell_what_happened_and_each_refusal_once),
        cmocka_unit_test(trace_has_the_chunks_of_both_nodes_and_every_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
