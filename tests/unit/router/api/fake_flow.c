/* tests/unit/router/api/fake_flow.c */
#include "tests/unit/router/api/fake_flow.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"

#define MAX_PLAYS 256

_Atomic int fake_canceled, fake_open;
_Atomic bool fake_ready;

struct play {
    struct sl_flow *flow;
    struct sl_gen_req *req;
    sl_gen_event_fn *on_event;
    void *arg;
    char id[64];
    pthread_t thread;
    bool canceled, over; /* under the flow's lock */
    _Atomic bool left;   /* its thread has nothing more to do */
};

struct sl_flow {
    pthread_mutex_t lock;
    _Atomic bool closing, draining;
    _Atomic uint64_t n_ids;
    struct play plays[MAX_PLAYS];
    size_t n_plays;
};

struct sl_flow *fake_flow_new(void)
{
    struct sl_flow *f = sl_xcalloc(1, sizeof *f);
    pthread_mutex_init(&f->lock, NULL);
    atomic_store(&fake_canceled, 0);
    atomic_store(&fake_open, 0);
    atomic_store(&fake_ready, true);
    return f;
}

static bool emit(struct play *p, const struct sl_gen_event *ev)
{
    pthread_mutex_lock(&p->flow->lock);
    bool go = !p->canceled;
    if (go)
        p->on_event(p->arg, ev);
    if (ev->kind != SL_GEN_TOKEN)
        p->over = true;
    pthread_mutex_unlock(&p->flow->lock);
    return go;
}

static bool emit_token(struct play *p, uint32_t index, const char *text, size_t n)
{
    Sluice__TokenEvent raw;
    sluice__token_event__init(&raw);
    raw.token = 'a' + (int32_t)index % 26;
    raw.has_logits_digest = true;
    raw.logits_digest = 0x1000 + index;
    raw.has_logprob = true;
    raw.logprob = -1;
    return emit(p, &(struct sl_gen_event){.kind = SL_GEN_TOKEN,
                                          .token = raw.token,
                                          .index = index,
                                          .text = text,
                                          .text_len = n,
                                          .raw = &raw});
}

static void fail_with(struct play *p, enum sl_err err, const char *why)
{
    emit(p, &(struct sl_gen_event){
                .kind = SL_GEN_ERROR, .err = err, .why = why, .retry_after_s = err == SL_EAGAIN ? 7 : 0});
}

static bool wait_for_the_end(struct play *p)
{
    for (;;) {
        pthread_mutex_lock(&p->flow->lock);
        bool canceled = p->canceled;
        pthread_mutex_unlock(&p->flow->lock);
        if (canceled)
            return false;
        if (atomic_load(&p->flow->closing))
            return true;
        sched_yield();
    }
}

static void play(struct play *p)
{
    static char block[4096];
    const char *what = p->req->cache_salt ? p->req->cache_salt : "";
    uint32_t n = strcmp(what, "break") == 0 ? 2 : strcmp(what, "fail") == 0 ? 0 : p->req->sampling.max_tokens;
    memset(block, 'x', sizeof block);
    if (strcmp(what, "hang") == 0) {
        if (wait_for_the_end(p))
            fail_with(p, SL_EDRAINING, "The router is stopping.");
        return;
    }
    for (uint32_t i = 0; strcmp(what, "flood") == 0; i++)
        if (atomic_load(&p->flow->closing) || !emit_token(p, i, block, sizeof block))
            return;
    for (uint32_t i = 0; i < n; i++) {
        char text[2] = {(char)('a' + i % 26), 0};
        if (!emit_token(p, i, text, 1))
            return;
    }
    if (strcmp(what, "break") == 0 || strcmp(what, "fail") == 0)
        fail_with(p, SL_EPEER, "No decode node is left.");
    else
        emit(p, &(struct sl_gen_event){.kind = SL_GEN_DONE,
                                       .token = -1,
                                       .stop_token = -1,
                                       .finish_reason = "length",
                                       .usage = {p->req->n_tokens, n, 0}});
}

static void *play_main(void *arg)
{
    struct play *p = arg;
    play(p);
    sl_arena_free(p->req->arena);
    atomic_fetch_sub(&fake_open, 1);
    atomic_store(&p->left, true);
    return NULL;
}

/* A place for one more, under the flow's lock: a new one, or that of one whose thread has ended; NULL = all are taken. */
static struct play *free_place(struct sl_flow *f)
{
    if (f->n_plays < MAX_PLAYS)
        return &f->plays[f->n_plays++];
    for (size_t i = 0; i < MAX_PLAYS; i++)
        if (atomic_load(&f->plays[i].left)) {
            pthread_join(f->plays[i].thread, NULL);
            return &f->plays[i];
        }
    return NULL;
}

enum sl_err sl_flow_submit(struct sl_flow *f, struct sl_gen_req *req, sl_gen_event_fn *on_event, void *arg,
                           struct sl_why *why)
{
    bool busy = req->cache_salt && strcmp(req->cache_salt, "busy") == 0;
    if (busy || atomic_load(&f->draining)) {
        sl_arena_free(req->arena);
        return sl_why_set(why, busy ? SL_EAGAIN : SL_EDRAINING,
                          busy ? "Too many requests." : "The router is stopping.");
    }
    pthread_mutex_lock(&f->lock);
    struct play *p = free_place(f);
    if (!p) {
        pthread_mutex_unlock(&f->lock);
        sl_arena_free(req->arena);
        return sl_why_set(why, SL_EAGAIN, "Too many requests.");
    }
    *p = (struct play){.flow = f, .req = req, .on_event = on_event, .arg = arg};
    memcpy(p->id, req->id, sizeof p->id);
    atomic_fetch_add(&fake_open, 1);
    SL_ASSERT(pthread_create(&p->thread, NULL, play_main, p) == 0);
    pthread_mutex_unlock(&f->lock);
    return SL_OK;
}

void sl_flow_cancel(struct sl_flow *f, const char *id)
{
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < f->n_plays; i++)
        if (strcmp(f->plays[i].id, id) == 0 && !f->plays[i].over && !f->plays[i].canceled) {
            f->plays[i].canceled = true;
            atomic_fetch_add(&fake_canceled, 1);
        }
    pthread_mutex_unlock(&f->lock);
}

void sl_flow_close(struct sl_flow *f)
{
    atomic_store(&f->closing, true);
    for (size_t i = 0; i < f->n_plays; i++)
        pthread_join(f->plays[i].thread, NULL);
    pthread_mutex_destroy(&f->lock);
    sl_free(f);
}

void sl_flow_new_id(struct sl_flow *f, const char *prefix, char id[64])
{
    snprintf(id, 64, "%sb007-%" PRIx64, prefix, atomic_fetch_add(&f->n_ids, 1));
}

bool sl_flow_ready(struct sl_flow *f, struct sl_why *why)
{
    (void)f;
    if (!atomic_load(&fake_ready))
        sl_why_set(why, SL_ENOTREADY, "No decode node has registered.");
    return atomic_load(&fake_ready);
}

void sl_flow_drain(struct sl_flow *f, uint32_t *open_requests)
{
    atomic_store(&f->draining, true);
    *open_requests = (uint32_t)atomic_load(&fake_open);
}

/* One table that names the operation; "status" has page_tokens; an argument of "gone" is not found. */
enum sl_err sl_flow_admin(struct sl_flow *f, const char *op, const char *const *args, size_t n_args,
                          uint32_t timeout_ms, Sluice__AdminReply **reply)
{
    char *cells[] = {(char *)"page_tokens", (char *)"16"}, *columns[] = {(char *)"key", (char *)"value"};
    Sluice__AdminRow row = SLUICE__ADMIN_ROW__INIT, *rows[] = {&row};
    Sluice__AdminTable table = SLUICE__ADMIN_TABLE__INIT, *tables[] = {&table};
    Sluice__AdminReply r = SLUICE__ADMIN_REPLY__INIT;
    uint8_t packed[1024];
    (void)f;
    (void)timeout_ms;
    row.n_cells = table.n_columns = 2;
    row.cells = cells;
    table.title = (char *)op;
    table.columns = columns;
    table.n_rows = 1;
    table.rows = rows;
    r.text = n_args ? (char *)args[0] : NULL;
    if (n_args && strcmp(args[0], "gone") == 0) {
        r.code = SL_ENOTFOUND;
    } else {
        r.n_tables = 1;
        r.tables = tables;
    }
    *reply = sluice__admin_reply__unpack(NULL, sluice__admin_reply__pack(&r, packed), packed);
    return SL_OK;
}

void sl_flow_steps(struct sl_flow *f, uint64_t after, struct sl_buf *out)
{
    (void)f;
    sl_buf_printf(out, "{\"next\":%" PRIu64 "}", after);
}
