/* router/fleet/node_link.c - tags are numbers that never repeat; the map from tag to call is the only memory
 * of a call, so an answer that comes after its node was dropped finds nothing and is let go. */
#include "router/fleet/node_link.h"

#include "common/base/hashmap.h"
#include "common/base/mem.h"

#define CONTEXTS    8    /* commands in flight per node */
#define MAX_WAITING 4096 /* in line behind them */

struct sl_node_calls {
    struct sl_queue *answers;
    const struct sl_wire_guard *guard;
    uint32_t timeout_ms;
    uint64_t next_tag;
    struct sl_hashmap *by_tag;
};

struct sl_node_link {
    struct sl_node_calls *calls;
    struct sl_wire_client *client;
};

struct sl_node_calls *sl_node_calls_new(struct sl_queue *answers, const struct sl_wire_guard *guard,
                                        uint32_t timeout_ms)
{
    struct sl_node_calls *c = sl_xcalloc(1, sizeof *c);
    *c = (struct sl_node_calls){.answers = answers,
                                .guard = guard,
                                .timeout_ms = timeout_ms,
                                .next_tag = 1,
                                .by_tag = sl_hashmap_new()};
    return c;
}

void sl_node_calls_free(struct sl_node_calls *c)
{
    if (!c)
        return;
    size_t it = 0;
    void *call;
    while (sl_hashmap_next(c->by_tag, &it, &call))
        sl_free(call);
    sl_hashmap_free(c->by_tag);
    sl_free(c);
}

bool sl_node_calls_take(struct sl_node_calls *c, uint64_t tag, struct sl_node_call *out)
{
    struct sl_node_call *call = sl_hashmap_del_u64(c->by_tag, tag);
    if (!call)
        return false;
    *out = *call;
    sl_free(call);
    return true;
}

enum sl_err sl_node_link_open(struct sl_node_calls *calls, const char *command_url, struct sl_node_link **out,
                              struct sl_why *why)
{
    struct sl_wire_client *client;
    enum sl_err err =
        sl_wire_client_open(command_url, calls->guard, CONTEXTS, MAX_WAITING, calls->answers, &client, why);
    if (err)
        return err;
    struct sl_node_link *l = sl_xcalloc(1, sizeof *l);
    *l = (struct sl_node_link){.calls = calls, .client = client};
    *out = l;
    return SL_OK;
}

void sl_node_link_close(struct sl_node_link *l)
{
    if (!l)
        return;
    sl_wire_client_close(l->client);
    sl_free(l);
}

enum sl_err sl_node_link_send(struct sl_node_link *l, Sluice__Envelope *msg, const struct sl_node_call *what)
{
    struct sl_node_calls *c = l->calls;
    uint64_t tag = c->next_tag++;
    sl_hashmap_put_u64(c->by_tag, tag, sl_xmemdup(what, sizeof *what));
    enum sl_err err = sl_wire_call(l->client, msg, tag, c->timeout_ms);
    if (err)
        sl_free(sl_hashmap_del_u64(c->by_tag, tag));
    return err;
}
