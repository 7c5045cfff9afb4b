/* router/http/http_error.h - the one place where an sl_err becomes an HTTP status and an error object:
 *     {"error":{"message":"...","type":"BadRequestError","param":"top_p","code":400}}
 * with Retry-After for what may work later, and x-should-retry: false once tokens were made (clients retry
 * 5xx by themselves). */
#ifndef SLUICE_ROUTER_HTTP_HTTP_ERROR_H
#define SLUICE_ROUTER_HTTP_HTTP_ERROR_H

#include <stdint.h>
#include "router/http/http_server.h"

struct sl_http_error {
    enum sl_err err;
    unsigned status;        /* 0 = sl_http_status(err); else for what only HTTP knows: 405, 408, 415 */
    const char *message;    /* a sentence; NULL = the status in words */
    const char *param;      /* the field at fault, or NULL */
    const char *extra;      /* more members of the object as JSON text, "\"n_ctx\":8192", or NULL */
    uint32_t retry_after_s; /* 0 = 1 where the status is 429 or 503, else none */
    bool no_retry;          /* tokens were generated */
};

unsigned sl_http_status(enum sl_err err);

/* The sentence, or the status in words. */
const char *sl_http_error_message(const struct sl_http_error *e);
/* Appends the object, for a body or a frame. */
void sl_http_error_json(const struct sl_http_error *e, struct sl_buf *out);
/* Answers the call with it. */
void sl_http_answer_error(struct sl_http_call *c, const struct sl_http_error *e);

#endif
