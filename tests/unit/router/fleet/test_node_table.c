/* tests/unit/router/fleet/test_node_table.c - who may join, who is alive, what was placed where. The clock is
 * the test's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <math.h>
#include <string.h>

#include "router/fleet/node_table.h"

struct info { /* a registration with its parts */
    Sluice__NodeInfo m;
    Sluice__ModelInfo model;
    Sluice__CostModel cost;
    Sluice__Role permits[2];
    uint8_t digest[16];
};

static void make(struct info *i, const char *name, uint64_t boot)
{
    memset(i, 0, sizeof *i);
    sluice__node_info__init(&i->m);
    sluice__model_info__init(&i->model);
    sluice__cost_model__init(&i->cost);
    i->m.name = (char *)name;
    i->m.boot_id = boot;
    i->m.prefers = SLUICE__ROLE__ROLE_DECODE;
    i->permits[0] = SLUICE__ROLE__ROLE_PREFILL;
    i->permits[1] = SLUICE__ROLE__ROLE_DECODE;
    i->m.permits = i->permits;
    i->m.n_permits = 2;
    i->m.command_url = (char *)"tcp://127.0.0.1:1";
    i->m.transfer_address = (char *)"127.0.0.1:2";
    i->m.model = &i->model;
    i->m.kv_pages = 100;
    i->m.threads = 1;
    i->model.name = (char *)"m";
    i->model.digest = (ProtobufCBinaryData){.len = 16, .data = i->digest};
    i->model.n_vocab = 1000;
    i->model.n_layers = i->model.n_kv_heads = 2;
    i->model.head_dim = 64;
    i->model.page_tokens = 16;
    i->model.page_bytes = 4096;
    i->model.numerics_id = 7;
}

static struct sl_node_table *table(void)
{
    struct sl_node_conf c = {.dead_ms = 3000, .stall_ms = 10000, .exact = true};
    return sl_node_table_new(&c);
}

static struct sl_node *join(struct sl_node_table *t, struct info *i, uint64_t now, enum sl_node_joined expect)
{
    struct sl_node *n = NULL;
    enum sl_node_joined joined;
    uint64_t old;
    struct sl_why why = {{0}};
    if (sl_node_table_register(t, &i->m, now, &n, &joined, &old, &why))
        fail_msg("refused: %s", why.text);
    assert_int_equal(joined, expect);
    return n;
}

static void refused(struct sl_node_table *t, struct info *i, enum sl_err expect, const char *a, const char *b)
{
    struct sl_node *n;
    enum sl_node_joined joined;
    uint64_t old;
    struct sl_why why = {{0}};
    assert_int_equal(sl_node_table_register(t, &i->m, 0, &n, &joined, &old, &why), expect);
    if (!strstr(why.text, a) || !strstr(why.text, b))
        fail_msg("'%s' names not both '%s' and '%s'", why.text, a, b);
}

static struct sl_node *beat(struct sl_node_table *t, const char *name, uint64_t boot, uint64_t now,
                            uint64_t progress, uint32_t rows)
{
    Sluice__NodeLoad load = SLUICE__NODE_LOAD__INIT;
    load.free_pages = 60;
    load.total_pages = 100;
    load.decode_rows = rows;
    load.queued_prompt_tokens = 50;
    load.has_progress = true;
    load.progress = progress;
    Sluice__Heartbeat hb = SLUICE__HEARTBEAT__INIT;
    hb.node = (char *)name;
    hb.boot_id = boot;
    hb.load = &load;
    return sl_node_table_heartbeat(t, &hb, now);
}

static void register_twice_is_one_node(void **s)
{
    (void)s;
    struct sl_node_table *t = table();
    struct info i;
    make(&i, "d0", 1);
    struct sl_node *n = join(t, &i, 0, SL_NODE_NEW);
    assert_ptr_equal(join(t, &i, 10, SL_NODE_SAME), n); /* REQ may deliver twice */
    assert_int_equal(sl_node_table_len(t), 1);
    assert_true(n->may_prefill && n->may_decode && !n->prefers_prefill);
    sl_node_table_free(t);
}

static void register_another_boot_id_is_a_new_life(void **s)
{
    (void)s;
    struct sl_node_table *t = table();
    struct info i;
    make(&i, "d0", 1);
    struct sl_node *n = join(t, &i, 0, SL_NODE_NEW);
    beat(t, "d0", 1, 5, 1, 3);
    n->event_seq = 9;
    sl_node_set_drain(n, true);
    make(&i, "d0", 2);
    struct sl_node *again;
    enum sl_node_joined joined;
    uint64_t old;
    assert_int_equal(sl_node_table_register(t, &i.m, 10, &again, &joined, &old, NULL), SL_OK);
    assert_int_equal(joined, SL_NODE_RESTARTED);
    assert_int_equal(old, 1);
    assert_int_equal(again->event_seq, 0);
    assert_int_equal(again->state, SL_NODE_UP);
    assert_int_equal(again->load.decode_rows, 0);
    assert_null(beat(t, "d0", 1, 11, 1, 0)); /* the old life is not known */
    assert_non_null(beat(t, "d0", 2, 11, 1, 0));
    sl_node_table_free(t);
}

static void register_former_life_beside_the_new_one_is_another_node_of_that_name(void **s)
{
    (void)s;
    struct sl_node_table *t = table();
    struct info old, new, newest;
    make(&old, "d0", 1);
    make(&new, "d0", 2);
    make(&newest, "d0", 3);
    join(t, &old, 0, SL_NODE_NEW);
    join(t, &new, 1, SL_NODE_RESTARTED);
    refused(t, &old, SL_EMISMATCH, "d0", "option name");
    join(t, &newest, 2, SL_NODE_RESTARTED);
    refused(t, &old, SL_EMISMATCH, "d0", "option name");
    refused(t, &new, SL_EMISMATCH, "d0", "option name");
    struct sl_node *n = join(t, &newest, 3, SL_NODE_SAME);
    sl_node_table_mark_dead(n);
    join(t, &old, 4, SL_NODE_RESTARTED); /* the other has gone */
    refused(t, &newest, SL_EMISMATCH, "d0", "option name");
    sl_node_table_free(t);
}

static void register_misfits_are_refused_naming_both_values(void **s)
{
    (void)s;
    struct sl_node_table *t = table();
    struct info i;
    make(&i, "d0", 1);
    join(t, &i, 0, SL_NODE_NEW);
    make(&i, "d1", 2);
    i.digest[0] = 0xcd;
    refused(t, &i, SL_EMISMATCH, "cd00", "0000");
    make(&i, "d1", 2);
    i.model.page_tokens = 32;
    refused(t, &i, SL_EMISMATCH, "page_tokens 32", "16");
    make(&i, "d1", 2);
    i.model.kv_dtype = 30;
    refused(t, &i, SL_EMISMATCH, "kv_dtype 30", "d0");
    make(&i, "d1", 2);
    i.model.has_tensor_parallel = true;
    i.model.tensor_parallel = 2;
    refused(t, &i, SL_EMISMATCH, "tensor_parallel 2", "node d0 has 1");
    make(&i, "d1", 2);
    i.model.numerics_id = 0xab;
    refused(t, &i, SL_EMISMATCH, "00000000000000ab", "0000000000000007");
    make(&i, "", 2);
    refused(t, &i, SL_EINVAL, "name", "1 to 64");
    make(&i, "d1", 2);
    i.m.n_permits = 0;
    refused(t, &i, SL_EINVAL, "d1", "roles");
    make(&i, "d1", 2);
    i.model.digest.len = 4;
    refused(t, &i, SL_EINVAL, "4 bytes", "16");
    assert_int_equal(sl_node_table_len(t), 1);
    make(&i, "d0", 3); /* the only node itself may come back with other values */
    i.model.numerics_id = 0xab;
    join(t, &i, 0, SL_NODE_RESTARTED);
    sl_node_table_free(t);
}

/* The first node may be the wrong one: who is refused says so, and when it has died it binds nobody. */
static void register_wrong_first_node_binds_while_it_lives(void **s)
{
    (void)s;
    struct sl_node_table *t = table();
    struct info i;
    make(&i, "rogue", 1);
    i.digest[0] = 0xcd;
    join(t, &i, 0, SL_NODE_NEW);
    make(&i, "d1", 2);
    refused(t, &i, SL_EMISMATCH, "if that of rogue is wrong, stop it", "model_digest");
    assert_non_null(sl_node_table_expire(t, 3000));
    make(&i, "d1", 2);
    join(t, &i, 3000, SL_NODE_NEW);
    make(&i, "rogue", 3);
    i.digest[0] = 0xcd;
    refused(t, &i, SL_EMISMATCH, "rogue", "node d1, which was here first");
    sl_node_table_free(t);
}

static void register_digest_of_the_router_goes_before_the_first_node(void **s)
{
    (void)s;
    uint8_t digest[16];
    char text[SL_NODE_DIGEST];
    assert_false(sl_node_digest_parse("cd", digest));
    assert_false(sl_node_digest_parse("cd0000000000000000000000000000fg", digest));
    assert_true(sl_node_digest_parse("CD0000000000000000000000000000ff", digest));
    sl_node_digest_text(digest, text);
    assert_string_equal(text, "cd0000000000000000000000000000ff");
    struct sl_node_conf c = {.dead_ms = 3000, .stall_ms = 10000, .exact = true, .model_digest = digest};
    struct sl_node_table *t = sl_node_table_new(&c);
    struct info i;
    make(&i, "rogue", 1);
    refused(t, &i, SL_EMISMATCH, "this router takes cd0000000000000000000000000000ff only", "model_digest");
    make(&i, "d1", 2);
    memcpy(i.digest, digest, sizeof digest);
    join(t, &i, 0, SL_NODE_NEW);
    sl_node_table_free(t);
}

static void register_numerics_differ_is_allowed_when_not_exact(void **s)
{
    (void)s;
    struct sl_node_conf c = {.dead_ms = 3000, .stall_ms = 10000, .exact = false};
    struct sl_node_table *t = sl_node_table_new(&c);
    struct info i;
    make(&i, "d0", 1);
    join(t, &i, 0, SL_NODE_NEW);
    make(&i, "d1", 2);
    i.model.numerics_id = 8;
    join(t, &i, 0, SL_NODE_NEW);
    sl_node_table_free(t);
}

static void register_full_table_makes_room_of_the_dead_only(void **s)
{
    (void)s;
    struct sl_node_table *t = table();
    static char names[SL_PLACE_MAX_NODES + 1][8];
    struct info i;
    for (uint32_t k = 0; k <= SL_PLACE_MAX_NODES; k++)
        snprintf(names[k], sizeof names[k], "n%04u", k);
    for (uint32_t k = 0; k < SL_PLACE_MAX_NODES; k++) {
        make(&i, names[k], k + 1);
        join(t, &i, 0, SL_NODE_NEW);
    }
    make(&i, names[SL_PLACE_MAX_NODES], 1000);
    refused(t, &i, SL_EAGAIN, "1024", "n1024");
    sl_node_table_mark_dead(sl_node_table_find(t, "n0005"));
    join(t, &i, 0, SL_NODE_NEW);
    assert_null(sl_node_table_find(t, "n0005"));
    assert_int_equal(sl_node_table_len(t), SL_PLACE_MAX_NODES);
    sl_node_table_free(t);
}

static void silence_kills_and_long_death_forgets(void **s)
{
    (void)s;
    struct sl_node_table *t = table();
    struct info i;
    make(&i, "d0", 1);
    join(t, &i, 0, SL_NODE_NEW);
    make(&i, "d1", 2);
    join(t, &i, 0, SL_NODE_NEW);
    beat(t, "d1", 2, 2500, 1, 0);
    assert_null(sl_node_table_expire(t, 2999));
    struct sl_node *dead = sl_node_table_expire(t, 3000);
    assert_non_null(dead);
    assert_string_equal(dead->name, "d0");
    assert_null(sl_node_table_expire(t, 3000)); /* once only */
    assert_null(beat(t, "d0", 1, 3100, 1, 0));  /* must register again */
    struct sl_why why = {{0}};
    assert_true(sl_node_table_ready(t, &why));
    for (uint64_t ms = 3000; ms < 2000000; ms += 1000) {
        beat(t, "d1", 2, ms, ms, 0);
        sl_node_table_expire(t, ms);
    }
    assert_null(sl_node_table_find(t, "d0"));
    assert_int_equal(sl_node_table_len(t), 1);
    sl_node_table_free(t);
}

static void silence_while_the_router_itself_stood_still_kills_nobody(void **s)
{
    (void)s;
    struct sl_node_table *t = table();
    struct info i;
    make(&i, "d0", 1);
    join(t, &i, 0, SL_NODE_NEW);
    assert_int_equal(sl_node_table_next_loss(t), 3000);
    sl_node_table_forgive(t, 9000, 10000); /* stopped from 1000 on */
    assert_int_equal(sl_node_table_next_loss(t), 12000);
    assert_null(sl_node_table_expire(t, 10000));
    assert_null(sl_node_table_expire(t, 11999));
    assert_non_null(sl_node_table_expire(t, 12000)); /* 1000 before, 2000 after */
    assert_true(sl_node_table_next_loss(t) == UINT64_MAX);
    sl_node_table_free(t);
}

static void no_progress_with_work_stalls(void **s)
{
    (void)s;
    struct sl_node_table *t = table();
    struct info i;
    make(&i, "d0", 1);
    struct sl_node *n = join(t, &i, 0, SL_NODE_NEW);
    struct sl_why why = {{0}};
    for (uint64_t ms = 0; ms < 9000; ms += 1000)
        beat(t, "d0", 1, ms, 5, 1);
    assert_int_equal(n->state, SL_NODE_UP); /* a long step */
    beat(t, "d0", 1, 11000, 5, 1);
    assert_int_equal(n->state, SL_NODE_STALLED);
    assert_false(sl_node_table_ready(t, &why));
    beat(t, "d0", 1, 12000, 6, 1); /* one more layer */
    assert_int_equal(n->state, SL_NODE_UP);
    sl_node_table_forgive(t, 20000, 32000); /* the router stood still: it heard of none */
    beat(t, "d0", 1, 32000, 6, 1);
    assert_int_equal(n->state, SL_NODE_UP);
    assert_true(sl_node_table_ready(t, &why));
    n->may_decode = false;
    assert_false(sl_node_table_ready(t, &why));
    sl_node_table_free(t);
}

static void a_day_without_work_changes_nothing(void **s)
{
    (void)s;
    struct sl_node_table *t = table();
    struct info i;
    make(&i, "d0", 1);
    struct sl_node *n = join(t, &i, 0, SL_NODE_NEW);
    Sluice__NodeLoad load = SLUICE__NODE_LOAD__INIT;
    load.total_pages = load.free_pages = 100;
    load.has_progress = load.has_computing = true;
    load.progress = 5;
    Sluice__Heartbeat hb = SLUICE__HEARTBEAT__INIT;
    hb.node = (char *)"d0";
    hb.boot_id = 1;
    hb.load = &load;
    for (uint64_t ms = 0; ms <= UINT64_C(24) * 3600 * 1000; ms += 1000) {
        sl_node_table_heartbeat(t, &hb, ms);
        assert_null(sl_node_table_expire(t, ms + 900));
        assert_int_equal(n->state, SL_NODE_UP);
    }
    sl_node_table_free(t);
}

static void a_stall_is_told_once_and_prompts_that_wait_are_none(void **s)
{
    (void)s;
    struct sl_node_table *t = table();
    struct info i;
    make(&i, "d0", 1);
    struct sl_node *n = join(t, &i, 0, SL_NODE_NEW);
    beat(t, "d0", 1, 1000, 5, 1);
    beat(t, "d0", 1, 11000, 5, 1);
    assert_true(sl_node_newly_stalled(n));
    beat(t, "d0", 1, 12000, 5, 1);
    assert_false(sl_node_newly_stalled(n));
    beat(t, "d0", 1, 13000, 6, 1);
    assert_false(sl_node_newly_stalled(n));
    beat(t, "d0", 1, 23000, 6, 1);
    assert_true(sl_node_newly_stalled(n));
    /* no step is in flight: its prompts wait for pages or for another node */
    Sluice__NodeLoad load = SLUICE__NODE_LOAD__INIT;
    load.total_pages = 100;
    load.queued_prompt_tokens = 50;
    load.has_progress = load.has_computing = true;
    load.progress = 6;
    Sluice__Heartbeat hb = SLUICE__HEARTBEAT__INIT;
    hb.node = (char *)"d0";
    hb.boot_id = 1;
    hb.load = &load;
    sl_node_table_heartbeat(t, &hb, 24000);
    sl_node_table_heartbeat(t, &hb, 40000);
    assert_int_equal(n->state, SL_NODE_UP);
    load.computing = true;
    sl_node_table_heartbeat(t, &hb, 51000);
    assert_int_equal(n->state, SL_NODE_STALLED);
    sl_node_table_free(t);
}

static void ledger_counts_until_the_next_heartbeat(void **s)
{
    (void)s;
    struct sl_node_table *t = table();
    struct info i;
    make(&i, "d0", 1);
    struct sl_node *n = join(t, &i, 0, SL_NODE_NEW);
    static struct sl_node_view v;
    struct sl_charge a = {0}, b = {0};
    const struct sl_node_ledger amount = {.rows = 1, .pages = 5, .prompt_tokens = 70, .context_tokens = 70};
    sl_node_charge(n, &a, &amount, 0, 0);
    sl_node_charge(n, &b, &amount, 0, 0);
    sl_node_table_view(t, 0, NULL, &v);
    assert_int_equal(v.nodes[0].decode_rows, 2);
    assert_int_equal(v.nodes[0].free_pages, 90);
    assert_true(v.nodes[0].queued_prompt_tokens == 140);

    sl_node_charge_accepted(n, &a);
    sl_node_charge_drop(n, &a, true); /* its prompt is done */
    beat(t, "d0", 1, 1000, 1, 1);     /* counts a; b is still under way */
    sl_node_table_view(t, 1000, NULL, &v);
    assert_int_equal(v.nodes[0].decode_rows, 2);
    assert_int_equal(v.nodes[0].free_pages, 55);
    assert_true(v.nodes[0].queued_prompt_tokens == 120);

    sl_node_charge_drop(n, &a, false); /* is in the report, not in the ledger any more */
    sl_node_charge_drop(n, &b, true);  /* its prompt is done */
    sl_node_table_view(t, 1000, NULL, &v);
    assert_int_equal(v.nodes[0].decode_rows, 2);
    assert_true(v.nodes[0].queued_prompt_tokens == 50);
    sl_node_charge_drop(n, &b, false);
    sl_node_charge_drop(n, &b, false);
    sl_node_table_view(t, 1000, NULL, &v);
    assert_int_equal(v.nodes[0].decode_rows, 1);
    assert_int_equal(v.nodes[0].free_pages, 60);
    sl_node_table_free(t);
}

/* A prompt may run for seconds, there or on another node, and no report counts its row before it decodes. */
static void ledger_counts_rows_that_do_not_decode_yet(void **s)
{
    (void)s;
    struct sl_node_table *t = table();
    struct info i;
    make(&i, "d0", 1);
    struct sl_node *n = join(t, &i, 0, SL_NODE_NEW);
    static struct sl_node_view v;
    struct sl_charge a = {0}; /* its prompt runs elsewhere: nothing is left to compute here */
    sl_node_charge(n, &a, &(struct sl_node_ledger){.rows = 1, .pages = 5, .context_tokens = 70}, 0, 0);
    sl_node_charge_accepted(n, &a);
    for (uint64_t ms = 1000; ms <= 3000; ms += 1000) {
        beat(t, "d0", 1, ms, ms, 0);
        sl_node_table_view(t, ms, NULL, &v);
        assert_int_equal(v.nodes[0].decode_rows, 1);
        assert_true(v.nodes[0].decode_context_tokens == 70);
        assert_int_equal(v.nodes[0].free_pages, 60); /* those are taken already, and reported */
    }
    sl_node_charge_drop(n, &a, true); /* decodes now; the last report did not know */
    sl_node_table_view(t, 3000, NULL, &v);
    assert_int_equal(v.nodes[0].decode_rows, 1);
    assert_int_equal(v.nodes[0].free_pages, 60);
    beat(t, "d0", 1, 4000, 4000, 1);
    sl_node_charge_drop(n, &a, true); /* its next token */
    sl_node_table_view(t, 4000, NULL, &v);
    assert_int_equal(v.nodes[0].decode_rows, 1);
    sl_node_charge_drop(n, &a, false);
    sl_node_table_view(t, 4000, NULL, &v);
    assert_int_equal(v.nodes[0].decode_rows, 1);
    sl_node_table_free(t);
}

/* 700 tokens are queued: 400 of them less urgent, 200 + 100 as urgent as who asks. */
static void queue_counts_what_runs_before_the_asker(void **s)
{
    (void)s;
    static const struct {
        struct sl_node_asker who;
        double ahead;
    } rows[] = {{{.priority = 5, .n_tokens = 1000}, 700}, /* the least urgent waits for all */
                {{.priority = 0, .n_tokens = 1000}, 300}, /* equals are served as they came */
                {{.priority = 0, .n_tokens = 100}, 100},  /* and a shorter one before a longer */
                {{.priority = -1, .n_tokens = 1000}, 0}};
    struct sl_node_table *t = table();
    struct info i;
    make(&i, "d0", 1);
    struct sl_node *n = join(t, &i, 0, SL_NODE_NEW);
    static struct sl_node_view v;
    struct sl_charge a = {0}, b = {0}, c = {0};
    sl_node_charge(n, &a, &(struct sl_node_ledger){.prompt_tokens = 400}, 3, 0);
    sl_node_charge(n, &b, &(struct sl_node_ledger){.prompt_tokens = 200}, 0, 0);
    sl_node_charge(n, &c, &(struct sl_node_ledger){.prompt_tokens = 100}, 0, 0);
    for (size_t k = 0; k < SL_COUNTOF(rows); k++) {
        sl_node_table_view(t, 0, &rows[k].who, &v);
        assert_true(fabs(v.nodes[0].queued_prompt_tokens - rows[k].ahead) < 1e-9);
    }
    sl_node_charge_drop(n, &b, true); /* its prompt is done */
    sl_node_table_view(t, 0, &rows[1].who, &v);
    assert_true(fabs(v.nodes[0].queued_prompt_tokens - 100) < 1e-9);
    sl_node_table_mark_dead(n);
    sl_node_charge_drop(n, &a, false);
    sl_node_table_free(t);
    sl_node_charge_drop(NULL, &c, false); /* the leg outlives its node */
}

static void ledger_of_a_former_life_does_not_count(void **s)
{
    (void)s;
    struct sl_node_table *t = table();
    struct info i;
    make(&i, "d0", 1);
    struct sl_node *n = join(t, &i, 0, SL_NODE_NEW);
    struct sl_charge c = {0};
    const struct sl_node_ledger amount = {.rows = 3};
    sl_node_charge(n, &c, &amount, 0, 0);
    make(&i, "d0", 2);
    join(t, &i, 0, SL_NODE_RESTARTED);
    sl_node_charge_accepted(n, &c);
    sl_node_charge_drop(n, &c, false);
    assert_int_equal(n->sent.rows, 0);
    assert_int_equal(n->accepted.rows, 0);
    sl_node_table_free(t);
}

static void queue_is_worked_off_between_heartbeats(void **s)
{
    (void)s;
    struct sl_node_table *t = table();
    struct info i;
    make(&i, "d0", 1);
    join(t, &i, 0, SL_NODE_NEW);
    beat(t, "d0", 1, 0, 1, 0); /* 50 tokens queued */
    static struct sl_node_view v;
    sl_node_table_view(t, 0, NULL, &v);
    double before = v.nodes[0].queued_prompt_tokens;
    sl_node_table_view(t, 900, NULL, &v);
    assert_true(v.nodes[0].queued_prompt_tokens < before);
    assert_true(v.nodes[0].queued_prompt_tokens >= 0);
    sl_node_table_free(t);
}

static void cost_model_broken_one_is_not_believed(void **s)
{
    (void)s;
    struct sl_node_table *t = table();
    struct info i;
    make(&i, "d0", 1);
    uint32_t rows[] = {1, 8, 64};
    float ms[] = {2, 3, 9};
    i.m.cost = &i.cost;
    i.cost.tokens = rows;
    i.cost.step_ms = ms;
    i.cost.n_tokens = i.cost.n_step_ms = 3;
    i.cost.has_head_ms_per_row = i.cost.has_read_ms_per_mtoken = i.cost.has_attn_ms_per_mtoken = true;
    i.cost.head_ms_per_row = 0.5f;
    i.cost.read_ms_per_mtoken = 700;
    i.cost.attn_ms_per_mtoken = -1; /* not a time */
    struct sl_node *n = join(t, &i, 0, SL_NODE_NEW);
    assert_int_equal(n->cost.n_points, 3);
    assert_true(n->cost.ms[1] == 3);
    assert_true(n->cost.head_ms_per_row == 0.5 && n->cost.prompt_read_ms_per_mtoken == 700);
    assert_true(n->cost.prompt_attn_ms_per_mtoken == 0);
    Sluice__NodeLoad load = SLUICE__NODE_LOAD__INIT;
    Sluice__Heartbeat hb = SLUICE__HEARTBEAT__INIT;
    hb.node = (char *)"d0";
    hb.boot_id = 1;
    hb.load = &load;
    hb.cost = &i.cost;
    rows[2] = 8; /* not ascending */
    assert_non_null(sl_node_table_heartbeat(t, &hb, 1));
    rows[2] = 64;
    ms[0] = -1;
    assert_non_null(sl_node_table_heartbeat(t, &hb, 1));
    i.cost.n_step_ms = 2;
    assert_non_null(sl_node_table_heartbeat(t, &hb, 1));
    assert_int_equal(n->cost.n_points, 3);
    assert_true(n->cost.ms[0] == 2);
    sl_node_table_free(t);
}

static void view_links_are_those_between_lives_that_are(void **s)
{
    (void)s;
    struct sl_node_table *t = table();
    struct info i;
    make(&i, "p0", 1);
    join(t, &i, 0, SL_NODE_NEW);
    make(&i, "d0", 2);
    join(t, &i, 0, SL_NODE_NEW);
    Sluice__LinkReport a = SLUICE__LINK_REPORT__INIT, b = a, c = a;
    a.peer = b.peer = (char *)"d0";
    c.peer = (char *)"gone";
    a.peer_boot_id = 2;
    b.peer_boot_id = 99; /* a former life */
    a.transport = b.transport = c.transport = (char *)"loop";
    a.state = (char *)"refused";
    b.state = c.state = (char *)"up";
    Sluice__LinkReport *links[] = {&a, &b, &c};
    Sluice__NodeLoad load = SLUICE__NODE_LOAD__INIT;
    Sluice__Heartbeat hb = SLUICE__HEARTBEAT__INIT;
    hb.node = (char *)"p0";
    hb.boot_id = 1;
    hb.load = &load;
    hb.links = links;
    hb.n_links = 3;
    assert_non_null(sl_node_table_heartbeat(t, &hb, 1));
    static struct sl_node_view v;
    sl_node_table_view(t, 1, NULL, &v);
    assert_int_equal(v.state.n_links, 1);
    assert_int_equal(v.links[0].p, 0);
    assert_int_equal(v.links[0].d, 1);
    assert_string_equal(v.links[0].unusable, "refused");
    sl_node_table_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(register_twice_is_one_node),
        cmocka_unit_test(register_another_boot_id_is_a_new_life),
        cmocka_unit_test(register_former_life_beside_the_new_one_is_another_node_of_that_name),
        cmocka_unit_test(register_misfits_are_refused_naming_both_values),
        cmocka_unit_test(register_wrong_first_node_binds_while_it_lives),
        cmocka_unit_test(register_digest_of_the_router_goes_before_the_first_node),
        cmocka_unit_test(register_numerics_differ_is_allowed_when_not_exact),
        cmocka_unit_test(register_full_table_makes_room_of_the_dead_only),
        cmocka_unit_test(silence_kills_and_long_death_forgets),
        cmocka_unit_test(silence_while_the_router_itself_stood_still_kills_nobody),
        cmocka_unit_test(no_progress_with_work_stalls),
        cmocka_unit_test(a_day_without_work_changes_nothing),
        cmocka_unit_test(a_stall_is_told_once_and_prompts_that_wait_are_none),
        cmocka_unit_test(ledger_counts_until_the_next_heartbeat),
        cmocka_unit_test(ledger_counts_rows_that_do_not_decode_yet),
        cmocka_unit_test(queue_counts_what_runs_before_the_asker),
        cmocka_unit_test(ledger_of_a_former_life_does_not_count),
        cmocka_unit_test(queue_is_worked_off_between_heartbeats),
        cmocka_unit_test(cost_model_broken_one_is_not_believed),
        cmocka_unit_test(view_links_are_those_between_lives_that_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
