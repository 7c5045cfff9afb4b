/* decode_node/token_out.c - step 10 of the request path: tokens to the router, all of one engine step in one
 * message.
 *
 * Every token is kept in the leg until it is long finished: Resync is answered from there. */
#include "decode_node/decode_node.h"

#include "common/node/node_router.h"

static void decoding(struct sl_decode_leg *d)
{
    if (d->decoding)
        return;
    d->decoding = true;
    sl_leg_state(&d->leg, "decoding", true);
}

void sl_token_out(struct sl_leg *l, const struct sl_engine_event *ev)
{
    decoding((struct sl_decode_leg *)l);
    sl_leg_token(l, ev->token_index, &ev->sampled, true);
}

void sl_token_out_first(struct sl_leg *l, const struct sl_sampled *t)
{
    decoding((struct sl_decode_leg *)l);
    sl_leg_token(l, l->first_index, t, false); /* the prefill node told the router; here it is for a Resync */
}

void sl_token_out_finished(struct sl_leg *l, enum sl_finish reason)
{
    sl_leg_end(l,
               reason == SL_FINISH_LENGTH ? SLUICE__DONE_REASON__DONE_LENGTH : SLUICE__DONE_REASON__DONE_STOP,
               SL_OK, NULL);
}
