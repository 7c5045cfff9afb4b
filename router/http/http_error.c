/* router/http/http_error.c - status by class of error (what is lost says who may try again), then the few
 * codes that HTTP tells apart. 429 is "this router is full", 503 is "no node can serve now": balancers treat
 * them differently. 499 is nginx's number for a request that was called off; clients do not retry it. */
#include "router/http/http_error.h"

#include <stdio.h>
#include <string.h>

unsigned sl_http_status(enum sl_err err)
{
    switch (sl_err_class(err)) {
    case SL_CLASS_OK:
        return 200;
    case SL_CLASS_BAD_INPUT:
        return err == SL_ENOTFOUND ? 404 : err == SL_EDENIED ? 401 : err == SL_ETOOBIG ? 413 : 400;
    case SL_CLASS_LATER:
        return err == SL_EAGAIN || err == SL_ENOPAGES ? 429 : 503;
    case SL_CLASS_REQUEST:
        return err == SL_EDEADLINE ? 504 : err == SL_ECANCELED ? 499 : 500;
    case SL_CLASS_PEER:
        return 500;
    case SL_CLASS_PROCESS:
        return err == SL_ENOMEM ? 503 : 500;
    }
    return 500;
}

static const struct status_words {
    unsigned status;
    const char *type, *words;
} status_table[] = {
    {400, "BadRequestError", "The request is not valid."},
    {401, "AuthenticationError", "Invalid API key."},
    {403, "PermissionDeniedError", "Not allowed."},
    {404, "NotFoundError", "Not found."},
    {405, "MethodNotAllowedError", "This path does not take this method."},
    {408, "RequestTimeoutError", "The request did not arrive in time."},
    {413, "RequestTooLargeError", "The request is too large."},
    {415, "UnsupportedMediaTypeError", "The body must be application/json."},
    {429, "RateLimitError", "Too many requests at once; try again later."},
    {499, "RequestCanceledError", "The request was cancelled."},
    {500, "InternalServerError", "The request failed inside the cluster."},
    {501, "NotImplementedError", "Not implemented."},
    {503, "ServiceUnavailableError", "The service is not ready; try again later."},
    {504, "TimeoutError", "The request's deadline passed."},
};

static const struct status_words *words_of(unsigned status)
{
    static const struct status_words internal = {500, "InternalServerError",
                                                 "The request failed inside the cluster."};
    for (size_t i = 0; i < SL_COUNTOF(status_table); i++)
        if (status_table[i].status == status)
            return &status_table[i];
    return &internal;
}

static unsigned status_of(const struct sl_http_error *e)
{
    return e->status ? e->status : sl_http_status(e->err);
}

const char *sl_http_error_message(const struct sl_http_error *e)
{
    return e->message && e->message[0] ? e->message : words_of(status_of(e))->words;
}

void sl_http_error_json(const struct sl_http_error *e, struct sl_buf *out)
{
    unsigned status = status_of(e);
    const char *message = sl_http_error_message(e);
    sl_buf_puts(out, "{\"error\":{\"message\":\"");
    sl_buf_json_escape(out, message, strlen(message));
    sl_buf_printf(out, "\",\"type\":\"%s\",\"param\":", words_of(status)->type);
    if (e->param) {
        sl_buf_putc(out, '"');
        sl_buf_json_escape(out, e->param, strlen(e->param));
        sl_buf_putc(out, '"');
    } else {
        sl_buf_puts(out, "null");
    }
    sl_buf_printf(out, ",\"code\":%u", status);
    if (e->extra)
        sl_buf_printf(out, ",%s", e->extra);
    sl_buf_puts(out, "}}");
}

void sl_http_answer_error(struct sl_http_call *c, const struct sl_http_error *e)
{
    unsigned status = status_of(e);
    uint32_t retry_s = e->retry_after_s;
    if (!retry_s && (status == 429 || status == 503))
        retry_s = 1;
    if (e->no_retry) {
        sl_http_add_header(c, "x-should-retry", "false");
    } else if (retry_s) {
        char text[16];
        snprintf(text, sizeof text, "%u", retry_s);
        sl_http_add_header(c, "Retry-After", text);
    }
    if (status == 401)
        sl_http_add_header(c, "WWW-Authenticate", "Bearer");
    struct sl_buf body;
    sl_buf_init(&body, 64u << 10);
    sl_http_error_json(e, &body);
    sl_http_answer(c, status, "application/json", &body);
    sl_buf_fini(&body);
}
