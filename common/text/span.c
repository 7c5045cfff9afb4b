/* common/text/span.c - a growing list of byte ranges. */
#include "common/text/span.h"

#include "common/base/mem.h"

void sl_spans_add(struct sl_spans *s, size_t start, size_t end)
{
    if (start >= end)
        return;
    SL_ASSERT(s->n == 0 || s->items[s->n - 1].end <= start);
    if (s->n && s->items[s->n - 1].end == start) {
        s->items[s->n - 1].end = end;
        return;
    }
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 8;
        s->items = sl_xrealloc_array(s->items, s->cap, sizeof *s->items);
    }
    s->items[s->n++] = (struct sl_span){start, end};
}

void sl_spans_fini(struct sl_spans *s)
{
    sl_free(s->items);
    *s = (struct sl_spans){0};
}
