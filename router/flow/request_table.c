/* router/flow/request_table.c - a map by id and a list by age. */
#include "router/flow/request_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/order.h"

struct sl_request_table {
    struct sl_hashmap *by_id;
    struct sl_list all;
};

/* One allocation: the event, then its arrays. */
struct sl_held {
    struct sl_list link;
    Sluice__TokenEvent ev;
};

const char *sl_req_state_name(enum sl_req_state s)
{
    static const char *const names[] = {"placed", "streaming", "waiting", "ending"};
    return (unsigned)s < SL_COUNTOF(names) ? names[s] : "?";
}

struct sl_request_table *sl_request_table_new(void)
{
    struct sl_request_table *t = sl_xcalloc(1, sizeof *t);
    t->by_id = sl_hashmap_new();
    sl_list_init(&t->all);
    return t;
}

void sl_request_table_free(struct sl_request_table *t)
{
    if (!t)
        return;
    SL_ASSERT(sl_list_empty(&t->all));
    sl_hashmap_free(t->by_id);
    sl_free(t);
}

struct sl_request *sl_request_table_add(struct sl_request_table *t, struct sl_gen_req *req)
{
    if (sl_request_table_find(t, req->id))
        return NULL;
    struct sl_request *r = sl_xcalloc(1, sizeof *r);
    r->req = req;
    r->stop_token = -1;
    sl_list_init(&r->held);
    sl_list_add_tail(&t->all, &r->link);
    sl_hashmap_put(t->by_id, req->id, strlen(req->id), r);
    return r;
}

void sl_request_table_remove(struct sl_request_table *t, struct sl_request *r)
{
    sl_hashmap_del(t->by_id, r->req->id, strlen(r->req->id));
    sl_list_remove(&r->link);
    sl_request_drop_held(r);
    sl_text_out_free(r->text);
    sl_timer_free(r->timer);
    sl_free(r->chain);
    sl_free(r->received);
    sl_free(r->gap_us);
    sl_arena_free(r->req->arena); /* and with it r->req */
    sl_free(r);
}

struct sl_request *sl_request_table_find(const struct sl_request_table *t, const char *id)
{
    return sl_hashmap_get(t->by_id, id, strlen(id));
}

size_t sl_request_table_len(const struct sl_request_table *t)
{
    return sl_hashmap_len(t->by_id);
}

struct sl_request *sl_request_table_next(const struct sl_request_table *t, const struct sl_request *prev)
{
    const struct sl_list *l = prev ? prev->link.next : t->all.next;
    return l == &t->all ? NULL : SL_CONTAINER_OF((struct sl_list *)l, struct sl_request, link);
}

void sl_request_receive(struct sl_request *r, int32_t token, uint64_t now_us)
{
    if (r->n_received == r->cap_received) {
        r->cap_received = r->cap_received ? r->cap_received * 2 : 64;
        r->received = sl_xrealloc_array(r->received, r->cap_received, sizeof *r->received);
        r->gap_us = sl_xrealloc_array(r->gap_us, r->cap_received, sizeof *r->gap_us);
    }
    uint64_t gap = r->n_received ? now_us - r->last_token_us : 0;
    r->received[r->n_received] = token;
    r->gap_us[r->n_received++] = gap < UINT32_MAX ? (uint32_t)gap : UINT32_MAX;
    r->last_token_us = now_us;
}

static struct sl_held *held_at(struct sl_list *l)
{
    return SL_CONTAINER_OF(l, struct sl_held, link);
}

static struct sl_held *held_new(const Sluice__TokenEvent *ev)
{
    size_t tops = ev->n_top_tokens * sizeof *ev->top_tokens,
           probs = ev->n_top_logprobs * sizeof *ev->top_logprobs;
    size_t id = strlen(ev->request_id) + 1;
    struct sl_held *h = sl_xalloc(sizeof *h + tops + probs + id);
    char *p = (char *)(h + 1);
    h->ev = *ev;
    h->ev.base.n_unknown_fields = 0;
    h->ev.base.unknown_fields = NULL;
    h->ev.top_tokens = (int32_t *)(void *)p;
    if (tops)
        memcpy(p, ev->top_tokens, tops);
    p += tops;
    h->ev.top_logprobs = (float *)(void *)p;
    if (probs)
        memcpy(p, ev->top_logprobs, probs);
    p += probs;
    memcpy(p, ev->request_id, id);
    h->ev.request_id = p;
    return h;
}

bool sl_request_hold(struct sl_request *r, const Sluice__TokenEvent *ev)
{
    if (r->n_held >= SL_HELD_MAX)
        return false;
    struct sl_list *at = r->held.prev; /* mostly it belongs at the end */
    while (at != &r->held && held_at(at)->ev.index > ev->index)
        at = at->prev;
    if (at != &r->held && held_at(at)->ev.index == ev->index)
        return false;
    sl_list_add_head(at, &held_new(ev)->link);
    r->n_held++;
    return true;
}

struct sl_held *sl_request_take_held(struct sl_request *r, uint32_t index)
{
    while (!sl_list_empty(&r->held)) {
        struct sl_held *h = held_at(r->held.next);
        if (h->ev.index > index)
            return NULL;
        sl_list_remove(&h->link);
        r->n_held--;
        if (h->ev.index == index)
            return h;
        sl_held_free(h);
    }
    return NULL;
}

const Sluice__TokenEvent *sl_held_event(const struct sl_held *h)
{
    return &h->ev;
}

void sl_held_free(struct sl_held *h)
{
    sl_free(h);
}

void sl_request_drop_held(struct sl_request *r)
{
    SL_LIST_FOREACH_SAFE (l, tmp, &r->held) {
        sl_list_remove(l);
        sl_held_free(held_at(l));
    }
    r->n_held = 0;
}

void sl_request_gaps(const struct sl_request *r, double *median_ms, double *max_ms)
{
    *median_ms = *max_ms = -1;
    if (r->n_received < 3)
        return;
    uint32_t n = r->n_received - 2;
    uint32_t *sorted = sl_xmemdup(r->gap_us + 2, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, sl_order_u32);
    *median_ms = n % 2 ? sorted[n / 2] / 1e3 : ((double)sorted[n / 2 - 1] + sorted[n / 2]) / 2e3;
    *max_ms = sorted[n - 1] / 1e3;
    sl_free(sorted);
}

bool sl_request_is_excluded(const struct sl_request *r, const char *node, uint64_t boot_id)
{
    for (uint32_t i = 0; i < r->n_excluded; i++)
        if (r->excluded[i].boot_id == boot_id && strcmp(r->excluded[i].node, node) == 0)
            return true;
    return false;
}

void sl_request_exclude(struct sl_request *r, const char *node, uint64_t boot_id)
{
    if (r->n_excluded == SL_EXCLUDED_MAX || sl_request_is_excluded(r, node, boot_id))
        return;
    snprintf(r->excluded[r->n_excluded].node, SL_NODE_NAME, "%s", node);
    r->excluded[r->n_excluded++].boot_id = boot_id;
}
