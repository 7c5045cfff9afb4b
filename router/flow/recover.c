/* router/flow/recover.c - the rules.
 *
 * The prefill leg is a helper: once D holds the request, D notices by itself that P is gone and computes the
 * rest; taking the request away from D would lose what was committed. Only a P that never said yes is
 * replaced, since D would wait for it in vain.
 *
 * Errors of the decode leg are sorted by what is lost. What is wrong with the request itself would be wrong
 * everywhere (but a pool that is too small is one node's). "Later" is tried elsewhere first; a request whose
 * client already reads waits rather than break, for room and for nodes that failed it, as often as a request may
 * fail. One that has shown nothing is refused so that the client can go elsewhere, unless nodes only lost it (they
 * took this router for dead, say). */
#include "router/flow/recover.h"

static struct sl_recovery_out act(enum sl_recovery a, enum sl_err err, const char *because)
{
    return (struct sl_recovery_out){.action = a, .err = err, .because = because};
}

static struct sl_recovery_out again(const struct sl_trouble_in *t, const char *because)
{
    if (t->n_faults >= SL_MAX_FAULTS)
        return act(SL_RECOVERY_FAIL, SL_EPEER, "The request lost its node too many times.");
    return act(SL_RECOVERY_PLACE_AGAIN, SL_OK, because);
}

static struct sl_recovery_out prefill_leg(const struct sl_trouble_in *t)
{
    if (t->streaming || t->leg_accepted)
        return act(SL_RECOVERY_RECORD, SL_OK, "the prefill leg failed; the decode node goes on by itself");
    return again(t, "the prefill node did not take it");
}

static struct sl_recovery_out decode_leg_error(const struct sl_trouble_in *t)
{
    switch (sl_err_class(t->err)) {
    case SL_CLASS_BAD_INPUT:
        if (t->err == SL_ETOOBIG || t->err == SL_EUNSUPPORTED)
            return again(t, "the decode node cannot hold it");
        return act(SL_RECOVERY_FAIL, t->err, "The decode node refused the request.");
    case SL_CLASS_LATER:
        return again(t, "the decode node has no room now");
    case SL_CLASS_REQUEST:
        if (t->err == SL_EDEADLINE)
            return act(SL_RECOVERY_FAIL, SL_EDEADLINE, "The request's deadline passed.");
        return again(
            t, "the decode node lost it"); /* also canceled by the node, which took this router for dead */
    case SL_CLASS_PEER:
    case SL_CLASS_PROCESS:
    case SL_CLASS_OK:
        break;
    }
    return again(t, "the decode node failed");
}

/* Placement found nothing. What the client is told is what happened first: a refusal that made it look
 * elsewhere says more than "no other node". */
static struct sl_recovery_out no_place(const struct sl_trouble_in *t)
{
    if (t->before == SL_OK)
        return act(SL_RECOVERY_FAIL, t->err, "No node can take the request.");
    if (sl_err_class(t->before) == SL_CLASS_LATER && t->n_received > 0)
        return act(SL_RECOVERY_WAIT, SL_OK, "all nodes are full; it waits");
    if (sl_err_class(t->before) == SL_CLASS_LATER || sl_err_class(t->before) == SL_CLASS_BAD_INPUT)
        return act(SL_RECOVERY_FAIL, t->before, "no other node can take it");
    bool may_return = t->n_received > 0 ? sl_err_class(t->before) != SL_CLASS_PROCESS
                                        : sl_err_class(t->before) == SL_CLASS_REQUEST;
    if (t->left_out_lives && may_return)
        return act(SL_RECOVERY_WAIT, SL_OK, "only nodes that failed it are left; it waits");
    return act(SL_RECOVERY_FAIL, SL_EPEER, "no compatible node is left");
}

struct sl_recovery_out sl_recover(const struct sl_trouble_in *t)
{
    switch (t->what) {
    case SL_TROUBLE_DEADLINE:
        return act(SL_RECOVERY_FAIL, SL_EDEADLINE, "The request's deadline passed.");
    case SL_TROUBLE_NO_PLACE:
        return no_place(t);
    case SL_TROUBLE_NODE_DEAD:
        return t->leg_p ? prefill_leg(t) : again(t, "the decode node died");
    case SL_TROUBLE_NODE_STALLED:
        return t->leg_p ? prefill_leg(t) : again(t, "the decode node computes nothing");
    case SL_TROUBLE_LOST:
        return again(t, "the decode node lost it");
    case SL_TROUBLE_COMMAND:
    case SL_TROUBLE_LEG_ERROR:
        return t->leg_p ? prefill_leg(t) : decode_leg_error(t);
    }
    return act(SL_RECOVERY_FAIL, SL_EBUG, "unknown trouble");
}
