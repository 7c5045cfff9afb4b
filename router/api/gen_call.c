/* router/api/gen_call.c - one call for an answer between HTTP and the flow: steps 1 and 2 on a worker, step
 * 11 on the http thread. Each choice of the answer (n, several prompts) is a request of its own to the flow.
 *
 *   worker:      body -> (responses_parse) -> openai_parse -> prompt -> submit each choice to the flow
 *   flow thread: event -> inbox (copied) -> wake
 *   http thread: wake -> inbox -> openai_render -> stream or answer
 *
 * HTTP status: nothing is sent before the first event, so whatever fails before the first token has its
 * status and error object; later failures of a stream are an error frame and [DONE], as clients expect.
 *
 * Owners, each with a reference: HTTP (until closed) and each choice in the flow (until its last event, or
 * until sl_flow_cancel() returned). wake and closed run on the http thread and not before the worker is done,
 * so that no lock is needed between them. */
#include "router/api/api_internal.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "router/api/gen_inbox.h"
#include "router/api/key_limits.h"
#include "router/api/key_weights.h"
#include "router/api/openai_render.h"
#include "router/api/responses_parse.h"
#include "router/api/sluice_headers.h"
#include "router/http/http_error.h"
#include "router/http/sse.h"

#define ANSWER_MAX_BYTES (2 * SL_RENDER_MAX_BYTES) /* an unstreamed answer with its logprobs */

struct choice {
    struct gen_call *call;
    uint32_t index;
    char id[64];        /* the answer's, behind the first with ".<index>" */
    _Atomic bool ended; /* its last event came, or it never was submitted */
};

struct gen_call {
    struct sl_api *api;
    struct sl_http_call *http; /* referenced */
    _Atomic uint32_t refs;
    uint32_t n_choices;
    struct choice *choices;
    struct sl_inbox inbox;
    struct sl_key_account *account; /* of the API key; NULL = none, or given back */
    uint64_t account_since_us;
    _Atomic uint64_t n_tokens; /* of the answer */

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
    if (g->account)
        sl_key_account_give(g->account, g->account_since_us, sl_now_us(), atomic_load(&g->n_tokens));
    sl_http_unref(g->http);
    sl_inbox_fini(&g->inbox);
    sl_render_free(g->render);
    sl_buf_fini(&g->out);
    sl_free(g->choices);
    sl_free(g);
}

/* flow thread */
static void on_event(void *arg, const struct sl_gen_event *ev)
{
    struct choice *c = arg;
    struct gen_call *g = c->call;
    bool last = ev->kind != SL_GEN_TOKEN;
    if (ev->kind == SL_GEN_TOKEN && ev->token >= 0)
        atomic_fetch_add_explicit(&g->n_tokens, 1, memory_order_relaxed);
    sl_inbox_put(&g->inbox, c->index, ev);
    if (last)
        atomic_store(&c->ended, true);
    sl_http_wake(g->http);
    if (last)
        unref(g);
}

/* The client gets nothing more; what still runs for it is freed on all nodes. */
static void call_off(struct gen_call *g)
{
    for (uint32_t i = 0; i < g->n_choices; i++) {
        struct choice *c = &g->choices[i];
        if (atomic_load(&c->ended))
            continue;
        sl_gate_cancel(&g->api->gate, c->id);
        if (!atomic_exchange(&c->ended,
                             true)) /* else its last event came meanwhile and dropped the reference */
            unref(g);
    }
    g->over = true;
}

static void cut_slow_reader(struct gen_call *g)
{
    SL_WARN("a client reads slower than its tokens come; its stream is cut req=%s", g->choices[0].id);
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
                                    .no_retry = sl_render_begun(g->render)};
    SL_DEBUG("a generation failed req=%s err=%s why=%s", g->choices[0].id, sl_err_name(ev->err),
             ev->why ? ev->why : "");
    call_off(g); /* the other choices */
    if (!g->begun) {
        sl_http_answer_error(g->http, &e);
        return;
    }
    sl_render_error(g->render, &e, &g->out);
    write_out(g);
    sl_http_stream_end(g->http);
}

static void give(struct gen_call *g, uint32_t choice, const struct sl_gen_event *ev)
{
    if (ev->kind == SL_GEN_ERROR) {
        give_error(g, ev);
        return;
    }
    if (sl_render_streams(g->render) && !g->begun) {
        g->begun = true;
        sl_http_stream_begin(g->http, SL_SSE_CONTENT_TYPE);
    }
    sl_render_event(g->render, choice, ev, &g->out);
    if (sl_render_streams(g->render)) {
        write_out(g);
        if (sl_render_done(g->render) && !g->over) {
            g->over = true;
            sl_http_stream_end(g->http);
        }
    } else if (sl_render_done(g->render)) {
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
            give(g, at->choice, &at->ev);
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
        SL_DEBUG("a client left; its request is called off req=%s", g->choices[0].id);
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
    g->n_choices = r->n_prompts * r->n;
    g->choices = sl_xcalloc(g->n_choices, sizeof *g->choices);
    for (uint32_t i = 0; i < g->n_choices; i++) {
        struct choice *o = &g->choices[i];
        o->call = g;
        o->index = i;
        int n = snprintf(o->id, sizeof o->id, i ? "%s.%u" : "%s", r->req->id, i);
        SL_ASSERT(n < (int)sizeof o->id);
    }
    g->refs = 1 + g->n_choices;
    sl_inbox_init(&g->inbox, a->conf.max_unread_bytes);
    g->render = sl_render_new(r, a->conf.tokenizer, sl_wall_s());
    sl_buf_init(&g->out, ANSWER_MAX_BYTES);
    atomic_fetch_add(&a->n_generating, 1);
    return g;
}

/* max_tokens 0 with echo: nothing is generated, the answer is the prompt. */
static void give_echo(struct gen_call *g, const struct sl_oai_request *r)
{
    for (uint32_t i = 0; i < g->n_choices; i++) {
        const struct sl_gen_event done = {.kind = SL_GEN_DONE,
                                          .token = -1,
                                          .finish_reason = "length",
                                          .stop_token = -1,
                                          .usage = {.prompt_tokens = r->prompts[i / r->n].n_tokens}};
        on_event(&g->choices[i], &done);
    }
}

/* What choice i asks the flow for. It shares the arena, which from here on is only read. NULL: no room in it.
 */
static struct sl_gen_req *choice_req(const struct sl_oai_request *r, uint32_t i, const char id[64])
{
    const struct sl_oai_prompt *p = &r->prompts[i / r->n];
    struct sl_gen_req *req = sl_arena_alloc(r->req->arena, sizeof *req);
    if (!req)
        return NULL;
    *req = *r->req;
    memcpy(req->id, id, sizeof req->id);
    req->tokens = p->tokens;
    req->n_tokens = p->n_tokens;
    req->sampling.max_tokens = p->max_tokens;
    req->sampling.choice = i % r->n;
    return req;
}

/* All choices or none. */
static enum sl_err submit_choices(struct gen_call *g, const struct sl_oai_request *r, struct sl_why *why)
{
    struct sl_gen_req *reqs[SL_MAX_CHOICES];
    enum sl_err err = SL_OK;
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_choices; i++) {
        reqs[i] = choice_req(r, i, g->choices[i].id);
        if (!reqs[i])
            err = sl_why_set(why, SL_ENOMEM, "no memory for %u choices", g->n_choices);
    }
    while (err == SL_OK && n < g->n_choices) {
        sl_arena_ref(r->req->arena);
        err = sl_gate_submit(&g->api->gate, reqs[n], on_event, &g->choices[n], why);
        n += err == SL_OK;
    }
    if (err == SL_OK)
        return SL_OK;
    for (uint32_t i = n; i < g->n_choices; i++) { /* were not taken */
        atomic_store(&g->choices[i].ended, true);
        unref(g);
    }
    call_off(g);
    return err;
}

static uint64_t prompt_tokens(const struct sl_oai_request *r)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < r->n_prompts; i++)
        n += r->prompts[i].n_tokens;
    return n;
}

/* False: the key is over a limit of its account, and told so. */
static bool charge(const struct sl_api_key *key, struct sl_http_call *c, uint64_t n_tokens, uint64_t now_us)
{
    struct sl_why why = {0};
    uint32_t retry_after_s = 0;
    if (sl_key_account_take(key->account, &key->limits, now_us, n_tokens, &retry_after_s, &why) == SL_OK)
        return true;
    sl_http_answer_error(
        c, &(struct sl_http_error){.err = SL_EAGAIN, .message = why.text, .retry_after_s = retry_after_s});
    return false;
}

static void submit(struct sl_api *a, struct sl_http_call *c, const struct sl_api_key *key,
                   const struct sl_oai_request *r)
{
    struct sl_why why = {0};
    uint64_t now_us = sl_now_us(), n_tokens = prompt_tokens(r);
    bool counts = key && key->account;
    if (counts && !charge(key, c, n_tokens, now_us))
        return;
    struct gen_call *g = gen_new(a, c, r);
    g->account = counts ? key->account : NULL;
    g->account_since_us = now_us;
    bool nothing = r->req->sampling.max_tokens == 0;
    enum sl_err err = nothing ? SL_OK : submit_choices(g, r, &why);
    if (err) {
        sl_http_answer_error(c, &(struct sl_http_error){.err = err, .message = why.text});
        if (counts) {
            g->account = NULL; /* HTTP's reference is still held: unref() has not given it back */
            sl_key_account_undo(key->account, n_tokens);
        }
        unref(g);
        return;
    }
    sl_http_attach(c, &(struct sl_http_owner){.wake = on_wake, .closed = on_closed, .arg = g});
    if (nothing)
        give_echo(g, r);
}

/* The salt of what this key caches: names are not secret, but nobody can choose a salt of his own that gives
 * another's. */
static void salt_by_key(const struct sl_api_key *key, struct sl_gen_req *req)
{
    static const unsigned char salt[SL_KEY_SALT_BYTES] = "sluice cache key";
    unsigned char digest[SL_KEY_DIGEST_BYTES];
    char *hex = sl_arena_alloc(req->arena, 2 * sizeof digest + 1);
    char *both = sl_xasprintf("%s\n%s", key->id, req->cache_salt ? req->cache_salt : "");
    sl_key_digest(salt, both, strlen(both), digest);
    sl_free(both);
    for (size_t i = 0; hex && i < sizeof digest; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    req->cache_salt = hex;
    req->no_prefix_cache |= !hex; /* no memory for it: rather none than a shared one */
}

/* Whose body it is. A response is a chat by another name: its body is made one first. */
enum api { COMPLETION, CHAT, RESPONSE };
static const char *const id_prefixes[] = {"cmpl-", "chatcmpl-", "resp_"};

static bool read_request(struct sl_api *a, struct sl_http_call *c, const struct sl_api_key *key, bool chat,
                         const json_t *body, struct sl_gen_req *req, struct sl_oai_request *r,
                         struct sl_fault *fault)
{
    struct sl_prompt_conf prompt = a->prompt;
    prompt.now_s = sl_wall_s();
    req->deadline_ms = a->conf.default_deadline_ms;
    req->arrived_us = sl_http_arrived_us(c);
    req->key_name = key ? key->name : NULL;
    req->key_weight = a->conf.key_weights ? sl_key_weight(a->conf.key_weights, req->key_name) : 1;
    bool good =
        sl_headers_read(header_of, c, req, fault) && sl_oai_parse(&a->model, chat, body, req, r, fault) &&
        sl_slo_apply(&a->conf.slo_classes, sl_http_header(c, "X-Sluice-Class"), req, fault) &&
        (!key ||
         sl_key_limits_allow(&key->limits, key->name, sl_http_header(c, "X-Sluice-Class"), req, fault)) &&
        sl_prompt_make(&prompt, r, fault);
    if (good && key && a->conf.cache_per_key)
        salt_by_key(key, req);
    return good;
}

static void generate(struct sl_api *a, struct sl_http_call *c, enum api api)
{
    struct sl_fault fault = {0};
    struct sl_oai_request r;
    json_t *body = sl_api_body(c);
    if (!body)
        return;
    json_t *asked = api == RESPONSE ? sl_responses_to_chat(body, &fault) : json_incref(body);
    if (!asked) {
        sl_api_answer_fault(c, &fault);
        json_decref(body);
        return;
    }
    struct sl_arena *arena = sl_arena_new(SL_GEN_ARENA_BYTES);
    struct sl_gen_req *req = sl_arena_alloc(arena, sizeof *req);
    const struct sl_api_key *key = sl_api_key(a, c);
    req->arena = arena;
    if (!read_request(a, c, key, api != COMPLETION, asked, req, &r, &fault)) {
        if (api == RESPONSE)
            sl_responses_name_fault(&fault);
        sl_api_answer_fault(c, &fault);
        goto out;
    }
    r.responses = api == RESPONSE ? body : NULL;
    sl_gate_new_id(&a->gate, id_prefixes[api], req->id);
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
    submit(a, c, key, &r);
out:
    sl_arena_free(arena);
    json_decref(asked);
    json_decref(body);
}

void sl_api_chat(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    (void)arg;
    generate(a, c, CHAT);
}

void sl_api_completion(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    (void)arg;
    generate(a, c, COMPLETION);
}

void sl_api_response(struct sl_api *a, struct sl_http_call *c, const char *arg)
{
    (void)arg;
    generate(a, c, RESPONSE);
}
