/* router/flow/text_out.h - tokens of one request to the text its client sees (step 11 of the request path):
 * whole characters only, stop strings found and cut, tokens that end the generation not shown.
 *
 * Threads: flow thread. */
#ifndef SLUICE_ROUTER_FLOW_TEXT_OUT_H
#define SLUICE_ROUTER_FLOW_TEXT_OUT_H

#include "common/text/tokenizer.h"
#include "router/flow/gen_req.h"

struct sl_text_out; /* opaque */

/* Borrows tok and req. SL_ETOOBIG, SL_EINVAL: a stop string over the limits or empty. */
SL_MUST_CHECK enum sl_err sl_text_out_new(const struct sl_tokenizer *tok, const struct sl_gen_req *req,
                                          struct sl_text_out **out, struct sl_why *why);
void sl_text_out_free(struct sl_text_out *t); /* takes NULL */

struct sl_text_piece {
    const char *text; /* valid until the next call; never NULL */
    size_t len;
    const char *stopped_by; /* the stop string that this completed, else NULL: no later text comes */
};

/* The next token; index counts the generated tokens of the request from 0. */
void sl_text_out_push(struct sl_text_out *t, int32_t token, uint32_t index, struct sl_text_piece *out);
/* The generation ended without a stop string: what was held back. */
void sl_text_out_end(struct sl_text_out *t, struct sl_text_piece *out);
/* True when the node ends the generation with this token at this index. */
bool sl_text_out_is_last(const struct sl_text_out *t, int32_t token, uint32_t index);

#endif
