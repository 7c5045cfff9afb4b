/* router/http/sse.h - server-sent events: how a frame is written (step 11 of the request path). */
#ifndef SLUICE_ROUTER_HTTP_SSE_H
#define SLUICE_ROUTER_HTTP_SSE_H

#include "common/base/buf.h"

#define SL_SSE_CONTENT_TYPE "text/event-stream; charset=utf-8"

/* A data frame is written in place: begin, append one line of JSON to out, end. */
void sl_sse_begin(struct sl_buf *out);
void sl_sse_end(struct sl_buf *out);
/* The same for a frame that has a type. */
void sl_sse_begin_event(struct sl_buf *out, const char *type);
/* The frame that ends a stream; nothing may follow. */
void sl_sse_done(struct sl_buf *out);

#endif
