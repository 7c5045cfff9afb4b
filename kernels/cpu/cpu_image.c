/* kernels/cpu/cpu_image.c - a packed matrix as bytes and back.
 *
 * The head holds what sl_cpu_weight_new() was given; everything else follows from it and from the layouts of
 * SL_PACK_VERSION, so an image of another version must not come here. The numbers are one stretch of memory.
 */
#include "kernels/cpu/cpu_dev.h"

#include <string.h>

struct head {
    uint32_t type, n_rows, n_cols;
    uint32_t is_plain; /* the reference's float32 */
};

_Static_assert(sizeof(struct head) <= SL_WEIGHT_HEAD_MAX, "a head fits");

void sl_cpu_weight_image(struct sl_weight *w, struct sl_weight_image *out)
{
    const struct head h = {(uint32_t)w->type, w->n_rows, w->n_cols, w->plain != NULL};
    *out = (struct sl_weight_image){.head_bytes = sizeof h, .n_parts = 1};
    memcpy(out->head, &h, sizeof h);
    out->parts[0].p = w->plain ? (void *)w->plain : w->data;
    out->parts[0].bytes = w->bytes;
}

enum sl_err sl_cpu_weight_restore(struct sl_dev *d, const void *head, size_t head_bytes,
                                  struct sl_weight **out, struct sl_why *why)
{
    struct head h;
    if (head_bytes != sizeof h)
        return sl_why_set(why, SL_EINVAL, "The head of a packed matrix has %zu bytes; expected %zu.",
                          head_bytes, sizeof h);
    memcpy(&h, head, sizeof h);
    if (!sl_cpu_weight_is_sane((enum sl_dtype)h.type, h.n_rows, h.n_cols) || h.is_plain != !d->isa)
        return sl_why_set(why, SL_EINVAL,
                          "The head of a packed matrix says type %u, %u x %u: there is no such.", h.type,
                          h.n_rows, h.n_cols);
    struct sl_weight *w = sl_cpu_weight_new(d, (enum sl_dtype)h.type, h.n_rows, h.n_cols);
    if (!w)
        return sl_why_set(why, SL_ENOMEM, "There is no memory for a packed matrix of %u x %u.", h.n_rows,
                          h.n_cols);
    *out = w;
    return SL_OK;
}
