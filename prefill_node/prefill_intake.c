/* prefill_node/prefill_intake.c - step 4 of the request path, on P: a Prefill becomes a sequence without a
 * grant and an open send session.
 *
 * The session is opened at once, so that the decode node's grant can come while the prompt waits or is
 * computed. Whoever refuses tells the decode node too: it must not wait for pages that never come. */
#include "prefill_node/prefill_node.h"

#include <stdio.h>

#include "common/base/log.h"

const struct sl_duty_ops sl_duty_prefill = {
    .name = "prefill",
    .role = SLUICE__ROLE__ROLE_PREFILL,
    .command = SLUICE__ENVELOPE__BODY_PREFILL,
    .leg_bytes = sizeof(struct sl_prefill_leg),
    .accept = sl_prefill_accept,
    .refused = sl_prefill_refused,
    .on_engine = sl_kv_push_on_engine,
    .on_xfer = sl_kv_push_on_xfer,
    .cancel_xfer = sl_kv_push_cancel,
};

enum sl_err sl_prefill_accept(struct sl_leg *l, const struct sl_order *o, struct sl_why *why)
{
    struct sl_prefill_leg *p = (struct sl_prefill_leg *)l;
    if (o->split_tokens == 0)
        return sl_why_set(why, SL_EINVAL, "a prefill of no tokens was asked for");
    p->samples = o->split_tokens == o->n_tokens;
    p->ignore_eos = o->sampling->ignore_eos;
    p->max_tokens = o->sampling->max_tokens;
    p->n_stop_ids = (uint32_t)o->sampling->n_stop_ids;
    for (uint32_t i = 0; i < p->n_stop_ids; i++)
        p->stop_ids[i] = o->sampling->stop_ids[i];

    const struct sl_seq_spec duty = {.owner = l, .compute_to = o->split_tokens, .sample = p->samples};
    enum sl_err err = sl_order_open(o, l->node->engine, l->node->words, &duty, &l->seq, why);
    if (err != SL_OK)
        return err;
    err = sl_xfer_send_open(l->node->xfer, &l->key, &l->peer, l->split, o->deadline_ms);
    if (err != SL_OK) {
        sl_engine_seq_close(l->node->engine, l->seq);
        l->seq = NULL;
        return sl_why_set(why, err, "node %s cannot open another transfer; %u are open", l->node->conf->name,
                          sl_xfer_open_sessions(l->node->xfer));
    }
    l->xfer = SL_LEG_XFER_OPEN;
    return SL_OK;
}

void sl_prefill_refused(struct sl_node *n, const struct sl_order *o, const char *why)
{
    /* an attempt that is being prefilled here already keeps its session */
    if (!o->peer || sl_leg_find(n, SLUICE__ROLE__ROLE_PREFILL, o->request_id, o->attempt))
        return;
    struct sl_xfer_key key = {.epoch = o->attempt};
    struct sl_xfer_peer peer;
    snprintf(key.request, sizeof key.request, "%s", o->request_id);
    sl_order_peer(o, &peer);
    /* when this cannot be queued either, the decode node's own wait ends it */
    if (sl_xfer_send_abort(n->xfer, &key, &peer, why) != SL_OK)
        SL_WARN("the decode node was not told of a refused prefill req=%s peer=%s", key.request, peer.name);
}
