/* tests/unit/router/http_client.h - a blocking HTTP client for tests that need to see the bytes. Every read
 * gives up after some seconds, so that a test that would hang fails instead. */
#ifndef SLUICE_TESTS_UNIT_ROUTER_HTTP_CLIENT_H
#define SLUICE_TESTS_UNIT_ROUTER_HTTP_CLIENT_H

#include "common/base/buf.h"

struct http_client {
    int fd;
    struct sl_buf in; /* read and not yet taken */
};

struct http_reply {
    int status; /* 0: the connection ended before an answer */
    char *head; /* status line and headers */
    char *body; /* chunks joined */
    size_t n_body;
    bool complete; /* ended as HTTP says, not by a closed connection */
};

void http_connect(struct http_client *c, uint16_t port);
void http_close(struct http_client *c);
void http_send(struct http_client *c, const char *bytes, size_t n);
/* A request with a body (NULL = none); headers: more lines, each with CRLF, or "". */
void http_request(struct http_client *c, const char *method, const char *path, const char *headers,
                  const char *body);
void http_read(struct http_client *c, struct http_reply *r);
/* Reads until text stands in what came; false when the connection ended before. */
bool http_wait_for(struct http_client *c, const char *text);
void http_reply_fini(struct http_reply *r);
/* The value of a header of the reply, in a static buffer; NULL when absent. */
const char *http_reply_header(const struct http_reply *r, const char *name);
/* One request on a connection of its own. */
void http_once(uint16_t port, const char *method, const char *path, const char *headers, const char *body,
               struct http_reply *r);

#endif
