/* tests/unit/transfer/test_transfer_property.c - no request waits for ever: 2 prefill x 2 decode nodes whose
 * pools hold 1.2 prompts, a small engine that keeps the rules of page transfer (docs/architecture.md), and a
 * bad network.
 *
 * Rules kept by the engine here, as by the real one:
 *   P takes all pages of a request before it computes the first, never half;
 *   P serves granted requests first, oldest first, and for them takes back the pages of ungranted ones;
 *   work without a grant holds at most UNGRANTED_PAGES;
 *   D admits in order, and opens the transfer only with all pages of the prompt in hand;
 *   who refuses or cancels at one side cancels the other (the router's part, played by cancel()).
 *
 * Checked: every request ends at both sides by its deadline; what D was told is committed is what P computed,
 * also later, when other transfers have run; no page and no session is left over. Without faults every
 * transfer succeeds. Faults come from fixed seeds; threads make each run another one, so the property must
 * hold for all of them. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/transfer/link_loop.h"
#include "tests/support/support.h"
#include "tests/unit/transfer/xfer_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define PT              RIG_PAGE_TOKENS
#define MAX_PROMPT      10u /* pages */
#define POOL            12u /* 1.2 prompts */
#define UNGRANTED_PAGES 10u
#define PAGES_PER_STEP  2u
#define DECODE_STEPS    3u
#define SLACK_MS        120000u /* a slow machine is not a fault */

enum p_state { P_COMING, P_WAITING, P_COMPUTING, P_SENDING, P_OVER };
enum d_state { D_COMING, D_QUEUED, D_RECEIVING, D_DECODING, D_OVER };
enum outcome { PENDING, DONE, LOCAL, FAILED };

struct request {
    struct sl_xfer_key key;
    uint32_t seed, p, d, n_tokens, n_pages;
    struct sl_xfer_peer p_ref, d_ref; /* as the router knew them */
    uint64_t p_at_ms, d_at_ms, cancel_at_ms, deadline_ms, ended_ms;
    bool refuse; /* D will */
    enum p_state p_state;
    bool granted;
    uint64_t granted_no;
    uint32_t p_pages[MAX_PROMPT], computed;
    enum d_state d_state;
    uint32_t d_pages[MAX_PROMPT], d_good, decode_left;
    enum outcome outcome;
};

struct node {
    struct rig_node rig;
    bool used[POOL];
    bool patient; /* takes nobody for dead: nothing of the test goes wrong */
    uint64_t boots;
};

struct world {
    struct node p[2], d[2];
    struct request *r;
    uint32_t n, n_grants;
    unsigned long long seed;
};

/* ---- the network ---- */

struct network {
    unsigned long long seed;
    atomic_ullong messages;
    uint32_t drop, duplicate, corrupt, cut, hold; /* of 10000 */
};

static enum sl_loop_fault weather(void *arg, const void *header, size_t header_len, size_t payload_len)
{
    struct network *w = arg;
    unsigned long long state = w->seed + atomic_fetch_add(&w->messages, 1) * 0x9e3779b97f4a7c15u;
    uint32_t x = (uint32_t)(sl_test_random(&state) % 10000);
    (void)header;
    (void)header_len;
    (void)payload_len;
    if (x < w->drop)
        return SL_LOOP_DROP;
    if ((x -= w->drop) < w->duplicate)
        return SL_LOOP_DUPLICATE;
    if ((x -= w->duplicate) < w->corrupt)
        return SL_LOOP_CORRUPT;
    if ((x -= w->corrupt) < w->cut)
        return SL_LOOP_CUT;
    return x - w->cut < w->hold ? SL_LOOP_HOLD : SL_LOOP_DELIVER;
}

/* ---- pools ---- */

static uint32_t n_free(const struct node *n)
{
    uint32_t free = 0;
    for (uint32_t i = 0; i < POOL; i++)
        free += !n->used[i];
    return free;
}

static bool take(struct node *n, uint32_t *pages, uint32_t count)
{
    if (n_free(n) < count)
        return false;
    for (uint32_t i = 0, k = 0; k < count; i++)
        if (!n->used[i]) {
            n->used[i] = true;
            pages[k++] = i;
        }
    return true;
}

static void give_back(struct node *n, const uint32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert_true(n->used[pages[i]]);
        n->used[pages[i]] = false;
        memset(rig_page(&n->rig, pages[i]), 0xdd,
               n->rig.page_bytes); /* whoever still reads it is found out */
    }
}

/* ---- P ---- */

static void p_over(struct world *w, struct request *r)
{
    if (r->p_state == P_COMPUTING || r->p_state == P_SENDING)
        give_back(&w->p[r->p], r->p_pages, r->n_pages);
    r->p_state = P_OVER;
}

/* Out of its pages, not out of its turn. */
static void p_evict(struct world *w, struct request *r)
{
    give_back(&w->p[r->p], r->p_pages, r->n_pages);
    r->computed = 0;
    r->p_state = P_WAITING;
}

static struct request *youngest_ungranted_holder(struct world *w, uint32_t p)
{
    struct request *found = NULL;
    for (uint32_t i = 0; i < w->n; i++)
        if (w->r[i].p == p && w->r[i].p_state == P_COMPUTING && !w->r[i].granted)
            found = &w->r[i];
    return found;
}

static uint32_t ungranted_held(const struct world *w, uint32_t p)
{
    uint32_t held = 0;
    for (uint32_t i = 0; i < w->n; i++)
        if (w->r[i].p == p && w->r[i].p_state == P_COMPUTING && !w->r[i].granted)
            held += w->r[i].n_pages;
    return held;
}

/* The granted request that is served next: in the order of grants, so that a large one is not passed for
 * ever. */
static struct request *oldest_granted_waiting(struct world *w, uint32_t p)
{
    struct request *found = NULL;
    for (uint32_t i = 0; i < w->n; i++) {
        struct request *r = &w->r[i];
        if (r->p == p && r->p_state == P_WAITING && r->granted &&
            (!found || r->granted_no < found->granted_no))
            found = r;
    }
    return found;
}

static void p_reserve(struct world *w, uint32_t p)
{
    struct node *n = &w->p[p];
    struct request *r;
    while ((r = oldest_granted_waiting(w, p)) != NULL) {
        struct request *victim;
        while (n_free(n) < r->n_pages && (victim = youngest_ungranted_holder(w, p)) != NULL)
            p_evict(w, victim);
        if (!take(n, r->p_pages, r->n_pages))
            return; /* granted ones hold the rest, and will end */
        r->p_state = P_COMPUTING;
    }
    for (uint32_t i = 0; i < w->n; i++) {
        r = &w->r[i];
        if (r->p == p && r->p_state == P_WAITING && ungranted_held(w, p) + r->n_pages <= UNGRANTED_PAGES &&
            take(n, r->p_pages, r->n_pages))
            r->p_state = P_COMPUTING;
    }
}

static void p_compute(struct world *w, struct request *r)
{
    struct node *n = &w->p[r->p];
    for (uint32_t i = 0; i < PAGES_PER_STEP && r->computed < r->n_pages; i++, r->computed++)
        rig_fill(&n->rig, r->p_pages[r->computed], r->seed, r->computed);
    if (!r->granted)
        return;
    uint32_t tokens = r->computed * PT < r->n_tokens ? r->computed * PT : r->n_tokens;
    if (tokens == r->n_tokens) {
        struct sl_xfer_first first = {.token = (int32_t)r->seed, .logits_digest = r->seed};
        assert_int_equal(sl_xfer_send_first(n->rig.x, &r->key, &first), SL_OK);
        r->p_state = P_SENDING;
    }
    assert_int_equal(sl_xfer_send_ready(n->rig.x, &r->key, r->p_pages, tokens), SL_OK);
}

static void p_step(struct world *w, uint32_t p, uint64_t now)
{
    for (uint32_t i = 0; i < w->n; i++) {
        struct request *r = &w->r[i];
        if (r->p != p || r->p_state != P_COMING || now < r->p_at_ms)
            continue;
        uint32_t left = r->deadline_ms > now ? (uint32_t)(r->deadline_ms - now) : 1;
        if (sl_xfer_send_open(w->p[p].rig.x, &r->key, &r->d_ref, r->n_tokens, left) == SL_OK)
            r->p_state = P_WAITING;
    }
    p_reserve(w, p);
    for (uint32_t i = 0; i < w->n; i++)
        if (w->r[i].p == p && w->r[i].p_state == P_COMPUTING)
            p_compute(w, &w->r[i]);
}

static void cancel_p(struct world *w, struct request *r)
{
    if (r->p_state == P_COMING)
        r->p_state = P_OVER; /* its message finds a tombstone */
    else if (r->p_state != P_OVER)
        assert_int_equal(sl_xfer_send_abort(w->p[r->p].rig.x, &r->key, &r->d_ref, "canceled"), SL_OK);
}

/* ---- D ---- */

static void d_over(struct world *w, struct request *r, enum outcome outcome)
{
    if (r->d_state == D_RECEIVING || r->d_state == D_DECODING)
        give_back(&w->d[r->d], r->d_pages, r->n_pages);
    r->d_state = D_OVER;
    r->outcome = outcome;
    r->ended_ms = sl_now_ms();
}

static void check_pages(const struct world *w, const struct request *r, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!rig_page_is(&w->d[r->d].rig, r->d_pages[i], r->seed, i))
            fail_msg("%s: page %u is not what was computed", r->key.request, i);
}

static void d_admit(struct world *w, struct request *r, uint64_t now)
{
    struct node *n = &w->d[r->d];
    uint32_t left = r->deadline_ms > now ? (uint32_t)(r->deadline_ms - now) : 1;
    if (!take(n, r->d_pages, r->n_pages))
        return;
    assert_int_equal(sl_xfer_recv_open(n->rig.x, &r->key, &r->p_ref, r->d_pages, r->n_tokens, 0, left),
                     SL_OK);
    r->d_state = D_RECEIVING;
}

static void d_step(struct world *w, uint32_t d, uint64_t now)
{
    bool blocked = false;
    for (uint32_t i = 0; i < w->n; i++) {
        struct request *r = &w->r[i];
        if (r->d != d)
            continue;
        if (r->d_state == D_COMING && now >= r->d_at_ms) {
            r->d_state = D_QUEUED;
            if (r->refuse) {
                d_over(w, r, FAILED);
                cancel_p(w, r);
            }
        }
        if (r->d_state == D_QUEUED && now >= r->deadline_ms) {
            d_over(w, r, FAILED);
            cancel_p(w, r);
        }
        if (r->d_state == D_QUEUED && !blocked) {
            d_admit(w, r, now);
            blocked = r->d_state == D_QUEUED;
        }
        if (r->d_state == D_DECODING && r->decode_left-- == 0) {
            check_pages(w, r, r->d_good); /* nothing has been written into them since */
            d_over(w, r, r->d_good == r->n_pages ? DONE : LOCAL);
        }
    }
}

static void d_take_done(struct world *w, struct request *r, const struct sl_xfer_event *ev)
{
    assert_int_equal(r->d_state, D_RECEIVING);
    if (ev->err == SL_ECANCELED) {
        d_over(w, r, FAILED);
        return;
    }
    if (ev->err == SL_OK) {
        assert_int_equal(ev->n_tokens, r->n_tokens);
        assert_true(ev->has_first && ev->first.token == (int32_t)r->seed);
    } else {
        assert_true(ev->n_tokens % PT == 0 || ev->n_tokens == r->n_tokens);
        cancel_p(w, r); /* D goes on by itself: what P still does is of no use */
    }
    r->d_good = ev->err == SL_OK ? r->n_pages : ev->n_tokens / PT;
    check_pages(w, r, r->d_good);
    r->d_state = D_DECODING;
    r->decode_left = DECODE_STEPS;
}

/* ---- the world ---- */

static void cancel(struct world *w, struct request *r)
{
    r->cancel_at_ms = 0;
    cancel_p(w, r);
    if (r->d_state == D_RECEIVING)
        assert_int_equal(sl_xfer_recv_cancel(w->d[r->d].rig.x, &r->key), SL_OK);
    else if (r->d_state != D_OVER)
        d_over(w, r, FAILED);
}

static struct request *find(struct world *w, const struct sl_xfer_key *k)
{
    assert_true(k->epoch < w->n);
    return &w->r[k->epoch];
}

static void take_events(struct world *w, struct node *n)
{
    struct sl_xfer_event *ev;
    while ((ev = sl_queue_pop(n->rig.events)) != NULL) {
        struct request *r = find(w, &ev->key);
        switch (ev->kind) {
        case SL_XFER_GRANTED:
            r->granted = true;
            r->granted_no = w->n_grants++;
            break;
        case SL_XFER_SEND_DONE:
            assert_true(r->p_state != P_COMING && r->p_state != P_OVER); /* exactly one */
            p_over(w, r);
            break;
        case SL_XFER_RECV_READY:
            check_pages(w, r, ev->n_tokens / PT);
            break;
        case SL_XFER_RECV_DONE:
            d_take_done(w, r, ev);
            break;
        }
        sl_free(ev);
    }
}

static void open_node(struct node *n, const char *name, uint32_t i)
{
    char full[16];
    snprintf(full, sizeof full, "%s%u", name, i);
    memset(n->used, 0, sizeof n->used);
    rig_open(&n->rig, &(struct rig_opts){.name = full,
                                         .boot_id = ++n->boots,
                                         .n_pages = POOL,
                                         .wait_ms = n->patient ? 0 : 500,
                                         .peer_dead_ms = n->patient ? 0 : 2000,
                                         .heartbeat_ms = 100,
                                         .link_test = true});
}

/* A node dies with all it had and comes back empty. */
static void restart(struct world *w, bool is_p, uint32_t i)
{
    struct node *n = is_p ? &w->p[i] : &w->d[i];
    take_events(w, n);
    rig_close(&n->rig);
    for (uint32_t k = 0; k < w->n; k++) {
        struct request *r = &w->r[k];
        if (is_p && r->p == i && r->p_state != P_COMING)
            r->p_state = P_OVER;
        if (!is_p && r->d == i && r->d_state != D_COMING && r->d_state != D_OVER) {
            r->d_state = D_OVER;
            r->outcome = FAILED;
            r->ended_ms = sl_now_ms();
        }
    }
    open_node(n, is_p ? "p" : "d", i);
}

static void make_requests(struct world *w, uint32_t n, uint32_t deadline_ms, bool trouble)
{
    uint64_t now = sl_now_ms();
    w->r = sl_xcalloc(n, sizeof *w->r);
    w->n = n;
    for (uint32_t i = 0; i < n; i++) {
        struct request *r = &w->r[i];
        char id[32];
        snprintf(id, sizeof id, "request-%u", i);
        r->key = rig_key(id, i);
        r->seed = i + 1;
        r->p = (uint32_t)(sl_test_random(&w->seed) % 2);
        r->d = (uint32_t)(sl_test_random(&w->seed) % 2);
        r->n_tokens = 1 + (uint32_t)(sl_test_random(&w->seed) % (MAX_PROMPT * PT));
        r->n_pages = (r->n_tokens + PT - 1) / PT;
        r->p_ref = w->p[r->p].rig.peer;
        r->d_ref = w->d[r->d].rig.peer;
        uint64_t at = now + (trouble ? i * 4 : 0); /* a burst, or a stream */
        r->p_at_ms = at + sl_test_random(&w->seed) % 20;
        r->d_at_ms = at + sl_test_random(&w->seed) % 20;
        r->deadline_ms = at + deadline_ms;
        if (trouble && sl_test_random(&w->seed) % 12 == 0)
            r->cancel_at_ms = at + sl_test_random(&w->seed) % 300;
        r->refuse = trouble && sl_test_random(&w->seed) % 25 == 0;
    }
}

static bool step(struct world *w)
{
    uint64_t now = sl_now_ms();
    bool left = false;
    for (uint32_t i = 0; i < 2; i++) {
        take_events(w, &w->p[i]);
        take_events(w, &w->d[i]);
        p_step(w, i, now);
        d_step(w, i, now);
    }
    for (uint32_t i = 0; i < w->n; i++) {
        struct request *r = &w->r[i];
        if (r->cancel_at_ms && now >= r->cancel_at_ms)
            cancel(w, r);
        left |= r->p_state != P_OVER || r->d_state != D_OVER;
        if ((r->p_state != P_OVER || r->d_state != D_OVER) && now > r->deadline_ms + SLACK_MS)
            fail_msg("%s waits for ever: P %d, D %d, granted %d", r->key.request, (int)r->p_state,
                     (int)r->d_state, r->granted);
    }
    return left;
}

/* Returns how many ended with each outcome. */
static void live(unsigned long long seed, uint32_t n, uint32_t deadline_ms, const struct network *faults,
                 uint32_t restart_every, uint32_t outcomes[FAILED + 1])
{
    struct world w = {.seed = seed};
    struct network net = {.seed = seed};
    if (faults) {
        net.drop = faults->drop;
        net.duplicate = faults->duplicate;
        net.corrupt = faults->corrupt;
        net.cut = faults->cut;
        net.hold = faults->hold;
    }
    sl_link_loop_set_fault(weather, &net);
    for (uint32_t i = 0; i < 2; i++) {
        w.p[i].patient = w.d[i].patient = !faults;
        open_node(&w.p[i], "p", i);
        open_node(&w.d[i], "d", i);
    }
    make_requests(&w, n, deadline_ms, faults != NULL);
    uint64_t restart_at = sl_now_ms() + restart_every;
    while (step(&w)) {
        sl_link_loop_release();
        if (restart_every && sl_now_ms() >= restart_at) {
            uint64_t x = sl_test_random(&w.seed);
            restart(&w, x & 1, x >> 1 & 1);
            restart_at = sl_now_ms() + restart_every;
        }
        usleep(200);
    }
    memset(outcomes, 0, (FAILED + 1) * sizeof *outcomes);
    for (uint32_t i = 0; i < n; i++) {
        outcomes[w.r[i].outcome]++;
        assert_true(w.r[i].ended_ms <= w.r[i].deadline_ms + SLACK_MS);
    }
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(n_free(&w.p[i]), POOL);
        assert_int_equal(n_free(&w.d[i]), POOL);
        sl_link_loop_release();
        rig_wait_sessions(&w.p[i].rig, 0);
        rig_wait_sessions(&w.d[i].rig, 0);
        take_events(&w, &w.p[i]); /* would fail: every session has said its last word */
        take_events(&w, &w.d[i]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        rig_close(&w.p[i].rig);
        rig_close(&w.d[i].rig);
    }
    sl_link_loop_set_fault(NULL, NULL);
    sl_free(w.r);
    print_message("seed %llu: %u done, %u local, %u failed; %llu messages\n", seed, outcomes[DONE],
                  outcomes[LOCAL], outcomes[FAILED], (unsigned long long)atomic_load(&net.messages));
}

static void good_network_every_request_is_done(void **state)
{
    uint32_t outcomes[FAILED + 1];
    (void)state;
    for (unsigned long long seed = 1; seed <= 2; seed++) {
        live(seed, 120, 600000, NULL, 0, outcomes);
        assert_int_equal(outcomes[DONE], 120);
    }
}

static void bad_network_every_request_ends(void **state)
{
    static const struct network bad = {.drop = 20, .duplicate = 200, .corrupt = 200, .cut = 30, .hold = 500};
    uint32_t outcomes[FAILED + 1];
    (void)state;
    for (unsigned long long seed = 10; seed < 14; seed++) {
        live(seed, 120, 3000, &bad, 0, outcomes);
        assert_int_equal(outcomes[PENDING], 0);
        assert_true(outcomes[DONE] > 0);
    }
}

static void nodes_that_die_and_come_back_every_request_ends(void **state)
{
    static const struct network fair = {.duplicate = 100, .corrupt = 50, .cut = 5, .hold = 200};
    uint32_t outcomes[FAILED + 1];
    (void)state;
    for (unsigned long long seed = 20; seed < 23; seed++) {
        live(seed, 120, 3000, &fair, 150, outcomes);
        assert_int_equal(outcomes[PENDING], 0);
    }
}

int main(void)
{
    sl_log_set_level(SL_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_network_every_request_is_done),
        cmocka_unit_test(bad_network_every_request_ends),
        cmocka_unit_test(nodes_that_die_and_come_back_every_request_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
