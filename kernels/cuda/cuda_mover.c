/* kernels/cuda/cuda_mover.c - kernels/kv_mover.h on CUDA devices.
 *
 * Two streams: `near` gathers, scatters and digests on the device, `far` copies over the bus. An event leads from
 * one to the other, so that one run of pages is copied while the next is gathered. A ticket is an event in a ring:
 * what a call sends - page ids, what is to be digested - lies in pinned memory of the ticket's place in it, and the
 * one who comes round again waits for the one before.
 *
 * Where several ranks' devices have the strips of their heads, slots are of whole pages all the same, and lie on the
 * first one's device: there pages are put together, digested and taken apart. Its own strips the kernel moves straight
 * to their places between the others'; those of another device it gathers on that device, and one copy of runs takes
 * them across. Rejected: over each device's own bus to the host, which nobody could digest on a device. */
#include "kernels/cuda/cuda_dev.h"

#include <string.h>
#include "common/base/mem.h"

#define TICKETS 32u /* calls on their way at once; one more waits for the oldest */

/* A device's part in all moves. */
struct part {
    const struct sl_kv *kv;
    struct cuda_strips strips;
    struct cu_stream *near;            /* the mover's, or, on another device, its own */
    uint8_t *strips_only;              /* there: [n_slots, kv->page_bytes]; else NULL */
    uint32_t *pages[TICKETS];          /* on the device, [n_slots] */
    struct cu_event *through[TICKETS]; /* there */
};

struct sl_kv_mover {
    struct cu_stream *near, *far;
    const struct sl_kv *kv;
    uint32_t n_slots;
    uint8_t *host, *device;                  /* the slots */
    uint64_t *host_digests, *device_digests; /* [n_slots] */
    /* [n_slots] each */
    uint32_t *sent_pages[TICKETS];
    struct cu_digest_item *sent_items[TICKETS], *items[TICKETS];
    struct cu_event *ended[TICKETS], *joined[TICKETS]; /* joined: from one stream to another */
    uint64_t last;                                     /* ticket; the first is 1 */
    uint32_t n_parts;
    struct part parts[]; /* [n_parts], the first on the mover's device */
};

static void part_close(struct sl_kv_mover *m, struct part *p)
{
    if (!p->near)
        return;
    cu_sync(p->near);
    cu_free(p->near, p->strips_only);
    for (uint32_t i = 0; i < TICKETS; i++) {
        cu_free(p->near, p->pages[i]);
        cu_event_free(p->through[i]);
    }
    if (p->near != m->near)
        cu_stream_close(p->near);
}

static void mover_close(struct sl_kv_mover *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; i < m->n_parts; i++)
        part_close(m, &m->parts[i]);
    if (m->near && m->far) {
        cu_sync(m->near);
        cu_sync(m->far);
        cu_free(m->near, m->host);
        cu_free(m->near, m->device);
        cu_free(m->near, m->host_digests);
        cu_free(m->near, m->device_digests);
        for (uint32_t i = 0; i < TICKETS; i++) {
            cu_free(m->near, m->sent_pages[i]);
            cu_free(m->near, m->sent_items[i]);
            cu_free(m->near, m->items[i]);
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
        m->ended[i] = cu_event_new(s);
        m->joined[i] = cu_event_new(s);
        ok = (m->sent_pages[i] = cu_alloc_pinned(s, n * sizeof *m->sent_pages[i])) &&
             (m->sent_items[i] = cu_alloc_pinned(s, n * sizeof *m->sent_items[i])) &&
             (m->items[i] = cu_alloc(s, n * sizeof *m->items[i]));
    }
    cu_sync(s); /* the zeroes are there before the host looks */
    return ok;
}

static bool part_alloc(const struct sl_kv_mover *m, struct part *p)
{
    bool ok = true;
    if (p->near != m->near) {
        cu_reach(m->near, p->near);
        ok = (p->strips_only = cu_alloc(p->near, m->n_slots * p->kv->page_bytes)) != NULL;
    }
    for (uint32_t i = 0; i < TICKETS && ok; i++) {
        p->through[i] = cu_event_new(p->near);
        ok = (p->pages[i] = cu_alloc(p->near, m->n_slots * sizeof *p->pages[i])) != NULL;
    }
    cu_sync(p->near);
    return ok;
}

static enum sl_err mover_open(struct sl_dev *d, struct sl_kv *kv, uint32_t n_slots, struct sl_kv_mover **out,
                              struct sl_why *why)
{
    uint32_t n_parts = kv->parts ? kv->n_parts : 1;
    struct sl_kv_mover *m = sl_xcalloc(1, sizeof *m + n_parts * sizeof m->parts[0]);
    m->kv = kv;
    m->n_slots = n_slots;
    m->n_parts = n_parts;
    enum sl_err e = cu_stream_open(d->device, &m->near, why);
    if (e == SL_OK)
        e = cu_stream_open(d->device, &m->far, why);
    bool ok = e == SL_OK && alloc_all(m);
    for (uint32_t i = 0; i < n_parts && ok; i++) {
        struct part *p = &m->parts[i];
        p->kv = kv->parts ? kv->parts[i] : kv;
        p->strips = sl_cuda_strips(kv, p->kv);
        p->near = p->kv->device == d->device ? m->near : NULL;
        if (!p->near && (e = cu_stream_open(p->kv->device, &p->near, why)) != SL_OK)
            break;
        ok = part_alloc(m, p);
    }
    if (e == SL_OK && !ok)
        e = sl_why_set(
            why, SL_ENOMEM,
            "There is no memory for %u pages of %zu bytes under way, on the CUDA device and pinned "
            "beside it; lower kv_memory.",
            n_slots, kv->page_bytes);
    if (e != SL_OK) {
        mover_close(m);
        return e;
    }
    cu_stream_use(m->near);
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

/* What was queued on `from` is over before what is queued on `to` from here on begins; e, of from's device. */
static void join(struct cu_event *e, struct cu_stream *from, struct cu_stream *to)
{
    cu_event_record(e, from);
    cu_event_join(e, to);
}

/* Queues the digests of the slots. */
static void digest(struct sl_kv_mover *m, uint64_t ticket, const uint32_t *n_tokens, uint32_t n,
                   uint32_t slot)
{
    struct cu_digest_item *from = m->sent_items[ticket % TICKETS], *to = m->items[ticket % TICKETS];
    if (!n_tokens)
        return;
    for (uint32_t i = 0; i < n; i++)
        from[i] = digest_item(m, slot + i, n_tokens[i]);
    cu_copy_pinned(m->near, to, from, n * sizeof *from);
    struct cu_digest_args a = {to};
    cu_digest(m->near, n, &a);
    cu_download(m->near, m->host_digests + slot, m->device_digests + slot, n * sizeof *m->host_digests);
}

/* A part's strips of the pages, between its pool and slots [n, slot_bytes] of its device. */
static void move_strips(const struct part *p, uint64_t ticket, uint32_t n, uint8_t *slots, size_t slot_bytes,
                        size_t run_stride, int to_pool)
{
    struct cu_move_args a = {.pool = p->kv->base,
                             .slots = slots,
                             .pages = p->pages[ticket % TICKETS],
                             .page_bytes = p->kv->page_bytes,
                             .slot_bytes = slot_bytes,
                             .run_bytes = p->strips.run_bytes,
                             .run_stride = run_stride,
                             .to_pool = to_pool};
    cu_move_pages(p->near, n, &a);
}

/* The same for a part on another device, whose strips go across. */
static void move_across(struct sl_kv_mover *m, struct part *p, uint64_t ticket, uint32_t n, uint32_t slot,
                        int to_pool)
{
    const struct cuda_strips *s = &p->strips;
    uint8_t *there = p->strips_only + slot * p->kv->page_bytes,
            *here = m->device + slot * m->kv->page_bytes + s->first;
    size_t n_runs = (size_t)n * s->n_runs;               /* neighbours, as slots are */
    join(m->joined[ticket % TICKETS], m->near, p->near); /* calls are in order, on all devices */
    if (to_pool)
        cu_copy_rows(p->near, there, s->run_bytes, here, s->run_stride, s->run_bytes, n_runs);
    move_strips(p, ticket, n, there, p->kv->page_bytes, s->run_bytes, to_pool);
    if (!to_pool)
        cu_copy_rows(p->near, here, s->run_stride, there, s->run_bytes, s->run_bytes, n_runs);
}

/* Queued on near when this returns, whatever devices it takes. */
static void move(struct sl_kv_mover *m, uint64_t ticket, const uint32_t *pages, uint32_t n, uint32_t slot,
                 int to_pool)
{
    uint32_t *sent = m->sent_pages[ticket % TICKETS];
    SL_ASSERT(n <= m->n_slots && slot <= m->n_slots - n);
    memcpy(sent, pages, n * sizeof *pages);
    for (uint32_t i = 0; i < m->n_parts; i++) {
        struct part *p = &m->parts[i];
        cu_copy_pinned(p->near, p->pages[ticket % TICKETS], sent, n * sizeof *pages);
        if (p->near != m->near)
            move_across(m, p, ticket, n, slot, to_pool);
        else
            move_strips(p, ticket, n, m->device + slot * m->kv->page_bytes + p->strips.first,
                        m->kv->page_bytes, p->strips.run_stride, to_pool);
    }
    for (uint32_t i = 0; i < m->n_parts; i++)
        if (m->parts[i].near != m->near)
            join(m->parts[i].through[ticket % TICKETS], m->parts[i].near, m->near);
    cu_stream_use(m->near); /* the first device, as the caller's NCCL takes it to be */
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
    join(m->joined[t % TICKETS], m->near, m->far);
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
    join(m->joined[t % TICKETS], m->far, m->near);
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
