/* tests/unit/router/flow/test_flow_hold.c - nodes that are full: who waits at the router, who goes next,
 * who is refused. A node reports once, so what it has to do is what the test placed there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "router/flow/request_table.h"
#include "tests/unit/router/flow/flow_rig.h"

#define SUBMIT SLUICE__ENVELOPE__BODY_SUBMIT
#define PROMPT                                                                                               \
    300u /* tokens: more than HOLD_MS of work, whatever the speed assumed of a node that does not tell */
#define HOLD_MS 10u

static void hold(struct sl_flow_conf *c)
{
    c->hold_ms = HOLD_MS;
}

static void hold_and_refuse(struct sl_flow_conf *c)
{
    c->hold_ms = HOLD_MS;
    c->slo_miss = SL_SLO_REFUSE;
}

static void hold_briefly(struct sl_flow_conf *c)
{
    c->hold_ms = HOLD_MS;
    c->max_wait_ms = 1;
}

static struct rig_node *full_node(struct rig *r, void (*change)(struct sl_flow_conf *))
{
    rig_open(r, SLUICE__MODE__MODE_COLOCATED, change);
    struct rig_node *d = rig_node(r, "d0", false);
    d->kv_pages = d->free_pages = 4096;
    assert_true(rig_join(d));
    return d;
}

static enum sl_err ask_long(struct rig_client *c, struct rig *r, uint32_t n_tokens, const char *key,
                            int32_t priority, double weight)
{
    struct sl_gen_req *q = rig_request(r, n_tokens);
    q->key_name = key;
    q->key_weight = weight;
    q->priority = priority;
    rig_client(c, r);
    return rig_submit(c, q);
}

static enum sl_err ask(struct rig_client *c, struct rig *r, const char *key, int32_t priority, double weight)
{
    return ask_long(c, r, PROMPT, key, priority, weight);
}

/* The node takes the next request, which must be c's, and has its prompt done. */
static void take(struct rig_node *d, const struct rig_client *c)
{
    char id[64];
    rig_accept(d, SUBMIT, id);
    assert_string_equal(id, c->id);
}

static void serve(struct rig_node *d, struct rig_client *c)
{
    take(d, c);
    rig_say(d, c->id, 1, 0, "a");
    rig_wait_tokens(c, 1);
}

static void end(struct rig_node *d, struct rig_client *c)
{
    rig_end(d, c->id, 1, SLUICE__ROLE__ROLE_DECODE, SLUICE__DONE_REASON__DONE_LENGTH);
    rig_wait_end(c);
    rig_client_fini(c);
}

static void keys_take_turns_and_urgent_ones_go_first(void **s)
{
    (void)s;
    struct rig r;
    struct rig_node *d = full_node(&r, hold);
    struct rig_client a[4], b[1], urgent[1];
    assert_int_equal(ask(&a[0], &r, "a", 0, 1), SL_OK);
    take(d, &a[0]);
    for (unsigned i = 1; i < 4; i++)
        assert_int_equal(ask(&a[i], &r, "a", 0, 1), SL_OK);
    assert_int_equal(ask(&b[0], &r, "b", 0, 1), SL_OK);
    assert_int_equal(ask(&urgent[0], &r, "a", -1, 1), SL_OK);
    serve(d, &urgent[0]); /* the node runs it before the prompt of a[0], so it has nothing to wait for */
    rig_wait_open(&r, 6);
    rig_say(d, a[0].id, 1, 0, "a");
    rig_wait_tokens(&a[0], 1);
    struct rig_client *order[] = {&b[0], &a[1], &a[2], &a[3]};
    for (size_t i = 0; i < SL_COUNTOF(order); i++)
        serve(d, order[i]);
    end(d, &a[0]);
    end(d, &urgent[0]);
    for (size_t i = 0; i < SL_COUNTOF(order); i++)
        end(d, order[i]);
    rig_wait_idle(&r);
    rig_close(&r);
}

static void weight_is_the_share(void **s)
{
    (void)s;
    struct rig r;
    struct rig_node *d = full_node(&r, hold);
    struct rig_client first[1], a[3], b[3];
    assert_int_equal(ask(first, &r, "c", 0, 1), SL_OK);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(ask(&a[i], &r, "a", 0, 1), SL_OK);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(ask(&b[i], &r, "b", 0, 3), SL_OK);
    rig_wait_open(&r, 7);
    struct rig_client *order[] = {first, &a[0], &b[0], &b[1], &b[2], &a[1], &a[2]};
    for (size_t i = 0; i < SL_COUNTOF(order); i++)
        serve(d, order[i]);
    for (size_t i = 0; i < SL_COUNTOF(order); i++)
        end(d, order[i]);
    rig_close(&r);
}

static void client_that_leaves_while_it_waits_is_forgotten(void **s)
{
    (void)s;
    struct rig r;
    struct rig_node *d = full_node(&r, hold);
    struct rig_client a[3];
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(ask(&a[i], &r, "a", 0, 1), SL_OK);
    rig_wait_open(&r, 3);
    sl_flow_cancel(r.flow, a[1].id);
    rig_wait_open(&r, 2);
    serve(d, &a[0]);
    serve(d, &a[2]);
    end(d, &a[0]);
    end(d, &a[2]);
    rig_wait_idle(&r);
    rig_client_fini(&a[1]);
    rig_close(&r);
}

static void too_long_a_wait_is_refused_at_once(void **s)
{
    (void)s;
    static void (*const confs[])(struct sl_flow_conf *) = {hold_briefly, hold_and_refuse};
    for (size_t k = 0; k < SL_COUNTOF(confs); k++) {
        struct rig r;
        struct rig_node *d = full_node(&r, confs[k]);
        struct rig_client a, b;
        assert_int_equal(ask(&a, &r, "a", 0, 1), SL_OK);
        rig_client(&b, &r);
        struct sl_gen_req *q = rig_request(&r, PROMPT);
        q->ttft_ms = k == 0 ? 0 : 1;
        assert_int_equal(rig_submit(&b, q), SL_OK);
        rig_wait_end(&b); /* while a still holds the node */
        assert_int_equal(b.err, SL_EAGAIN);
        serve(d, &a);
        end(d, &a);
        rig_client_fini(&b);
        rig_close(&r);
    }
}

/* Who named its node compares placements: it does not wait behind others. */
static void pinned_request_does_not_wait(void **s)
{
    (void)s;
    struct rig r;
    struct rig_node *d = full_node(&r, hold);
    struct rig_client a[2], pinned;
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(ask(&a[i], &r, "a", 0, 1), SL_OK);
    rig_client(&pinned, &r);
    struct sl_gen_req *q = rig_request(&r, PROMPT);
    q->want_decode_node = "d0";
    take(d, &a[0]);
    assert_int_equal(rig_submit(&pinned, q), SL_OK);
    serve(d, &pinned); /* before the prompt of a[0] is done */
    rig_say(d, a[0].id, 1, 0, "a");
    rig_wait_tokens(&a[0], 1);
    serve(d, &a[1]);
    end(d, &a[0]);
    end(d, &a[1]);
    end(d, &pinned);
    rig_close(&r);
}

/* More than are tried at one event wait for the one node that can hold them, and another one is free. */
static void short_one_behind_many_that_have_no_place_goes_before_them(void **s)
{
    (void)s;
    struct rig r;
    struct rig_node *d = full_node(&r, hold), *small = rig_node(&r, "d1", false);
    struct rig_client a[16], b;
    small->kv_pages = small->free_pages = PROMPT / 2 / RIG_PAGE_TOKENS;
    assert_true(rig_join(small));
    for (unsigned i = 0; i < SL_COUNTOF(a); i++) /* ever shorter: each could overtake those before it */
        assert_int_equal(ask_long(&a[i], &r, 2 * PROMPT - 10 * i, "a", 0, 1), SL_OK);
    assert_int_equal(ask_long(&b, &r, PROMPT / 4, "a", 0, 1), SL_OK);
    serve(small, &b);
    for (unsigned n = 0, i; n < SL_COUNTOF(a); n++) { /* in whatever order */
        char id[64];
        rig_accept(d, SUBMIT, id);
        for (i = 0; strcmp(a[i].id, id) != 0;)
            assert_in_range(++i, 1, SL_COUNTOF(a) - 1);
        rig_say(d, id, 1, 0, "a");
        rig_wait_tokens(&a[i], 1);
    }
    for (unsigned i = 0; i < SL_COUNTOF(a); i++)
        end(d, &a[i]);
    end(small, &b);
    rig_close(&r);
}

static bool has_ended(struct rig_client *c)
{
    pthread_mutex_lock(&c->lock);
    bool done = c->done;
    pthread_mutex_unlock(&c->lock);
    return done;
}

/* Refuses what comes to any of them until the client has its answer, or for `most` times; how often it did. */
static uint32_t refuse_everywhere(struct rig_node **nodes, uint32_t n, struct rig_client *c, uint32_t most)
{
    uint32_t refused = 0;
    for (uint32_t i = 0; refused < most && !has_ended(c); i = (i + 1) % n) {
        struct sl_wire_in *in = sl_queue_pop(nodes[i]->queue);
        if (in)
            rig_answer(in, SL_EAGAIN);
        else
            sched_yield();
        refused += in != NULL;
    }
    return refused;
}

/* It does not knock at the doors of a large cluster for ever. */
static void more_full_nodes_than_one_request_asks_refuse_it(void **state)
{
    (void)state;
    enum { N = SL_EXCLUDED_MAX + 2 };
    struct rig r;
    struct rig_node *nodes[N];
    struct rig_client c;
    rig_open(&r, SLUICE__MODE__MODE_COLOCATED, NULL);
    for (int i = 0; i < N; i++) {
        char name[8];
        snprintf(name, sizeof name, "d%d", i);
        nodes[i] = rig_node(&r, name, false);
        assert_true(rig_join(nodes[i]));
    }
    rig_client(&c, &r);
    assert_int_equal(rig_submit(&c, rig_request(&r, 40)), SL_OK);
    assert_int_equal(refuse_everywhere(nodes, N, &c, 3 * N), SL_EXCLUDED_MAX);
    rig_wait_end(&c);
    assert_int_equal(c.err, SL_EAGAIN);
    rig_wait_idle(&r);
    rig_client_fini(&c);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_take_turns_and_urgent_ones_go_first),
        cmocka_unit_test(weight_is_the_share),
        cmocka_unit_test(client_that_leaves_while_it_waits_is_forgotten),
        cmocka_unit_test(too_long_a_wait_is_refused_at_once),
        cmocka_unit_test(pinned_request_does_not_wait),
        cmocka_unit_test(short_one_behind_many_that_have_no_place_goes_before_them),
        cmocka_unit_test(more_full_nodes_than_one_request_asks_refuse_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
