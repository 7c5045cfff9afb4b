/* router/api/gen_call.c - one generation between HTTP and the flow: steps 1 and 2 on a worker, step 11 on the
 * http thread.
 *
 *   worker:      body -> openai_parse -> prompt -> submit to the flow
 *   flow thread: event -> inbox (copied) -> wake
 *   http thread: wake -> inbox -> openai_render -> stream or answer
 *
 * HTTP status: nothing is sent before the first event, so whatever fails before the first token has its
 * status and error object; later failures of a stream are an error frame and [DONE], as clients expect.
 *
 * Two owners, each with a reference: HTTP (until closed) and the flow (until its last event, or until
 * sl_flow_cancel() returned). wake and closed run on the http thread and not before the worker is done, so
 * that no lock is needed between them. */
#include "router/api/api_internal.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "router/api/gen_inbox.h"
#include "router/api/openai_render.h"
#include "router/api/sluice_headers.h"
#include "router/http/http_error.h"
#include "router/http/sse.h"

#define ANSWER_MAX_BYTES (2 * SL_RENDER_MAX_BYTES) /* an unstreamed answer with its logprobs */

struct gen_call {
    struct sl_api *api;
    struct sl_http_call *http; /* referenced */
    _Atomic int refs;
    char id[64];
    struct sl_inbox inbox;

    /* http thread */
    struct sl_render *render;
    struct sl_buf out;
    bool begun, over; /* over: nothing more is given to the client */
};

static void unref(struct gen_call *g)
{
    if (atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1)
        return;
    atomic_fetch_sub(&g->api->n_generating, 1);
    sl_http_unref(g->http);
    sl_inbox_fini(&g->inbox);
    sl_render_free(g->render);
    sl_buf_fini(&g->out);
    sl_free(g);
}

/* flow thread */
static void on_event(void *arg, const struct sl_gen_event *ev)
{
    struct gen_call *g = arg;
    sl_inbox_put(&g->inbox, ev);
    sl_http_wake(g->http);
    if (ev->kind != SL_GEN_TOKEN)
        unref(g);
}

/* http thread: the client gets nothing more; what still runs for it is freed on all nodes. */
static void call_off(struct gen_call *g)
{
    if (!sl_inbox_ended(&g->inbox)) {
        sl_gate_cancel(&g->api->gate, g->id);
        if (!sl_inbox_ended(
                &g->inbox)) /* the last event may have come meanwhile and dropped the flow's reference */
            unref(g);
    }
    g->over = true;
}

static void cut_slow_reader(struct gen_call *g)
{
    SL_WARN("a client reads slower than its tokens come; its stream is cut req=%s", g->id);
    call_off(g);
    sl_http_cut(g->http);
}

static void write_out(struct gen_call *g)
{
    bool fits = sl_http_stream_write(g->http, g->out.data, g->out.len) && !sl_buf_failed(&g->out);
    sl_buf_clear(&g->out);
    if (!fits)
        cut_slow_reader(g);
}

static void give_error(struct gen_call *g, const struct sl_gen_event *ev)
{
    const struct sl_http_error e = {.err = ev->err,
                                    .message = ev->why,
                                    .retry_after_s = ev->retry_after_s,
                                    .no_retry = sl_render_n_tokens(g->render) > 0};
    SL_DEBUG("a generation failed req=%s err=%s why=%s", g->id, sl_err_name(ev->err), ev->why ? ev->why : "");
    g->over = true;
    if (!g->begun) {
        sl_http_answer_error(g->http, &e);
        return;
    }
    sl_sse_begin(&g->out);
    sl_http_error_json(&e, &g->out);
    sl_sse_end(&g->out);
    sl_sse_done(&g->out);
    write_out(g);
    sl_http_stream_end(g->http);
}

static void give(struct gen_call *g, const struct sl_gen_event *ev)
{
    if (ev->kind == SL_GEN_ERROR) {
        give_error(g, ev);
        return;
    }
    if (sl_render_streams(g->render) && !g->begun) {
        g->begun = true;
        sl_http_stream_begin(g->http, SL_SSE_CONTENT_TYPE);
    }
    sl_render_event(g->render, ev, &g->out);
    if (sl_render_streams(g->render)) {
        write_out(g);
        if (ev->kind == SL_GEN_DONE && !g->over) {
            g->over = true;
            sl_http_stream_end(g->http);
        }
    } else if (ev->kind == SL_GEN_DONE) {
        g->over = true;
        if (sl_render_failed(g->render) || sl_buf_failed(&g->out))
            sl_http_answer_error(g->http, &(struct sl_http_error){
                                              .err = SL_EBUG,
                                              .message = "The answer is too large to be given in one piece; "
                                                         "ask for a stream.",
                                              .no_retry = true});
        else
            sl_http_answer(g->http, 200, "application/json", &g->out);
    }
}

static void on_wake(void *arg)
{
    struct gen_call *g = arg;
    bool overflowed;
    struct sl_inbox_item *at = sl_inbox_take(&g->inbox, &overflowed);
    while (at) {
        struct sl_inbox_item *next = at->next;
        if (!g->over && !overflowed)
            give(g, &at->ev);
        sl_free(at);
        at = next;
    }
    if (overflowed && !g->over)
        cut_slow_reader(g);
}

static void on_closed(void *arg, bool complete)
{
    struct gen_call *g = arg;
    if (!complete && !g->over) {
        SL_DEBUG("a client left; its request is called off req=%s", g->id);
        call_off(g);
    }
    unref(g);
}

static const char *header_of(const void *call, const char *name)
{
    return sl_http_header(call, name);
}

static struct gen_call *gen_new(struct sl_api *a, struct sl_http_call *c, const struct sl_oai_request *r)
{
    struct gen_call *g = sl_xcalloc(1, sizeof *g);
    g->api = a;
    g->http = c;
    sl_http_ref(c);
    g->refs = 2;
    memcpy(g->id, r->req->id, sizeof g->id);
    sl_inbox_init(&g->inbox, a->conf.max_unread_bytes);
    g->render = sl_render_new(r, a->conf.tokenizer, sl_wall_s());
    sl_buf_init(&g->out, ANSWER_MAX_BYTES);
    atomic_fetch_add(&a->n_generating, 1);
    return g;
}

/* max_tokens 0 with echo: nothing is generated, the answer is the prompt. */
static void give_echo(struct gen_call *g, uint32_t n_prompt)
{
    const struct sl_gen_event done = {.kind = SL_GEN_DONE,
                                      .token = -1,
                                      .finish_reason = "length",
                                      .stop_token = -1,
                                      .usage = {.prompt_tokens = n_prompt}};
    on_event(g, &done);
}

static void submit(struct sl_api *a, struct sl_http_call *c, const struct sl_oai_request *r)
{
    struct sl_gen_req *req = r->req;
    struct sl_why why = {0};
    struct gen_call *g = gen_new(a, c, r);
    uint32_t n_prompt = req->n_tokens;
    bool nothing = req->sampling.max_tokens == 0;
    if (nothing)
        sl_arena_free(req->arena);
    enum sl_err err = nothing ? SL_OK : sl_gate_submit(&a->gate, req, on_event, g, &why);
    if (err) {
        sl_http_answer_error(c, &(struct sl_http_error){.err = err, .message = why.text});
        unref(g);
        unref(g);
        return;
    }
    sl_http_attach(c, &(struct sl_http_owner){.wake = on_wake, .closed = on_closed, .arg = g});
    if (nothing)
        give_echo(g, n_prompt);
}

static bool read_request(struct sl_api *a, struct sl_http_call *c, bool chat, const json_t *body,
                         struct sl_gen_req *req, struct sl_oai_request *r, struct sl_fault *fault)
{
    struct sl_prompt_conf prompt = a->prompt;
    prompt.now_s = sl_wall_s();
    req->deadline_ms = a->conf.default_deadline_ms;
    req->arrived_us = sl_http_arrived_us(c);
    req->key_name = sl_api_key_name(a, c);
    return sl_headers_read(header_of, c, req, fault) && sl_oai_parse(&a->model, chat, body, req, r, fault) &&
           sl_slo_apply(&a->conf.slo_classes, sl_http_header(c, "X-Sluice-Class"), req, fault) &&
           sl_prompt_make(&prompt, r, fault);
}

static void generate(struct sl_api *a, struct sl_http_call *c, bool chat)
{
    struct sl_fault fault = {0};
    struct sl_oai_request r;
    json_t *body = sl_api_body(c);
    if (!body)
        return;
    struct sl_arena *arena = sl_arena_new(SL_GEN_ARENA_BYTES);
    struct sl_gen_req *req = sl_arena_alloc(arena, sizeof *req);
    req->arena = arena;
    if (!read_request(a, c, chat, body, req, &r, &fault)) {
        sl_api_answer_fault(c, &fault);
        sl_arena_free(arena);
        json_decref(body);
        return;
    }
    sl_gate_new_id(&a->gate, chat ? "chatcmpl" : "cmpl", req->id);
    const char *client_id = sl_http_header(c, "X-Request-Id");
    if (!client_id)
        client_id = r.request_id;
    if (client_id)
        req->client_id = sl_arena_strndup(arena, client_id, strnlen(client_id, 128));
    sl_http_set_request_id(c, req->id);
    if (client_id)
        sl_http_set_request_id(c, client_id); /* kept only when it is sane */
    sl_http_add_header(c, "X-Sluice-Request-Id", req->id);
    sl_api_log_unknown(a, &r);
    submit(a, c, &r);
    json_decref(body);
}

void sl_api_chat(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    (void)arg;
    generate(a, c, true);
}

void sl_api_completion(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    (void)arg;
    generate(a, c, false);
}
