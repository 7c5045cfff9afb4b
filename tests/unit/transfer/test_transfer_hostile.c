/* tests/unit/transfer/test_transfer_hostile.c - a peer that breaks the protocol: what it sends is dropped and
 * counted, lands nowhere, and hurts no other transfer. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/transfer/link_loop.h"
#include "tests/support/support.h"
#include "tests/unit/transfer/raw_peer.h"
#include "tests/unit/transfer/xfer_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define PT RIG_PAGE_TOKENS

static unsigned char junk[8 * 256]; /* eight pages */

static struct sl_kv_header pages_message(const struct sl_xfer_key *k, uint32_t index, uint32_t count)
{
    return (struct sl_kv_header){.type = SL_KV_PAGES, .key = *k, .index = index, .count = count};
}

static struct sl_kv_header commit_message(const struct sl_xfer_key *k, uint32_t index, uint32_t count,
                                          uint32_t n_tokens, uint8_t flags)
{
    return (struct sl_kv_header){.type = SL_KV_COMMIT,
                                 .flags = flags,
                                 .key = *k,
                                 .index = index,
                                 .count = count,
                                 .n_tokens = n_tokens};
}

static void digests_of(const struct raw_peer *r, const unsigned char *pages, uint32_t n, unsigned char *out)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t v = sl_kv_page_digest(&r->hello.id.geometry, pages + i * 256, PT);
        for (int b = 0; b < 8; b++)
            out[i * 8 + (uint32_t)b] = (unsigned char)(v >> (8 * b));
    }
}

static void assert_untouched(const struct rig_node *n)
{
    for (size_t i = 0; i < n->n_pages * n->page_bytes; i++)
        if (n->pool[i])
            fail_msg("byte %zu of page %zu was written", i % n->page_bytes, i / n->page_bytes);
}

/* A node that knows nothing of the peer yet believes nothing but HELLO. */
static void before_hello_nothing_counts(void **state)
{
    struct rig_node d;
    struct raw_peer r;
    struct sl_xfer_key k = rig_key("mine", 1);
    struct sl_xfer_peer p = {.name = "p0", .boot_id = 7};
    uint32_t pages[4] = {0, 1, 2, 3};
    (void)state;
    rig_open(&d, &(struct rig_opts){.name = "d0"});
    raw_open(&r, "loop", "p0", 7);
    raw_connect(&r, &d);
    assert_int_equal(sl_xfer_recv_open(d.x, &k, &p, pages, 4 * PT, 0, RIG_DEADLINE_MS), SL_OK);
    struct sl_kv_header h = {.type = SL_KV_ANNOUNCE, .key = k, .n_tokens = 4 * PT, .deadline_ms = 1000};
    raw_send(&r, &h, NULL, 0);
    h = pages_message(&k, 0, 4);
    raw_send(&r, &h, junk, 4 * d.page_bytes);
    h = commit_message(&k, 0, 4, 4 * PT, SL_KV_FLAG_LAST);
    raw_send(&r, &h, junk, 32);
    h = (struct sl_kv_header){.type = SL_KV_ABORT, .key = k};
    raw_send(&r, &h, "x", 1);
    h = (struct sl_kv_header){.type = SL_KV_PROBE};
    raw_send(&r, &h, NULL, 0);
    rig_wait_dropped(&d, 5);
    assert_false(rig_has(&d, SL_XFER_RECV_DONE, &k));
    assert_untouched(&d);
    raw_close(&r);
    rig_close(&d);
}

static void broken_headers_are_counted_and_survived(void **state)
{
    struct rig_node d;
    struct raw_peer r;
    unsigned char header[SL_LINK_MAX_HEADER] = {0};
    struct sl_kv_header h = {.type = SL_KV_PING};
    (void)state;
    rig_open(&d, &(struct rig_opts){.name = "d0"});
    raw_open(&r, "loop", "p0", 7);
    raw_join(&r, &d);
    raw_send_bytes(&r, header, 0, NULL, 0, true);
    raw_send_bytes(&r, header, 1, NULL, 0, true);
    raw_send_bytes(&r, header, SL_KV_HEADER_BYTES, NULL, 0, true); /* type 0 */
    raw_send_bytes(&r, header, SL_LINK_MAX_HEADER, junk, sizeof junk, false);
    sl_kv_header_pack(&h, header);
    header[0] = 200;
    raw_send_bytes(&r, header, SL_KV_HEADER_BYTES, NULL, 0, true);
    rig_wait_dropped(&d, 5);
    /* hello again, an ack to a node that did not dial, messages of the other direction */
    unsigned char id[SL_KV_IDENTITY_BYTES];
    sl_kv_hello_pack(&r.hello, id);
    h = (struct sl_kv_header){.type = SL_KV_HELLO};
    raw_send(&r, &h, id, sizeof id);
    h.type = SL_KV_HELLO_ACK;
    raw_send(&r, &h, id, sizeof id);
    struct sl_xfer_key k = rig_key("none", 1);
    for (uint8_t type = SL_KV_GRANT; type <= SL_KV_ANSWER; type++) {
        h = (struct sl_kv_header){.type = type, .key = k};
        raw_send(&r, &h, type == SL_KV_PAGES ? junk : NULL, type == SL_KV_PAGES ? 256 : 0);
    }
    h = (struct sl_kv_header){.type = SL_KV_PROBE};
    sl_kv_header_pack(&h, header);
    unsigned char *large = sl_xcalloc(1, 3 << 20);
    raw_send_bytes(&r, header, SL_KV_HEADER_BYTES, large, 3 << 20, false); /* larger than any probe */
    sl_free(large);
    rig_wait_dropped(&d, 5 + 2 + 4 + 1);
    h.type = SL_KV_PING;
    raw_send(&r, &h, NULL, 0);
    raw_free(raw_wait(&r, SL_KV_PONG)); /* still a peer */
    assert_untouched(&d);
    raw_close(&r);
    rig_close(&d);
}

/* One session with D in which everything wild is tried at its stage; then it is completed as it should be. */
static void wild_pages_land_nowhere(void **state)
{
    struct rig_node d;
    struct raw_peer r;
    struct sl_xfer_key k = rig_key("mine", 3), unknown = rig_key("other", 3), stale = rig_key("mine", 2);
    struct sl_xfer_peer p = {.name = "p0", .boot_id = 7};
    const uint32_t pages[6] = {10, 11, 12, 40, 41, 42}; /* two runs; the first page is a prefix hit */
    struct sl_kv_header h;
    uint64_t dropped = 0;
    (void)state;
    rig_open(&d, &(struct rig_opts){.name = "d0"});
    raw_open(&r, "loop", "p0", 7);
    raw_join(&r, &d);
    memset(junk, 0x5a, sizeof junk);

    h = pages_message(&unknown, 0, 1);
    raw_send(&r, &h, junk, d.page_bytes);
    rig_wait_dropped(&d, dropped += 1);

    assert_int_equal(sl_xfer_recv_open(d.x, &k, &p, pages, 6 * PT, 1, RIG_DEADLINE_MS), SL_OK);
    h = pages_message(&k, 1, 1); /* no grant yet */
    raw_send(&r, &h, junk, d.page_bytes);
    rig_wait_dropped(&d, dropped += 1);
    assert_untouched(&d);

    h = (struct sl_kv_header){.type = SL_KV_ANNOUNCE, .key = k, .n_tokens = 6 * PT, .deadline_ms = 60000};
    raw_send(&r, &h, NULL, 0);
    struct raw_message *g = raw_wait(&r, SL_KV_GRANT);
    assert_int_equal(g->h.index, 1);
    assert_int_equal(g->h.count, 6);
    assert_int_equal(g->len, 1);
    assert_int_equal(g->payload[0], 1u | 1u << 3); /* runs begin at 0 and 3 */
    raw_free(g);
    raw_send(&r, &h, NULL, 0); /* announced twice */
    rig_wait_dropped(&d, dropped += 1);

    static const struct {
        uint32_t index, count, bytes_pages;
    } wild[] = {
        {6, 1, 1},     /* behind the end */
        {5, 2, 2},     /* over the end */
        {1, 0, 1},     /* none */
        {1, 0, 0},     /* none at all */
        {1, 2, 1},     /* fewer bytes than said */
        {1, 1, 2},     /* more */
        {0, 1, 1},     /* D's own page */
        {0, 2, 2},     /* its own and the next */
        {2, 2, 2},     /* over the border of two runs */
        {65535, 1, 1}, /* the largest */
        {1, 65535, 1},
    };
    for (size_t i = 0; i < SL_COUNTOF(wild); i++) {
        h = pages_message(&k, wild[i].index, wild[i].count);
        raw_send(&r, &h, junk, wild[i].bytes_pages * d.page_bytes);
    }
    h = pages_message(&stale, 1, 1);
    raw_send(&r, &h, junk, d.page_bytes);
    rig_wait_dropped(&d, dropped += SL_COUNTOF(wild) + 1);
    assert_untouched(&d);

    static const struct {
        uint32_t index, count, n_tokens, digests;
        uint8_t flags;
    } commits[] = {
        {0, 1, 6 * PT, 1, 0},              /* before what is due */
        {2, 1, 6 * PT, 1, 0},              /* after it */
        {1, 6, 6 * PT, 6, 0},              /* over the end */
        {1, 2, 6 * PT, 1, 0},              /* fewer digests than said */
        {1, 1, 6 * PT, 2, 0},              /* more */
        {1, 1, 5 * PT, 1, 0},              /* of another length */
        {1, 2, 6 * PT, 2, SL_KV_FLAG_LAST} /* last, and not at the end */
    };
    for (size_t i = 0; i < SL_COUNTOF(commits); i++) {
        h = commit_message(&k, commits[i].index, commits[i].count, commits[i].n_tokens, commits[i].flags);
        raw_send(&r, &h, junk, commits[i].digests * 8);
    }
    rig_wait_dropped(&d, dropped += SL_COUNTOF(commits));
    assert_false(rig_has(&d, SL_XFER_RECV_READY, &k));
    assert_false(rig_has(&d, SL_XFER_RECV_DONE, &k));

    /* now as it should be */
    unsigned char good[5 * 256], digests[5 * 8];
    for (size_t i = 0; i < sizeof good; i++)
        good[i] = (unsigned char)(i * 7 + i / 256);
    digests_of(&r, good, 5, digests);
    h = pages_message(&k, 1, 2);
    raw_send(&r, &h, good, 512);
    h = commit_message(&k, 1, 2, 6 * PT, 0);
    raw_send(&r, &h, digests, 16);
    struct raw_message *a = raw_wait(&r, SL_KV_ANSWER);
    assert_int_equal(a->h.flags, SL_KV_FLAG_OK);
    assert_int_equal(a->h.index, 3);
    raw_free(a);
    h = pages_message(&k, 1, 1); /* a page that is committed is not written again */
    raw_send(&r, &h, junk, d.page_bytes);
    rig_wait_dropped(&d, dropped += 1);
    h = pages_message(&k, 3, 3);
    raw_send(&r, &h, good + 512, 768);
    h = commit_message(&k, 3, 3, 6 * PT, SL_KV_FLAG_LAST | SL_KV_FLAG_FIRST | SL_KV_FLAG_ENDED);
    h.token = 5;
    raw_send(&r, &h, digests + 16, 24);
    struct sl_xfer_event done = rig_wait(&d, SL_XFER_RECV_DONE, &k);
    assert_int_equal(done.err, SL_OK);
    assert_int_equal(done.first.token, 5);
    assert_true(done.first.ended);
    for (uint32_t i = 0; i < 5; i++)
        assert_memory_equal(rig_page(&d, pages[i + 1]), good + i * 256, 256);
    assert_int_equal(rig_page(&d, 10)[0], 0);
    h = pages_message(&k, 4, 1); /* the session is over */
    raw_send(&r, &h, junk, d.page_bytes);
    rig_wait_dropped(&d, dropped += 1);
    assert_memory_equal(rig_page(&d, 41), good + 3 * 256, 256);
    raw_close(&r);
    rig_close(&d);
}

/* D with a session of four pages, granted to a P that is this test; payloads sent while `holds` land at
 * sl_link_loop_release(). */
struct granted {
    struct rig_node d;
    struct raw_peer p;
    struct sl_xfer_key k;
    bool holds;
};

static enum sl_loop_fault hold_pages(void *arg, const void *header, size_t header_len, size_t payload_len)
{
    const struct granted *g = arg;
    (void)header, (void)header_len;
    return payload_len >= 256 && g->holds ? SL_LOOP_HOLD : SL_LOOP_DELIVER;
}

static const uint32_t granted_pages[4] = {10, 11, 12, 13};

static void granted_open(struct granted *g)
{
    struct sl_xfer_peer ref = {.name = "p0", .boot_id = 7};
    g->k = rig_key("mine", 1);
    g->holds = false;
    sl_link_loop_set_fault(hold_pages, g);
    rig_open(&g->d, &(struct rig_opts){.name = "d0"});
    raw_open(&g->p, "loop", "p0", 7);
    raw_join(&g->p, &g->d);
    assert_int_equal(sl_xfer_recv_open(g->d.x, &g->k, &ref, granted_pages, 4 * PT, 0, RIG_DEADLINE_MS),
                     SL_OK);
    struct sl_kv_header h = {
        .type = SL_KV_ANNOUNCE, .key = g->k, .n_tokens = 4 * PT, .deadline_ms = RIG_DEADLINE_MS};
    raw_send(&g->p, &h, NULL, 0);
    raw_free(raw_wait(&g->p, SL_KV_GRANT));
}

static void granted_close(struct granted *g)
{
    raw_close(&g->p);
    rig_close(&g->d);
    sl_link_loop_set_fault(NULL, NULL);
}

static void send_some(struct granted *g, bool held, uint32_t index, uint32_t count,
                      const unsigned char *bytes)
{
    struct sl_kv_header h = pages_message(&g->k, index, count);
    g->holds = held;
    raw_send(&g->p, &h, bytes, count * g->d.page_bytes);
}

static void page_that_is_landing_is_not_written_by_another_message(void **state)
{
    struct granted g;
    (void)state;
    granted_open(&g);
    memset(junk, 0x5a, sizeof junk);
    send_some(&g, true, 0, 2, junk);
    send_some(&g, false, 1, 2, junk);
    rig_wait_dropped(&g.d, 1);
    assert_untouched(&g.d);
    granted_close(&g);
}

static void session_that_closes_takes_no_more_pages(void **state)
{
    struct granted g;
    (void)state;
    granted_open(&g);
    memset(junk, 0x5a, sizeof junk);
    send_some(&g, true, 0, 2, junk);
    struct sl_kv_header ping = {.type = SL_KV_PING};
    raw_send(&g.p, &ping, NULL, 0);
    raw_free(raw_wait(&g.p, SL_KV_PONG)); /* D waits for the two */
    assert_int_equal(sl_xfer_recv_cancel(g.d.x, &g.k), SL_OK);
    raw_free(raw_wait(&g.p, SL_KV_ABORT));
    send_some(&g, false, 2, 2, junk);
    rig_wait_dropped(&g.d, 1);
    assert_untouched(&g.d);
    assert_false(rig_has(&g.d, SL_XFER_RECV_DONE, &g.k));
    sl_link_loop_release();
    assert_int_equal(rig_wait(&g.d, SL_XFER_RECV_DONE, &g.k).err, SL_ECANCELED);
    granted_close(&g);
}

/* Pages are asked for again when nothing of the session lands any more, and what was sent before P heard of it does not
 * count: else the old bytes would lie where the new ones are to come. */
static void damaged_page_is_asked_for_when_nothing_lands_any_more(void **state)
{
    struct granted g;
    struct raw_message *m;
    unsigned char good[4 * 256], digests[4 * 8];
    (void)state;
    granted_open(&g);
    memset(junk, 0x5a, sizeof junk);
    for (size_t i = 0; i < sizeof good; i++)
        good[i] = (unsigned char)(i * 7 + i / 256);
    digests_of(&g.p, good, 4, digests);
    send_some(&g, true, 2, 2, junk);
    send_some(&g, false, 0, 2, junk);
    struct sl_kv_header h = commit_message(&g.k, 0, 2, 4 * PT, 0);
    raw_send(&g.p, &h, digests, 16);
    h = (struct sl_kv_header){.type = SL_KV_PING, .value = 4711};
    raw_send(&g.p, &h, NULL, 0);
    do {
        while ((m = raw_next(&g.p)) == NULL)
            raw_progress(&g.p, 20);
        assert_int_not_equal(m->h.type, SL_KV_ANSWER);
        h = m->h;
        raw_free(m);
    } while (h.type != SL_KV_PONG || h.value != 4711);
    sl_link_loop_release();
    m = raw_wait(&g.p, SL_KV_ANSWER);
    assert_int_equal(m->h.flags, 0);
    assert_int_equal(m->h.index, 0);
    assert_int_equal(m->h.count, 1);
    raw_free(m);
    send_some(&g, false, 2, 2, junk);
    rig_wait_dropped(&g.d, 1);
    send_some(&g, false, 0, 4, good);
    h = commit_message(&g.k, 0, 4, 4 * PT, SL_KV_FLAG_LAST);
    raw_send(&g.p, &h, digests, 32);
    struct sl_xfer_event r = rig_wait(&g.d, SL_XFER_RECV_DONE, &g.k);
    assert_int_equal(r.err, SL_OK);
    assert_int_equal(r.resends, 1);
    for (uint32_t i = 0; i < 4; i++)
        assert_memory_equal(rig_page(&g.d, granted_pages[i]), good + i * 256, 256);
    granted_close(&g);
}

/* Another peer that knows the key of a request is not its P. */
static void a_stranger_touches_no_session(void **state)
{
    struct rig_node d;
    struct raw_peer p, s;
    struct sl_xfer_key k = rig_key("mine", 1), early = rig_key("early", 1), wait = rig_key("wait", 1);
    struct sl_xfer_peer ref = {.name = "p0", .boot_id = 7};
    uint32_t pages[2] = {0, 1};
    (void)state;
    rig_open(&d, &(struct rig_opts){.name = "d0"});
    raw_open(&p, "loop", "p0", 7);
    raw_open(&s, "loop", "stranger", 8);
    raw_join(&p, &d);
    raw_join(&s, &d);
    assert_int_equal(sl_xfer_recv_open(d.x, &k, &ref, pages, 2 * PT, 0, RIG_DEADLINE_MS), SL_OK);
    assert_int_equal(sl_xfer_recv_open(d.x, &wait, &ref, pages, 2 * PT, 0, RIG_DEADLINE_MS), SL_OK);
    struct sl_kv_header h = {.type = SL_KV_ANNOUNCE, .key = k, .n_tokens = 2 * PT, .deadline_ms = 60000};
    raw_send(&p, &h, NULL, 0);
    raw_free(raw_wait(&p, SL_KV_GRANT));

    h = pages_message(&k, 0, 2);
    raw_send(&s, &h, junk, 2 * d.page_bytes);
    h = commit_message(&k, 0, 2, 2 * PT, SL_KV_FLAG_LAST);
    raw_send(&s, &h, junk, 16);
    h = (struct sl_kv_header){.type = SL_KV_ABORT, .key = k};
    raw_send(&s, &h, "no", 2);
    h.key = wait; /* not announced yet */
    raw_send(&s, &h, "no", 2);
    rig_wait_dropped(&d, 4);
    /* an announce in p0's place is refused, and what a stranger says before a session opens is not about p0
     */
    h = (struct sl_kv_header){.type = SL_KV_ANNOUNCE, .key = wait, .n_tokens = 2 * PT, .deadline_ms = 60000};
    raw_send(&s, &h, NULL, 0);
    raw_free(raw_wait(&s, SL_KV_ABORT));
    h = (struct sl_kv_header){.type = SL_KV_ABORT, .key = early};
    raw_send(&s, &h, "no", 2);
    h = (struct sl_kv_header){.type = SL_KV_PING};
    raw_send(&s, &h, NULL, 0);
    raw_free(raw_wait(&s, SL_KV_PONG)); /* all of it was read */
    assert_int_equal(sl_xfer_recv_open(d.x, &early, &ref, pages, 2 * PT, 0, RIG_DEADLINE_MS), SL_OK);
    h = (struct sl_kv_header){.type = SL_KV_ANNOUNCE, .key = early, .n_tokens = 2 * PT, .deadline_ms = 60000};
    raw_send(&p, &h, NULL, 0);
    raw_free(raw_wait(&p, SL_KV_GRANT));
    assert_false(rig_has(&d, SL_XFER_RECV_DONE, &k));
    assert_false(rig_has(&d, SL_XFER_RECV_DONE, &wait));
    assert_false(rig_has(&d, SL_XFER_RECV_DONE, &early));
    assert_untouched(&d);
    raw_close(&s);
    raw_close(&p);
    assert_int_equal(rig_wait(&d, SL_XFER_RECV_DONE, &k).err, SL_EPEER);
    rig_close(&d);
}

static void announce_that_was_not_asked_for_is_refused_in_words(void **state)
{
    struct rig_node d;
    struct raw_peer p;
    uint32_t pages[2] = {0, 1};
    (void)state;
    rig_open(&d, &(struct rig_opts){.name = "d0"});
    raw_open(&p, "loop", "p0", 7);
    raw_join(&p, &d);
    for (uint32_t i = 0; i < 4; i++) {
        bool announce_first = i % 2, other_start = i / 2; /* of p0; else another length */
        struct sl_xfer_peer ref = {.name = "p0", .boot_id = other_start ? 6 : 7};
        struct sl_xfer_key k = rig_key("unasked", i);
        struct sl_kv_header h = {.type = SL_KV_ANNOUNCE,
                                 .key = k,
                                 .n_tokens = other_start ? 2 * PT : 2 * PT - 1,
                                 .deadline_ms = 60000};
        if (announce_first) {
            raw_send(&p, &h, NULL, 0);
            h = (struct sl_kv_header){.type = SL_KV_PING};
            raw_send(&p, &h, NULL, 0);
            raw_free(raw_wait(&p, SL_KV_PONG));
        }
        assert_int_equal(sl_xfer_recv_open(d.x, &k, &ref, pages, 2 * PT, 0, RIG_DEADLINE_MS), SL_OK);
        if (!announce_first)
            raw_send(&p, &h, NULL, 0);
        struct raw_message *m = raw_wait(&p, SL_KV_ABORT);
        assert_non_null(m->payload);
        raw_free(m);
        struct sl_xfer_event r = rig_wait(&d, SL_XFER_RECV_DONE, &k);
        assert_int_equal(r.err, SL_EPROTO);
        assert_non_null(strstr(r.why, "another transfer"));
    }
    raw_close(&p);
    rig_close(&d);
}

/* More announces than a node remembers: the oldest is told, none is forgotten in silence. */
static void too_many_announces_are_refused_not_forgotten(void **state)
{
    struct rig_node d;
    struct raw_peer p;
    (void)state;
    rig_open(&d, &(struct rig_opts){.name = "d0", .max_sessions = 4});
    raw_open(&p, "loop", "p0", 7);
    raw_join(&p, &d);
    for (uint32_t i = 0; i < 6; i++) {
        struct sl_kv_header h = {
            .type = SL_KV_ANNOUNCE, .key = rig_key("early", i), .n_tokens = PT, .deadline_ms = 60000};
        raw_send(&p, &h, NULL, 0);
    }
    for (uint32_t i = 0; i < 2; i++) {
        struct raw_message *m = raw_wait(&p, SL_KV_ABORT);
        assert_int_equal(m->h.key.epoch, i);
        raw_free(m);
    }
    raw_close(&p);
    rig_close(&d);
}

/* A real P with a D that breaks the protocol. */
static void wild_answers_end_nothing(void **state)
{
    struct rig_node p;
    struct raw_peer d;
    struct sl_xfer_key k = rig_key("mine", 1), unknown = rig_key("other", 1);
    uint32_t pages[4] = {0, 1, 2, 3};
    unsigned char bitmap[16] = {1};
    struct sl_kv_header h;
    (void)state;
    rig_open(&p, &(struct rig_opts){.name = "p0"});
    raw_open(&d, "loop", "d0", 7);
    struct sl_xfer_peer to = raw_ref(&d);
    assert_int_equal(sl_xfer_send_open(p.x, &k, &to, 4 * PT, RIG_DEADLINE_MS), SL_OK);
    raw_be_joined(&d);
    struct raw_message *m = raw_wait(&d, SL_KV_ANNOUNCE);
    assert_int_equal(m->h.n_tokens, 4 * PT);
    assert_true(m->h.deadline_ms > 0 && m->h.deadline_ms <= RIG_DEADLINE_MS);
    raw_free(m);
    assert_int_equal(sl_xfer_send_ready(p.x, &k, pages, 4 * PT), SL_OK);

    static const struct {
        uint32_t index, count;
        size_t len;
    } grants[] = {{0, 3, 1}, {0, 5, 1}, {5, 4, 1}, {0, 4, 0}, {0, 4, 2}, {0, 4, 16}};
    for (size_t i = 0; i < SL_COUNTOF(grants); i++) {
        h = (struct sl_kv_header){
            .type = SL_KV_GRANT, .key = k, .index = grants[i].index, .count = grants[i].count};
        raw_send(&d, &h, bitmap, grants[i].len);
    }
    h = (struct sl_kv_header){.type = SL_KV_ANSWER, .flags = SL_KV_FLAG_OK, .key = k, .index = 4};
    raw_send(&d, &h, NULL, 0); /* nothing was granted */
    h.key = unknown;
    raw_send(&d, &h, NULL, 0);
    rig_wait_dropped(&p, SL_COUNTOF(grants) + 2);
    assert_false(rig_has(&p, SL_XFER_GRANTED, &k));

    h = (struct sl_kv_header){.type = SL_KV_GRANT, .key = k, .count = 4};
    raw_send(&d, &h, bitmap, 1);
    raw_free(raw_wait(&d, SL_KV_PAGES));
    m = raw_wait(&d, SL_KV_COMMIT);
    assert_int_equal(m->h.count, 4);
    assert_true(m->h.flags & SL_KV_FLAG_LAST);
    raw_free(m);
    raw_send(&d, &h, bitmap, 1); /* granted twice */
    h = (struct sl_kv_header){.type = SL_KV_ANSWER, .flags = SL_KV_FLAG_OK, .key = k, .index = 5};
    raw_send(&d, &h, NULL, 0); /* more than was sent */
    h = (struct sl_kv_header){.type = SL_KV_ANSWER, .key = k, .index = 2, .count = 2};
    raw_send(&d, &h, NULL, 0); /* the second reject before the first */
    rig_wait_dropped(&p, SL_COUNTOF(grants) + 2 + 3);
    h.count = 1;
    raw_send(&d, &h, NULL, 0);
    m = raw_wait(&d, SL_KV_PAGES); /* from the bad one on, once more */
    assert_int_equal(m->h.index, 2);
    assert_int_equal(m->h.count, 2);
    raw_free(m);
    raw_free(raw_wait(&d, SL_KV_COMMIT));
    raw_send(&d, &h, NULL, 0); /* the first reject again */
    rig_wait_dropped(&p, SL_COUNTOF(grants) + 2 + 4);
    h = (struct sl_kv_header){.type = SL_KV_ANSWER, .flags = SL_KV_FLAG_OK, .key = k, .index = 4};
    raw_send(&d, &h, NULL, 0);
    struct sl_xfer_event s = rig_wait(&p, SL_XFER_SEND_DONE, &k);
    assert_int_equal(s.err, SL_OK);
    assert_int_equal(s.resends, 2);
    raw_close(&d);
    rig_close(&p);
}

/* Another decode node that knows the key of a request is not its D. */
static void a_stranger_ends_no_session_of_another(void **state)
{
    struct rig_node p;
    struct raw_peer d, s;
    struct sl_xfer_key k = rig_key("mine", 1), other = rig_key("other", 1);
    unsigned char bitmap[1] = {1};
    (void)state;
    rig_open(&p, &(struct rig_opts){.name = "p0"});
    raw_open(&d, "loop", "d0", 7);
    raw_open(&s, "loop", "d1", 8);
    struct sl_xfer_peer to_d = raw_ref(&d), to_s = raw_ref(&s);
    assert_int_equal(sl_xfer_send_open(p.x, &k, &to_d, 4 * PT, RIG_DEADLINE_MS), SL_OK);
    raw_be_joined(&d);
    raw_free(raw_wait(&d, SL_KV_ANNOUNCE));
    assert_int_equal(sl_xfer_send_open(p.x, &other, &to_s, 4 * PT, RIG_DEADLINE_MS), SL_OK);
    raw_be_joined(&s);
    raw_free(raw_wait(&s, SL_KV_ANNOUNCE));
    struct sl_kv_header h = {.type = SL_KV_GRANT, .key = k, .count = 4};
    raw_send(&s, &h, bitmap, 1);
    h = (struct sl_kv_header){.type = SL_KV_ABORT, .key = k};
    raw_send(&s, &h, "no", 2);
    rig_wait_dropped(&p, 2);
    assert_false(rig_has(&p, SL_XFER_GRANTED, &k));
    assert_false(rig_has(&p, SL_XFER_SEND_DONE, &k));
    raw_close(&s);
    raw_close(&d);
    rig_close(&p);
}

/* A pair that does not match stays so: P does not knock again with every request. */
static void a_refusal_is_kept_for_a_while(void **state)
{
    static const char text[] = "not\nwith you";
    struct rig_node p;
    struct raw_peer d;
    struct sl_xfer_key k = rig_key("first", 1), again = rig_key("again", 1);
    unsigned char payload[SL_KV_IDENTITY_BYTES + sizeof text];
    (void)state;
    rig_open(&p, &(struct rig_opts){.name = "p0"});
    raw_open(&d, "loop", "d0", 7);
    struct sl_xfer_peer to = raw_ref(&d);
    assert_int_equal(sl_xfer_send_open(p.x, &k, &to, PT, RIG_DEADLINE_MS), SL_OK);
    struct raw_message *m = raw_wait(&d, SL_KV_HELLO);
    assert_true(m->h.value == 7);
    raw_free(m);
    sl_kv_hello_pack(&d.hello, payload);
    memcpy(payload + SL_KV_IDENTITY_BYTES, text, sizeof text);
    struct sl_kv_header h = {.type = SL_KV_HELLO_ACK};
    raw_send(&d, &h, payload, sizeof payload);
    struct sl_xfer_event s = rig_wait(&p, SL_XFER_SEND_DONE, &k);
    assert_int_equal(s.err, SL_EMISMATCH);
    assert_string_equal(s.why, "not?with you");
    raw_wait_closed(&d);
    assert_int_equal(sl_xfer_send_open(p.x, &again, &to, PT, RIG_DEADLINE_MS), SL_OK);
    s = rig_wait(&p, SL_XFER_SEND_DONE, &again);
    assert_string_equal(s.why, "not?with you");
    raw_progress(&d, 1);
    assert_null(d.conn);
    raw_close(&d);
    rig_close(&p);
}

static void a_silent_peer_is_cut_off(void **state)
{
    struct rig_node d;
    struct raw_peer p;
    struct sl_xfer_key k = rig_key("mine", 1);
    struct sl_xfer_peer ref = {.name = "p0", .boot_id = 7};
    uint32_t pages[2] = {0, 1};
    (void)state;
    rig_open(&d, &(struct rig_opts){.name = "d0", .peer_dead_ms = 2000, .heartbeat_ms = 20, .wait_ms = 2000});
    raw_open(&p, "loop", "p0", 7);
    raw_join(&p, &d);
    struct sl_kv_header h = {.type = SL_KV_ANNOUNCE, .key = k, .n_tokens = 2 * PT, .deadline_ms = 60000};
    raw_send(&p, &h, NULL, 0);
    assert_int_equal(sl_xfer_recv_open(d.x, &k, &ref, pages, 2 * PT, 0, RIG_DEADLINE_MS), SL_OK);
    raw_free(raw_wait(&p, SL_KV_GRANT));
    /* from here on it answers no ping */
    struct sl_xfer_event r = rig_wait(&d, SL_XFER_RECV_DONE, &k);
    assert_int_equal(r.err, SL_EPEER);
    assert_string_equal(r.why, "silent for longer than peer_dead_ms");
    raw_wait_closed(&p);
    raw_connect(&p, &d); /* and one that never says hello goes after wait_ms */
    raw_wait_closed(&p);
    raw_close(&p);
    rig_close(&d);
}

static struct raw_message *pass_on(struct raw_peer *from, struct raw_peer *to, enum sl_kv_type type)
{
    struct raw_message *m = raw_wait(from, type);
    raw_send(to, &m->h, m->payload, m->len);
    return m;
}

static void rename_in(struct raw_message *hello, const char *name)
{
    struct sl_kv_hello h;
    assert_int_equal(sl_kv_hello_unpack(hello->payload, hello->len, &h), SL_OK);
    snprintf(h.id.name, sizeof h.id.name, "%s", name);
    sl_kv_hello_pack(&h, hello->payload);
}

/* Someone between two nodes who has heard one handshake cannot make another of it: not again at the same node,
 * whose nonce is another one then, not at a node that was not meant, and not as another node. */
static void proof_heard_counts_only_once_and_where_it_was_meant(void **state)
{
    enum { AGAIN, ELSEWHERE, AS_ANOTHER, N_WAYS };
    static const char *const refused[N_WAYS] = {
        [AGAIN] = "p0 has another cluster secret than d0; give both the same cluster_secret_file",
        [ELSEWHERE] = "p0 has another cluster secret than d0; give both the same cluster_secret_file",
        [AS_ANOTHER] = "p1 has another cluster secret than d0; give both the same cluster_secret_file"};
    (void)state;
    for (int way = 0; way < N_WAYS; way++) {
        struct rig_node p, d;
        struct raw_peer as_d, as_p;
        struct sl_xfer_key k = rig_key("k", 1);
        rig_open(&p, &(struct rig_opts){.name = "p0", .secret = "ours"});
        rig_open(&d, &(struct rig_opts){.name = "d0", .secret = "ours"});
        raw_open(&as_d, "loop", "d1", 1);
        raw_open(&as_p, "loop", "p0", 1);
        struct sl_xfer_peer to = raw_ref(&as_d);
        if (way != ELSEWHERE)
            snprintf(to.name, sizeof to.name, "d0");
        assert_int_equal(sl_xfer_send_open(p.x, &k, &to, PT, RIG_DEADLINE_MS), SL_OK);
        raw_connect(&as_p, &d);
        struct raw_message *hello = raw_wait(&as_d, SL_KV_HELLO);
        if (way == AS_ANOTHER)
            rename_in(hello, "p1");
        raw_send(&as_p, &hello->h, hello->payload, hello->len);
        raw_free(pass_on(&as_p, &as_d, SL_KV_CHALLENGE));
        struct raw_message *proof = pass_on(&as_d, &as_p, SL_KV_PROOF),
                           *ack = raw_wait(&as_p, SL_KV_HELLO_ACK);
        if (way == AGAIN) {
            assert_int_equal(ack->h.flags, SL_KV_FLAG_OK); /* that one was for d0 */
            raw_free(ack);
            raw_connect(&as_p, &d);
            raw_send(&as_p, &hello->h, hello->payload, hello->len);
            raw_free(raw_wait(&as_p, SL_KV_CHALLENGE));
            raw_send(&as_p, &proof->h, proof->payload, proof->len);
            ack = raw_wait(&as_p, SL_KV_HELLO_ACK);
        }
        assert_int_equal(ack->h.flags, 0);
        assert_string_equal((char *)ack->payload + SL_KV_IDENTITY_BYTES, refused[way]);
        /* and what follows counts for nothing */
        raw_send(&as_p, &proof->h, proof->payload, proof->len);
        raw_send(&as_p, &(struct sl_kv_header){.type = SL_KV_ANNOUNCE, .key = k, .n_tokens = PT}, NULL, 0);
        rig_wait_dropped(&d, 2);
        raw_free(ack);
        raw_free(proof);
        raw_free(hello);
        raw_close(&as_p);
        raw_close(&as_d);
        rig_close(&d);
        rig_close(&p);
    }
}

/* Nor can who has heard what D said to P's nonce say it again to the next one. */
static void ack_heard_counts_for_no_other_handshake(void **state)
{
    struct rig_node p, d;
    struct raw_peer as_d, as_p, again;
    struct sl_xfer_key k = rig_key("k", 1), next = rig_key("k", 2);
    (void)state;
    rig_open(&p, &(struct rig_opts){.name = "p0", .secret = "ours"});
    rig_open(&d, &(struct rig_opts){.name = "d0", .secret = "ours"});
    raw_open(&as_d, "loop", "d0", 1);
    raw_open(&as_p, "loop", "p0", 1);
    raw_open(&again, "loop", "d0", 1);
    struct sl_xfer_peer to = raw_ref(&as_d), to_again = raw_ref(&again);
    assert_int_equal(sl_xfer_send_open(p.x, &k, &to, PT, RIG_DEADLINE_MS), SL_OK);
    raw_connect(&as_p, &d);
    raw_free(pass_on(&as_d, &as_p, SL_KV_HELLO));
    struct raw_message *challenge = pass_on(&as_p, &as_d, SL_KV_CHALLENGE);
    raw_free(pass_on(&as_d, &as_p, SL_KV_PROOF));
    struct raw_message *ack = pass_on(&as_p, &as_d, SL_KV_HELLO_ACK);
    raw_free(raw_wait(&as_d, SL_KV_ANNOUNCE)); /* P takes that one */
    assert_int_equal(sl_xfer_send_open(p.x, &next, &to_again, PT, RIG_DEADLINE_MS), SL_OK);
    raw_free(raw_wait(&again, SL_KV_HELLO));
    raw_send(&again, &challenge->h, challenge->payload, challenge->len);
    raw_free(raw_wait(&again, SL_KV_PROOF));
    raw_send(&again, &ack->h, ack->payload, ack->len);
    assert_int_equal(rig_wait(&p, SL_XFER_SEND_DONE, &next).err, SL_EMISMATCH);
    raw_free(ack);
    raw_free(challenge);
    raw_close(&again);
    raw_close(&as_p);
    raw_close(&as_d);
    rig_close(&d);
    rig_close(&p);
}

/* A node that cannot prove the secret is believed nothing, whatever it accepts. */
static void decode_node_that_only_says_yes_is_refused(void **state)
{
    struct rig_node p;
    struct raw_peer d;
    struct sl_xfer_key k = rig_key("k", 1);
    (void)state;
    rig_open(&p, &(struct rig_opts){.name = "p0", .secret = "ours"});
    raw_open(&d, "loop", "d0", 7);
    struct sl_xfer_peer to = raw_ref(&d);
    assert_int_equal(sl_xfer_send_open(p.x, &k, &to, PT, RIG_DEADLINE_MS), SL_OK);
    raw_be_joined(&d);
    struct sl_xfer_event s = rig_wait(&p, SL_XFER_SEND_DONE, &k);
    assert_int_equal(s.err, SL_EMISMATCH);
    assert_string_equal(s.why, "d0 does not prove the cluster secret of p0; give both the same release and "
                               "cluster_secret_file");
    raw_close(&d);
    rig_close(&p);
}

/* Nor is one with another model, though it takes the pair. */
static void decode_node_that_takes_another_model_is_refused(void **state)
{
    struct rig_node p;
    struct raw_peer d;
    struct sl_xfer_key k = rig_key("k", 1);
    (void)state;
    rig_open(&p, &(struct rig_opts){.name = "p0"});
    raw_open(&d, "loop", "d0", 7);
    d.hello.id.model_digest.lo = 0xabc;
    struct sl_xfer_peer to = raw_ref(&d);
    assert_int_equal(sl_xfer_send_open(p.x, &k, &to, PT, RIG_DEADLINE_MS), SL_OK);
    raw_be_joined(&d);
    struct sl_xfer_event s = rig_wait(&p, SL_XFER_SEND_DONE, &k);
    assert_int_equal(s.err, SL_EMISMATCH);
    assert_non_null(strstr(s.why, "model digest differs"));
    raw_close(&d);
    rig_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_hello_nothing_counts),
        cmocka_unit_test(broken_headers_are_counted_and_survived),
        cmocka_unit_test(wild_pages_land_nowhere),
        cmocka_unit_test(page_that_is_landing_is_not_written_by_another_message),
        cmocka_unit_test(session_that_closes_takes_no_more_pages),
        cmocka_unit_test(damaged_page_is_asked_for_when_nothing_lands_any_more),
        cmocka_unit_test(a_stranger_touches_no_session),
        cmocka_unit_test(announce_that_was_not_asked_for_is_refused_in_words),
        cmocka_unit_test(too_many_announces_are_refused_not_forgotten),
        cmocka_unit_test(wild_answers_end_nothing),
        cmocka_unit_test(a_stranger_ends_no_session_of_another),
        cmocka_unit_test(a_refusal_is_kept_for_a_while),
        cmocka_unit_test(proof_heard_counts_only_once_and_where_it_was_meant),
        cmocka_unit_test(ack_heard_counts_for_no_other_handshake),
        cmocka_unit_test(decode_node_that_only_says_yes_is_refused),
        cmocka_unit_test(decode_node_that_takes_another_model_is_refused),
        cmocka_unit_test(a_silent_peer_is_cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
