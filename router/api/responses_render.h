/* router/api/responses_render.h - an answer as /v1/responses has it (step 11 of the request path): items of output, and a stream of
 * events with types and numbers. Called by openai_render.c, which has taken the calls out of the text. */
#ifndef SLUICE_ROUTER_API_RESPONSES_RENDER_H
#define SLUICE_ROUTER_API_RESPONSES_RENDER_H

#include "router/api/render_parts.h"

/* The members of the answer that are the same in all of its states; owned by the caller. */
char *sl_responses_head(const struct sl_oai_request *q, int64_t created);

void sl_responses_event(struct sl_render *r, struct sl_render_choice *c, const struct sl_gen_event *ev,
                        struct sl_buf *out);
/* The end of a stream that has begun and failed. */
void sl_responses_error(struct sl_render *r, const struct sl_http_error *e, struct sl_buf *out);

#endif
