/* kernels/cpu/cpu_image.c - a packed matrix as bytes and back.
 *
 * The head holds what sl_cpu_weight_new() was given; everything else follows from it and from the layouts of
 * SL_PACK_VERSION, so an image of another version must not come here. The numbers are one stretch of memory.
 */
#include "kernels/cpu/cpu_dev.h"

#include <string.h>

struct head {
    uint32_t n_cols, n_segments;
    struct {
        uint32_t type, n_rows;
    } segments[SL_MAX_SEGMENTS];
};

_Static_assert(sizeof(struct head) <= SL_WEIGHT_HEAD_MAX, "a head fits");

void sl_cpu_weight_image(struct sl_weight *w, struct sl_weight_image *out)
{
    struct head h = {.n_cols = w->n_cols, .n_segments = w->n_segments};
    for (uint32_t i = 0; i < w->n_segments; i++) {
        h.segments[i].type = (uint32_t)w->segments[i].type;
        h.segments[i].n_rows = w->segments[i].n_rows;
    }
    *out = (struct sl_weight_image){.head_bytes = sizeof h, .n_parts = 1};
    memcpy(out->head, &h, sizeof h);
    out->parts[0].p = w->data;
    out->parts[0].bytes = w->bytes;
}

enum sl_err sl_cpu_weight_restore(struct sl_dev *d, const void *head, size_t head_bytes, uint64_t n_rows,
                                  uint64_t n_cols, struct sl_weight **out, struct sl_why *why)
{
    struct head h;
    if (head_bytes != sizeof h)
        return sl_why_set(why, SL_EINVAL, "The head of a packed matrix has %zu bytes; expected %zu.",
                          head_bytes, sizeof h);
    memcpy(&h, head, sizeof h);
    struct sl_rows_of of[SL_MAX_SEGMENTS];
    bool sane = h.n_segments <= SL_MAX_SEGMENTS;
    uint64_t rows = 0;
    for (uint32_t i = 0; sane && i < h.n_segments; i++) {
        of[i] = (struct sl_rows_of){(enum sl_dtype)h.segments[i].type, h.segments[i].n_rows};
        rows += of[i].n_rows;
        sane = d->isa || of[i].type == SL_F32;
    }
    if (!sane || !sl_cpu_rows_are_sane(of, h.n_segments, h.n_cols))
        return sl_why_set(
            why, SL_EINVAL,
            "The head of a packed matrix says %u segments of %u columns, the first of type %u and %u "
            "rows: there is no such.",
            h.n_segments, h.n_cols, h.segments[0].type, h.segments[0].n_rows);
    if (rows != n_rows || h.n_cols != n_cols)
        return sl_why_set(why, SL_EINVAL, "The packed matrix is [%llu, %u]; expected [%llu, %llu].",
                          (unsigned long long)rows, h.n_cols, (unsigned long long)n_rows,
                          (unsigned long long)n_cols);
    struct sl_weight *w = sl_cpu_weight_new(d, of, h.n_segments, h.n_cols);
    if (!w)
        return sl_why_set(why, SL_ENOMEM, "There is no memory for a packed matrix with %u columns.",
                          h.n_cols);
    *out = w;
    return SL_OK;
}
