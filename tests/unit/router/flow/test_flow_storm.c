/* tests/unit/router/flow/test_flow_storm.c - many requests over nodes that lose batches, refuse, restart and
 * answer late, by seeds. Every client gets exactly the tokens it would get in calm, or has left; no node
 * keeps a part of a request that is over.
 *
 * The nodes are played here: a token is a function of the prompt and its index, as the law of exactness has
 * it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/support/support.h"
#include "tests/unit/router/flow/flow_rig.h"

#define N_NODES    4
#define N_REQUESTS 24
#define MAX_SEQS   1024
#define RESTARTS   3 /* per storm: fewer than one request may lose */

struct seq { /* a part of a request on a node */
    bool used, decode, over, started;
    char id[64];
    uint32_t attempt, n_prompt, split, first_index, n_sent, max_tokens;
    int32_t mark; /* first prompt token: what the answer depends on */
    char peer[16];
};

struct node {
    struct rig_node *rig;
    struct seq seqs[MAX_SEQS];
};

struct storm {
    struct rig r;
    struct node nodes[N_NODES];
    unsigned long long random;
    uint32_t restarts_left, lose_percent, refuse_percent;
};

static uint32_t draw(struct storm *s, uint32_t below)
{
    return (uint32_t)(sl_test_random(&s->random) % below);
}

static int32_t token_at(int32_t mark, uint32_t index)
{
    return (int32_t)((uint32_t)mark * 7 + index * 5) % 26;
}

static struct seq *find(struct node *n, const char *id, uint32_t attempt, bool decode)
{
    for (size_t i = 0; i < MAX_SEQS; i++)
        if (n->seqs[i].used && n->seqs[i].attempt == attempt && n->seqs[i].decode == decode &&
            strcmp(n->seqs[i].id, id) == 0)
            return &n->seqs[i];
    return NULL;
}

static struct seq *open_seq(struct node *n, const char *id, uint32_t attempt, bool decode)
{
    struct seq *q = find(n, id, attempt, decode);
    if (q)
        return NULL; /* the command came twice */
    for (size_t i = 0; i < MAX_SEQS && !q; i++)
        if (!n->seqs[i].used)
            q = &n->seqs[i];
    SL_ASSERT(q != NULL);
    *q = (struct seq){.used = true, .decode = decode, .attempt = attempt};
    snprintf(q->id, sizeof q->id, "%s", id);
    return q;
}

static void on_submit(struct storm *s, struct node *n, struct sl_wire_in *in)
{
    const Sluice__Submit *m = in->msg->submit;
    if (draw(s, 100) < s->refuse_percent) {
        rig_answer(in, draw(s, 2) ? SL_ENOPAGES : SL_EDRAINING);
        return;
    }
    struct seq *q = open_seq(n, m->request_id, m->attempt, true);
    if (q) {
        q->n_prompt = m->n_prompt;
        q->split = m->split_tokens;
        q->first_index = (uint32_t)m->n_tokens - m->n_prompt;
        q->max_tokens = m->sampling->max_tokens;
        q->mark = m->tokens[0];
        for (uint32_t i = 0; i < q->first_index;
             i++) /* what was generated before is what this node would have said */
            assert_int_equal(m->tokens[m->n_prompt + i], token_at(q->mark, i));
        if (m->split_tokens)
            snprintf(q->peer, sizeof q->peer, "%s", m->prefill_peer->name);
    }
    rig_answer(in, SL_OK);
}

static void on_prefill(struct storm *s, struct node *n, struct sl_wire_in *in)
{
    const Sluice__Prefill *m = in->msg->prefill;
    if (draw(s, 100) < s->refuse_percent) {
        rig_answer(in, SL_EAGAIN);
        return;
    }
    struct seq *q = open_seq(n, m->request_id, m->attempt, false);
    if (q) {
        q->n_prompt = m->n_prompt;
        q->split = m->split_tokens;
        q->first_index = (uint32_t)m->n_tokens - m->n_prompt;
        q->max_tokens = m->sampling->max_tokens;
        q->mark = m->tokens[0];
    }
    rig_answer(in, SL_OK);
}

static void on_cancel(struct node *n, struct sl_wire_in *in)
{
    const Sluice__Cancel *m = in->msg->cancel;
    for (int duty = 0; duty < 2; duty++) /* the tombstone: a submit of it that comes later finds it over */
        open_seq(n, m->request_id, m->attempt, duty == 1);
    for (size_t i = 0; i < MAX_SEQS; i++)
        if (n->seqs[i].used && strcmp(n->seqs[i].id, m->request_id) == 0 && n->seqs[i].attempt <= m->attempt)
            n->seqs[i].over = true;
    rig_answer(in, SL_OK);
}

static void on_resync(struct node *n, struct sl_wire_in *in)
{
    const Sluice__Resync *m = in->msg->resync;
    struct seq *q = find(n, m->request_id, m->attempt, true);
    Sluice__ResyncReply reply = SLUICE__RESYNC_REPLY__INIT;
    Sluice__TokenEvent tokens[64], *list[64];
    Sluice__DoneEvent done = SLUICE__DONE_EVENT__INIT;
    reply.code = q ? SL_OK : SL_ELOST;
    for (uint32_t i = m->from_index; q && i < q->first_index + q->n_sent; i++) {
        Sluice__TokenEvent *t = list[reply.n_tokens] = &tokens[reply.n_tokens];
        reply.n_tokens++;
        sluice__token_event__init(t);
        t->request_id = q->id;
        t->attempt = q->attempt;
        t->index = i;
        t->token = token_at(q->mark, i);
    }
    reply.tokens = list;
    if (q && q->first_index + q->n_sent >= q->max_tokens) {
        done.request_id = q->id;
        done.attempt = q->attempt;
        done.duty = SLUICE__ROLE__ROLE_DECODE;
        done.reason = SLUICE__DONE_REASON__DONE_LENGTH;
        reply.done = &done;
    }
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_RESYNC_REPLY;
    e.resync_reply = &reply;
    sl_wire_reply(in, &e);
}

static bool take_commands(struct storm *s, struct node *n)
{
    struct sl_wire_in *in;
    bool any = false;
    while ((in = sl_queue_pop(n->rig->queue)) != NULL) {
        any = true;
        switch (in->msg->body_case) {
        case SLUICE__ENVELOPE__BODY_SUBMIT:
            on_submit(s, n, in);
            break;
        case SLUICE__ENVELOPE__BODY_PREFILL:
            on_prefill(s, n, in);
            break;
        case SLUICE__ENVELOPE__BODY_CANCEL:
            on_cancel(n, in);
            break;
        case SLUICE__ENVELOPE__BODY_RESYNC:
            on_resync(n, in);
            break;
        default:
            rig_answer(in, SL_EUNSUPPORTED);
            break;
        }
    }
    return any;
}

static struct node *node_named(struct storm *s, const char *name)
{
    for (uint32_t i = 0; i < N_NODES; i++)
        if (strcmp(s->nodes[i].rig->name, name) == 0)
            return &s->nodes[i];
    return NULL;
}

/* D may go on when P has done its part, or is gone: then it computes the prompt itself. */
static bool pages_are_here(struct storm *s, const struct seq *q)
{
    if (q->split == 0)
        return true;
    struct seq *p = find(node_named(s, q->peer), q->id, q->attempt, false);
    if (p)
        return p->over;
    return draw(s, 20) == 0; /* not there yet, refused, or its node was restarted */
}

static bool advance(struct storm *s, struct seq *q, struct rig_batch *b)
{
    if (!q->used || q->over || b->m.n_tokens >= 60 || b->m.n_done >= 14)
        return false;
    uint32_t n_tokens = q->n_prompt + q->first_index;
    if (!q->decode) {
        if (q->split == n_tokens)
            rig_token(b, q->id, q->attempt, q->first_index, token_at(q->mark, q->first_index));
        rig_done(b, q->id, q->attempt, SLUICE__ROLE__ROLE_PREFILL, SLUICE__DONE_REASON__DONE_PREFILLED, SL_OK,
                 NULL);
        q->over = true;
        return true;
    }
    if (!q->started && !pages_are_here(s, q))
        return false;
    q->started = true;
    uint32_t index = q->first_index + q->n_sent++;
    bool from_p = index == q->first_index && q->split == n_tokens;
    if (!from_p || draw(s, 2)) /* D tells P's token too, or leaves it to P */
        rig_token(b, q->id, q->attempt, index, token_at(q->mark, index));
    if (index + 1 >= q->max_tokens) {
        rig_done(b, q->id, q->attempt, SLUICE__ROLE__ROLE_DECODE, SLUICE__DONE_REASON__DONE_LENGTH, SL_OK,
                 NULL);
        q->over = true;
    }
    return true;
}

static void step(struct storm *s, struct node *n)
{
    if (s->restarts_left && draw(s, 60) == 0) {
        s->restarts_left--;
        memset(n->seqs, 0, sizeof n->seqs);
        rig_restart(n->rig);
        return;
    }
    struct rig_batch b;
    rig_batch(&b, n->rig);
    bool any = false;
    for (size_t i = 0; i < MAX_SEQS; i++)
        if (draw(s, 3)) /* not all sequences in every step */
            any |= advance(s, &n->seqs[i], &b);
    if (any && draw(s, 100) < s->lose_percent)
        rig_lose(&b);
    else if (any || draw(s, 10) == 0)
        rig_send(&b); /* an empty one shows a loss with nothing behind it */
}

static bool is_done(struct rig_client *c)
{
    pthread_mutex_lock(&c->lock);
    bool done = c->done;
    pthread_mutex_unlock(&c->lock);
    return done;
}

static void tell_hang(struct storm *s, struct rig_client *c, uint32_t n, const bool *left,
                      unsigned long long seed, int mode)
{
    for (uint32_t i = 0; i < n; i++) {
        if (left[i] || is_done(&c[i]))
            continue;
        print_message("request %u id %s has %u tokens\n", i, c[i].id, c[i].n_tokens);
        Sluice__AdminReply *r = rig_admin(&s->r, "explain", c[i].id);
        for (size_t t = 0; t < r->n_tables; t++)
            for (size_t k = 0; k < r->tables[t]->n_rows; k++) {
                for (size_t j = 0; j < r->tables[t]->rows[k]->n_cells; j++)
                    print_message("%s ", r->tables[t]->rows[k]->cells[j]);
                print_message("\n");
            }
        sluice__admin_reply__free_unpacked(r, NULL);
        for (uint32_t k = 0; k < N_NODES; k++)
            for (size_t j = 0; j < MAX_SEQS; j++) {
                const struct seq *q = &s->nodes[k].seqs[j];
                if (q->used && strcmp(q->id, c[i].id) == 0)
                    print_message("%s attempt %u decode %d over %d started %d split %u first %u sent %u max "
                                  "%u peer %s\n",
                                  s->nodes[k].rig->name, q->attempt, q->decode, q->over, q->started, q->split,
                                  q->first_index, q->n_sent, q->max_tokens, q->peer);
            }
    }
    fail_msg("seed %llu mode %d: requests hang", seed, mode);
}

/* So that most requests wait for their turn. */
static void hold_soon(struct sl_flow_conf *conf)
{
    conf->hold_ms = 1;
}

static void run_storm(unsigned long long seed, int mode, uint32_t lose_percent, uint32_t refuse_percent)
{
    static struct storm s;
    memset(&s, 0, sizeof s);
    s.random = seed;
    s.lose_percent = lose_percent;
    s.refuse_percent = refuse_percent;
    s.restarts_left = lose_percent ? RESTARTS : 0;
    rig_open(&s.r, mode, seed % 2 ? hold_soon : NULL);
    static const char *const names[] = {"p0", "p1", "d0", "d1"}, *const keys[] = {NULL, "a", "b"};
    for (uint32_t i = 0; i < N_NODES; i++) {
        s.nodes[i].rig = rig_node(&s.r, names[i], i < 2);
        assert_true(rig_join(s.nodes[i].rig));
    }
    static struct rig_client c[N_REQUESTS];
    static bool left[N_REQUESTS];
    uint32_t max_tokens[N_REQUESTS], n_prompt[N_REQUESTS], submitted = 0, open = 0, n_left = 0;
    memset(left, 0, sizeof left);
    uint64_t end = sl_now_ms() + RIG_WAIT_MS;
    do {
        if (submitted < N_REQUESTS && draw(&s, 3) == 0) {
            uint32_t i = submitted++;
            n_prompt[i] = 1 + draw(&s, 100);
            max_tokens[i] = 1 + draw(&s, 30);
            struct sl_gen_req *q = rig_request(&s.r, n_prompt[i]);
            q->tokens[0] = (int32_t)i;
            q->sampling.max_tokens = max_tokens[i];
            q->key_name = keys[draw(&s, SL_COUNTOF(keys))];
            q->priority = (int32_t)draw(&s, 3) - 1;
            if (draw(&s, 4) == 0)
                q->split = draw(&s, n_prompt[i] + 1);
            rig_client(&c[i], &s.r);
            assert_int_equal(rig_submit(&c[i], q), SL_OK);
        }
        if (submitted && n_left < N_REQUESTS / 6 && draw(&s, 50) == 0) {
            n_left++;
            uint32_t i = draw(&s, submitted);
            left[i] = true;
            sl_flow_cancel(s.r.flow, c[i].id);
        }
        bool busy = false;
        for (uint32_t i = 0; i < N_NODES; i++) {
            busy |= take_commands(&s, &s.nodes[i]);
            step(&s, &s.nodes[i]);
        }
        if (!busy)
            sl_queue_wait(s.nodes[draw(&s, N_NODES)].rig->queue, 1);
        open = N_REQUESTS - submitted;
        for (uint32_t i = 0; i < submitted; i++)
            open += !left[i] && !is_done(&c[i]);
        if (sl_now_ms() > end)
            tell_hang(&s, c, submitted, left, seed, mode);
    } while (open);

    uint32_t served = 0;
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        bool refused =
            c[i].done && c[i].err != SL_OK && c[i].n_tokens == 0; /* all were full before its first token */
        if (!left[i] && refused && refuse_percent == 0)
            fail_msg("seed %llu mode %d request %u: %s", seed, mode, i, c[i].why);
        if (!left[i] && !refused) {
            served++;
            if (c[i].err)
                fail_msg("seed %llu mode %d request %u after %u tokens: %s", seed, mode, i, c[i].n_tokens,
                         c[i].why);
            assert_int_equal(c[i].n_tokens, max_tokens[i]);
            assert_int_equal(c[i].usage.completion_tokens, max_tokens[i]);
            assert_int_equal(c[i].usage.prompt_tokens, n_prompt[i]);
        }
        for (uint32_t k = 0; k < c[i].n_tokens; k++) {
            assert_int_equal(c[i].indexes[k], k);
            assert_int_equal(c[i].tokens[k], token_at((int32_t)i, k));
        }
    }
    assert_true(served > N_REQUESTS / 3);

    /* Parts that no client waits for are canceled, or run out. */
    for (bool any = true; any;) {
        any = false;
        for (uint32_t i = 0; i < N_NODES; i++) {
            take_commands(&s, &s.nodes[i]);
            for (size_t k = 0; k < MAX_SEQS; k++)
                any |= s.nodes[i].seqs[k].used && !s.nodes[i].seqs[k].over;
        }
        if (any && sl_now_ms() > end)
            fail_msg("seed %llu mode %d: a node still holds a part", seed, mode);
    }
    rig_wait_idle(&s.r);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        rig_client_fini(&c[i]);
    rig_close(&s.r);
}

static void storm_lost_batches_and_restarts(void **state)
{
    (void)state;
    for (unsigned long long seed = 1; seed <= 8; seed++)
        for (int mode = SLUICE__MODE__MODE_PD; mode <= SLUICE__MODE__MODE_HYBRID; mode++)
            run_storm(seed, mode, 10, 0);
}

static void storm_with_refusals(void **state)
{
    (void)state;
    for (unsigned long long seed = 100; seed < 108; seed++)
        for (int mode = SLUICE__MODE__MODE_PD; mode <= SLUICE__MODE__MODE_HYBRID; mode++)
            run_storm(seed, mode, 5, 15);
}

static void calm_all_are_served(void **state)
{
    (void)state;
    for (int mode = SLUICE__MODE__MODE_PD; mode <= SLUICE__MODE__MODE_HYBRID; mode++)
        run_storm(7, mode, 0, 0);
}

int main(void)
{
    sl_log_set_level(SL_LOG_ERROR); /* lost nodes and batches are the point */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calm_all_are_served),
        cmocka_unit_test(storm_lost_batches_and_restarts),
        cmocka_unit_test(storm_with_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
