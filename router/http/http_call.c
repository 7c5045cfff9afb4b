/* router/http/http_call.c - step 1 of the request path: the life of one HTTP request inside libmicrohttpd's
 * callbacks.
 *
 *   begin -> headers: check() -> body (kept, or discarded when the answer is known) -> complete: handle()
 *         -> suspended until an answer is ready or a stream has bytes -> resumed -> completed
 *
 * A suspended connection is out of the library's epoll set and its client's leaving goes unseen, so the
 * socket also stands in our own loop with EPOLLRDHUP from the first suspension to the end of the request
 * (once, not per token). While a worker runs handle() the connection stays suspended whatever happens:
 * headers and body may be read without a lock, and a client that left is dealt with when the worker is done.
 * An answer known before the body (no key, too large) waits until the body was read and thrown away, or many
 * clients would see a reset instead of the answer; only bodies that are absurdly long, or not sent yet
 * (Expect), are answered at once. */
#include "router/http/http_call.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "router/http/http_error.h"
#include "router/http/http_workers.h"

#define DISCARD_MAX_BYTES (64u << 20) /* of a body nobody wants; past it the connection is closed */
#define CHUNK_FRAME_BYTES 64          /* at most, around the bytes of a chunk */
#define ENDED_TIMEOUT_S   1u          /* the library's least */

void *sl_http_call_begin(void *server, const char *uri, struct MHD_Connection *mhd)
{
    struct sl_http_server *s = server;
    (void)uri;
    struct sl_http_call *c = sl_xcalloc(1, sizeof *c);
    c->server = s;
    c->mhd = mhd;
    c->conn = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    c->conn->call = c;
    sl_http_conn_enter(c->conn, SL_HTTP_RECEIVING);
    s->n_steps++;
    c->refs = 1;
    sl_buf_init(&c->body, s->conf.max_body_bytes);
    sl_buf_init(&c->out, s->conf.max_unread_bytes);
    sl_buf_init(&c->rest, s->conf.max_unread_bytes + CHUNK_FRAME_BYTES);
    sl_buf_init(&c->answer, SIZE_MAX);
    snprintf(c->request_id, sizeof c->request_id, "req-%08" PRIx64 "-%" PRIx64, s->id_base & 0xffffffffu,
             atomic_fetch_add(&s->n_ids, 1));
    atomic_fetch_add(&s->n_open_calls, 1);
    return c;
}

void sl_http_ref(struct sl_http_call *c)
{
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
}

void sl_http_unref(struct sl_http_call *c)
{
    if (atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (size_t i = 0; i < c->n_headers; i++) {
        sl_free(c->headers[i].name);
        sl_free(c->headers[i].value);
    }
    sl_buf_fini(&c->body);
    sl_buf_fini(&c->out);
    sl_buf_fini(&c->rest);
    sl_buf_fini(&c->answer);
    sl_free(c->method);
    sl_free(c->path);
    sl_free(c);
}

/* ---- what came ---- */

const char *sl_http_method(const struct sl_http_call *c)
{
    return c->method;
}

const char *sl_http_path(const struct sl_http_call *c)
{
    return c->path;
}

const char *sl_http_header(const struct sl_http_call *c, const char *name)
{
    return MHD_lookup_connection_value(c->mhd, MHD_HEADER_KIND, name);
}

void sl_http_body(const struct sl_http_call *c, const char **bytes, size_t *n)
{
    *bytes = c->body.len ? c->body.data : "";
    *n = c->body.len;
}

uint64_t sl_http_arrived_us(const struct sl_http_call *c)
{
    return c->arrived_us;
}

void sl_http_set_note(struct sl_http_call *c, const void *note)
{
    c->note = note;
}

const void *sl_http_note(const struct sl_http_call *c)
{
    return c->note;
}

static bool printable(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            return false;
    return true;
}

void sl_http_set_request_id(struct sl_http_call *c, const char *id)
{
    if (id[0] && strlen(id) < sizeof c->request_id && printable(id))
        snprintf(c->request_id, sizeof c->request_id, "%s", id);
}

/* ---- the answer ---- */

void sl_http_add_header(struct sl_http_call *c, const char *name, const char *value)
{
    if (c->n_headers == SL_HTTP_MAX_HEADERS || !printable(value))
        return;
    c->headers[c->n_headers].name = sl_xstrdup(name);
    c->headers[c->n_headers++].value = sl_xstrdup(value);
}

bool sl_http_answered(const struct sl_http_call *c)
{
    return atomic_load(&c->claimed);
}

void sl_http_answer(struct sl_http_call *c, unsigned status, const char *content_type, struct sl_buf *body)
{
    if (atomic_exchange(&c->claimed, true))
        return;
    c->status = status;
    c->content_type = content_type;
    if (body && body->len) {
        c->answer.len = body->len;
        c->answer.data = sl_buf_steal(body);
    }
    atomic_store_explicit(&c->ready, true, memory_order_release);
    if (!pthread_equal(pthread_self(), c->server->self) || c->suspended)
        sl_http_call_post(c);
}

void sl_http_call_add_headers(struct sl_http_call *c, struct MHD_Response *r)
{
    if (c->content_type)
        MHD_add_response_header(r, "Content-Type", c->content_type);
    MHD_add_response_header(r, "X-Request-Id", c->request_id);
    for (size_t i = 0; i < c->n_headers; i++)
        MHD_add_response_header(r, c->headers[i].name, c->headers[i].value);
    if (c->conn->refused || atomic_load(&c->server->stop))
        MHD_add_response_header(r, "Connection", "close");
}

static enum MHD_Result queue_answer(struct sl_http_call *c)
{
    size_t n = c->answer.len;
    void *bytes = n ? c->answer.data : sl_xstrdup("");
    c->answer.data = NULL;
    c->answer.len = 0;
    struct MHD_Response *r = MHD_create_response_from_buffer_with_free_callback(n, bytes, sl_free);
    if (!r) {
        sl_free(bytes);
        return MHD_NO;
    }
    sl_http_call_add_headers(c, r);
    enum MHD_Result ok = MHD_queue_response(c->mhd, c->status, r);
    MHD_destroy_response(r);
    c->given_ms = sl_now_ms();
    c->counted = n;
    c->server->unread_bytes += n;
    sl_metric_add(c->server->m_status[c->status / 100 < 6 ? c->status / 100 : 5], 1);
    return ok;
}

/* ---- waiting ---- */

/* A client may close as soon as it has read the last byte, before the library says that it was sent. */
static bool all_given(const struct sl_http_call *c)
{
    return c->streaming ? c->stream_ended && sl_http_stream_unread(c) == 0 : atomic_load(&c->ready);
}

void sl_http_call_left(struct sl_http_call *c)
{
    if (!all_given(c))
        sl_metric_add(c->server->m_left, 1);
    sl_http_call_abort(c);
    sl_http_call_post(c);
}

static void on_socket(void *arg, uint32_t events)
{
    if (events & ~(uint32_t)EPOLLOUT)
        sl_http_call_left(arg);
    else
        sl_http_call_proceed(arg);
}

void sl_http_call_watch(struct sl_http_call *c, uint32_t also)
{
    c->watched = sl_loop_add(c->server->loop, c->conn->fd, EPOLLRDHUP | also, on_socket, c) == SL_OK;
    c->conn->watched = false;
}

void sl_http_call_suspend(struct sl_http_call *c)
{
    if (!c->watched)
        sl_http_call_watch(c, 0);
    MHD_suspend_connection(c->mhd);
    c->suspended = true;
}

void sl_http_call_abort(struct sl_http_call *c)
{
    c->aborted = true;
    if (c->watched) {
        sl_loop_remove(c->server->loop, c->conn->fd);
        c->watched = false;
    }
}

void sl_http_call_post(struct sl_http_call *c)
{
    struct sl_http_server *s = c->server;
    bool first = false;
    pthread_mutex_lock(&s->ready_lock);
    if (!c->queued) {
        c->queued = true;
        c->next_ready = NULL;
        sl_http_ref(c);
        first = s->n_ready++ == 0;
        if (first)
            s->ready_first = c;
        else
            s->ready_last->next_ready = c;
        s->ready_last = c;
    }
    pthread_mutex_unlock(&s->ready_lock);
    if (first)
        sl_loop_wake(s->loop);
}

void sl_http_wake(struct sl_http_call *c)
{
    sl_http_call_post(c);
}

void sl_http_attach(struct sl_http_call *c, const struct sl_http_owner *owner)
{
    c->owner = *owner;
    c->has_owner = true;
}

void sl_http_call_proceed(struct sl_http_call *c)
{
    if (atomic_load_explicit(&c->busy, memory_order_acquire) || c->finished)
        return;
    if (c->has_owner && !c->aborted)
        c->owner.wake(c->owner.arg);
    if (!c->suspended)
        return;
    bool something = c->streaming ? sl_http_stream_wants_library(c)
                                  : atomic_load_explicit(&c->ready, memory_order_acquire);
    if (!something && !c->aborted)
        return;
    c->suspended = c->in_body = false;
    if (c->given_ms)
        c->given_ms = sl_now_ms();
    MHD_resume_connection(c->mhd);
    c->conn->library->ready = true;
}

/* ---- the library's callbacks ---- */

static enum MHD_Result advance(struct sl_http_call *c)
{
    if (c->aborted)
        return MHD_NO;
    if (!atomic_load_explicit(&c->busy, memory_order_acquire)) {
        if (c->streaming)
            return sl_http_stream_queue(c);
        if (atomic_load_explicit(&c->ready, memory_order_acquire))
            return queue_answer(c);
    }
    sl_http_call_suspend(c);
    return MHD_YES;
}

static void dispatch(struct sl_http_call *c)
{
    struct sl_http_server *s = c->server;
    c->complete = true;
    sl_http_conn_enter(c->conn, SL_HTTP_WORKING);
    c->arrived_us = sl_now_us();
    if (sl_http_answered(c))
        return;
    if (c->where == SL_HTTP_HERE) {
        s->conf.handle(s->conf.arg, c);
        return;
    }
    atomic_store(&c->busy, true);
    sl_http_ref(c);
    if (sl_http_workers_give(s->workers, c) == SL_OK)
        return;
    atomic_store(&c->busy, false);
    sl_http_unref(c);
    sl_http_answer_error(
        c, &(struct sl_http_error){.err = SL_EAGAIN,
                                   .message = "Too many requests are waiting to be read; try again later."});
}

static void too_large(struct sl_http_call *c)
{
    char text[160];
    snprintf(text, sizeof text,
             "The body is larger than the limit of %" PRIu64 " bytes (max_body_bytes of the router).",
             c->server->conf.max_body_bytes);
    sl_http_answer_error(c, &(struct sl_http_error){.err = SL_ETOOBIG, .message = text});
}

/* True when the answer must go out now, before the body. */
static bool on_headers(struct sl_http_call *c, const char *url, const char *method)
{
    struct sl_http_server *s = c->server;
    c->headers_seen = true;
    c->path = sl_xstrdup(url);
    c->method = sl_xstrdup(method);
    const char *id = sl_http_header(c, "X-Request-Id");
    if (id)
        sl_http_set_request_id(c, id);
    const char *length_text = sl_http_header(c, "Content-Length");
    uint64_t length = length_text ? strtoull(length_text, NULL, 10) : 0;
    if (c->conn->refused) {
        sl_metric_add(s->m_refused, 1);
        sl_http_answer_error(
            c, &(struct sl_http_error){.err = SL_ENOTREADY, .message = "Too many connections."});
    } else {
        c->where = s->conf.check(s->conf.arg, c);
        if (!sl_http_answered(c) && length > s->conf.max_body_bytes)
            too_large(c);
    }
    if (!sl_http_answered(c))
        return false;
    c->discard = true;
    return length > DISCARD_MAX_BYTES || (length && sl_http_header(c, "Expect"));
}

enum MHD_Result sl_http_call_access(void *server, struct MHD_Connection *mhd, const char *url,
                                    const char *method, const char *version, const char *upload,
                                    size_t *upload_n, void **call)
{
    struct sl_http_call *c = *call;
    (void)server;
    (void)mhd;
    c->server->n_steps++;
    c->chunks = strcmp(version, MHD_HTTP_VERSION_1_1) == 0;
    c->may_pass = c->chunks && !c->server->conf.tls;
    if (!c->headers_seen)
        return on_headers(c, url, method) ? queue_answer(c) : MHD_YES;
    if (*upload_n) {
        size_t n = *upload_n;
        *upload_n = 0;
        if (!c->discard && !sl_buf_append(&c->body, upload, n)) {
            too_large(c);
            c->discard = true;
            sl_buf_fini(&c->body);
        }
        if (c->discard)
            c->n_discarded += n;
        return c->n_discarded > DISCARD_MAX_BYTES ? MHD_NO : MHD_YES;
    }
    if (!c->complete)
        dispatch(c);
    return advance(c);
}

/* Version 0.9.75 leaves a connection that its content reader ended, by an error or without chunks, closed but in its
 * lists, until it comes to be the one that was idle longest. Those with a time limit of their own it looks at in each
 * run. */
static void let_library_free(struct MHD_Connection *mhd, struct sl_http_library *l)
{
    (void)MHD_set_connection_option(mhd, MHD_CONNECTION_OPTION_TIMEOUT, ENDED_TIMEOUT_S);
    l->ready = true;
}

void sl_http_call_completed(void *server, struct MHD_Connection *mhd, void **call,
                            enum MHD_RequestTerminationCode why)
{
    struct sl_http_server *s = server;
    struct sl_http_call *c = *call;
    if (!c)
        return;
    bool complete = why == MHD_REQUEST_TERMINATED_COMPLETED_OK && !c->aborted;
    s->n_steps++;
    c->watched = false;
    c->finished = true;
    sl_http_stream_count(c);
    if (!complete || (c->streaming && !c->chunks))
        let_library_free(mhd, c->conn->library);
    c->conn->call = NULL;
    sl_http_conn_enter(c->conn, SL_HTTP_KEPT);
    if (!c->conn->watched)
        sl_http_conn_watch(c->conn);
    c->conn = NULL;
    c->mhd = NULL;
    if (c->has_owner)
        c->owner.closed(c->owner.arg, complete);
    *call = NULL;
    sl_http_unref(c);
    atomic_fetch_sub(&s->n_open_calls, 1);
}
