/* prefill_node/prefill_node.h - the duty of prefilling for another node: compute the KV of tokens [0, s),
 * push its pages to the decode node under its grant, and when s is the whole prompt sample the first token.
 *
 *     waiting --admitted--> admitted --chunk--> computing --all of [0, s) sent and committed--> PREFILLED
 *     the grant comes any time; without it at most ungranted_pages are filled and nothing is sent
 *
 * prefill_intake.c: the command becomes a sequence and a send session. kv_push.c: what happens until the end.
 * Threads: engine thread. */
#ifndef SLUICE_PREFILL_NODE_PREFILL_NODE_H
#define SLUICE_PREFILL_NODE_PREFILL_NODE_H

#include "common/node/node_leg.h"

struct sl_prefill_leg {
    struct sl_leg leg; /* first: the table of legs knows only this */
    bool granted;
    bool samples;      /* s is the whole prompt */
    bool sampled;      /* and the token is there */
    uint32_t computed; /* KV of [0, computed) is in place */
    bool ignore_eos;   /* of the request: whether the first token ends it */
    uint32_t n_stop_ids, max_tokens;
    int32_t stop_ids[SL_MAX_STOP_IDS];
};

extern const struct sl_duty_ops sl_duty_prefill;

/* prefill_intake.c */
enum sl_err sl_prefill_accept(struct sl_leg *l, const struct sl_order *o, struct sl_why *why);
void sl_prefill_refused(struct sl_node *n, const struct sl_order *o, const char *why);

/* kv_push.c */
void sl_kv_push_on_engine(struct sl_leg *l, const struct sl_engine_event *ev);
void sl_kv_push_on_xfer(struct sl_leg *l, const struct sl_xfer_event *ev);
enum sl_err sl_kv_push_cancel(struct sl_leg *l, const char *why);

#endif
