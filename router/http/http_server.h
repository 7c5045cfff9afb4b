/* router/http/http_server.h - HTTP on one thread and a few workers (step 1 of the request path). The only
 * user of libmicrohttpd.
 *
 * A request is a struct sl_http_call. Its life: headers complete -> check() on the http thread, which may
 * answer at once (no key, no such path) and says where the rest runs; body complete -> handle() there or on a
 * worker; then it is answered whole, or streamed piece by piece from the http thread. Whoever must act later
 * keeps a reference and attaches two callbacks: wake, run on the http thread after sl_http_wake() from any
 * thread, and closed, run there once when the client has its answer or has left.
 *
 * Limits, each with an answer in words where HTTP allows one: connections (503), body (413), headers (431 by
 * the library), time for a request to arrive (408), waiting for a worker (429), bytes that one slow reader, or all
 * of them, may leave unread (the stream is cut).
 *
 * A client that half-closes its side counts as gone: a request in flight is then cancelled. */
#ifndef SLUICE_ROUTER_HTTP_HTTP_SERVER_H
#define SLUICE_ROUTER_HTTP_HTTP_SERVER_H

#include "common/base/buf.h"
#include "common/base/metrics.h"

struct sl_http_server; /* opaque */
struct sl_http_call;   /* opaque; referenced */

enum sl_http_where {
    SL_HTTP_HERE,     /* handle() runs on the http thread: must not take long */
    SL_HTTP_ON_WORKER /* handle() may take a while: template, tokens, admin */
};

typedef enum sl_http_where sl_http_check_fn(void *arg, struct sl_http_call *call);
typedef void sl_http_handle_fn(void *arg, struct sl_http_call *call);

struct sl_http_conf {
    const char *listen; /* "127.0.0.1:8000", "[::1]:8000"; ":8000" or "8000" is loopback; port 0 = any */
    bool tls;           /* HTTPS, with what sl_http_tls_load() read */
    uint32_t max_connections;
    uint32_t n_workers;
    uint32_t max_waiting; /* requests waiting for a worker */
    uint64_t max_body_bytes;
    uint64_t max_unread_bytes; /* of one stream */
    /* of all answers; past it a reader that has more than its even share is cut; 0 = no limit */
    uint64_t max_unread_total_bytes;
    uint32_t receive_timeout_s; /* from the first byte of a request to its last */
    uint32_t idle_timeout_s;    /* kept-alive connection without a request, and a reader that takes nothing */
    sl_http_check_fn *check;
    sl_http_handle_fn *handle;
    void *arg;                  /* borrowed, of both */
    struct sl_metrics *metrics; /* borrowed */
};

/* Listens and starts the threads. SL_ECONFIG (address does not parse), SL_EIO (cannot listen there; why). */
SL_MUST_CHECK enum sl_err sl_http_server_open(const struct sl_http_conf *conf, struct sl_http_server **out,
                                              struct sl_why *why);
/* Ends the connections and joins. The owners of open calls must be gone or unable to answer any more
 * (sl_flow_close first); their closed callbacks run before it returns. Takes NULL. */
void sl_http_server_close(struct sl_http_server *s);
/* Waits until no call is open, at most timeout_ms: the last answers are on their way then. False on timeout.
 */
bool sl_http_server_wait_idle(struct sl_http_server *s, uint32_t timeout_ms);
uint16_t sl_http_server_port(const struct sl_http_server *s);
uint32_t
sl_http_server_open_calls(const struct sl_http_server *s); /* requests not answered to the end; any thread */
/* True when conf.listen is an address other machines may reach. SL_ECONFIG as open. */
SL_MUST_CHECK enum sl_err sl_http_listen_is_public(const char *listen, bool *is_public, struct sl_why *why);

/* True when the client is a process of root or of this process's user on this machine, called it by an address or
 * as localhost, and no proxy says that it speaks for another. check() and handle(). */
bool sl_http_is_owner(const struct sl_http_call *c);

/* What came. Valid inside check() and handle(). */
const char *sl_http_method(const struct sl_http_call *c);
const char *sl_http_path(const struct sl_http_call *c);                     /* unescaped, without the query */
const char *sl_http_header(const struct sl_http_call *c, const char *name); /* NULL when absent */
void sl_http_body(const struct sl_http_call *c, const char **bytes,
                  size_t *n);                              /* handle() only; NUL-terminated */
uint64_t sl_http_arrived_us(const struct sl_http_call *c); /* body complete */
/* One pointer of the handlers' own, NULL at first: what check() found out for handle(). */
void sl_http_set_note(struct sl_http_call *c, const void *note);
const void *sl_http_note(const struct sl_http_call *c);

/* Header of the answer; before it is given. Copied; past 16 headers or with control bytes in the value it is
 * left out. */
void sl_http_add_header(struct sl_http_call *c, const char *name, const char *value);
/* Replaces the x-request-id of the answer: the client's when it sent a sane one, else one of ours. Nothing happens when
 * id is not sane. */
void sl_http_set_request_id(struct sl_http_call *c, const char *id);

/* Answers whole; takes body's bytes (body is empty afterwards; NULL = none). Any thread; the first answer
 * counts. */
void sl_http_answer(struct sl_http_call *c, unsigned status, const char *content_type, struct sl_buf *body);
bool sl_http_answered(const struct sl_http_call *c);

/* For answers that come later. closed(arg, complete) is the last callback: complete is false when the client
 * left or was cut. */
struct sl_http_owner {
    void (*wake)(void *arg);
    void (*closed)(void *arg, bool complete);
    void *arg;
};
/* Before handle() returns. */
void sl_http_attach(struct sl_http_call *c, const struct sl_http_owner *owner);
void sl_http_wake(
    struct sl_http_call *c); /* any thread, while a reference is held; several before it runs are one */
void sl_http_ref(struct sl_http_call *c);
void sl_http_unref(struct sl_http_call *c);

/* http thread (wake) only: status 200 and chunks. write gives false when more bytes would wait than may:
 * the caller stops what it does and calls cut. */
void sl_http_stream_begin(struct sl_http_call *c, const char *content_type);
SL_MUST_CHECK bool sl_http_stream_write(struct sl_http_call *c, const void *p, size_t n);
void sl_http_stream_end(struct sl_http_call *c);
/* Ends the connection at once: the client sees a broken stream. */
void sl_http_cut(struct sl_http_call *c);

#endif
