/* tests/unit/router/http/http_rig.h - an HTTP server over loopback whose handler does what the path says. */
#ifndef SLUICE_TESTS_UNIT_ROUTER_HTTP_HTTP_RIG_H
#define SLUICE_TESTS_UNIT_ROUTER_HTTP_HTTP_RIG_H

#include <semaphore.h>
#include <stdatomic.h>

#include "router/http/http_server.h"
#include "tests/unit/router/http_client.h"

#define N_FRAMES   200
#define BULK_BYTES (8u << 20) /* more than all buffers between the two ends */
#define N_MANY     300u       /* streams: more than the server serves between two looks at its sockets */
#define LONG_MS    120000     /* a limit for what hangs, not for a slow machine */

/* What the handler does is in the path. */
struct http_rig {
    struct sl_http_server *server;
    struct sl_metrics *metrics;
    uint16_t port;
    sem_t hold;           /* /hold waits here on the worker */
    sem_t closed;         /* posted by each closed() */
    _Atomic int complete; /* the last closed()'s */
    _Atomic int holding;
    _Atomic size_t flooded; /* bytes that the last /flood could write */
    /* /many: calls that all get their one frame when all_at_once is set */
    struct sl_http_call *many[N_MANY];
    _Atomic size_t n_many_begun, n_many; /* n_many of them stand there */
    _Atomic bool all_at_once;
    size_t n_given;                /* frames; http thread */
    _Atomic size_t n_given_before; /* the same when /count came */
};

/* What conf leaves 0 is made fit for a test. */
void http_rig_open(struct http_rig *rig, struct sl_http_conf *conf);
void http_rig_close(struct http_rig *rig);
/* The metrics have this line, with its line end. */
bool http_rig_told(struct http_rig *rig, const char *line);
void http_rig_wait_told(struct http_rig *rig, const char *line);
/* Until so many threads are, or were, in /hold or /hold-here. */
void http_rig_wait_holding(struct http_rig *rig, int n);
/* A connection whose answer has begun and ends when the connection does. */
void http_rig_hold_place(struct http_rig *rig, struct http_client *c);
char http_rig_bulk_byte(size_t i); /* of /bulk */

#endif
