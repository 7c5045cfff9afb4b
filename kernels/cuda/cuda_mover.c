/* kernels/cuda/cuda_mover.c - kernels/kv_mover.h on a CUDA device.
 *
 * Two streams: `near` gathers, scatters and digests on the device, `far` copies over the bus. An event leads from
 * one to the other, so that one run of pages is copied while the next is gathered. A ticket is an event in a ring:
 * what a call sends - page ids, what is to be digested - lies in pinned memory of the ticket's place in it, and the
 * one who comes round again waits for the one before. */
#include "kernels/cuda/cuda_dev.h"

#include <string.h>
#include "common/base/mem.h"

#define TICKETS 32u /* calls on their way at once; one more waits for the oldest */

struct lists {
    uint32_t *pages;              /* [n_slots] */
    struct cu_digest_item *items; /* [n_slots] */
};

struct sl_kv_mover {
    struct cu_stream *near, *far;
    struct sl_kv *kv;
    uint32_t n_slots;
    uint8_t *host, *device;                  /* the slots */
    uint64_t *host_digests, *device_digests; /* [n_slots] */
    struct lists sent[TICKETS], on_device[TICKETS];
    struct cu_event *ended[TICKETS], *joined[TICKETS]; /* joined: from one stream to the other */
    uint64_t last;                                     /* ticket; the first is 1 */
};

static void lists_close(struct cu_stream *s, struct lists *l)
{
    cu_free(s, l->pages);
    cu_free(s, l->items);
}

static void mover_close(struct sl_kv_mover *m)
{
    if (!m)
        return;
    if (m->near && m->far) {
        cu_sync(m->near);
        cu_sync(m->far);
        cu_free(m->near, m->host);
        cu_free(m->near, m->device);
        cu_free(m->near, m->host_digests);
        cu_free(m->near, m->device_digests);
        for (uint32_t i = 0; i < TICKETS; i++) {
            lists_close(m->near, &m->sent[i]);
            lists_close(m->near, &m->on_device[i]);
            cu_event_free(m->ended[i]);
            cu_event_free(m->joined[i]);
        }
    }
    cu_stream_close(m->far);
    cu_stream_close(m->near);
    sl_free(m);
}

static bool alloc_all(struct sl_kv_mover *m)
{
    size_t n = m->n_slots, bytes = n * m->kv->page_bytes;
    struct cu_stream *s = m->near;
    bool ok = (m->host = cu_alloc_pinned(s, bytes)) && (m->device = cu_alloc(s, bytes)) &&
              (m->host_digests = cu_alloc_pinned(s, n * sizeof *m->host_digests)) &&
              (m->device_digests = cu_alloc(s, n * sizeof *m->device_digests));
    for (uint32_t i = 0; i < TICKETS && ok; i++) {
        struct lists *a = &m->sent[i], *b = &m->on_device[i];
        m->ended[i] = cu_event_new();
        m->joined[i] = cu_event_new();
        ok = (a->pages = cu_alloc_pinned(s, n * sizeof *a->pages)) &&
             (a->items = cu_alloc_pinned(s, n * sizeof *a->items)) &&
             (b->pages = cu_alloc(s, n * sizeof *b->pages)) && (b->items = cu_alloc(s, n * sizeof *b->items));
    }
    cu_sync(s); /* the zeroes are there before the host looks */
    return ok;
}

static enum sl_err mover_open(struct sl_dev *d, struct sl_kv *kv, uint32_t n_slots, struct sl_kv_mover **out,
                              struct sl_why *why)
{
    (void)d;
    struct sl_kv_mover *m = sl_xcalloc(1, sizeof *m);
    m->kv = kv;
    m->n_slots = n_slots;
    enum sl_err e = cu_stream_open(&m->near, why);
    if (e == SL_OK)
        e = cu_stream_open(&m->far, why);
    if (e == SL_OK && !alloc_all(m))
        e = sl_why_set(
            why, SL_ENOMEM,
            "There is no memory for %u pages of %zu bytes under way, on the CUDA device and pinned "
            "beside it; lower kv_memory.",
            n_slots, kv->page_bytes);
    if (e != SL_OK) {
        mover_close(m);
        return e;
    }
    *out = m;
    return SL_OK;
}

static struct sl_kv_slots mover_slots(const struct sl_kv_mover *m)
{
    return (struct sl_kv_slots){.host = m->host,
                                .device = m->device,
                                .digests = m->host_digests,
                                .n_slots = m->n_slots,
                                .page_bytes = m->kv->page_bytes,
                                .stream = cu_native_stream(m->near)};
}

static bool is_over(const struct sl_kv_mover *m, uint64_t ticket)
{
    return ticket + TICKETS <= m->last || cu_event_done(m->ended[ticket % TICKETS]);
}

static int mover_done(struct sl_kv_mover *m, uint64_t ticket)
{
    return ticket == 0 || is_over(m, ticket);
}

static void mover_wait(struct sl_kv_mover *m, uint64_t ticket)
{
    if (ticket > 0 && ticket + TICKETS > m->last)
        cu_event_wait(m->ended[ticket % TICKETS]);
}

static uint64_t ticket_new(struct sl_kv_mover *m)
{
    if (m->last >= TICKETS)
        mover_wait(m, m->last + 1 - TICKETS);
    return ++m->last;
}

static struct cu_digest_item digest_item(const struct sl_kv_mover *m, uint32_t slot, uint32_t n_tokens)
{
    const struct sl_kv_geometry *g = &m->kv->g;
    struct cu_digest_item it = {.p = m->device + slot * m->kv->page_bytes, .out = m->device_digests + slot};
    if (n_tokens == g->page_tokens) {
        it.part_bytes[0] = it.part_stride[0] = m->kv->page_bytes;
        it.n_strips = it.n_parts = 1;
        return it;
    }
    const size_t parts[] = {sl_kv_value_bytes(g), sl_kv_scale_bytes(g)}; /* as kv_digest.c has it */
    it.seed = n_tokens;
    it.n_strips = g->n_layers * 2 * g->n_kv_heads;
    for (uint32_t k = 0; k < 2 && parts[k] > 0; k++) {
        it.part_bytes[k] = parts[k] * n_tokens;
        it.part_stride[k] = parts[k] * g->page_tokens;
        it.n_parts++;
    }
    return it;
}

/* Queues the digests of the slots. */
static void digest(struct sl_kv_mover *m, uint64_t ticket, const uint32_t *n_tokens, uint32_t n,
                   uint32_t slot)
{
    struct lists *from = &m->sent[ticket % TICKETS], *to = &m->on_device[ticket % TICKETS];
    if (!n_tokens)
        return;
    for (uint32_t i = 0; i < n; i++)
        from->items[i] = digest_item(m, slot + i, n_tokens[i]);
    cu_copy_pinned(m->near, to->items, from->items, n * sizeof *from->items);
    struct cu_digest_args a = {to->items};
    cu_digest(m->near, n, &a);
    cu_download(m->near, m->host_digests + slot, m->device_digests + slot, n * sizeof *m->host_digests);
}

static void move(struct sl_kv_mover *m, uint64_t ticket, const uint32_t *pages, uint32_t n, uint32_t slot,
                 int to_pool)
{
    struct lists *from = &m->sent[ticket % TICKETS], *to = &m->on_device[ticket % TICKETS];
    SL_ASSERT(n <= m->n_slots && slot <= m->n_slots - n);
    memcpy(from->pages, pages, n * sizeof *pages);
    cu_copy_pinned(m->near, to->pages, from->pages, n * sizeof *pages);
    struct cu_move_args a = {.pool = m->kv->base,
                             .slots = m->device + slot * m->kv->page_bytes,
                             .pages = to->pages,
                             .page_bytes = m->kv->page_bytes,
                             .to_pool = to_pool};
    cu_move_pages(m->near, n, &a);
}

/* What was queued on `from` is over before what is queued on `to` from here on begins. */
static void join(struct sl_kv_mover *m, uint64_t ticket, struct cu_stream *from, struct cu_stream *to)
{
    cu_event_record(m->joined[ticket % TICKETS], from);
    cu_event_join(m->joined[ticket % TICKETS], to);
}

static uint64_t end(struct sl_kv_mover *m, uint64_t ticket, struct cu_stream *s)
{
    cu_event_record(m->ended[ticket % TICKETS], s);
    return ticket;
}

static uint64_t mover_gather(struct sl_kv_mover *m, const uint32_t *pages, const uint32_t *n_tokens,
                             uint32_t n, uint32_t slot)
{
    uint64_t t = ticket_new(m);
    move(m, t, pages, n, slot, 0);
    digest(m, t, n_tokens, n, slot);
    return end(m, t, m->near);
}

static uint64_t mover_fetch(struct sl_kv_mover *m, const uint32_t *pages, const uint32_t *n_tokens,
                            uint32_t n, uint32_t slot)
{
    uint64_t t = ticket_new(m);
    size_t at = slot * m->kv->page_bytes;
    move(m, t, pages, n, slot, 0);
    digest(m, t, n_tokens, n, slot);
    join(m, t, m->near, m->far);
    cu_download(m->far, m->host + at, m->device + at, n * m->kv->page_bytes);
    return end(m, t, m->far);
}

static uint64_t mover_scatter(struct sl_kv_mover *m, const uint32_t *pages, const uint32_t *n_tokens,
                              uint32_t n, uint32_t slot)
{
    uint64_t t = ticket_new(m);
    digest(m, t, n_tokens, n, slot);
    move(m, t, pages, n, slot, 1);
    return end(m, t, m->near);
}

static uint64_t mover_place(struct sl_kv_mover *m, const uint32_t *pages, const uint32_t *n_tokens,
                            uint32_t n, uint32_t slot)
{
    uint64_t t = ticket_new(m);
    size_t at = slot * m->kv->page_bytes;
    cu_copy_pinned(m->far, m->device + at, m->host + at, n * m->kv->page_bytes);
    join(m, t, m->far, m->near);
    digest(m, t, n_tokens, n, slot);
    move(m, t, pages, n, slot, 1);
    return end(m, t, m->near);
}

const struct sl_kv_mover_ops sl_cuda_mover = {.open = mover_open,
                                              .close = mover_close,
                                              .slots = mover_slots,
                                              .gather = mover_gather,
                                              .fetch = mover_fetch,
                                              .scatter = mover_scatter,
                                              .place = mover_place,
                                              .done = mover_done,
                                              .wait = mover_wait};
