/* decode_node/decode_node.h - the duty of decoding: take a request, get the KV of its prompt (from a prefill
 * node, computed here, or both), and send its tokens.
 *
 *     waiting --admitted--> [ remote: grant given, pages arrive ] --> [ prefill here from s on ]
 *             --> decoding --> ended
 *     the prefill node is lost: s := what was committed, the rest is computed here
 *
 * decode_intake.c: the command becomes a sequence. grants.c: pages from the prefill node. token_out.c: tokens
 * and the end. Threads: engine thread. */
#ifndef SLUICE_DECODE_NODE_DECODE_NODE_H
#define SLUICE_DECODE_NODE_DECODE_NODE_H

#include "common/node/node_leg.h"

struct sl_decode_leg {
    struct sl_leg leg; /* first: the table of legs knows only this */
    bool decoding;
    uint32_t ready_tokens; /* committed by the prefill node */
};

extern const struct sl_duty_ops sl_duty_decode;

/* decode_intake.c */
enum sl_err sl_decode_accept(struct sl_leg *l, const struct sl_order *o, struct sl_why *why);
void sl_decode_on_engine(struct sl_leg *l, const struct sl_engine_event *ev);

/* grants.c */
void sl_grants_on_admitted(struct sl_leg *l);
void sl_grants_on_xfer(struct sl_leg *l, const struct sl_xfer_event *ev);
enum sl_err sl_grants_cancel(struct sl_leg *l, const char *why);

/* token_out.c */
void sl_token_out(struct sl_leg *l, const struct sl_engine_event *ev);
/* The token that the prefill node sampled and told the router: kept here for Resync. */
void sl_token_out_first(struct sl_leg *l, const struct sl_sampled *t);
void sl_token_out_finished(struct sl_leg *l, enum sl_finish reason);

#endif
