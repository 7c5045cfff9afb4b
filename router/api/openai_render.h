/* router/api/openai_render.h - what the flow reports about an answer's choices -> the JSON a client reads
 * (step 11 of the request path). Of /v1/responses: responses_render.h.
 *
 * Streams: one frame per token, in order, whatever arrives together; each choice ends with a finish frame
 * with an empty delta; behind the last one the usage frame when asked for, [DONE]. The role frame of a chat
 * comes with the choice's first token, not before: clients take the first frame as TTFT. Unstreamed: tokens
 * are collected, the body is written when all choices ended. Usage counts a prompt once, the tokens of all
 * choices. Threads: one per answer, one thread. */
#ifndef SLUICE_ROUTER_API_OPENAI_RENDER_H
#define SLUICE_ROUTER_API_OPENAI_RENDER_H

#include "common/base/buf.h"
#include "router/api/openai_parse.h"

struct sl_http_error;
struct sl_tokenizer;
struct sl_render; /* opaque */

#define SL_RENDER_MAX_BYTES (64u << 20) /* of an unstreamed answer */

/* Copies all it needs of r, which may be freed afterwards; tok is borrowed. created: seconds since 1970. */
struct sl_render *sl_render_new(const struct sl_oai_request *r, const struct sl_tokenizer *tok,
                                int64_t created);
void sl_render_free(struct sl_render *r); /* takes NULL */

/* Appends to out what the client gets for the choice's event: frames, or behind the last SL_GEN_DONE the
 * body. SL_GEN_ERROR is not given here. */
void sl_render_event(struct sl_render *r, uint32_t choice, const struct sl_gen_event *ev, struct sl_buf *out);
/* Appends what ends a stream that has begun and failed. */
void sl_render_error(struct sl_render *r, const struct sl_http_error *e, struct sl_buf *out);
bool sl_render_done(const struct sl_render *r);  /* all choices ended */
bool sl_render_begun(const struct sl_render *r); /* the client may have seen a token */

/* True when the answer outgrew SL_RENDER_MAX_BYTES: it cannot be given. */
bool sl_render_failed(const struct sl_render *r);
bool sl_render_streams(const struct sl_render *r);

#endif
