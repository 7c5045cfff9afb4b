/* router/http/http_call.h - inside of http/: one request, its connection, and the server's shared part. Not
 * for other folders. */
#ifndef SLUICE_ROUTER_HTTP_HTTP_CALL_H
#define SLUICE_ROUTER_HTTP_HTTP_CALL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include "common/base/list.h"
#include "common/base/loop.h"
#include "common/base/thread.h"
#include "router/http/http_server.h"

#define SL_HTTP_MAX_HEADERS 16
#define SL_HTTP_ID_BYTES    132
/* The library walks over all suspended connections of a daemon whenever it resumes one: 10,000 streams cost every
 * request beside them some milliseconds of the http thread when they are one daemon's. */
#define SL_HTTP_LIBRARIES 64

/* What a connection is doing, for the time limits; http thread. */
enum sl_http_phase {
    SL_HTTP_FRESH,     /* accepted, nothing read */
    SL_HTTP_KEPT,      /* between two requests */
    SL_HTTP_RECEIVING, /* request line seen, body not complete */
    SL_HTTP_WORKING    /* being answered */
};

/* One daemon of the library, with some of the connections. http thread. */
struct sl_http_library {
    struct sl_http_server *server;
    struct MHD_Daemon *daemon;
    bool ready;         /* MHD_run() has something to do */
    uint64_t due_ms;    /* when it has without that */
    uint32_t n_in_vain; /* runs in a row after which it wanted another at once and had done nothing */
};

struct sl_http_conn {
    struct sl_list link; /* server.conns */
    struct sl_list
        turn; /* of those that wait for their client: server.idle, .receiving or .refused; else empty */
    struct sl_http_server *server;
    struct sl_http_library *library;
    int fd;
    enum sl_http_phase phase;
    uint64_t since_ms;
    bool refused;              /* over max_connections */
    bool displaced;            /* shut down to make room */
    bool watched;              /* our loop looks for the client's end, and no call does */
    int unread;                /* bytes that the socket held when that was last seen; -1: it was not */
    struct sl_http_call *call; /* the request in work, or NULL */
};

struct sl_http_call {
    struct sl_http_server *server;
    struct MHD_Connection *mhd; /* NULL once finished */
    struct sl_http_conn *conn;  /* the same */
    _Atomic int refs;

    char *method, *path;
    char request_id[SL_HTTP_ID_BYTES];
    const void *note;
    struct sl_buf body;
    uint64_t n_discarded, arrived_us;
    enum sl_http_where where;
    bool headers_seen, complete, discard;

    /* http thread */
    bool suspended, aborted, finished;
    bool watched; /* the loop's events of the socket are this call's, not the connection's */
    bool in_body; /* suspended inside the answer's body: the socket is ours until it is resumed */
    struct sl_http_owner owner; /* set in handle(); read by the http thread once the worker is done */
    bool has_owner;
    _Atomic bool busy; /* a worker has it: the connection stays suspended, so that all of it stays valid */

    /* the answer: written by who claims it, read by the http thread after ready */
    _Atomic bool claimed, ready;
    unsigned status;
    const char *content_type;
    struct sl_buf answer;
    struct {
        char *name, *value;
    } headers[SL_HTTP_MAX_HEADERS];
    size_t n_headers;

    /* the stream: http thread */
    bool streaming, stream_ended;
    bool chunks;   /* the client knows them: HTTP/1.1 */
    bool may_pass; /* frames may go out past the library: HTTP/1.1, and no TLS, whose records are its own */
    struct sl_buf out;
    size_t out_sent;         /* bytes of out already taken */
    struct sl_buf rest;      /* of a chunk that the socket took in part, framed */
    uint64_t stuck_since_ms; /* since then the socket, which is ours, takes nothing; 0 = it does */

    uint64_t given_ms; /* while not suspended: when the library last took bytes to send; 0: not yet */
    size_t counted; /* of its unread bytes, in server.unread_bytes; a whole answer is unread until its end */
    bool over_at_a_scan; /* a whole answer that is more than its share of too much */

    struct sl_http_call *next_ready; /* server.ready */
    bool queued;
};

struct sl_http_workers; /* http_workers.h */

struct sl_http_server {
    struct sl_http_conf conf;
    char *listen;
    uint16_t port;
    struct sl_loop *loop;
    struct sl_thread thread;
    pthread_t self;
    struct sl_http_workers *workers;
    _Atomic bool stop;
    _Atomic uint32_t n_open_calls;
    _Atomic uint64_t n_ids;
    uint64_t id_base;

    struct sl_list conns;                    /* http thread; all */
    struct sl_list idle, receiving, refused; /* those that wait for their client, longest first */
    uint32_t n_conns, n_served, n_displaced; /* of n_conns: neither refused nor displaced; displaced */
    uint32_t n_accepted;                     /* since the start, modulo 2^32 */
    int listen_fd;
    bool accepts; /* listen_fd is looked at */
    uint64_t last_scan_ms;
    uint64_t unread_bytes; /* of all answers */
    uint64_t n_steps;      /* callbacks of all libraries */
    struct sl_http_library libraries[SL_HTTP_LIBRARIES];

    pthread_mutex_t ready_lock;
    struct sl_http_call *ready_first, *ready_last;
    uint32_t n_ready;

    struct sl_metric *m_conns, *m_refused, *m_displaced, *m_timeouts, *m_left, *m_cut, *m_status[6];
};

/* http thread, http_server.c: what the connection does now, since now. */
void sl_http_conn_enter(struct sl_http_conn *k, enum sl_http_phase phase);
/* The loop tells when the client has ended its side; in place of a call's watch. */
void sl_http_conn_watch(struct sl_http_conn *k);

/* MHD's callbacks for requests. */
void *sl_http_call_begin(void *server, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result sl_http_call_access(void *server, struct MHD_Connection *mhd, const char *url,
                                    const char *method, const char *version, const char *upload,
                                    size_t *upload_n, void **call);
void sl_http_call_completed(void *server, struct MHD_Connection *mhd, void **call,
                            enum MHD_RequestTerminationCode why);

/* http thread: lets the call go on after a wake, a worker's end, or an abort. */
void sl_http_call_proceed(struct sl_http_call *c);
/* Any thread: puts the call on the ready list. */
void sl_http_call_post(struct sl_http_call *c);
/* http thread: the client is gone or must go. */
void sl_http_call_abort(struct sl_http_call *c);
void sl_http_call_left(struct sl_http_call *c); /* the same, counted, and the call goes on to its end */
/* http thread: the connection waits, its socket is watched for the client's leaving. */
void sl_http_call_suspend(struct sl_http_call *c);
/* http thread: watches the socket for that and, where also is EPOLLOUT, for room. */
void sl_http_call_watch(struct sl_http_call *c, uint32_t also);
void sl_http_call_add_headers(struct sl_http_call *c, struct MHD_Response *r);

/* http_stream.c, http thread. */
enum MHD_Result sl_http_stream_queue(struct sl_http_call *c); /* the answer's headers and first bytes */
size_t sl_http_stream_unread(const struct sl_http_call *c);   /* bytes that the socket has not taken */
void sl_http_stream_count(struct sl_http_call *c); /* into server.unread_bytes; nothing once it is finished */
/* Sends what it can; true when the library must go on: end, error, or a client without chunks. */
bool sl_http_stream_wants_library(struct sl_http_call *c);

#endif
