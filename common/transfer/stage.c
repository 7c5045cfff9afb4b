/* common/transfer/stage.c - pages that lie on a device, on their way between the pool and the link (x->stage).
 *
 *   P   pages --fetch--> slots --sl_send_fetched(): the link sends--> released
 *   D   taken: the link receives --sl_stage_place()--> landed --place--> pages: sl_recv_landed(), released
 *
 * Slots are the mover's (kernels/kv_mover.h), each of a page; a payload has neighbours, so that one copy over the bus
 * and one message carry pages that lie anywhere. A link that takes memory of the device (link.h) sends from and
 * receives into the device's slots, any other the pinned ones of the host, and then the copy over the bus of one
 * payload runs beside the gathering of the next and the sending of those before. What comes in host memory already
 * goes into the host's slots even so.
 *
 * Bounds: P takes what slots there are, and waits. What D has begun to receive it must take: what arrives when no slots
 * are free lands in host memory (a spill), and goes through slots in as many parts as it takes, when there are some.
 * A peer's window is returned when the link has delivered, not when D has placed. So while more has landed beside the
 * slots than would fit in them, the link is left alone (sl_stage_is_full()), and peers wait as for a slow one; what is
 * still landing is within the window of each peer, or that peer is disconnected. Some slots (n_kept) are for spills
 * only: no payload that a link has yet to bring or to send holds them, so spills end without the link.
 *
 * The mover is asked for its oldest call while some are under way, by a timer; calls end in the order in which they
 * began, or nearly so. */
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/transfer/xfer.h"

struct sl_stage {
    const struct sl_kv_mover_ops *ops;
    struct sl_kv_mover *mover;
    struct sl_kv_slots slots;
    bool on_device;              /* links take the device's slots */
    bool *taken;                 /* [n_slots] */
    uint32_t n_kept;             /* the first slots, for spills only */
    uint64_t landed_spilt_bytes; /* of spills that have landed */
    struct sl_list moving;       /* struct sl_staged, in the order they began */
    struct sl_list landed;       /* the same: wait for the mover, or for slots */
    uint32_t n_moving;
    int timer;
    bool ticking;
};

static void on_timer(void *arg, uint32_t events)
{
    const struct sl_xfer *x = arg;
    uint64_t ticks;
    (void)events;
    if (read(x->stage->timer, &ticks, sizeof ticks) < 0)
        return; /* none: what is under way is looked at at the top of every round (sl_stage_step()) */
}

enum sl_err sl_stage_open(struct sl_xfer *x, bool on_device, struct sl_why *why)
{
    const struct sl_kv_on_device *d = &x->conf.device;
    size_t bytes = x->conf.stage_bytes ? x->conf.stage_bytes : SL_XFER_STAGE_BYTES;
    size_t n = bytes / x->conf.page_bytes;
    n = n > SL_XFER_STAGE_MAX_SLOTS ? SL_XFER_STAGE_MAX_SLOTS : n;
    n = n < SL_XFER_STAGE_MIN_SLOTS ? SL_XFER_STAGE_MIN_SLOTS : n;
    if (!d->ops)
        return sl_why_set(
            why, SL_EUNSUPPORTED,
            "pages are neither host memory nor of a device that moves them; take another backend");
    struct sl_stage *st = x->stage = sl_xcalloc(1, sizeof *st);
    st->ops = d->ops;
    st->on_device = on_device;
    sl_list_init(&st->moving);
    sl_list_init(&st->landed);
    st->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (st->timer < 0 || sl_loop_add(x->loop, st->timer, EPOLLIN, on_timer, x) != SL_OK)
        return sl_why_set(why, SL_EIO, "no timer for pages of the device; raise the limit of open files");
    enum sl_err e = st->ops->open(d->dev, d->kv, (uint32_t)n, &st->mover, why);
    if (e != SL_OK)
        return e;
    st->slots = st->ops->slots(st->mover);
    SL_ASSERT(st->slots.page_bytes == x->conf.page_bytes);
    st->n_kept = st->slots.n_slots / SL_XFER_STAGE_KEPT;
    st->n_kept = st->n_kept ? st->n_kept : 1;
    st->taken = sl_xcalloc(st->slots.n_slots, sizeof *st->taken);
    return SL_OK;
}

void sl_stage_stop(struct sl_xfer *x)
{
    struct sl_stage *st = x->stage;
    if (!st)
        return;
    SL_LIST_FOREACH_SAFE (n, tmp, &st->moving) {
        st->ops->wait(st->mover, SL_CONTAINER_OF(n, struct sl_staged, node)->ticket);
        sl_list_remove(n);
    }
    st->n_moving = 0;
}

void sl_stage_close(struct sl_xfer *x)
{
    struct sl_stage *st = x->stage;
    if (!st)
        return;
    SL_ASSERT(atomic_load(&x->n_staged) == 0 && st->landed_spilt_bytes == 0);
    if (st->mover)
        st->ops->close(st->mover);
    if (st->timer >= 0) {
        sl_loop_remove(x->loop, st->timer);
        close(st->timer);
    }
    sl_free(st->taken);
    sl_free(st);
    x->stage = NULL;
}

bool sl_stage_is_host(const struct sl_xfer *x)
{
    return !x->stage->on_device;
}

void *sl_stage_memory(const struct sl_xfer *x, size_t *bytes)
{
    const struct sl_stage *st = x->stage;
    *bytes = st->slots.n_slots * st->slots.page_bytes;
    return st->on_device ? st->slots.device : st->slots.host;
}

static unsigned char *slot_at(const struct sl_stage *st, bool on_device, uint32_t slot)
{
    return (unsigned char *)(on_device ? st->slots.device : st->slots.host) + slot * st->slots.page_bytes;
}

void *sl_stage_payload(const struct sl_xfer *x, const struct sl_flight *f)
{
    return f->staged->spill ? f->staged->spill : slot_at(x->stage, f->staged->on_device, f->staged->slot);
}

/* ---- slots ---- */

/* The first n free slots side by side from first on, or the longest run of fewer; returns how many, *at is where. */
static uint32_t find_slots(const struct sl_stage *st, uint32_t first, uint32_t n, uint32_t *at)
{
    uint32_t best = 0, run = 0;
    for (uint32_t i = first; i < st->slots.n_slots && best < n; i++) {
        run = st->taken[i] ? 0 : run + 1;
        if (run > best) {
            best = run;
            *at = i + 1 - run;
        }
    }
    return best;
}

static void take_slots(struct sl_stage *st, struct sl_staged *g, uint32_t at, uint32_t n)
{
    g->slot = at;
    g->n_slots = n;
    memset(st->taken + at, true, n);
}

static void free_slots(struct sl_stage *st, struct sl_staged *g)
{
    memset(st->taken + g->slot, false, g->n_slots);
    g->n_slots = 0;
}

static struct sl_staged *staged_new(struct sl_xfer *x, struct sl_flight *f, const uint32_t *pages,
                                    uint32_t n_tokens, bool on_device)
{
    struct sl_staged *g = sl_xcalloc(1, sizeof *g);
    g->flight = f;
    g->on_device = on_device;
    f->staged = g;
    sl_list_init(&g->node);
    g->pages = sl_xmemdup(pages, f->count * sizeof *pages);
    g->n_tokens = sl_xalloc(f->count * sizeof *g->n_tokens);
    g->digests = sl_xcalloc(f->count, sizeof *g->digests);
    for (uint32_t i = 0; i < f->count; i++)
        g->n_tokens[i] = sl_xfer_page_valid(x, f->index + i, n_tokens);
    atomic_fetch_add(&x->n_staged, f->count);
    return g;
}

static uint64_t spilt_bytes(const struct sl_stage *st, const struct sl_flight *f)
{
    return f->staged->spill ? f->count * st->slots.page_bytes : 0;
}

void sl_stage_release(struct sl_xfer *x, struct sl_flight *f)
{
    struct sl_stage *st = x->stage;
    struct sl_staged *g = f->staged;
    SL_ASSERT(g->n_moving == 0 || st->n_moving == 0); /* else the mover still has it; or sl_stage_stop() */
    free_slots(st, g);
    sl_list_remove(&g->node);
    if (g->has_landed)
        st->landed_spilt_bytes -= spilt_bytes(st, f);
    else if (f->peer)
        f->peer->spilt_bytes -= spilt_bytes(st, f);
    atomic_fetch_sub(&x->n_staged, f->count);
    sl_free(g->spill);
    sl_free(g->pages);
    sl_free(g->n_tokens);
    sl_free(g->digests);
    sl_free(g);
    f->staged = NULL;
    x->pump_wanted = true; /* slots are free */
}

/* ---- moves ---- */

typedef uint64_t move_fn(struct sl_kv_mover *m, const uint32_t *pages, const uint32_t *n_tokens, uint32_t n,
                         uint32_t slot);

static void begin(struct sl_xfer *x, struct sl_staged *g, move_fn *call, uint32_t n)
{
    struct sl_stage *st = x->stage;
    g->n_moving = n;
    g->ticket =
        call(st->mover, g->pages + g->n_moved, x->conf.digests ? g->n_tokens + g->n_moved : NULL, n, g->slot);
    sl_list_remove(&g->node);
    sl_list_add_tail(&st->moving, &g->node);
    st->n_moving++;
}

uint32_t sl_stage_room(const struct sl_xfer *x, uint32_t n)
{
    uint32_t at = 0;
    return x->stage->n_moving < SL_XFER_STAGE_MOVES ? find_slots(x->stage, x->stage->n_kept, n, &at) : 0;
}

void sl_stage_fetch(struct sl_xfer *x, struct sl_flight *f, const uint32_t *pages, uint32_t n_tokens)
{
    struct sl_stage *st = x->stage;
    struct sl_staged *g = staged_new(x, f, pages, n_tokens, st->on_device);
    uint32_t at = 0, n = find_slots(st, st->n_kept, f->count, &at);
    SL_ASSERT(n == f->count); /* sl_stage_room() */
    take_slots(st, g, at, n);
    begin(x, g, st->on_device ? st->ops->gather : st->ops->fetch, n);
}

void *sl_stage_receive(struct sl_xfer *x, struct sl_flight *f, const uint32_t *pages, uint32_t n_tokens,
                       bool is_here)
{
    struct sl_stage *st = x->stage;
    uint64_t bytes = f->count * st->slots.page_bytes;
    uint32_t at = 0;
    bool fits = find_slots(st, st->n_kept, f->count, &at) == f->count;
    /* A window and a page, and as much again: P may hear of an end before D does. */
    if (!fits && f->peer->spilt_bytes + bytes > 2 * (SL_XFER_MAX_INFLIGHT + st->slots.page_bytes))
        return NULL;
    struct sl_staged *g = staged_new(x, f, pages, n_tokens, st->on_device && fits && !is_here);
    if (fits) {
        take_slots(st, g, at, f->count);
    } else {
        g->spill = sl_xalloc(bytes);
        f->peer->spilt_bytes += bytes;
    }
    return sl_stage_payload(x, f);
}

void sl_stage_place(struct sl_xfer *x, struct sl_flight *f)
{
    struct sl_stage *st = x->stage;
    f->staged->has_landed = true;
    st->landed_spilt_bytes += spilt_bytes(st, f);
    if (f->peer)
        f->peer->spilt_bytes -= spilt_bytes(st, f);
    sl_list_add_tail(&st->landed, &f->staged->node);
}

bool sl_stage_is_full(const struct sl_xfer *x)
{
    const struct sl_stage *st = x->stage;
    return st->landed_spilt_bytes > st->slots.n_slots * st->slots.page_bytes;
}

/* False: it has to wait. */
static bool place(struct sl_xfer *x, struct sl_staged *g)
{
    struct sl_stage *st = x->stage;
    uint32_t n = g->flight->count - g->n_moved, at = 0;
    if (st->n_moving == SL_XFER_STAGE_MOVES)
        return false;
    if (g->spill) {
        if ((n = find_slots(st, 0, n, &at)) == 0)
            return false;
        take_slots(st, g, at, n);
        memcpy(slot_at(st, false, at), g->spill + g->n_moved * st->slots.page_bytes,
               n * st->slots.page_bytes);
    }
    begin(x, g, g->on_device ? st->ops->scatter : st->ops->place, n);
    return true;
}

/* What the mover has done with g. */
static void moved(struct sl_xfer *x, struct sl_staged *g)
{
    struct sl_stage *st = x->stage;
    struct sl_flight *f = g->flight;
    sl_list_remove(&g->node);
    st->n_moving--;
    if (x->conf.digests)
        memcpy(g->digests + g->n_moved, st->slots.digests + g->slot, g->n_moving * sizeof *g->digests);
    g->n_moved += g->n_moving;
    g->n_moving = 0;
    x->pump_wanted = true; /* a move is free */
    if (f->bytes) {        /* P counts what is under way */
        sl_send_fetched(x, f);
        return;
    }
    if (g->spill)
        free_slots(st, g);
    if (g->n_moved < f->count) {
        sl_list_add_head(&st->landed, &g->node);
        return;
    }
    sl_recv_landed(x, f, SL_OK);
    sl_flight_free(x, f);
}

static void set_ticking(struct sl_stage *st, bool on)
{
    struct itimerspec t = {.it_interval.tv_nsec = on ? SL_XFER_STAGE_POLL_US * 1000 : 0};
    t.it_value = t.it_interval;
    if (st->ticking != on && timerfd_settime(st->timer, 0, &t, NULL) == 0)
        st->ticking = on;
}

bool sl_stage_step(struct sl_xfer *x)
{
    struct sl_stage *st = x->stage;
    bool any = false;
    while (!sl_list_empty(&st->moving)) {
        struct sl_staged *g = SL_CONTAINER_OF(st->moving.next, struct sl_staged, node);
        if (!st->ops->done(st->mover, g->ticket))
            break;
        moved(x, g);
        any = true;
    }
    /* All of them: slots that the first waits for may be a later one's, which has landed in them. */
    SL_LIST_FOREACH_SAFE (n, tmp, &st->landed)
        any |= place(x, SL_CONTAINER_OF(n, struct sl_staged, node));
    set_ticking(st, st->n_moving > 0);
    return any;
}
