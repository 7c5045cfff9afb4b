/* tests/unit/transfer/xfer_rig.c - see xfer_rig.h. */
#include "tests/unit/transfer/xfer_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

void rig_identity(struct sl_xfer_identity *id)
{
    *id = (struct sl_xfer_identity){.boot_id = 1,
                                    .model_digest = {11, 22},
                                    .geometry = {.n_layers = 2,
                                                 .n_kv_heads = 1,
                                                 .page_tokens = RIG_PAGE_TOKENS,
                                                 .head_dim = 8,
                                                 .dtype = SL_BF16},
                                    .numerics_id = 33,
                                    .tensor_parallel = 1,
                                    .exact = true};
}

void rig_secret(const char *text, struct sl_secret *out)
{
    memset(out, 0, sizeof *out);
    memcpy(out->key, text, strnlen(text, sizeof out->key));
}

static const char *devices;

void rig_set_devices(const char *letters)
{
    devices = letters;
}

static bool is_on_device(const char *name)
{
    if (!devices)
        devices = getenv("RIG_DEVICES") ? getenv("RIG_DEVICES") : "";
    return strchr(devices, name[0]) != NULL;
}

static void open_pages(struct rig_node *n, struct sl_xfer_conf *c)
{
    struct sl_why why = {0};
    n->page_bytes = c->page_bytes;
    n->n_pages = c->n_pages;
    if (!is_on_device(c->self.name)) {
        c->pool = n->pool = sl_xcalloc(c->n_pages, c->page_bytes);
        return;
    }
    struct sl_dev_conf dc = {.n_threads = 1, .max_rows = 1};
    setenv("CU_EMU_GUARD", "1", 1);
    if (sl_backend_find("cuda", &n->ops, &why) != SL_OK || n->ops->open(&dc, &n->device.dev, &why) != SL_OK ||
        n->ops->kv_open(n->device.dev, &c->self.geometry, c->n_pages, &n->device.kv, &why) != SL_OK)
        fail_msg("%s", why.text);
    n->device.ops = n->ops->mover;
    n->scratch = sl_xalloc(c->page_bytes);
    c->device = n->device;
}

static void close_pages(struct rig_node *n)
{
    if (n->ops) {
        n->ops->kv_close(n->device.dev, n->device.kv);
        n->ops->close(n->device.dev);
    }
    sl_free(n->scratch);
    sl_free(n->pool);
}

/* A page of this many numbers a token is one of many heads: devices have heads of a limited size. */
static void set_head_dim(struct sl_kv_geometry *g, uint32_t n)
{
    g->n_kv_heads = n > SL_HEAD_DIM_MAX ? n / 64 : 1;
    g->head_dim = n / g->n_kv_heads;
}

void rig_open(struct rig_node *n, const struct rig_opts *o)
{
    struct sl_why why = {0};
    memset(n, 0, sizeof *n);
    struct sl_xfer_conf c = {
        .transport = o->transport ? o->transport : "loop",
        .listen = o->listen ? o->listen : "127.0.0.1:0",
        .ucx_tls = o->ucx_tls,
        .n_pages = o->n_pages ? o->n_pages : RIG_PAGES,
        .digests = !o->no_digests,
        .peer_dead_ms = o->peer_dead_ms ? o->peer_dead_ms : RIG_NEVER_MS,
        .wait_ms = o->wait_ms ? o->wait_ms : RIG_NEVER_MS,
        .heartbeat_ms = o->heartbeat_ms ? o->heartbeat_ms : 100,
        .stall_ms = o->stall_ms,
        .max_sessions = o->max_sessions ? o->max_sessions : 256,
        .link_test = o->link_test,
        .cpu = -1,
        .stage_bytes = o->stage_bytes,
    };
    struct sl_secret secret;
    if (o->secret) {
        rig_secret(o->secret, &secret);
        c.secret = &secret;
    }
    rig_identity(&c.self);
    if (o->boot_id)
        c.self.boot_id = o->boot_id;
    if (o->head_dim)
        set_head_dim(&c.self.geometry, o->head_dim);
    snprintf(c.self.name, sizeof c.self.name, "%s", o->name ? o->name : "node");
    c.page_bytes = sl_kv_page_bytes(&c.self.geometry);
    open_pages(n, &c);
    if (o->mover && n->ops)
        c.device.ops = n->device.ops = o->mover(n->ops->mover);
    if (o->edit)
        o->edit(&c.self);
    n->events = c.events = sl_queue_new(o->max_events ? o->max_events : 4096);
    if (sl_xfer_open(&c, &n->x, &why) != SL_OK)
        fail_msg("%s", why.text);
    snprintf(n->peer.name, sizeof n->peer.name, "%s", c.self.name);
    n->peer.boot_id = c.self.boot_id;
    snprintf(n->peer.address, sizeof n->peer.address, "%s", sl_xfer_address(n->x));
}

void rig_close(struct rig_node *n)
{
    struct sl_xfer_event *ev;
    sl_xfer_close(n->x);
    while (n->events && (ev = sl_queue_pop(n->events)) != NULL)
        sl_free(ev);
    sl_queue_free(n->events);
    sl_free(n->kept);
    close_pages(n);
    memset(n, 0, sizeof *n);
}

struct sl_xfer_key rig_key(const char *request, uint32_t epoch)
{
    struct sl_xfer_key k = {.epoch = epoch};
    snprintf(k.request, sizeof k.request, "%s", request);
    return k;
}

unsigned char *rig_page(const struct rig_node *n, uint32_t page)
{
    if (n->pool)
        return n->pool + (size_t)page * n->page_bytes;
    n->ops->kv_read(n->device.dev, n->device.kv, page, n->scratch);
    return n->scratch;
}

/* Word i of the page; words, not bytes, because a thread sanitizer looks at each access. */
static uint64_t pattern(uint32_t seed, uint32_t index, size_t i)
{
    return ((uint64_t)seed << 40 ^ (uint64_t)index << 20 ^ i) * 0x9e3779b97f4a7c15u;
}

void rig_fill(struct rig_node *n, uint32_t page, uint32_t seed, uint32_t index)
{
    uint64_t *words = (uint64_t *)(void *)(n->pool ? rig_page(n, page) : n->scratch);
    for (size_t i = 0; i < n->page_bytes / 8; i++)
        words[i] = pattern(seed, index, i);
    if (!n->pool)
        n->ops->kv_write(n->device.dev, n->device.kv, page, words);
}

bool rig_page_is(const struct rig_node *n, uint32_t page, uint32_t seed, uint32_t index)
{
    const uint64_t *words = (const uint64_t *)(const void *)rig_page(n, page);
    for (size_t i = 0; i < n->page_bytes / 8; i++)
        if (words[i] != pattern(seed, index, i))
            return false;
    return true;
}

void rig_clear(struct rig_node *n)
{
    if (n->pool) {
        memset(n->pool, 0, n->n_pages * n->page_bytes);
        return;
    }
    memset(n->scratch, 0, n->page_bytes);
    for (uint32_t i = 0; i < n->n_pages; i++)
        n->ops->kv_write(n->device.dev, n->device.kv, i, n->scratch);
}

void rig_iota(uint32_t *pages, uint32_t n, uint32_t first)
{
    for (uint32_t i = 0; i < n; i++)
        pages[i] = first + i;
}

static void keep(struct rig_node *n, const struct sl_xfer_event *ev)
{
    if (n->n_kept == n->cap_kept) {
        n->cap_kept = n->cap_kept ? 2 * n->cap_kept : 64;
        n->kept = sl_xrealloc_array(n->kept, n->cap_kept, sizeof *n->kept);
    }
    n->kept[n->n_kept++] = *ev;
}

static void pop_all(struct rig_node *n)
{
    struct sl_xfer_event *ev;
    while ((ev = sl_queue_pop(n->events)) != NULL) {
        keep(n, ev);
        sl_free(ev);
    }
}

static struct sl_xfer_event *find(struct rig_node *n, enum sl_xfer_event_kind kind,
                                  const struct sl_xfer_key *k)
{
    for (size_t i = 0; i < n->n_kept; i++)
        if (n->kept[i].kind == kind && n->kept[i].key.epoch == k->epoch &&
            strcmp(n->kept[i].key.request, k->request) == 0)
            return &n->kept[i];
    return NULL;
}

bool rig_has(struct rig_node *n, enum sl_xfer_event_kind kind, const struct sl_xfer_key *k)
{
    pop_all(n);
    return find(n, kind, k) != NULL;
}

void rig_forget(struct rig_node *n)
{
    pop_all(n);
    n->n_kept = 0;
}

struct sl_xfer_event rig_wait(struct rig_node *n, enum sl_xfer_event_kind kind, const struct sl_xfer_key *k)
{
    uint64_t end = sl_now_ms() + RIG_WAIT_MS;
    struct sl_xfer_event *found;
    while (!rig_has(n, kind, k)) {
        if (sl_now_ms() > end)
            fail_msg("event %d of %s/%u at %s did not come", (int)kind, k->request, k->epoch, n->peer.name);
        sl_queue_wait(n->events, 1000);
    }
    found = find(n, kind, k);
    struct sl_xfer_event ev = *found;
    size_t after = (size_t)(n->kept + n->n_kept - found) - 1;
    memmove(found, found + 1, after * sizeof *found);
    n->n_kept--;
    return ev;
}

void rig_wait_ready(struct rig_node *n, const struct sl_xfer_key *k, uint32_t n_tokens)
{
    while (rig_wait(n, SL_XFER_RECV_READY, k).n_tokens < n_tokens)
        ;
}

struct sl_link_report rig_wait_link(struct rig_node *n, const char *peer, const char *state)
{
    struct sl_link_report r[16];
    for (uint64_t end = sl_now_ms() + RIG_WAIT_MS; sl_now_ms() < end; usleep(2000)) {
        size_t count = sl_xfer_links(n->x, r, SL_COUNTOF(r));
        for (size_t i = 0; i < count; i++)
            if (strcmp(r[i].peer, peer) == 0 && strcmp(r[i].state, state) == 0)
                return r[i];
    }
    fail_msg("no link from %s to %s is %s", n->peer.name, peer, state);
    return r[0];
}

void rig_wait_sessions(struct rig_node *n, uint32_t sessions)
{
    for (uint64_t end = sl_now_ms() + RIG_WAIT_MS; sl_xfer_open_sessions(n->x) != sessions; usleep(2000))
        if (sl_now_ms() > end)
            fail_msg("%u sessions are open at %s", sl_xfer_open_sessions(n->x), n->peer.name);
}

void rig_wait_unstaged(struct rig_node *n)
{
    for (uint64_t end = sl_now_ms() + RIG_WAIT_MS; sl_xfer_staged_pages(n->x) != 0; usleep(2000))
        if (sl_now_ms() > end)
            fail_msg("%u pages stay in the stage of %s", sl_xfer_staged_pages(n->x), n->peer.name);
}

void rig_wait_dropped(struct rig_node *n, uint64_t dropped)
{
    for (uint64_t end = sl_now_ms() + RIG_WAIT_MS; sl_xfer_totals(n->x).dropped < dropped; usleep(2000))
        if (sl_now_ms() > end)
            fail_msg("%llu messages were dropped at %s, not %llu",
                     (unsigned long long)sl_xfer_totals(n->x).dropped, n->peer.name,
                     (unsigned long long)dropped);
    assert_int_equal(sl_xfer_totals(n->x).dropped, dropped);
}
