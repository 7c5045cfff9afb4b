/* tests/unit/router/flow/flow_rig.c - see flow_rig.h. */
#include "tests/unit/router/flow/flow_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"

static uint64_t next_number = 1;

static void pause_a_little(void)
{
    struct timespec t = {.tv_nsec = 2000000};
    nanosleep(&t, NULL);
}

void rig_open(struct rig *r, int mode, void (*change)(struct sl_flow_conf *conf))
{
    memset(r, 0, sizeof *r);
    unsigned long long n = next_number++;
    snprintf(r->register_url, sizeof r->register_url, "inproc://rig-register-%llu", n);
    snprintf(r->event_url, sizeof r->event_url, "inproc://rig-events-%llu", n);
    snprintf(r->admin_url, sizeof r->admin_url, "inproc://rig-admin-%llu", n);
    r->tokenizer = rig_tokenizer();
    r->metrics = sl_metrics_new();
    r->boot_id = 0x1000 + n;
    struct sl_flow_conf conf = {.register_url = r->register_url,
                                .event_url = r->event_url,
                                .admin_url = r->admin_url,
                                .mode = mode,
                                .max_requests = 64,
                                .heartbeat_ms = 100,
                                .node_dead_ms = 10 * RIG_WAIT_MS, /* nodes die by restarting */
                                .node_stall_ms = 10 * RIG_WAIT_MS,
                                .command_timeout_ms = RIG_WAIT_MS,
                                .default_deadline_ms = RIG_WAIT_MS,
                                .boot_id = r->boot_id,
                                .tokenizer = r->tokenizer,
                                .context_length = 4096,
                                .exact = true,
                                .metrics = r->metrics,
                                .model_name = "m\"odel",
                                .version = "0"};
    if (change)
        change(&conf);
    struct sl_why why = {{0}};
    if (sl_flow_open(&conf, &r->flow, &why))
        fail_msg("flow not open: %s", why.text);
}

void rig_close(struct rig *r)
{
    sl_flow_close(r->flow);
    for (uint32_t i = 0; i < r->n_nodes; i++) {
        struct rig_node *n = &r->nodes[i];
        sl_wire_push_close(n->push);
        sl_wire_server_close(n->server);
        struct sl_wire_in *in;
        while (n->n_early)
            sl_wire_in_free(n->early[--n->n_early]);
        while ((in = sl_queue_pop(n->queue)) != NULL)
            sl_wire_in_free(in);
        sl_queue_free(n->queue);
    }
    sl_metrics_free(r->metrics);
    sl_tokenizer_close(r->tokenizer);
}

struct rig_node *rig_node(struct rig *r, const char *name, bool prefers_prefill)
{
    struct rig_node *n = &r->nodes[r->n_nodes++];
    *n = (struct rig_node){
        .rig = r, .prefers_prefill = prefers_prefill, .kv_pages = 1000, .free_pages = 1000, .numerics_id = 7};
    snprintf(n->name, sizeof n->name, "%s", name);
    n->boot_id = next_number++;
    snprintf(n->command_url, sizeof n->command_url, "inproc://rig-node-%llu", (unsigned long long)n->boot_id);
    n->queue = sl_queue_new(1024);
    struct sl_why why = {{0}};
    if (sl_wire_server_open(n->command_url, NULL, 8, n->queue, 0, &n->server, &why))
        fail_msg("no command socket: %s", why.text);
    return n;
}

static Sluice__Envelope *ask(const char *url, Sluice__Envelope *e)
{
    Sluice__Envelope *answer;
    struct sl_why why = {{0}};
    if (sl_wire_call_wait(url, NULL, e, RIG_WAIT_MS, &answer, &why))
        fail_msg("no answer from %s: %s", url, why.text);
    return answer;
}

bool rig_join(struct rig_node *n)
{
    uint8_t digest[16] = {n->digest};
    Sluice__ModelInfo model = SLUICE__MODEL_INFO__INIT;
    model.name = (char *)"letters";
    model.digest = (ProtobufCBinaryData){.len = 16, .data = digest};
    model.context_length = 4096;
    model.n_vocab = RIG_VOCAB;
    model.n_layers = model.n_kv_heads = 2;
    model.head_dim = 8;
    model.page_tokens = RIG_PAGE_TOKENS;
    model.page_bytes = 4096;
    model.has_tensor_parallel = true;
    model.tensor_parallel = 2;
    model.numerics_id = n->numerics_id;
    Sluice__Role permits[2];
    size_t n_permits = 0;
    if (!n->no_prefill)
        permits[n_permits++] = SLUICE__ROLE__ROLE_PREFILL;
    if (!n->no_decode)
        permits[n_permits++] = SLUICE__ROLE__ROLE_DECODE;
    Sluice__NodeInfo info = SLUICE__NODE_INFO__INIT;
    info.name = n->name;
    info.boot_id = n->boot_id;
    info.prefers = n->prefers_prefill ? SLUICE__ROLE__ROLE_PREFILL : SLUICE__ROLE__ROLE_DECODE;
    info.permits = permits;
    info.n_permits = n_permits;
    info.command_url = n->command_url;
    info.transfer_address = (char *)"127.0.0.1:1";
    info.model = &model;
    info.kv_pages = n->kv_pages;
    info.threads = 1;
    Sluice__Register m = SLUICE__REGISTER__INIT;
    m.node = &info;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_REGISTER_NODE;
    e.register_node = &m;
    Sluice__Envelope *a = ask(n->rig->register_url, &e);
    assert_int_equal(a->body_case, SLUICE__ENVELOPE__BODY_REGISTER_REPLY);
    bool accepted = a->register_reply->accepted;
    if (accepted && !n->push) {
        struct sl_why why = {{0}};
        assert_int_equal(sl_wire_push_open(a->register_reply->event_url, NULL, 256, &n->push, &why), SL_OK);
    }
    snprintf(n->why, sizeof n->why, "%s", a->register_reply->why ? a->register_reply->why : "");
    sl_wire_free(a);
    if (accepted)
        rig_heartbeat(n);
    return accepted;
}

void rig_heartbeat(struct rig_node *n)
{
    Sluice__NodeLoad load = SLUICE__NODE_LOAD__INIT;
    load.free_pages = n->free_pages;
    load.total_pages = n->kv_pages;
    load.decode_rows = n->decode_rows;
    load.has_progress = n->decode_rows > 0;
    load.has_draining = true;
    load.draining = n->draining;
    Sluice__Heartbeat m = SLUICE__HEARTBEAT__INIT;
    m.node = n->name;
    m.boot_id = n->boot_id;
    m.router_boot_id = n->rig->boot_id;
    m.load = &load;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_HEARTBEAT;
    e.heartbeat = &m;
    Sluice__Envelope *a = ask(n->rig->register_url, &e);
    assert_int_equal(a->body_case, SLUICE__ENVELOPE__BODY_HEARTBEAT_REPLY);
    sl_wire_free(a);
}

void rig_restart(struct rig_node *n)
{
    n->boot_id = next_number++;
    n->seq = 0;
    assert_true(rig_join(n));
}

struct sl_wire_in *rig_take(struct rig_node *n, Sluice__Envelope__BodyCase kind)
{
    uint64_t end = sl_now_ms() + RIG_WAIT_MS;
    for (;;) {
        for (size_t i = 0; i < n->n_early; i++)
            if (n->early[i]->msg->body_case == kind) {
                struct sl_wire_in *in = n->early[i];
                memmove(&n->early[i], &n->early[i + 1], (--n->n_early - i) * sizeof n->early[0]);
                return in;
            }
        struct sl_wire_in *in = sl_queue_pop(n->queue);
        if (in)
            n->early[n->n_early++] = in;
        else if (sl_now_ms() > end)
            fail_msg("%s got no command of kind %d", n->name, (int)kind);
        else
            sl_queue_wait(n->queue, 100);
        SL_ASSERT(n->n_early < SL_COUNTOF(n->early));
    }
}

void rig_answer(struct sl_wire_in *in, enum sl_err code)
{
    Sluice__CommandReply m = SLUICE__COMMAND_REPLY__INIT;
    m.code = code;
    m.why = (char *)(code ? "The test refuses." : NULL);
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_COMMAND_REPLY;
    e.command_reply = &m;
    sl_wire_reply(in, &e);
}

uint32_t rig_accept(struct rig_node *n, Sluice__Envelope__BodyCase kind, char id[64])
{
    struct sl_wire_in *in = rig_take(n, kind);
    const char *rid = NULL;
    uint32_t attempt = 0;
    if (kind == SLUICE__ENVELOPE__BODY_SUBMIT)
        rid = in->msg->submit->request_id, attempt = in->msg->submit->attempt;
    else if (kind == SLUICE__ENVELOPE__BODY_PREFILL)
        rid = in->msg->prefill->request_id, attempt = in->msg->prefill->attempt;
    else if (kind == SLUICE__ENVELOPE__BODY_CANCEL)
        rid = in->msg->cancel->request_id, attempt = in->msg->cancel->attempt;
    if (id)
        snprintf(id, 64, "%s", rid ? rid : "");
    rig_answer(in, SL_OK);
    return attempt;
}

void rig_batch(struct rig_batch *b, struct rig_node *n)
{
    memset(b, 0, sizeof *b);
    b->node = n;
    sluice__event_batch__init(&b->m);
    b->m.tokens = b->tokens;
    b->m.done = b->done;
}

void rig_token(struct rig_batch *b, const char *id, uint32_t attempt, uint32_t index, int32_t token)
{
    Sluice__TokenEvent *t = sl_xcalloc(1, sizeof *t);
    sluice__token_event__init(t);
    t->request_id = sl_xstrdup(id);
    t->attempt = attempt;
    t->index = index;
    t->token = token;
    b->tokens[b->m.n_tokens++] = t;
}

void rig_done(struct rig_batch *b, const char *id, uint32_t attempt, Sluice__Role duty,
              Sluice__DoneReason reason, enum sl_err code, const Sluice__LegReport *report)
{
    Sluice__DoneEvent *d = sl_xcalloc(1, sizeof *d);
    sluice__done_event__init(d);
    d->request_id = sl_xstrdup(id);
    d->attempt = attempt;
    d->duty = duty;
    d->reason = reason;
    d->has_code = code != SL_OK;
    d->code = code;
    d->report = (Sluice__LegReport *)report;
    b->done[b->m.n_done++] = d;
}

static void batch_free(struct rig_batch *b)
{
    for (size_t i = 0; i < b->m.n_tokens; i++) {
        sl_free(b->tokens[i]->request_id);
        sl_free(b->tokens[i]);
    }
    for (size_t i = 0; i < b->m.n_done; i++) {
        sl_free(b->done[i]->request_id);
        sl_free(b->done[i]);
    }
}

void rig_lose(struct rig_batch *b)
{
    b->node->seq++;
    batch_free(b);
}

void rig_send(struct rig_batch *b)
{
    b->m.node = b->node->name;
    b->m.boot_id = b->node->boot_id;
    b->m.router_boot_id = b->node->rig->boot_id;
    b->m.seq = ++b->node->seq;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_EVENTS;
    e.events = &b->m;
    enum sl_err err;
    for (uint64_t limit = sl_now_ms() + RIG_WAIT_MS;
         (err = sl_wire_push_send(b->node->push, &e)) == SL_EAGAIN;
         pause_a_little()) /* the router has not yet taken what came before */
        assert_true(sl_now_ms() < limit);
    assert_int_equal(err, SL_OK);
    batch_free(b);
}

void rig_say(struct rig_node *n, const char *id, uint32_t attempt, uint32_t index, const char *text)
{
    struct rig_batch b;
    rig_batch(&b, n);
    for (const char *p = text; *p; p++)
        rig_token(&b, id, attempt, index++, *p == ' ' ? RIG_SPACE : *p == '.' ? RIG_EOS : *p - 'a');
    rig_send(&b);
}

void rig_end(struct rig_node *n, const char *id, uint32_t attempt, Sluice__Role duty,
             Sluice__DoneReason reason)
{
    struct rig_batch b;
    rig_batch(&b, n);
    rig_done(&b, id, attempt, duty, reason, SL_OK, NULL);
    rig_send(&b);
}

void rig_answer_resync(struct rig_node *n, const char *id, uint32_t attempt, uint32_t expect_from,
                       const char *text, bool done)
{
    struct sl_wire_in *in = rig_take(n, SLUICE__ENVELOPE__BODY_RESYNC);
    assert_string_equal(in->msg->resync->request_id, id);
    assert_int_equal(in->msg->resync->attempt, attempt);
    assert_int_equal(in->msg->resync->from_index, expect_from);
    Sluice__TokenEvent tokens[64], *list[64];
    Sluice__ResyncReply m = SLUICE__RESYNC_REPLY__INIT;
    Sluice__DoneEvent d = SLUICE__DONE_EVENT__INIT;
    m.code = text ? SL_OK : SL_ELOST;
    for (const char *p = text; p && *p; p++) {
        Sluice__TokenEvent *t = list[m.n_tokens] = &tokens[m.n_tokens];
        sluice__token_event__init(t);
        t->request_id = (char *)id;
        t->attempt = attempt;
        t->index = expect_from + (uint32_t)m.n_tokens++;
        t->token = *p == '.' ? RIG_EOS : *p - 'a';
    }
    m.tokens = list;
    if (done) {
        d.request_id = (char *)id;
        d.attempt = attempt;
        d.duty = SLUICE__ROLE__ROLE_DECODE;
        d.reason = SLUICE__DONE_REASON__DONE_STOP;
        m.done = &d;
    }
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_RESYNC_REPLY;
    e.resync_reply = &m;
    sl_wire_reply(in, &e);
}

static void on_event(void *arg, const struct sl_gen_event *ev)
{
    struct rig_client *c = arg;
    pthread_mutex_lock(&c->lock);
    SL_ASSERT(!c->done); /* nothing after the last event */
    if (ev->kind == SL_GEN_TOKEN) {
        if (ev->token >= 0 && c->n_tokens < RIG_MAX_TOKENS) {
            c->indexes[c->n_tokens] = ev->index;
            c->tokens[c->n_tokens++] = ev->token;
        }
        SL_ASSERT(c->text_len + ev->text_len < sizeof c->text);
        if (ev->text_len)
            memcpy(c->text + c->text_len, ev->text, ev->text_len);
        c->text_len += ev->text_len;
    } else {
        c->done = true;
        c->err = ev->kind == SL_GEN_ERROR ? ev->err : SL_OK;
        snprintf(c->finish, sizeof c->finish, "%s", ev->finish_reason ? ev->finish_reason : "");
        snprintf(c->stop_reason, sizeof c->stop_reason, "%s", ev->stop_reason ? ev->stop_reason : "");
        snprintf(c->why, sizeof c->why, "%s", ev->why ? ev->why : "");
        c->stop_token = ev->stop_token;
        c->usage = ev->usage;
    }
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

struct sl_gen_req *rig_request(struct rig *r, uint32_t n_tokens)
{
    (void)r;
    struct sl_arena *a = sl_arena_new(SL_GEN_ARENA_BYTES);
    struct sl_gen_req *q = sl_arena_alloc(a, sizeof *q);
    q->arena = a;
    q->stream = q->skip_special = true;
    q->tokens = sl_arena_alloc(a, n_tokens * sizeof *q->tokens);
    q->n_tokens = n_tokens;
    for (uint32_t i = 0; i < n_tokens; i++)
        q->tokens[i] = (int32_t)(i % 26);
    sluice__sampling__init(&q->sampling);
    q->sampling.max_tokens = 64;
    q->sampling.n_logprobs = -1;
    q->sampling.stop_ids = sl_arena_alloc(a, sizeof *q->sampling.stop_ids);
    q->sampling.stop_ids[0] = 29; /* <eos>, as router/api does */
    q->sampling.n_stop_ids = 1;
    q->split = -1;
    q->chunk = -2;
    q->speculation = -2;
    q->arrived_us = sl_now_us();
    return q;
}

void rig_client(struct rig_client *c, struct rig *r)
{
    memset(c, 0, sizeof *c);
    c->rig = r;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
}

void rig_client_fini(struct rig_client *c)
{
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
}

enum sl_err rig_submit(struct rig_client *c, struct sl_gen_req *q)
{
    sl_flow_new_id(c->rig->flow, "cmpl-", q->id);
    snprintf(c->id, sizeof c->id, "%s", q->id);
    struct sl_why why = {{0}};
    enum sl_err err = sl_flow_submit(c->rig->flow, q, on_event, c, &why);
    if (err) /* else the flow thread writes there */
        snprintf(c->why, sizeof c->why, "%s", why.text);
    return err;
}

static void wait_for(struct rig_client *c, uint32_t n, bool end)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += RIG_WAIT_MS / 1000;
    pthread_mutex_lock(&c->lock);
    int rc = 0;
    while (!rc && (end ? !c->done : c->n_tokens < n && !c->done))
        rc = pthread_cond_timedwait(&c->changed, &c->lock, &limit);
    bool ok = end ? c->done : c->n_tokens >= n;
    pthread_mutex_unlock(&c->lock);
    if (!ok)
        fail_msg("client has %u tokens, done %d err %s: %s", c->n_tokens, c->done, sl_err_name(c->err),
                 c->why);
}

void rig_wait_tokens(struct rig_client *c, uint32_t n)
{
    wait_for(c, n, false);
}

void rig_wait_end(struct rig_client *c)
{
    wait_for(c, 0, true);
}

Sluice__AdminReply *rig_admin(struct rig *r, const char *op, const char *arg)
{
    Sluice__AdminReply *reply = NULL;
    assert_int_equal(sl_flow_admin(r->flow, op, &arg, arg ? 1 : 0, RIG_WAIT_MS, &reply), SL_OK);
    return reply;
}

const char *rig_record(struct rig *r, const char *id, const char *key)
{
    static char value[256];
    snprintf(value, sizeof value, "(absent)");
    Sluice__AdminReply *reply = rig_admin(r, "explain", id);
    for (size_t t = 0; t < reply->n_tables; t++)
        for (size_t i = 0; strcmp(reply->tables[t]->title, "record") == 0 && i < reply->tables[t]->n_rows;
             i++)
            if (strcmp(reply->tables[t]->rows[i]->cells[0], key) == 0)
                snprintf(value, sizeof value, "%s", reply->tables[t]->rows[i]->cells[1]);
    sluice__admin_reply__free_unpacked(reply, NULL);
    return value;
}

void rig_wait_open(struct rig *r, size_t n)
{
    uint64_t end = sl_now_ms() + RIG_WAIT_MS;
    for (;;) {
        Sluice__AdminReply *reply = rig_admin(r, "requests", "0");
        size_t open = reply->tables[0]->n_rows;
        sluice__admin_reply__free_unpacked(reply, NULL);
        if (open == n)
            return;
        if (sl_now_ms() > end)
            fail_msg("%zu requests are open, not %zu", open, n);
        pause_a_little();
    }
}

void rig_wait_idle(struct rig *r)
{
    rig_wait_open(r, 0);
}
