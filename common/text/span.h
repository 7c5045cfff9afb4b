/* common/text/span.h - byte ranges of a text, ascending and disjoint: here, what came from outside and is not
 * trusted. */
#ifndef SLUICE_COMMON_TEXT_SPAN_H
#define SLUICE_COMMON_TEXT_SPAN_H

#include <stddef.h>

struct sl_span {
    size_t start, end; /* [start, end) */
};

/* Zero-initialise. */
struct sl_spans {
    struct sl_span *items;
    size_t n, cap;
};

/* start must not lie before the end of the last one; a range that touches it makes it longer, an empty one is
 * ignored. */
void sl_spans_add(struct sl_spans *s, size_t start, size_t end);
void sl_spans_fini(struct sl_spans *s);

#endif
