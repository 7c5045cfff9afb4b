/* tests/unit/transfer/test_transfer_loop.c - transfers between two nodes of one process, and what a bad
 * network or a bad peer does to them. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/transfer/kv_wire.h"
#include "common/transfer/link_loop.h"
#include "tests/unit/transfer/xfer_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define LOOP_TEST(name)                                                                                      \
    static void loop_##name(void **state)                                                                    \
    {                                                                                                        \
        (void)state;                                                                                         \
        case_##name("loop");                                                                                 \
    }
XFER_EACH_CASE(LOOP_TEST)

#define PT RIG_PAGE_TOKENS

/* A fault that strikes messages skip + 1 to skip + n of one type. */
struct strike {
    enum sl_loop_fault fault;
    uint8_t type;
    int skip, n;
    atomic_int seen;
};

static enum sl_loop_fault strike(void *arg, const void *header, size_t header_len, size_t payload_len)
{
    struct strike *s = arg;
    struct sl_kv_header h;
    (void)payload_len;
    if (sl_kv_header_unpack(header, header_len, &h) != SL_OK || (s->type != 0 && h.type != s->type))
        return SL_LOOP_DELIVER;
    int at = atomic_fetch_add(&s->seen, 1);
    return at >= s->skip && at < s->skip + s->n ? s->fault : SL_LOOP_DELIVER;
}

static void pair_open_struck(struct xfer_pair *t, struct strike *s, const struct rig_opts *o)
{
    sl_link_loop_set_fault(strike, s);
    pair_open(t, "loop", o, o);
}

static void pair_close_struck(struct xfer_pair *t)
{
    pair_close(t);
    sl_link_loop_set_fault(NULL, NULL);
}

/* Eight pages, ready in two halves. */
static void run(struct xfer_pair *t, const struct sl_xfer_key *k, uint32_t p[8], uint32_t d[8],
                uint32_t deadline_ms)
{
    rig_iota(p, 8, 0);
    rig_iota(d, 8, 20);
    pair_fill(t, 1, p, 8);
    assert_int_equal(sl_xfer_recv_open(t->d.x, k, &t->p.peer, d, 8 * PT, 0, deadline_ms), SL_OK);
    assert_int_equal(sl_xfer_send_open(t->p.x, k, &t->d.peer, 8 * PT, deadline_ms), SL_OK);
    assert_int_equal(sl_xfer_send_ready(t->p.x, k, p, 4 * PT), SL_OK);
    assert_int_equal(sl_xfer_send_ready(t->p.x, k, p, 8 * PT), SL_OK);
}

/* The same, the second half when the first has been committed: two messages of pages. */
static void run_halves(struct xfer_pair *t, const struct sl_xfer_key *k, uint32_t p[8], uint32_t d[8])
{
    rig_iota(p, 8, 0);
    rig_iota(d, 8, 20);
    pair_fill(t, 1, p, 8);
    pair_begin(t, k, 8 * PT, d, 0);
    assert_int_equal(sl_xfer_send_ready(t->p.x, k, p, 4 * PT), SL_OK);
    rig_wait_ready(&t->d, k, 4 * PT);
    assert_int_equal(sl_xfer_send_ready(t->p.x, k, p, 8 * PT), SL_OK);
}

static void corrupt_page_is_sent_again_once(void **state)
{
    static const enum sl_loop_fault faults[] = {SL_LOOP_CORRUPT, SL_LOOP_DROP};
    (void)state;
    for (int i = 0; i < 4; i++) { /* damaged or lost; the first message or the second */
        struct strike s = {.fault = faults[i / 2], .type = SL_KV_PAGES, .skip = i % 2, .n = 1};
        struct xfer_pair t;
        struct sl_xfer_key k = rig_key("corrupt", 1);
        uint32_t p[8], d[8];
        pair_open_struck(&t, &s, NULL);
        run_halves(&t, &k, p, d);
        struct sl_xfer_event se = rig_wait(&t.p, SL_XFER_SEND_DONE, &k),
                             r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
        assert_int_equal(r.err, SL_OK);
        assert_int_equal(r.resends, 1);
        assert_int_equal(se.err, SL_OK);
        assert_in_range(se.resends, 1, 8);
        pair_check(&t, 1, d, 0, 8);
        pair_transfer(&t, "after", 2);
        pair_close_struck(&t);
    }
}

static void corrupt_commit_is_sent_again_once(void **state)
{
    struct strike s = {.fault = SL_LOOP_CORRUPT, .type = SL_KV_COMMIT, .n = 1};
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("digest", 1);
    uint32_t p[8], d[8];
    (void)state;
    pair_open_struck(&t, &s, NULL);
    run(&t, &k, p, d, RIG_DEADLINE_MS);
    assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k).err, SL_OK);
    assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_OK);
    pair_check(&t, 1, d, 0, 8);
    pair_close_struck(&t);
}

static void corrupt_twice_ends_it_and_degrades_the_link(void **state)
{
    struct strike s = {.fault = SL_LOOP_CORRUPT, .type = SL_KV_PAGES, .skip = 1, .n = 1000};
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("corrupt", 1);
    uint32_t p[8], d[8];
    (void)state;
    pair_open_struck(&t, &s, NULL);
    run_halves(&t, &k, p, d);
    struct sl_xfer_event se = rig_wait(&t.p, SL_XFER_SEND_DONE, &k),
                         r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
    assert_int_equal(se.err, SL_EDIGEST);
    assert_int_equal(r.err, SL_EDIGEST);
    assert_in_range(r.n_tokens, 4 * PT, 7 * PT); /* what was committed stays, D computes the rest */
    assert_int_equal(r.resends, 2);
    pair_check(&t, 1, d, 0, r.n_tokens / PT);
    struct sl_link_report l = rig_wait_link(&t.p, "d0", "degraded");
    assert_int_equal(l.rejects, 2);
    pair_close_struck(&t);
}

static void digests_off_let_damage_through(void **state)
{
    struct strike s = {.fault = SL_LOOP_CORRUPT, .type = SL_KV_PAGES, .n = 1};
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("off", 1);
    uint32_t p[8], d[8], bad = 0;
    (void)state;
    pair_open_struck(&t, &s, &(struct rig_opts){.no_digests = true});
    run(&t, &k, p, d, RIG_DEADLINE_MS);
    assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k).err, SL_OK);
    for (uint32_t i = 0; i < 8; i++)
        bad += !rig_page_is(&t.d, d[i], 1, i);
    assert_int_equal(bad, 1); /* which is what digests are for */
    pair_close_struck(&t);
}

/* A transfer without payloads, which are held in these tests. */
static void pair_transfer_empty(struct xfer_pair *t)
{
    struct sl_xfer_key k = rig_key("empty", 1);
    uint32_t p[1] = {40}, d[1] = {40};
    pair_begin(t, &k, PT, d, 1);
    assert_int_equal(sl_xfer_send_ready(t->p.x, &k, p, PT), SL_OK);
    assert_int_equal(rig_wait(&t->d, SL_XFER_RECV_DONE, &k).err, SL_OK);
    assert_int_equal(rig_wait(&t->p, SL_XFER_SEND_DONE, &k).err, SL_OK);
}

/* Payloads on their way when one side gives up: pages are their owners' only after these have ended. */
static void giving_up_with_payloads_pending_waits_for_them(void **state)
{
    for (int how = 0; how < 4; how++) {
        struct strike s = {.fault = SL_LOOP_HOLD, .type = SL_KV_PAGES, .n = 1000};
        struct xfer_pair t;
        struct sl_xfer_key k = rig_key("pending", 1);
        uint32_t p[8], d[8];
        (void)state;
        pair_open_struck(&t, &s, NULL);
        run(&t, &k, p, d, RIG_DEADLINE_MS);
        for (uint64_t end = sl_now_ms() + RIG_WAIT_MS;
             sl_xfer_totals(t.p.x).pages_sent < 8 && sl_now_ms() < end;)
            usleep(1000);
        if (how == 0 || how == 3) {
            enum sl_err d_err = how == 0 ? SL_ECANCELED : SL_EPEER;
            if (how == 0)
                assert_int_equal(sl_xfer_recv_cancel(t.d.x, &k), SL_OK);
            else
                assert_int_equal(sl_xfer_send_abort(t.p.x, &k, &t.d.peer, "enough"), SL_OK);
            pair_transfer_empty(&t); /* both sides have read what the other said */
            assert_false(rig_has(&t.p, SL_XFER_SEND_DONE, &k));
            assert_false(rig_has(&t.d, SL_XFER_RECV_DONE, &k));
            sl_link_loop_release();
            assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_ECANCELED);
            assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k).err, d_err);
        } else if (how == 1) { /* late payloads are payloads all the same */
            usleep(20000);
            assert_false(rig_has(&t.d, SL_XFER_RECV_READY, &k));
            while (!rig_has(&t.d, SL_XFER_RECV_DONE, &k)) { /* also what is sent meanwhile */
                sl_link_loop_release();
                usleep(1000);
            }
            assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k).err, SL_OK);
            pair_check(&t, 1, d, 0, 8);
        } else { /* P goes: receives end with its connection */
            sl_xfer_close(t.p.x);
            t.p.x = NULL;
            struct sl_xfer_event r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
            assert_int_equal(r.err, SL_EPEER);
            assert_int_equal(r.n_tokens, 0);
            for (uint32_t i = 0; i < 8; i++)
                rig_fill(&t.d, d[i], 9, i);
            sl_link_loop_release();
            usleep(20000);
            pair_check(&t, 9, d, 0, 8);
        }
        pair_close_struck(&t);
    }
}

/* Either side closes the connection then: each alone, as the other one may be the one that hangs. */
static void payloads_that_never_end_are_cut_off(void **state)
{
    (void)state;
    for (int p_cuts = 0; p_cuts < 2; p_cuts++) {
        struct strike s = {.fault = SL_LOOP_HOLD, .type = SL_KV_PAGES, .n = 1000};
        struct rig_opts cuts = {.peer_dead_ms = 3000}, waits = {0};
        struct xfer_pair t;
        struct sl_xfer_key k = rig_key("stuck", 1);
        uint32_t p[8], d[8];
        sl_link_loop_set_fault(strike, &s);
        pair_open(&t, "loop", p_cuts ? &cuts : &waits, p_cuts ? &waits : &cuts);
        run(&t, &k, p, d, RIG_DEADLINE_MS);
        for (uint64_t end = sl_now_ms() + RIG_WAIT_MS;
             sl_xfer_totals(t.p.x).pages_sent < 8 && sl_now_ms() < end;)
            usleep(1000);
        assert_int_equal(sl_xfer_recv_cancel(t.d.x, &k), SL_OK);
        assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k).err,
                         SL_ECANCELED); /* after the connection was closed */
        assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_ECANCELED);
        pair_close_struck(&t);
    }
}

static void every_message_twice_changes_nothing(void **state)
{
    struct strike s = {.fault = SL_LOOP_DUPLICATE, .n = 1000000};
    struct xfer_pair t;
    (void)state;
    pair_open_struck(&t, &s, &(struct rig_opts){.link_test = true});
    for (uint32_t i = 0; i < 10; i++)
        pair_transfer(&t, "twice", i);
    assert_int_equal(rig_wait_link(&t.p, "d0", "up").rejects, 0);
    pair_close_struck(&t);
}

/* The next transfers of a pair that was struck: one of them goes through, those that were too slow aside. */
static void run_until_good(struct xfer_pair *t, struct sl_xfer_key *k, uint32_t p[8], uint32_t d[8])
{
    for (uint64_t end = sl_now_ms() + RIG_WAIT_MS; sl_now_ms() < end;) {
        k->epoch++;
        run(t, k, p, d, RIG_DEADLINE_MS);
        bool good = rig_wait(&t->d, SL_XFER_RECV_DONE, k).err == SL_OK;
        rig_wait(&t->p, SL_XFER_SEND_DONE, k);
        if (good)
            return;
    }
    fail_msg("no transfer goes through any more");
}

/* The connection breaks at every message of a transfer in turn: both sides end, and the next transfer goes
 * through. */
static void cut_at_every_message_ends_both_sides(void **state)
{
    (void)state;
    for (int at = 0; at < 40; at++) {
        struct strike s = {.fault = SL_LOOP_CUT, .skip = at, .n = 1};
        struct xfer_pair t;
        struct sl_xfer_key k = rig_key("cut", 1);
        uint32_t p[8], d[8];
        pair_open_struck(&t, &s, &(struct rig_opts){.wait_ms = 300, .heartbeat_ms = 10});
        run(&t, &k, p, d, RIG_DEADLINE_MS);
        struct sl_xfer_event se = rig_wait(&t.p, SL_XFER_SEND_DONE, &k),
                             r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
        assert_true(se.err == SL_OK || se.err == SL_EPEER || se.err == SL_ECANCELED);
        assert_true(r.err == SL_OK || r.err == SL_EPEER);
        pair_check(&t, 1, d, 0, r.n_tokens / PT);
        run_until_good(&t, &k, p, d); /* the cut may still be to come, in a heartbeat */
        pair_check(&t, 1, d, 0, 8);
        assert_int_equal(sl_xfer_open_sessions(t.p.x), 0);
        assert_int_equal(sl_xfer_open_sessions(t.d.x), 0);
        pair_close_struck(&t);
    }
}

/* Both sides have ended; what D has is right. */
static void run_to_its_end(struct xfer_pair *t, struct sl_xfer_key *k, uint32_t p[8], uint32_t d[8],
                           uint32_t deadline_ms)
{
    k->epoch++;
    run(t, k, p, d, deadline_ms);
    struct sl_xfer_event r = rig_wait(&t->d, SL_XFER_RECV_DONE, k);
    (void)rig_wait(&t->p, SL_XFER_SEND_DONE, k); /* an answer lost may be made good by the next one */
    pair_check(t, 1, d, 0, r.n_tokens / PT);
}

/* A reliable transport does not lose messages; if one does, deadlines end what waits for them. On a slow machine D may
 * give a transfer up before the message that shall be lost is sent: the next short one loses it then, and not one with
 * RIG_DEADLINE_MS to wait. */
static void lost_control_messages_end_by_deadline(void **state)
{
    static const uint8_t types[] = {SL_KV_HELLO, SL_KV_HELLO_ACK, SL_KV_ANNOUNCE,
                                    SL_KV_GRANT, SL_KV_COMMIT,    SL_KV_ANSWER};
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(types); i++) {
        struct strike s = {.fault = SL_LOOP_DROP, .type = types[i], .n = 1};
        struct xfer_pair t;
        struct sl_xfer_key k = rig_key("lost", 0);
        uint32_t p[8], d[8];
        pair_open_struck(&t, &s, &(struct rig_opts){.wait_ms = 500});
        for (uint32_t ms = 600; atomic_load(&s.seen) == 0 && ms < RIG_WAIT_MS; ms *= 2)
            run_to_its_end(&t, &k, p, d, ms);
        assert_true(atomic_load(&s.seen) > 0);
        run_until_good(&t, &k, p, d); /* a connection that misses its hello takes wait_ms to go */
        assert_int_equal(sl_xfer_open_sessions(t.p.x), 0);
        pair_close_struck(&t);
    }
}

/* Any message may be lost, again and again, handshakes and heartbeats too. */
struct losses {
    atomic_bool on;
    atomic_uint seed;
};

static enum sl_loop_fault lose_some(void *arg, const void *header, size_t header_len, size_t payload_len)
{
    struct losses *l = arg;
    (void)header, (void)header_len, (void)payload_len;
    if (!atomic_load(&l->on))
        return SL_LOOP_DELIVER;
    uint32_t x = atomic_fetch_add(&l->seed, 0x9e3779b9u);
    x = (x ^ x >> 16) * 0x85ebca6bu;
    return (x ^ x >> 13) % 4 == 0 ? SL_LOOP_DROP : SL_LOOP_DELIVER;
}

static void pair_that_lost_messages_at_random_heals(void **state)
{
    enum { LOSSY = 4 };
    (void)state;
    for (uint32_t seed = 1; seed <= 2; seed++) {
        struct losses l = {.on = true, .seed = seed * 7919};
        struct rig_opts o = {.wait_ms = 300, .heartbeat_ms = 20, .link_test = true};
        struct xfer_pair t;
        struct sl_xfer_key k = rig_key("some", 0);
        uint32_t p[8], d[8];
        sl_link_loop_set_fault(lose_some, &l);
        pair_open(&t, "loop", &o, &o);
        for (int i = 0; i < LOSSY; i++)
            run_to_its_end(&t, &k, p, d, 200);
        atomic_store(&l.on, false);
        run_until_good(&t, &k, p, d);
        pair_check(&t, 1, d, 0, 8);
        assert_int_equal(sl_xfer_open_sessions(t.p.x), 0);
        assert_int_equal(sl_xfer_open_sessions(t.d.x), 0);
        pair_close_struck(&t);
    }
}

/* An engine that does not read its events for a while loses none. */
static void events_that_do_not_fit_the_queue_wait(void **state)
{
    struct xfer_pair t;
    struct rig_opts o = {.max_events = 2};
    struct sl_xfer_key k[20];
    uint32_t p[2] = {0, 1}, d[40];
    (void)state;
    pair_open(&t, "loop", &o, &o);
    rig_iota(d, 40, 0);
    pair_fill(&t, 1, p, 2);
    for (uint32_t i = 0; i < 20; i++) {
        k[i] = rig_key("queue", i);
        pair_begin(&t, &k[i], 2 * PT, d + 2 * i, 0);
        assert_int_equal(sl_xfer_send_ready(t.p.x, &k[i], p, 2 * PT), SL_OK);
    }
    rig_wait_sessions(&t.p, 0); /* all is over, and told */
    rig_wait_sessions(&t.d, 0);
    for (uint32_t i = 0; i < 20; i++) {
        assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k[i]).err, SL_OK);
        assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k[i]).err, SL_OK);
        pair_check(&t, 1, d + 2 * i, 0, 2);
    }
    pair_close(&t);
}

/* Breaks the first connection at its HELLO and the second one at its first probe. */
struct dials {
    atomic_int n;
    uint64_t at_ms[8];
};

static enum sl_loop_fault break_two(void *arg, const void *header, size_t header_len, size_t payload_len)
{
    struct dials *d = arg;
    struct sl_kv_header h;
    (void)payload_len;
    if (sl_kv_header_unpack(header, header_len, &h) != SL_OK)
        return SL_LOOP_DELIVER;
    if (h.type == SL_KV_HELLO) {
        int n = atomic_load(&d->n);
        d->at_ms[n % 8] = sl_now_ms();
        atomic_store(&d->n, n + 1);
        return n == 0 ? SL_LOOP_CUT : SL_LOOP_DELIVER;
    }
    return h.type == SL_KV_PROBE && atomic_load(&d->n) == 2 ? SL_LOOP_CUT : SL_LOOP_DELIVER;
}

/* Routers place nothing on a link that is down, so no request would mend it. One that breaks as soon as it carries
 * something is not dialled every second for ever. */
static void lost_link_is_dialled_again_by_itself_ever_more_rarely(void **state)
{
    (void)state;
    struct dials dials = {0};
    struct rig_opts o = {.link_test = true};
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("cut", 1);
    uint32_t p[8], d[8];
    sl_link_loop_set_fault(break_two, &dials);
    pair_open(&t, "loop", &o, &o);
    run(&t, &k, p, d, RIG_DEADLINE_MS);
    assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_EPEER);
    assert_string_equal(rig_wait_link(&t.p, "d0", "up").why, "");
    assert_int_equal(atomic_load(&dials.n), 3);
    assert_true(dials.at_ms[1] - dials.at_ms[0] >= 1000);
    assert_true(dials.at_ms[2] - dials.at_ms[1] >= 2000);
    assert_int_equal(sl_xfer_recv_cancel(t.d.x, &k), SL_OK);
    rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
    k.epoch++;
    run_halves(&t, &k, p, d);
    assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k).err, SL_OK);
    pair_check(&t, 1, d, 0, 8);
    pair_close_struck(&t);
}

/* A large probe takes long to leave. */
static enum sl_loop_fault slow_probes(void *arg, const void *header, size_t header_len, size_t payload_len)
{
    struct sl_kv_header h;
    (void)arg;
    if (sl_kv_header_unpack(header, header_len, &h) == SL_OK && h.type == SL_KV_PROBE && payload_len > 0)
        usleep(300000);
    return SL_LOOP_DELIVER;
}

static void slow_link_is_told_as_one(void **state)
{
    struct rig_opts o = {.link_test = true};
    struct xfer_pair t;
    (void)state;
    sl_link_loop_set_fault(slow_probes, NULL);
    pair_open(&t, "loop", &o, &o);
    pair_transfer(&t, "meet", 1);
    struct sl_link_report r = rig_wait_link(&t.p, "d0", "up");
    assert_true(r.bytes_per_s < 12e6);
    assert_string_equal(r.why, "slow: check the network, transfer_listen, ucx_tls and ucx_devices");
    pair_close(&t);
    sl_link_loop_set_fault(NULL, NULL);
}

/* D's thread is held, in a timer of its own or at a command, until its deadline is over and all pages lie in its inbox. */
struct late {
    enum sl_loop_fault pages; /* what happens to them */
    bool at_command;          /* that gives up another transfer */
    pthread_t d;
    atomic_bool known, held, last_sent;
    uint64_t until_ms;
};

static enum sl_loop_fault hold_d(void *arg, const void *header, size_t header_len, size_t payload_len)
{
    struct late *l = arg;
    struct sl_kv_header h;
    (void)payload_len;
    if (sl_kv_header_unpack(header, header_len, &h) != SL_OK)
        return SL_LOOP_DELIVER;
    if (h.type == SL_KV_GRANT) {
        l->d = pthread_self();
        atomic_store(&l->known, true);
    } else if (h.type == SL_KV_PAGES) {
        return l->pages;
    } else if (h.type == SL_KV_COMMIT && h.flags & SL_KV_FLAG_LAST) {
        atomic_store(&l->last_sent, true);
    } else if (h.type == (l->at_command ? SL_KV_ABORT : SL_KV_PING) && atomic_load(&l->known) &&
               pthread_equal(l->d, pthread_self()) && !atomic_exchange(&l->held, true)) {
        while (!atomic_load(&l->last_sent) || sl_now_ms() < l->until_ms)
            usleep(1000);
    }
    return SL_LOOP_DELIVER;
}

static void send_while_d_is_held(struct xfer_pair *t, struct late *l, const struct sl_xfer_key *k,
                                 const uint32_t p[4], const uint32_t d[4], uint32_t deadline_ms)
{
    struct rig_opts o = {.heartbeat_ms = 10};
    sl_link_loop_set_fault(hold_d, l);
    pair_open(t, "loop", &o, &o);
    pair_fill(t, 1, p, 4);
    l->until_ms = sl_now_ms() + (deadline_ms < RIG_DEADLINE_MS ? deadline_ms + 100 : 0);
    assert_int_equal(sl_xfer_recv_open(t->d.x, k, &t->p.peer, d, 4 * PT, 0, deadline_ms), SL_OK);
    assert_int_equal(sl_xfer_send_open(t->p.x, k, &t->d.peer, 4 * PT, RIG_DEADLINE_MS), SL_OK);
    if (l->at_command) {
        static const uint32_t page = 8;
        struct sl_xfer_key other = rig_key("other", 1);
        assert_int_equal(sl_xfer_recv_open(t->d.x, &other, &t->p.peer, &page, PT, 0, RIG_DEADLINE_MS), SL_OK);
        assert_int_equal(sl_xfer_send_open(t->p.x, &other, &t->d.peer, PT, RIG_DEADLINE_MS), SL_OK);
        rig_wait(&t->p, SL_XFER_GRANTED, &other);
        assert_int_equal(sl_xfer_recv_cancel(t->d.x, &other), SL_OK);
    }
    for (uint64_t end = sl_now_ms() + RIG_WAIT_MS; !atomic_load(&l->held); usleep(1000))
        if (sl_now_ms() > end)
            fail_msg("D's thread was not held");
    assert_int_equal(sl_xfer_send_ready(t->p.x, k, p, 4 * PT), SL_OK);
}

/* A session that ended may be aborted, and its pages told of, before the engine has heard of its end. */
static void pages_of_a_session_that_only_tells_its_end_are_nothing(void **state)
{
    struct xfer_pair t;
    struct rig_opts o = {0};
    struct sl_xfer_key k = rig_key("over", 1);
    uint32_t p[2] = {0, 1};
    (void)state;
    pair_open(&t, "loop", &o, &o);
    rig_close(&t.d); /* so that what the session has to tell waits */
    assert_int_equal(sl_xfer_send_abort(t.p.x, &k, &t.d.peer, "enough"), SL_OK);
    assert_int_equal(sl_xfer_send_first(t.p.x, &k, &(struct sl_xfer_first){.token = 1}), SL_OK);
    assert_int_equal(sl_xfer_send_ready(t.p.x, &k, p, 2 * PT), SL_OK);
    rig_wait_sessions(&t.p, 0);
    pair_close(&t);
}

static void what_has_arrived_is_seen_before_the_deadline_is_judged(void **state)
{
    struct late l = {.at_command = true};
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("late", 1);
    uint32_t p[4] = {0, 1, 2, 3}, d[4] = {4, 5, 6, 7};
    (void)state;
    send_while_d_is_held(&t, &l, &k, p, d, 10000);
    assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k).err, SL_OK);
    assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_OK);
    pair_check(&t, 1, d, 0, 4);
    pair_close(&t);
    sl_link_loop_set_fault(NULL, NULL);
}

/* The commit of pages whose receive failed comes before the end of their connection. */
static void lost_receive_is_not_taken_for_damage(void **state)
{
    struct late l = {.pages = SL_LOOP_FAIL};
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("lost", 1);
    uint32_t p[4] = {0, 1, 2, 3}, d[4] = {4, 5, 6, 7};
    (void)state;
    send_while_d_is_held(&t, &l, &k, p, d, RIG_DEADLINE_MS);
    struct sl_xfer_event r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
    assert_int_equal(r.err, SL_EPEER);
    assert_int_equal(r.n_tokens, 0);
    assert_int_equal(r.resends, 0);
    assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_EPEER);
    assert_int_equal(sl_xfer_totals(t.d.x).rejects, 0);
    pair_close(&t);
    sl_link_loop_set_fault(NULL, NULL);
}

/* Its transfer thread lives and answers pings; the engine does not say that it computes. */
static void node_that_computes_nothing_gives_its_transfers_up(void **state)
{
    (void)state;
    for (int p_stalls = 0; p_stalls < 2; p_stalls++) {
        struct rig_opts o = {.stall_ms = 50};
        struct xfer_pair t;
        struct sl_xfer_key k = rig_key("stall", 1);
        uint32_t p[4] = {0, 1, 2, 3}, d[4] = {4, 5, 6, 7};
        pair_open(&t, "loop", p_stalls ? &o : NULL, p_stalls ? NULL : &o);
        pair_fill(&t, 1, p, 4);
        assert_int_equal(sl_xfer_recv_open(t.d.x, &k, &t.p.peer, d, 4 * PT, 0, RIG_DEADLINE_MS), SL_OK);
        assert_int_equal(sl_xfer_send_open(t.p.x, &k, &t.d.peer, 4 * PT, RIG_DEADLINE_MS), SL_OK);
        struct sl_xfer_event sent = rig_wait(&t.p, SL_XFER_SEND_DONE, &k),
                             got = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
        assert_int_equal(sent.err, SL_ECANCELED);
        assert_int_equal(got.err, SL_EPEER);
        assert_string_equal(sent.why, "the node computes nothing");
        assert_string_equal(got.why, "the node computes nothing");
        pair_close(&t);
    }
}

/* Where the ids are neighbours at both ends. Those of devices are neighbours in the stage. */
static void neighbouring_pages_go_in_one_message(void **state)
{
    static const uint32_t p[2][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {3, 4, 5, 6, 11, 10, 9, 20}},
                          d[2][8] = {{20, 21, 22, 23, 24, 25, 26, 27}, {8, 9, 30, 31, 32, 2, 1, 5}};
    static const int messages[2] = {1, 6}; /* the second: 2 pages, 2, and four alone */
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct strike s = {.type = SL_KV_PAGES}; /* strikes none */
        struct xfer_pair t;
        struct sl_xfer_key k = rig_key("run", 1);
        pair_open_struck(&t, &s, NULL);
        pair_fill(&t, 1, p[i], 8);
        pair_begin(&t, &k, 8 * PT, d[i], 0);
        assert_int_equal(sl_xfer_send_ready(t.p.x, &k, p[i], 8 * PT), SL_OK);
        assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k).err, SL_OK);
        assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_OK);
        pair_check(&t, 1, d[i], 0, 8);
        assert_int_equal(atomic_load(&s.seen), t.p.pool ? messages[i] : 1);
        pair_close_struck(&t);
    }
}

int main(void)
{
#define ENTRY(name) cmocka_unit_test(loop_##name),
    const struct CMUnitTest of_pages[] = {
        XFER_EACH_CASE(ENTRY) cmocka_unit_test(corrupt_page_is_sent_again_once),
        cmocka_unit_test(corrupt_commit_is_sent_again_once),
        cmocka_unit_test(neighbouring_pages_go_in_one_message),
        cmocka_unit_test(corrupt_twice_ends_it_and_degrades_the_link),
        cmocka_unit_test(digests_off_let_damage_through),
        cmocka_unit_test(giving_up_with_payloads_pending_waits_for_them),
        cmocka_unit_test(payloads_that_never_end_are_cut_off),
        cmocka_unit_test(every_message_twice_changes_nothing),
    };
    /* these take time, and take no notice of where pages lie */
    const struct CMUnitTest of_words[] = {
        cmocka_unit_test(cut_at_every_message_ends_both_sides),
        cmocka_unit_test(lost_control_messages_end_by_deadline),
        cmocka_unit_test(pair_that_lost_messages_at_random_heals),
        cmocka_unit_test(events_that_do_not_fit_the_queue_wait),
        cmocka_unit_test(lost_link_is_dialled_again_by_itself_ever_more_rarely),
        cmocka_unit_test(slow_link_is_told_as_one),
        cmocka_unit_test(pages_of_a_session_that_only_tells_its_end_are_nothing),
        cmocka_unit_test(what_has_arrived_is_seen_before_the_deadline_is_judged),
        cmocka_unit_test(lost_receive_is_not_taken_for_damage),
        cmocka_unit_test(node_that_computes_nothing_gives_its_transfers_up),
    };
    int failed = cmocka_run_group_tests(of_pages, NULL, NULL);
    return getenv("RIG_DEVICES") ? failed : failed + cmocka_run_group_tests(of_words, NULL, NULL);
}
