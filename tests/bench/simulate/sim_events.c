/* tests/bench/simulate/sim_events.c - a binary heap. */
#include "tests/bench/simulate/sim_events.h"

#include "common/base/mem.h"

static bool before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at_s < b->at_s || (a->at_s == b->at_s && a->order < b->order);
}

void sim_events_add(struct sim_events *q, double at_s, enum sim_event_kind kind, void *what, uint32_t amount)
{
    if (q->n == q->cap) {
        q->cap = q->cap ? 2 * q->cap : 1024;
        q->heap = sl_xrealloc_array(q->heap, q->cap, sizeof *q->heap);
    }
    struct sim_event e = {at_s, q->next_order++, kind, amount, what};
    size_t at = q->n++;
    for (; at > 0 && before(&e, &q->heap[(at - 1) / 2]); at = (at - 1) / 2)
        q->heap[at] = q->heap[(at - 1) / 2];
    q->heap[at] = e;
}

bool sim_events_next(struct sim_events *q, struct sim_event *out)
{
    if (q->n == 0)
        return false;
    *out = q->heap[0];
    struct sim_event e = q->heap[--q->n];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= q->n)
            break;
        if (child + 1 < q->n && before(&q->heap[child + 1], &q->heap[child]))
            child++;
        if (!before(&q->heap[child], &e))
            break;
        q->heap[at] = q->heap[child];
        at = child;
    }
    if (q->n)
        q->heap[at] = e;
    return true;
}

void sim_events_fini(struct sim_events *q)
{
    sl_free(q->heap);
}
