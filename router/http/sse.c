/* router/http/sse.c - "data: " + one line + an empty line. The JSON written by openai_render has no newline
 * outside strings and strings escape theirs, so a frame is always one line. */
#include "router/http/sse.h"

void sl_sse_begin(struct sl_buf *out)
{
    sl_buf_append(out, "data: ", 6);
}

void sl_sse_begin_event(struct sl_buf *out, const char *type)
{
    sl_buf_printf(out, "event: %s\n", type);
    sl_sse_begin(out);
}

void sl_sse_end(struct sl_buf *out)
{
    sl_buf_append(out, "\n\n", 2);
}

void sl_sse_done(struct sl_buf *out)
{
    sl_buf_puts(out, "data: [DONE]\n\n");
}
