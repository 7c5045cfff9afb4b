/* router/api/flow_gate.c - the close waits for calls in progress; none of them waits for the close, because
 * the flow's events only enqueue (gen_call.c) and never call back through the gate. Writers are preferred, or
 * steady traffic would hold off the close. */
#include "router/api/flow_gate.h"

#include "common/base/mem.h"

void sl_gate_init(struct sl_flow_gate *g, struct sl_flow *flow)
{
    pthread_rwlockattr_t attr;
    pthread_rwlockattr_init(&attr);
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    SL_ASSERT(pthread_rwlock_init(&g->lock, &attr) == 0);
    pthread_rwlockattr_destroy(&attr);
    g->flow = flow;
}

void sl_gate_close(struct sl_flow_gate *g)
{
    pthread_rwlock_wrlock(&g->lock);
    struct sl_flow *flow = g->flow;
    g->flow = NULL;
    if (flow)
        sl_flow_close(flow);
    pthread_rwlock_unlock(&g->lock);
}

void sl_gate_fini(struct sl_flow_gate *g)
{
    sl_gate_close(g);
    pthread_rwlock_destroy(&g->lock);
}

enum sl_err sl_gate_submit(struct sl_flow_gate *g, struct sl_gen_req *req, sl_gen_event_fn *on_event,
                           void *arg, struct sl_why *why)
{
    enum sl_err err;
    pthread_rwlock_rdlock(&g->lock);
    if (g->flow) {
        err = sl_flow_submit(g->flow, req, on_event, arg, why);
    } else {
        sl_arena_free(req->arena);
        err = sl_why_set(why, SL_EDRAINING, "The router is stopping.");
    }
    pthread_rwlock_unlock(&g->lock);
    return err;
}

void sl_gate_cancel(struct sl_flow_gate *g, const char *id)
{
    pthread_rwlock_rdlock(&g->lock);
    if (g->flow)
        sl_flow_cancel(g->flow, id);
    pthread_rwlock_unlock(&g->lock);
}

void sl_gate_new_id(struct sl_flow_gate *g, const char *prefix, char id[64])
{
    id[0] = '\0';
    pthread_rwlock_rdlock(&g->lock);
    if (g->flow)
        sl_flow_new_id(g->flow, prefix, id);
    pthread_rwlock_unlock(&g->lock);
}

bool sl_gate_ready(struct sl_flow_gate *g, struct sl_why *why)
{
    pthread_rwlock_rdlock(&g->lock);
    bool ready = g->flow && sl_flow_ready(g->flow, why);
    if (!g->flow)
        sl_why_set(why, SL_EDRAINING, "The router is stopping.");
    pthread_rwlock_unlock(&g->lock);
    return ready;
}

void sl_gate_drain(struct sl_flow_gate *g, uint32_t *open_requests)
{
    *open_requests = 0;
    pthread_rwlock_rdlock(&g->lock);
    if (g->flow)
        sl_flow_drain(g->flow, open_requests);
    pthread_rwlock_unlock(&g->lock);
}

enum sl_err sl_gate_admin(struct sl_flow_gate *g, const char *op, const char *const *args, size_t n_args,
                          uint32_t timeout_ms, Sluice__AdminReply **reply)
{
    pthread_rwlock_rdlock(&g->lock);
    enum sl_err err = g->flow ? sl_flow_admin(g->flow, op, args, n_args, timeout_ms, reply) : SL_EDRAINING;
    pthread_rwlock_unlock(&g->lock);
    return err;
}

enum sl_err sl_gate_steps(struct sl_flow_gate *g, uint64_t after, struct sl_buf *out)
{
    pthread_rwlock_rdlock(&g->lock);
    enum sl_err err = g->flow ? SL_OK : SL_EDRAINING;
    if (!err)
        sl_flow_steps(g->flow, after, out);
    pthread_rwlock_unlock(&g->lock);
    return err;
}
