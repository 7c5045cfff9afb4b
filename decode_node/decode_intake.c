/* decode_node/decode_intake.c - step 4 of the request path, on D: a Submit becomes a sequence.
 *
 * One code path for all placements: s = split_tokens is where the KV computed elsewhere ends; 0 computes
 * everything here. After a fault the router submits prompt + received tokens with n_prompt unchanged, and the
 * same path goes on from there. */
#include "decode_node/decode_node.h"

const struct sl_duty_ops sl_duty_decode = {
    .name = "decode",
    .role = SLUICE__ROLE__ROLE_DECODE,
    .command = SLUICE__ENVELOPE__BODY_SUBMIT,
    .leg_bytes = sizeof(struct sl_decode_leg),
    .accept = sl_decode_accept,
    .on_engine = sl_decode_on_engine,
    .on_xfer = sl_grants_on_xfer,
    .cancel_xfer = sl_grants_cancel,
};

enum sl_err sl_decode_accept(struct sl_leg *l, const struct sl_order *o, struct sl_why *why)
{
    const struct sl_seq_spec duty = {.owner = l,
                                     .remote_to = o->split_tokens,
                                     .compute_to = (uint32_t)o->n_tokens,
                                     .sample = true,
                                     .decode = true,
                                     .granted = true};
    return sl_order_open(o, l->node->engine, l->node->words, &duty, &l->seq, why);
}

void sl_decode_on_engine(struct sl_leg *l, const struct sl_engine_event *ev)
{
    switch (ev->kind) {
    case SL_EV_ADMITTED:
        sl_leg_admitted(l);
        sl_grants_on_admitted(l);
        break;
    case SL_EV_COMPUTED:
        sl_leg_state(l, "computing", false);
        break;
    case SL_EV_TOKEN:
        sl_token_out(l, ev);
        break;
    case SL_EV_FINISHED:
        sl_token_out_finished(l, ev->reason);
        break;
    case SL_EV_PREEMPTED:
        break; /* it is admitted again and computed here */
    }
}
