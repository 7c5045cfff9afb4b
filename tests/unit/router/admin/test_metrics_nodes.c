/* tests/unit/router/admin/test_metrics_nodes.c - series of nodes over restarts, links that come and go, hostile
 * names and nodes that are forgotten. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/admin/metrics_nodes.h"

struct rig {
    struct sl_metrics *m;
    struct sl_node_metrics *s;
    struct sl_node_table *t;
    struct sl_buf text;
};

static void rig_open(struct rig *r)
{
    struct sl_node_conf c = {.dead_ms = 3000, .stall_ms = 10000};
    r->m = sl_metrics_new();
    r->s = sl_node_metrics_new(r->m, "engine=\"0\"");
    r->t = sl_node_table_new(&c);
    sl_buf_init(&r->text, 1 << 20);
}

static void rig_close(struct rig *r)
{
    sl_buf_fini(&r->text);
    sl_node_metrics_free(r->s);
    sl_node_table_free(r->t);
    sl_metrics_free(r->m);
}

static struct sl_node *join(struct rig *r, const char *name, uint64_t boot_id)
{
    uint8_t digest[16] = {0};
    Sluice__Role both[] = {SLUICE__ROLE__ROLE_PREFILL, SLUICE__ROLE__ROLE_DECODE};
    Sluice__ModelInfo model = SLUICE__MODEL_INFO__INIT;
    Sluice__NodeInfo info = SLUICE__NODE_INFO__INIT;
    struct sl_node *n;
    enum sl_node_joined joined;
    uint64_t old;
    struct sl_why why = {{0}};
    model.name = (char *)"m";
    model.digest = (ProtobufCBinaryData){.len = sizeof digest, .data = digest};
    model.page_tokens = 16;
    model.page_bytes = 4096;
    info.name = (char *)name;
    info.boot_id = boot_id;
    info.prefers = SLUICE__ROLE__ROLE_DECODE;
    info.permits = both;
    info.n_permits = 2;
    info.command_url = info.transfer_address = (char *)"x";
    info.model = &model;
    info.kv_pages = 100;
    if (sl_node_table_register(r->t, &info, 0, &n, &joined, &old, &why))
        fail_msg("refused: %s", why.text);
    return n;
}

/* The text as a scrape would get it. */
static const char *scrape(struct rig *r)
{
    uint32_t waiting;
    double used;
    sl_node_metrics_take(r->s, r->t, &waiting, &used);
    sl_buf_clear(&r->text);
    sl_metrics_render(r->m, &r->text);
    return r->text.data;
}

static void has(struct rig *r, const char *line)
{
    if (!strstr(scrape(r), line))
        fail_msg("no line %s in\n%s", line, r->text.data);
}

static void counters_grow_over_restarts_of_their_node(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r);
    struct sl_node *n = join(&r, "d0", 1);
    sl_node_metrics_value(r.s, n, "steps_total", 10);
    sl_node_metrics_value(r.s, n, "step_busy_ms_total", 2500);
    sl_node_metrics_value(r.s, n, "preemptions_total", 3);
    has(&r, "sluice_node_steps_total{node=\"d0\"} 10\n");
    has(&r, "sluice_node_step_busy_seconds_total{node=\"d0\"} 2.5\n");
    n = join(&r, "d0", 2); /* counts more in its new life before it is first asked */
    sl_node_metrics_value(r.s, n, "steps_total", 12);
    sl_node_metrics_value(r.s, n, "preemptions_total", 1);
    has(&r, "sluice_node_steps_total{node=\"d0\"} 22\n");
    has(&r, "vllm:num_preemptions_total{engine=\"0\"} 4\n");
    sl_node_metrics_value(r.s, n, "steps_total", -1);
    sl_node_metrics_value(r.s, n, "max_sequences", 64);
    sl_node_metrics_value(r.s, n, "cost_ms_at_8_rows", 5);
    has(&r, "sluice_node_steps_total{node=\"d0\"} 22\n");
    has(&r, "sluice_node_max_sequences{node=\"d0\"} 64\n");
    assert_null(strstr(scrape(&r), "cost_ms"));
    rig_close(&r);
}

static void links_that_are_gone_are_down_and_count_on(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r);
    struct sl_node *n = join(&r, "p0", 1);
    n->n_peers = 1;
    n->peers[0] = (struct sl_node_peer){.peer = "d0",
                                        .state = "up",
                                        .peer_boot_id = 5,
                                        .bytes_sent = 100,
                                        .bytes_per_s = 7,
                                        .latency_us = 20};
    has(&r, "sluice_link_up{node=\"p0\",peer=\"d0\"} 1\n");
    has(&r, "sluice_link_latency_seconds{node=\"p0\",peer=\"d0\"} 2e-05\n");
    n->n_peers = 0;
    has(&r, "sluice_link_up{node=\"p0\",peer=\"d0\"} 0\n");
    has(&r, "sluice_link_bytes_per_second{node=\"p0\",peer=\"d0\"} 0\n");
    n->n_peers = 1;
    n->peers[0].peer_boot_id = 6;
    n->peers[0].bytes_sent = 150; /* to the peer's new life */
    has(&r, "sluice_link_sent_bytes_total{node=\"p0\",peer=\"d0\"} 250\n");
    n->n_peers = 2; /* the peer's next life, and the link to the last one not yet closed */
    n->peers[1] = n->peers[0];
    n->peers[1].peer_boot_id = 7;
    n->peers[1].bytes_sent = 10;
    snprintf(n->peers[1].state, sizeof n->peers[1].state, "testing");
    for (unsigned i = 0; i < 3; i++)
        has(&r, "sluice_link_sent_bytes_total{node=\"p0\",peer=\"d0\"} 250\n");
    has(&r, "sluice_link_up{node=\"p0\",peer=\"d0\"} 1\n");
    snprintf(n->peers[1].state, sizeof n->peers[1].state, "up");
    for (unsigned i = 0; i < 3; i++)
        has(&r, "sluice_link_sent_bytes_total{node=\"p0\",peer=\"d0\"} 260\n");
    n->n_peers = 1;
    for (unsigned i = 0; i < 3 * SL_NODE_LINKS; i++) { /* peers of ever new names */
        snprintf(n->peers[0].peer, sizeof n->peers[0].peer, "x%u", i);
        scrape(&r);
    }
    unsigned kept = 0;
    for (const char *at = scrape(&r); (at = strstr(at, "\nsluice_link_up{")) != NULL; at++)
        kept++;
    assert_int_equal(kept, SL_NODE_LINKS);
    has(&r, "sluice_link_up{node=\"p0\",peer=\"x191\"} 1\n");
    rig_close(&r);
}

static void hostile_names_stay_inside_their_label(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r);
    char longest[SL_NODE_NAME];
    memset(longest, '"', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    join(&r, longest, 1);
    join(&r, "a\"} 1\nevil{x=\"\\\t", 1);
    has(&r, "sluice_node_up{node=\"a\\\"} 1\\nevil{x=\\\"\\\\\t\"} 1\n");
    rig_close(&r);
}

static void forgotten_nodes_leave_no_series(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r);
    struct sl_node *n = join(&r, "d0", 1);
    sl_node_metrics_value(r.s, n, "steps_total", 10);
    n->n_peers = 1;
    n->peers[0] = (struct sl_node_peer){.peer = "d1", .state = "up"};
    has(&r, "sluice_node_state{node=\"d0\",state=\"up\"} 1\n");
    assert_ptr_equal(sl_node_table_expire(r.t, 5000), n);
    has(&r, "sluice_node_up{node=\"d0\"} 0\n");
    has(&r, "sluice_node_state{node=\"d0\",state=\"dead\"} 1\n");
    assert_null(sl_node_table_expire(r.t, 24 * 3600 * 1000));
    assert_null(strstr(scrape(&r), "d0"));
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counters_grow_over_restarts_of_their_node),
        cmocka_unit_test(links_that_are_gone_are_down_and_count_on),
        cmocka_unit_test(hostile_names_stay_inside_their_label),
        cmocka_unit_test(forgotten_nodes_leave_no_series),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
