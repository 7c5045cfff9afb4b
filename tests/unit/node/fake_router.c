/* tests/unit/node/fake_router.c - see the header. */
#include "tests/unit/node/fake_router.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rand.h"

enum { TAG_REGISTER = 1, TAG_EVENTS = 2 };

void fake_router_open(struct fake_router *r)
{
    struct sl_why why = {{0}};
    memset(r, 0, sizeof *r);
    r->boot_id = sl_random_u64() | 1;
    r->router_dead_ms = FAKE_WAIT_MS;
    r->queue = sl_queue_new(4096);
    r->answers = sl_queue_new(256);
    r->next_tag = 1;
    assert_int_equal(
        sl_wire_server_open("tcp://127.0.0.1:0", NULL, 8, r->queue, TAG_REGISTER, &r->server, &why), SL_OK);
    assert_int_equal(sl_wire_pull_open("tcp://127.0.0.1:0", NULL, r->queue, TAG_EVENTS, &r->pull, &why),
                     SL_OK);
}

void fake_router_close(struct fake_router *r)
{
    for (uint32_t i = 0; i < r->n_nodes; i++)
        sl_wire_client_close(r->nodes[i].client);
    sl_wire_server_close(r->server);
    sl_wire_pull_close(r->pull);
    for (struct sl_wire_in *in; (in = sl_queue_pop(r->queue));)
        sl_wire_in_free(in);
    for (struct sl_wire_in *in; (in = sl_queue_pop(r->answers));)
        sl_wire_in_free(in);
    sl_queue_free(r->queue);
    sl_queue_free(r->answers);
    for (struct fake_request *q = r->requests; q;) {
        struct fake_request *next = q->next;
        sl_free(q);
        q = next;
    }
}

const char *fake_router_url(const struct fake_router *r)
{
    return sl_wire_server_url(r->server);
}

static struct fake_node *node_by_name(struct fake_router *r, const char *name)
{
    for (uint32_t i = 0; i < r->n_nodes; i++) {
        if (strcmp(r->nodes[i].name, name) == 0)
            return &r->nodes[i];
    }
    return NULL;
}

static void on_register(struct fake_router *r, struct sl_wire_in *in)
{
    const Sluice__NodeInfo *m = in->msg->register_node->node;
    struct fake_node *n = node_by_name(r, m->name);
    if (!n) {
        assert_true(r->n_nodes < SL_COUNTOF(r->nodes));
        n = &r->nodes[r->n_nodes++];
        snprintf(n->name, sizeof n->name, "%s", m->name);
    }
    if (n->boot_id != m->boot_id) {
        struct sl_why why = {{0}};
        sl_wire_client_close(n->client);
        n->boot_id = m->boot_id;
        n->last_seq = 0;
        snprintf(n->command_url, sizeof n->command_url, "%s", m->command_url);
        snprintf(n->transfer_address, sizeof n->transfer_address, "%s", m->transfer_address);
        n->page_tokens = m->model->page_tokens;
        n->kv_pages = m->kv_pages;
        n->numerics_id = m->model->numerics_id;
        n->prefers = m->prefers;
        assert_int_equal(sl_wire_client_open(n->command_url, NULL, 4, 64, r->answers, &n->client, &why),
                         SL_OK);
    }
    n->n_registered += !r->refuse;
    Sluice__RegisterReply reply = SLUICE__REGISTER_REPLY__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    reply.accepted = !r->refuse;
    reply.why = r->refuse ? (char *)"the test says no" : NULL;
    reply.router_boot_id = r->boot_id;
    reply.event_url = (char *)(uintptr_t)sl_wire_pull_url(r->pull);
    reply.has_heartbeat_ms = reply.has_router_dead_ms = true;
    reply.heartbeat_ms = 50;
    reply.router_dead_ms = r->router_dead_ms;
    e.body_case = SLUICE__ENVELOPE__BODY_REGISTER_REPLY;
    e.register_reply = &reply;
    sl_wire_reply(in, &e);
}

static void on_heartbeat(struct fake_router *r, struct sl_wire_in *in)
{
    struct fake_node *n = node_by_name(r, in->msg->heartbeat->node);
    if (n) {
        n->n_heartbeats++;
        n->beats_for = in->msg->heartbeat->router_boot_id;
        n->draining = in->msg->heartbeat->load->draining;
    }
    Sluice__HeartbeatReply reply = SLUICE__HEARTBEAT_REPLY__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    reply.known = n && n->n_registered && in->msg->heartbeat->router_boot_id == r->boot_id;
    reply.router_boot_id = r->boot_id;
    reply.has_events_taken = reply.known;
    reply.events_taken = n && !r->takes_late ? n->last_seq : 0;
    e.body_case = SLUICE__ENVELOPE__BODY_HEARTBEAT_REPLY;
    e.heartbeat_reply = &reply;
    sl_wire_reply(in, &e);
}

struct fake_request *fake_router_request(struct fake_router *r, const char *id, uint32_t attempt)
{
    for (struct fake_request *q = r->requests; q; q = q->next) {
        if (strcmp(q->id, id) == 0 && q->attempt == attempt)
            return q;
    }
    struct fake_request *q = sl_xcalloc(1, sizeof *q);
    snprintf(q->id, sizeof q->id, "%s", id);
    q->attempt = attempt;
    q->next = r->requests;
    r->requests = q;
    return q;
}

static void on_events(struct fake_router *r, const Sluice__EventBatch *b)
{
    struct fake_node *n = node_by_name(r, b->node);
    if (!n || n->boot_id != b->boot_id || b->router_boot_id != r->boot_id)
        return;
    n->n_gaps += b->seq > n->last_seq + 1;
    n->n_repeated += b->seq <= n->last_seq;
    n->last_seq = b->seq;
    for (size_t i = 0; i < b->n_tokens; i++) {
        const Sluice__TokenEvent *t = b->tokens[i];
        struct fake_request *q = fake_router_request(r, t->request_id, t->attempt);
        assert_true(t->index >= q->first_index && t->index - q->first_index < FAKE_MAX_TOKENS);
        uint32_t at = t->index - q->first_index;
        if (q->have[at]) {
            q->n_duplicates++;
            q->n_different += q->tokens[at] != t->token || q->digests[at] != t->logits_digest;
        }
        q->have[at] = true;
        q->tokens[at] = t->token;
        q->digests[at] = t->logits_digest;
        if (t->has_logprob)
            q->logprobs[at] = t->logprob;
        while (q->n_tokens < FAKE_MAX_TOKENS && q->have[q->n_tokens])
            q->n_tokens++;
    }
    for (size_t i = 0; i < b->n_legs; i++) {
        struct fake_request *q = fake_router_request(r, b->legs[i]->request_id, b->legs[i]->attempt);
        static const char *const known[] = {"admitted",  "granted",  "computing",
                                            "committed", "decoding", "peer_lost"};
        for (size_t k = 0; k < SL_COUNTOF(known) && q->n_states < FAKE_MAX_STATES; k++) {
            if (strcmp(b->legs[i]->state, known[k]) == 0)
                q->states[q->n_states++] = known[k];
        }
    }
    for (size_t i = 0; i < b->n_done; i++) {
        const Sluice__DoneEvent *m = b->done[i];
        struct fake_request *q = fake_router_request(r, m->request_id, m->attempt);
        struct fake_leg *l = m->duty == SLUICE__ROLE__ROLE_PREFILL ? &q->p : &q->d;
        l->done = true;
        l->n_done++;
        l->reason = m->reason;
        l->code = m->has_code ? m->code : 0;
        snprintf(l->why, sizeof l->why, "%s", m->why ? m->why : "");
        if (m->report)
            l->report = *m->report;
    }
}

void fake_router_pump(struct fake_router *r, uint32_t ms)
{
    sl_queue_wait(r->queue, ms);
    for (struct sl_wire_in *in; (in = sl_queue_pop(r->queue));) {
        if (r->mute && in->kind == SL_WIRE_REQUEST) {
            r->n_unheard += in->msg->body_case == SLUICE__ENVELOPE__BODY_REGISTER_NODE;
            sl_wire_in_free(in);
            continue;
        }
        switch (in->msg->body_case) {
        case SLUICE__ENVELOPE__BODY_REGISTER_NODE:
            on_register(r, in);
            continue;
        case SLUICE__ENVELOPE__BODY_HEARTBEAT:
            on_heartbeat(r, in);
            continue;
        case SLUICE__ENVELOPE__BODY_EVENTS:
            on_events(r, in->msg->events);
            break;
        default:
            break;
        }
        sl_wire_in_free(in);
    }
}

struct fake_node *fake_router_node(struct fake_router *r, const char *name)
{
    FAKE_WAIT(r, node_by_name(r, name) && node_by_name(r, name)->n_heartbeats > 0);
    return node_by_name(r, name);
}

Sluice__Envelope *fake_call(struct fake_router *r, struct fake_node *n, Sluice__Envelope *e,
                            uint32_t timeout_ms)
{
    uint64_t tag = r->next_tag++;
    assert_int_equal(sl_wire_call(n->client, e, tag, timeout_ms), SL_OK);
    for (;;) {
        fake_router_pump(r, 1);
        struct sl_wire_in *in = sl_queue_pop(r->answers);
        if (!in)
            continue;
        Sluice__Envelope *msg = NULL;
        bool mine = in->tag == tag;
        if (mine) {
            msg = in->msg;
            in->msg = NULL;
        }
        sl_wire_in_free(in);
        if (mine)
            return msg;
    }
}

enum sl_err fake_command(struct fake_router *r, struct fake_node *n, Sluice__Envelope *e)
{
    Sluice__Envelope *a = fake_call(r, n, e, FAKE_WAIT_MS);
    assert_non_null(a);
    assert_int_equal(a->body_case, SLUICE__ENVELOPE__BODY_COMMAND_REPLY);
    enum sl_err code = (enum sl_err)a->command_reply->code;
    if (code != SL_OK)
        print_message("[ answered ] %s: %s\n", sl_err_name(code),
                      a->command_reply->why ? a->command_reply->why : "");
    sl_wire_free(a);
    return code;
}

static void fill_sampling(const struct fake_ask *a, Sluice__Sampling *s, int32_t *stop)
{
    sluice__sampling__init(s);
    s->temperature = a->temperature;
    s->top_p = 1;
    s->repetition_penalty = 1;
    s->seed = a->seed;
    s->max_tokens = a->max_tokens;
    s->ignore_eos = a->stop_id < 0;
    s->n_logprobs = a->n_logprobs;
    if (a->stop_id >= 0) {
        *stop = a->stop_id;
        s->stop_ids = stop;
        s->n_stop_ids = 1;
    }
}

static void fill_peer(const struct fake_node *n, Sluice__PeerRef *p)
{
    sluice__peer_ref__init(p);
    p->name = (char *)(uintptr_t)n->name;
    p->boot_id = n->boot_id;
    p->transfer_address = (char *)(uintptr_t)n->transfer_address;
}

enum sl_err fake_submit(struct fake_router *r, const struct fake_ask *a)
{
    Sluice__Sampling s;
    Sluice__PeerRef peer;
    Sluice__Submit m = SLUICE__SUBMIT__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    int32_t stop;
    fill_sampling(a, &s, &stop);
    m.request_id = (char *)(uintptr_t)a->id;
    m.attempt = a->attempt;
    m.router_boot_id = r->boot_id;
    m.tokens = (int32_t *)(uintptr_t)a->tokens;
    m.n_tokens = a->n_tokens;
    m.n_prompt = a->n_prompt;
    m.sampling = &s;
    m.deadline_ms = a->deadline_ms ? a->deadline_ms : FAKE_WAIT_MS;
    m.split_tokens = a->split;
    if (a->split) {
        fill_peer(a->p, &peer);
        m.prefill_peer = &peer;
    }
    m.cache_salt = (char *)(uintptr_t)a->salt;
    m.has_chunk_tokens = a->chunk >= -1;
    m.chunk_tokens = a->chunk;
    m.has_want_digest = m.want_digest = true;
    e.body_case = SLUICE__ENVELOPE__BODY_SUBMIT;
    e.submit = &m;
    fake_router_request(r, a->id, a->attempt)->first_index = a->n_tokens - a->n_prompt;
    return fake_command(r, a->d, &e);
}

enum sl_err fake_prefill(struct fake_router *r, const struct fake_ask *a)
{
    Sluice__Sampling s;
    Sluice__PeerRef peer;
    Sluice__Prefill m = SLUICE__PREFILL__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    int32_t stop;
    fill_sampling(a, &s, &stop);
    fill_peer(a->d, &peer);
    m.request_id = (char *)(uintptr_t)a->id;
    m.attempt = a->attempt;
    m.router_boot_id = r->boot_id;
    m.tokens = (int32_t *)(uintptr_t)a->tokens;
    m.n_tokens = a->n_tokens;
    m.n_prompt = a->n_prompt;
    m.sampling = &s;
    m.deadline_ms = a->deadline_ms ? a->deadline_ms : FAKE_WAIT_MS;
    m.split_tokens = a->split;
    m.decode_peer = &peer;
    m.cache_salt = (char *)(uintptr_t)a->salt;
    m.has_chunk_tokens = a->chunk >= -1;
    m.chunk_tokens = a->chunk;
    m.has_want_digest = m.want_digest = true;
    e.body_case = SLUICE__ENVELOPE__BODY_PREFILL;
    e.prefill = &m;
    fake_router_request(r, a->id, a->attempt)->first_index = a->n_tokens - a->n_prompt;
    return fake_command(r, a->p, &e);
}

enum sl_err fake_cancel(struct fake_router *r, struct fake_node *n, const char *id, uint32_t attempt,
                        uint32_t tombstone_ms)
{
    Sluice__Cancel c = SLUICE__CANCEL__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    c.request_id = (char *)(uintptr_t)id;
    c.attempt = attempt;
    c.tombstone_ms = tombstone_ms;
    e.body_case = SLUICE__ENVELOPE__BODY_CANCEL;
    e.cancel = &c;
    return fake_command(r, n, &e);
}

double fake_stat(struct fake_router *r, struct fake_node *n, const char *name)
{
    Sluice__StatsRequest m = SLUICE__STATS_REQUEST__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    m.has_requests = m.requests = true;
    e.body_case = SLUICE__ENVELOPE__BODY_STATS;
    e.stats = &m;
    Sluice__Envelope *a = fake_call(r, n, &e, FAKE_WAIT_MS);
    assert_non_null(a);
    assert_int_equal(a->body_case, SLUICE__ENVELOPE__BODY_STATS_REPLY);
    double v = -1;
    for (size_t i = 0; i < a->stats_reply->n_values; i++) {
        if (strcmp(a->stats_reply->values[i]->name, name) == 0)
            v = a->stats_reply->values[i]->value;
    }
    sl_wire_free(a);
    assert_true(v >= 0);
    return v;
}

void fake_expect_no_leak(struct fake_router *r, struct fake_node *n)
{
    FAKE_WAIT(r, fake_stat(r, n, "legs_active") == 0 && fake_stat(r, n, "transfers_open") == 0 &&
                     fake_stat(r, n, "sequences_running") == 0 && fake_stat(r, n, "sequences_waiting") == 0);
    FAKE_WAIT(r, fake_stat(r, n, "pages_free") + fake_stat(r, n, "pages_evictable") ==
                     fake_stat(r, n, "pages_total"));
}

pid_t fake_daemon_start(const char *program, const char *const *args)
{
    const char *argv[48] = {program};
    size_t n = 1;
    for (; args[n - 1]; n++) {
        assert_true(n < SL_COUNTOF(argv) - 1);
        argv[n] = args[n - 1];
    }
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execv(program, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    return pid;
}

static int how_it_ended(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int fake_daemon_wait(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return how_it_ended(status);
}

int fake_daemon_wait_served(struct fake_router *r, pid_t pid)
{
    int status;
    FAKE_WAIT(r, waitpid(pid, &status, WNOHANG) == pid);
    return how_it_ended(status);
}
