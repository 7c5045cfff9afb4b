/* tests/unit/transfer/xfer_cases.c - see xfer_cases.h. */
#include "tests/unit/transfer/xfer_cases.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define PT RIG_PAGE_TOKENS

static const struct sl_xfer_first first_token = {.token = 4711,
                                                 .ended = false,
                                                 .logits_digest = 0x0123456789abcdef,
                                                 .has_logprobs = true,
                                                 .logprob = -0.5f,
                                                 .n_top = 2,
                                                 .top_token = {4711, -1},
                                                 .top_logprob = {-0.5f, -1.25f}};

void pair_open(struct xfer_pair *t, const char *transport, const struct rig_opts *p, const struct rig_opts *d)
{
    struct rig_opts po = p ? *p : (struct rig_opts){0}, dopts = d ? *d : (struct rig_opts){0};
    po.transport = dopts.transport = transport;
    po.name = po.name ? po.name : "p0";
    dopts.name = dopts.name ? dopts.name : "d0";
    rig_open(&t->p, &po);
    rig_open(&t->d, &dopts);
}

/* What no session holds any more is in no stage either. */
static void check_unstaged(struct rig_node *n)
{
    if (n->x && sl_xfer_open_sessions(n->x) == 0)
        rig_wait_unstaged(n);
}

void pair_close(struct xfer_pair *t)
{
    check_unstaged(&t->p);
    check_unstaged(&t->d);
    rig_close(&t->p);
    rig_close(&t->d);
}

void pair_fill(struct xfer_pair *t, uint32_t seed, const uint32_t *pages, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        rig_fill(&t->p, pages[i], seed, i);
}

void pair_check(struct xfer_pair *t, uint32_t seed, const uint32_t *pages, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        if (!rig_page_is(&t->d, pages[i], seed, i))
            fail_msg("page %u did not arrive as sent", i);
}

void pair_begin(struct xfer_pair *t, const struct sl_xfer_key *k, uint32_t n_tokens, const uint32_t *d_pages,
                uint32_t have_pages)
{
    assert_int_equal(sl_xfer_recv_open(t->d.x, k, &t->p.peer, d_pages, n_tokens, have_pages, RIG_DEADLINE_MS),
                     SL_OK);
    assert_int_equal(sl_xfer_send_open(t->p.x, k, &t->d.peer, n_tokens, RIG_DEADLINE_MS), SL_OK);
}

static void ready(struct xfer_pair *t, const struct sl_xfer_key *k, const uint32_t *pages, uint32_t n_tokens)
{
    assert_int_equal(sl_xfer_send_ready(t->p.x, k, pages, n_tokens), SL_OK);
}

static void first(struct xfer_pair *t, const struct sl_xfer_key *k)
{
    assert_int_equal(sl_xfer_send_first(t->p.x, k, &first_token), SL_OK);
}

/* What D reports of a transfer comes with RECV_DONE: it must not be able to go on without. */
static void expect_end_told_once(struct xfer_pair *t, const struct sl_xfer_key *k, uint32_t n_tokens)
{
    while (rig_has(&t->d, SL_XFER_RECV_READY, k))
        assert_true(rig_wait(&t->d, SL_XFER_RECV_READY, k).n_tokens < n_tokens);
}

static void expect_done(struct xfer_pair *t, const struct sl_xfer_key *k, enum sl_err p, enum sl_err d)
{
    struct sl_xfer_event s = rig_wait(&t->p, SL_XFER_SEND_DONE, k), r = rig_wait(&t->d, SL_XFER_RECV_DONE, k);
    if (s.err != p || r.err != d)
        fail_msg("%s/%u: P ended with %s \"%s\", D with %s \"%s\"; expected %s and %s", k->request, k->epoch,
                 sl_err_name(s.err), s.why, sl_err_name(r.err), r.why, sl_err_name(p), sl_err_name(d));
}

void pair_transfer(struct xfer_pair *t, const char *request, uint32_t seed)
{
    uint32_t p[5], d[5], n_tokens = 4 * PT + 1;
    struct sl_xfer_key k = rig_key(request, 9);
    rig_iota(p, 5, 50);
    rig_iota(d, 5, 40);
    pair_fill(t, seed, p, 5);
    pair_begin(t, &k, n_tokens, d, 0);
    first(t, &k);
    ready(t, &k, p, n_tokens);
    expect_done(t, &k, SL_OK, SL_OK);
    pair_check(t, seed, d, 0, 5);
}

void case_whole_prompt_arrives_with_its_first_token(const char *transport)
{
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("whole", 3);
    uint32_t p[8], d[8], n_tokens = 7 * PT + 3;
    pair_open(&t, transport, NULL, NULL);
    rig_iota(p, 8, 5);
    rig_iota(d, 8, 20);
    pair_fill(&t, 1, p, 8);
    pair_begin(&t, &k, n_tokens, d, 0);
    assert_int_equal(rig_wait(&t.p, SL_XFER_GRANTED, &k).have_pages, 0);
    first(&t, &k);
    ready(&t, &k, p, n_tokens);
    struct sl_xfer_event s = rig_wait(&t.p, SL_XFER_SEND_DONE, &k), r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
    assert_int_equal(s.err, SL_OK);
    assert_int_equal(s.pages_moved, 8);
    assert_int_equal(s.resends, 0);
    assert_int_equal(s.bytes_after_ready, 8 * t.p.page_bytes);
    assert_int_equal(r.err, SL_OK);
    assert_int_equal(r.n_tokens, n_tokens);
    assert_int_equal(r.pages_moved, 8);
    assert_true(r.has_first);
    assert_int_equal(r.first.token, first_token.token);
    assert_false(r.first.ended);
    assert_true(r.first.logits_digest == first_token.logits_digest);
    assert_true(r.first.has_logprobs && r.first.logprob == first_token.logprob);
    assert_int_equal(r.first.n_top, 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(r.first.top_token[i], first_token.top_token[i]);
        assert_true(r.first.top_logprob[i] == first_token.top_logprob[i]);
    }
    expect_end_told_once(&t, &k, n_tokens);
    pair_check(&t, 1, d, 0, 8);
    for (uint32_t i = 0; i < t.d.n_pages; i++) /* nothing else was touched */
        if (i < 20 || i >= 28)
            assert_int_equal(rig_page(&t.d, i)[7], 0);
    assert_int_equal(sl_xfer_open_sessions(t.p.x), 0);
    assert_int_equal(sl_xfer_open_sessions(t.d.x), 0);
    pair_close(&t);
}

void case_hybrid_split_arrives_without_a_token(const char *transport)
{
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("hybrid", 0);
    uint32_t p[6], d[6];
    pair_open(&t, transport, NULL, NULL);
    rig_iota(p, 6, 0);
    rig_iota(d, 6, 0);
    pair_fill(&t, 2, p, 6);
    pair_begin(&t, &k, 6 * PT, d, 0);
    ready(&t, &k, p, 6 * PT);
    struct sl_xfer_event r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
    assert_int_equal(r.err, SL_OK);
    assert_int_equal(r.n_tokens, 6 * PT);
    assert_false(r.has_first);
    expect_end_told_once(&t, &k, 6 * PT);
    assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_OK);
    pair_check(&t, 2, d, 0, 6);
    pair_close(&t);
}

void case_chunks_are_ready_one_by_one(const char *transport)
{
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("chunks", 1);
    uint32_t p[5], d[5], n_tokens = 4 * PT + 2;
    pair_open(&t, transport, NULL, NULL);
    rig_iota(p, 5, 9);
    rig_iota(d, 5, 33);
    pair_begin(&t, &k, n_tokens, d, 0);
    for (uint32_t done = 0; done < n_tokens;) {
        done = done + 3 < n_tokens ? done + 3 : n_tokens;
        /* pages listed and not yet full must not leave */
        for (uint32_t i = 0; i < 5; i++)
            rig_fill(&t.p, p[i], i < done / PT || done == n_tokens ? 3 : 99, i);
        if (done == n_tokens)
            first(&t, &k);
        ready(&t, &k, p, done);
        if (done == n_tokens)
            break;
        uint32_t full = done / PT * PT;
        if (full > 0 && full > (done - 3) / PT * PT)
            rig_wait_ready(&t.d, &k, full);
        pair_check(&t, 3, d, 0, done / PT);
        assert_false(rig_has(&t.p, SL_XFER_SEND_DONE, &k));
    }
    expect_done(&t, &k, SL_OK, SL_OK);
    pair_check(&t, 3, d, 0, 5);
    pair_close(&t);
}

void case_prefix_hit_is_not_sent(const char *transport)
{
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("hit", 1);
    uint32_t p[8], d[8];
    pair_open(&t, transport, NULL, NULL);
    rig_iota(p, 8, 0);
    rig_iota(d, 8, 8);
    pair_fill(&t, 4, p, 8);
    for (uint32_t i = 0; i < 3; i++)
        rig_fill(&t.d, d[i], 77, i); /* D's own */
    pair_begin(&t, &k, 8 * PT, d, 3);
    assert_int_equal(rig_wait(&t.p, SL_XFER_GRANTED, &k).have_pages, 3);
    first(&t, &k);
    ready(&t, &k, p, 8 * PT);
    struct sl_xfer_event s = rig_wait(&t.p, SL_XFER_SEND_DONE, &k);
    assert_int_equal(s.err, SL_OK);
    assert_int_equal(s.pages_moved, 5);
    assert_int_equal(s.bytes_after_ready, 5 * t.p.page_bytes);
    struct sl_xfer_event r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
    assert_int_equal(r.err, SL_OK);
    assert_int_equal(r.pages_moved, 5);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(rig_page_is(&t.d, d[i], 77, i));
    pair_check(&t, 4, d, 3, 8);
    pair_close(&t);
}

void case_full_prefix_hit_still_brings_the_token(const char *transport)
{
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("all-hit", 1);
    uint32_t p[4], d[4];
    pair_open(&t, transport, NULL, NULL);
    rig_iota(p, 4, 0);
    rig_iota(d, 4, 4);
    pair_begin(&t, &k, 4 * PT, d, 4);
    assert_int_equal(rig_wait(&t.p, SL_XFER_GRANTED, &k).have_pages, 4);
    assert_false(rig_has(&t.d, SL_XFER_RECV_DONE, &k));
    first(&t, &k);
    ready(&t, &k, p, 4 * PT);
    struct sl_xfer_event r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k), s = rig_wait(&t.p, SL_XFER_SEND_DONE, &k);
    assert_int_equal(r.err, SL_OK);
    assert_true(r.has_first);
    assert_int_equal(r.n_tokens, 4 * PT);
    assert_int_equal(s.err, SL_OK);
    assert_int_equal(s.pages_moved, 0);
    pair_close(&t);
}

void case_full_prefix_hit_needs_no_pages_of_the_sender(const char *transport)
{
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("no-pages", 1);
    uint32_t d[4];
    pair_open(&t, transport, NULL, NULL);
    rig_iota(d, 4, 4);
    pair_begin(&t, &k, 4 * PT, d, 4);
    assert_int_equal(rig_wait(&t.p, SL_XFER_GRANTED, &k).have_pages, 4);
    assert_int_equal(sl_xfer_send_ready(t.p.x, &k, NULL, 4 * PT), SL_OK);
    struct sl_xfer_event r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k), s = rig_wait(&t.p, SL_XFER_SEND_DONE, &k);
    assert_int_equal(r.err, SL_OK);
    assert_false(r.has_first);
    assert_int_equal(s.err, SL_OK);
    assert_int_equal(s.pages_moved, 0);
    pair_transfer(&t, "after", 9);
    pair_close(&t);
}

void case_either_side_may_come_first(const char *transport)
{
    struct xfer_pair t;
    uint32_t p[3], d[3];
    pair_open(&t, transport, NULL, NULL);
    rig_iota(p, 3, 0);
    rig_iota(d, 3, 3);
    for (uint32_t order = 0; order < 3; order++) {
        struct sl_xfer_key k = rig_key("order", order), other = rig_key("other", order);
        pair_fill(&t, 50 + order, p, 3);
        if (order > 0)
            assert_int_equal(sl_xfer_send_open(t.p.x, &k, &t.d.peer, 3 * PT, RIG_DEADLINE_MS), SL_OK);
        if (order == 2) {
            /* all is computed and announced before D comes: another session has gone through meanwhile */
            first(&t, &k);
            ready(&t, &k, p, 3 * PT);
            pair_transfer(&t, "between", 60);
            assert_int_equal(sl_xfer_open_sessions(t.p.x), 1);
        }
        assert_int_equal(sl_xfer_recv_open(t.d.x, &k, &t.p.peer, d, 3 * PT, 0, RIG_DEADLINE_MS), SL_OK);
        if (order == 0)
            assert_int_equal(sl_xfer_send_open(t.p.x, &k, &t.d.peer, 3 * PT, RIG_DEADLINE_MS), SL_OK);
        if (order < 2) {
            first(&t, &k);
            ready(&t, &k, p, 3 * PT);
        }
        expect_done(&t, &k, SL_OK, SL_OK);
        pair_check(&t, 50 + order, d, 0, 3);
        assert_false(rig_has(&t.d, SL_XFER_RECV_DONE, &other));
    }
    pair_close(&t);
}

void case_scattered_pages_land_where_the_receiver_says(const char *transport)
{
    static const uint32_t p[7] = {3, 4, 5, 6, 11, 10, 9}, d[7] = {8, 9, 30, 31, 32, 2, 1};
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("scattered", 1);
    pair_open(&t, transport, NULL, NULL);
    pair_fill(&t, 5, p, 7);
    pair_begin(&t, &k, 7 * PT, d, 0);
    ready(&t, &k, p, 7 * PT);
    expect_done(&t, &k, SL_OK, SL_OK);
    pair_check(&t, 5, d, 0, 7);
    pair_close(&t);
}

/* Stages of a request at which one side gives it up. */
enum stage { BEFORE_PEER_OPENS, GRANTED, SOME_PAGES, MOST_PAGES, COMPLETE, N_STAGES };

static void reach(struct xfer_pair *t, enum stage stage, const struct sl_xfer_key *k, const uint32_t *p,
                  uint32_t n)
{
    if (stage == BEFORE_PEER_OPENS)
        return;
    rig_wait(&t->p, SL_XFER_GRANTED, k);
    if (stage == SOME_PAGES) {
        ready(t, k, p, 2 * PT);
        rig_wait_ready(&t->d, k, 2 * PT);
    } else if (stage == MOST_PAGES) {
        ready(t, k, p, (n - 1) * PT);
    } else if (stage == COMPLETE) {
        first(t, k);
        ready(t, k, p, n * PT);
        expect_done(t, k, SL_OK, SL_OK);
    }
}

void case_sender_aborts_at_every_stage(const char *transport)
{
    struct xfer_pair t;
    uint32_t p[12], d[12];
    pair_open(&t, transport, NULL, NULL);
    rig_iota(p, 12, 0);
    rig_iota(d, 12, 12);
    for (uint32_t stage = 0; stage < N_STAGES; stage++) {
        struct sl_xfer_key k = rig_key("p-aborts", stage);
        pair_fill(&t, 10 + stage, p, 12);
        assert_int_equal(sl_xfer_send_open(t.p.x, &k, &t.d.peer, 12 * PT, RIG_DEADLINE_MS), SL_OK);
        if (stage != BEFORE_PEER_OPENS)
            assert_int_equal(sl_xfer_recv_open(t.d.x, &k, &t.p.peer, d, 12 * PT, 0, RIG_DEADLINE_MS), SL_OK);
        reach(&t, stage, &k, p, 12);
        assert_int_equal(sl_xfer_send_abort(t.p.x, &k, &t.d.peer, "the client left"), SL_OK);
        if (stage == COMPLETE) {
            pair_check(&t, 10 + stage, d, 0, 12);
            continue; /* it was over: nothing follows */
        }
        assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_ECANCELED);
        if (stage == BEFORE_PEER_OPENS)
            assert_int_equal(sl_xfer_recv_open(t.d.x, &k, &t.p.peer, d, 12 * PT, 0, RIG_DEADLINE_MS), SL_OK);
        struct sl_xfer_event r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
        assert_int_equal(r.err, SL_EPEER);
        assert_string_equal(r.why, "the client left");
        assert_true(r.n_tokens % PT == 0);
        pair_check(&t, 10 + stage, d, 0, r.n_tokens / PT); /* what D says it has, it has */
        if (stage == SOME_PAGES)
            assert_int_equal(r.n_tokens, 2 * PT);
        pair_transfer(&t, "after", 90 + stage);
    }
    pair_close(&t);
}

void case_receiver_cancels_at_every_stage(const char *transport)
{
    struct xfer_pair t;
    uint32_t p[12], d[12];
    pair_open(&t, transport, NULL, NULL);
    rig_iota(p, 12, 0);
    rig_iota(d, 12, 12);
    for (uint32_t stage = 0; stage < N_STAGES; stage++) {
        struct sl_xfer_key k = rig_key("d-cancels", stage);
        pair_fill(&t, 30 + stage, p, 12);
        assert_int_equal(sl_xfer_recv_open(t.d.x, &k, &t.p.peer, d, 12 * PT, 0, RIG_DEADLINE_MS), SL_OK);
        if (stage != BEFORE_PEER_OPENS)
            assert_int_equal(sl_xfer_send_open(t.p.x, &k, &t.d.peer, 12 * PT, RIG_DEADLINE_MS), SL_OK);
        reach(&t, stage, &k, p, 12);
        assert_int_equal(sl_xfer_recv_cancel(t.d.x, &k), SL_OK);
        if (stage == COMPLETE)
            continue;
        struct sl_xfer_event r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
        assert_int_equal(r.err, SL_ECANCELED);
        assert_false(r.has_first);
        if (stage == BEFORE_PEER_OPENS) /* P learns it when it announces, not at its deadline */
            assert_int_equal(sl_xfer_send_open(t.p.x, &k, &t.d.peer, 12 * PT, RIG_DEADLINE_MS), SL_OK);
        struct sl_xfer_event s = rig_wait(&t.p, SL_XFER_SEND_DONE, &k);
        assert_int_equal(s.err, SL_ECANCELED);
        assert_string_equal(s.why, "the decode node gave it up");
        pair_transfer(&t, "after", 110 + stage);
    }
    pair_close(&t);
}

void case_abort_before_open_leaves_word(const char *transport)
{
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("never-opened", 4);
    uint32_t d[2] = {0, 1};
    pair_open(&t, transport, NULL, NULL);
    assert_int_equal(sl_xfer_send_abort(t.p.x, &k, &t.d.peer, "refused: no pages"), SL_OK);
    assert_int_equal(sl_xfer_recv_open(t.d.x, &k, &t.p.peer, d, 2 * PT, 0, RIG_DEADLINE_MS), SL_OK);
    struct sl_xfer_event r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
    assert_int_equal(r.err, SL_EPEER);
    assert_string_equal(r.why, "refused: no pages");
    assert_false(rig_has(&t.p, SL_XFER_SEND_DONE, &k));
    /* an open that comes after its abort ends as canceled */
    struct sl_xfer_key late = rig_key("late", 1);
    struct sl_xfer_peer nowhere = {.name = "nowhere", .boot_id = 5, .address = "127.0.0.1:1"};
    assert_int_equal(sl_xfer_send_abort(t.p.x, &late, &nowhere, "canceled first"), SL_OK);
    assert_int_equal(sl_xfer_send_open(t.p.x, &late, &nowhere, PT, RIG_DEADLINE_MS), SL_OK);
    enum sl_err e = rig_wait(&t.p, SL_XFER_SEND_DONE, &late).err;
    assert_true(e == SL_ECANCELED || e == SL_EPEER); /* EPEER: the abort had met its closed port already */
    assert_int_equal(sl_xfer_open_sessions(t.p.x), 0);
    pair_transfer(&t, "after", 1);
    pair_close(&t);
}

void case_peer_closes_in_the_middle(const char *transport)
{
    for (int p_closes = 0; p_closes < 2; p_closes++) {
        struct xfer_pair t;
        struct sl_xfer_key k = rig_key("closes", 1), waits = rig_key("waits", 1),
                           silent = rig_key("silent", 1);
        uint32_t p[40], d[40];
        pair_open(&t, transport, NULL, NULL);
        rig_iota(p, 40, 0);
        rig_iota(d, 40, 0);
        pair_fill(&t, 6, p, 40);
        if (p_closes) /* P does not announce this one */
            assert_int_equal(
                sl_xfer_recv_open(t.d.x, &silent, &t.p.peer, (uint32_t[]){40}, PT, 0, RIG_DEADLINE_MS),
                SL_OK);
        pair_begin(&t, &k, 40 * PT, d, 0);
        rig_wait(&t.p, SL_XFER_GRANTED, &k);
        assert_int_equal(sl_xfer_send_open(t.p.x, &waits, &t.d.peer, PT, RIG_DEADLINE_MS), SL_OK);
        ready(&t, &k, p, 3 * PT);
        rig_wait_ready(&t.d, &k, 3 * PT);
        ready(&t, &k, p, 39 * PT);
        if (p_closes) {
            sl_xfer_close(t.p.x);
            t.p.x = NULL;
            assert_false(rig_has(&t.p, SL_XFER_SEND_DONE, &k)); /* who closes needs no events */
            struct sl_xfer_event r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
            assert_int_equal(r.err, SL_EPEER);
            assert_true(r.n_tokens >= 3 * PT && r.n_tokens <= 39 * PT);
            pair_check(&t, 6, d, 0, r.n_tokens / PT);
            assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &silent).err, SL_EPEER);
            assert_int_equal(sl_xfer_open_sessions(t.d.x), 0);
        } else {
            sl_xfer_close(t.d.x);
            t.d.x = NULL;
            assert_false(rig_has(&t.d, SL_XFER_RECV_DONE, &k));
            assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_EPEER);
            assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &waits).err, SL_EPEER);
            assert_int_equal(sl_xfer_open_sessions(t.p.x), 0);
            rig_wait_link(&t.p, "d0", "down");
        }
        pair_close(&t);
    }
}

void case_deadline_ends_both_sides(const char *transport)
{
    struct xfer_pair t;
    struct sl_xfer_key lonely = rig_key("lonely", 1), slow = rig_key("slow", 1), never = rig_key("never", 1);
    uint32_t d[4] = {0, 1, 2, 3};
    /* D opened, P never announces */
    pair_open(&t, transport, NULL, &(struct rig_opts){.wait_ms = 200});
    assert_int_equal(sl_xfer_recv_open(t.d.x, &never, &t.p.peer, d, 4 * PT, 0, RIG_DEADLINE_MS), SL_OK);
    struct sl_xfer_event r = rig_wait(&t.d, SL_XFER_RECV_DONE, &never);
    assert_int_equal(r.err, SL_EPEER);
    assert_int_equal(r.n_tokens, 0);
    pair_close(&t);
    /* nor does it connect: it is not waited for longer than a silent peer is believed */
    pair_open(&t, transport, NULL, &(struct rig_opts){.peer_dead_ms = 200});
    assert_int_equal(sl_xfer_recv_open(t.d.x, &never, &t.p.peer, d, 4 * PT, 0, RIG_DEADLINE_MS), SL_OK);
    assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &never).err, SL_EPEER);
    pair_close(&t);
    /* P announced, D never opens */
    pair_open(&t, transport, NULL, NULL);
    assert_int_equal(sl_xfer_send_open(t.p.x, &lonely, &t.d.peer, 4 * PT, 150), SL_OK);
    assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &lonely).err, SL_EDEADLINE);
    /* granted, and P does not compute: D's deadline, long enough for a slow grant, tells P */
    assert_int_equal(sl_xfer_send_open(t.p.x, &slow, &t.d.peer, 4 * PT, RIG_DEADLINE_MS), SL_OK);
    assert_int_equal(sl_xfer_recv_open(t.d.x, &slow, &t.p.peer, d, 4 * PT, 0, 2000), SL_OK);
    assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &slow).err, SL_EDEADLINE);
    assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &slow).err, SL_ECANCELED);
    /* the other way round: P's deadline is the shorter one, and it tells D */
    slow.epoch++;
    assert_int_equal(sl_xfer_recv_open(t.d.x, &slow, &t.p.peer, d, 4 * PT, 0, RIG_DEADLINE_MS), SL_OK);
    assert_int_equal(sl_xfer_send_open(t.p.x, &slow, &t.d.peer, 4 * PT, 150), SL_OK);
    assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &slow).err, SL_EDEADLINE);
    r = rig_wait(&t.d, SL_XFER_RECV_DONE, &slow);
    assert_int_equal(r.err, SL_EPEER);
    assert_string_equal(r.why, "the deadline passed");
    pair_transfer(&t, "after", 1);
    pair_close(&t);
}

static void other_model(struct sl_xfer_identity *id)
{
    id->model_digest.lo = 0xabc;
}
static void other_numerics(struct sl_xfer_identity *id)
{
    id->numerics_id = 0x77;
}
static void other_layers(struct sl_xfer_identity *id)
{
    id->geometry.n_layers = 3;
}
static void other_dtype(struct sl_xfer_identity *id)
{
    id->geometry.dtype = SL_F16;
}

void case_mismatch_is_refused_in_words(const char *transport)
{
    static const struct {
        void (*edit)(struct sl_xfer_identity *);
        const char *why;
    } cases[] = {
        {other_model, "model digest differs: 000000000000000b at d0, 0000000000000abc at p0"},
        {other_numerics, "numerics id differs: 0000000000000021 at d0, 0000000000000077 at p0"},
        {other_layers, "number of layers differs: 2 at d0, 3 at p0"},
        {other_dtype, "KV data type differs: BF16 at d0, F16 at p0"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct xfer_pair t;
        struct sl_xfer_key k = rig_key("mismatch", 1), again = rig_key("mismatch", 2);
        struct sl_xfer_key of_another = rig_key("mismatch", 3), canceled = rig_key("mismatch", 4);
        struct sl_xfer_peer another = {.name = "p1", .boot_id = 1};
        uint32_t d[3] = {0, 1, 2};
        pair_open(&t, transport, &(struct rig_opts){.edit = cases[i].edit}, NULL);
        /* D, which would wait for pages of p0 in vain, hears of it at once */
        assert_int_equal(sl_xfer_recv_open(t.d.x, &k, &t.p.peer, d, PT, 0, RIG_DEADLINE_MS), SL_OK);
        assert_int_equal(sl_xfer_recv_open(t.d.x, &of_another, &another, d + 1, PT, 0, RIG_DEADLINE_MS),
                         SL_OK);
        assert_int_equal(sl_xfer_recv_open(t.d.x, &canceled, &another, d + 2, PT, 0, RIG_DEADLINE_MS), SL_OK);
        assert_int_equal(sl_xfer_recv_cancel(t.d.x, &canceled), SL_OK);
        rig_wait(&t.d, SL_XFER_RECV_DONE, &canceled); /* its thread has all three */
        assert_int_equal(sl_xfer_send_open(t.p.x, &k, &t.d.peer, PT, RIG_DEADLINE_MS), SL_OK);
        struct sl_xfer_event s = rig_wait(&t.p, SL_XFER_SEND_DONE, &k);
        assert_int_equal(s.err, SL_EMISMATCH);
        assert_string_equal(s.why, cases[i].why);
        struct sl_link_report r = rig_wait_link(&t.p, "d0", "refused");
        assert_string_equal(r.why, cases[i].why);
        /* not dialled again at once, and the reason is kept */
        assert_int_equal(sl_xfer_send_open(t.p.x, &again, &t.d.peer, PT, RIG_DEADLINE_MS), SL_OK);
        s = rig_wait(&t.p, SL_XFER_SEND_DONE, &again);
        assert_string_equal(s.why, cases[i].why);
        s = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
        assert_int_equal(s.err, SL_EPEER);
        assert_string_equal(s.why, cases[i].why);
        assert_false(rig_has(&t.d, SL_XFER_RECV_DONE, &of_another));
        pair_close(&t);
    }
}

void case_cluster_secret_is_proven_both_ways(const char *transport)
{
    static const struct {
        const char *p, *d, *why; /* why: NULL = they pair */
    } cases[] = {
        {"ours", "ours", NULL},
        {"theirs", "ours", "p0 has another cluster secret than d0; give both the same cluster_secret_file"},
        {NULL, "ours", "d0 has a cluster secret and p0 has none; set cluster_secret_file at p0"},
        {"ours", NULL, "p0 has a cluster secret and d0 has none; set cluster_secret_file at d0"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct xfer_pair t;
        struct sl_xfer_key k = rig_key("secret", 1);
        uint32_t d[1] = {3};
        pair_open(&t, transport, &(struct rig_opts){.secret = cases[i].p},
                  &(struct rig_opts){.secret = cases[i].d});
        if (cases[i].why) {
            pair_begin(&t, &k, PT, d, 0);
            struct sl_xfer_event s = rig_wait(&t.p, SL_XFER_SEND_DONE, &k);
            assert_int_equal(s.err, SL_EMISMATCH);
            assert_string_equal(s.why, cases[i].why);
            assert_string_equal(rig_wait_link(&t.p, "d0", "refused").why, cases[i].why);
            assert_false(rig_has(&t.p, SL_XFER_GRANTED, &k));
        } else {
            pair_transfer(&t, "secret", 1);
        }
        pair_close(&t);
    }
}

void case_new_boot_id_fences_the_old(const char *transport)
{
    struct xfer_pair t;
    struct rig_node reborn;
    struct sl_xfer_key k = rig_key("old", 1), stale = rig_key("stale", 1);
    uint32_t p[4], d[4];
    pair_open(&t, transport, NULL, NULL);
    rig_iota(p, 4, 0);
    rig_iota(d, 4, 0);
    pair_fill(&t, 8, p, 4);
    pair_begin(&t, &k, 4 * PT, d, 0);
    rig_wait(&t.p, SL_XFER_GRANTED, &k);
    ready(&t, &k, p, 2 * PT);
    rig_wait_ready(&t.d, &k, 2 * PT);

    /* P is started again under its name while the old process still hangs about: D listens to the new one
     * only */
    rig_open(&reborn, &(struct rig_opts){.transport = transport, .name = "p0", .boot_id = 2});
    struct sl_xfer_key fresh = rig_key("fresh", 1);
    for (uint32_t i = 0; i < 4; i++)
        rig_fill(&reborn, i, 9, i);
    uint32_t d2[4] = {10, 11, 12, 13};
    assert_int_equal(sl_xfer_recv_open(t.d.x, &fresh, &reborn.peer, d2, 4 * PT, 0, RIG_DEADLINE_MS), SL_OK);
    assert_int_equal(sl_xfer_send_open(reborn.x, &fresh, &t.d.peer, 4 * PT, RIG_DEADLINE_MS), SL_OK);
    assert_int_equal(sl_xfer_send_ready(reborn.x, &fresh, p, 4 * PT), SL_OK);
    assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &fresh).err, SL_OK);
    struct sl_xfer_event r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
    assert_int_equal(r.err, SL_EPEER);
    assert_int_equal(r.n_tokens, 2 * PT);
    assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_EPEER);
    pair_check(&t, 9, d2, 0, 4);
    rig_close(&reborn);

    /* D is named by a boot id it does not have: refused, and the good link to it lives on */
    pair_transfer(&t, "good", 12);
    struct sl_xfer_peer old_d = t.d.peer;
    old_d.boot_id = 99;
    pair_begin(&t, &k, 4 * PT, d, 0);
    rig_wait(&t.p, SL_XFER_GRANTED, &k);
    assert_int_equal(sl_xfer_send_open(t.p.x, &stale, &old_d, PT, RIG_DEADLINE_MS), SL_OK);
    assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &stale).err, SL_EPEER);
    ready(&t, &k, p, 4 * PT);
    expect_done(&t, &k, SL_OK, SL_OK);
    pair_close(&t);
}

/* The old process hangs about, its connection still up. */
void case_decode_node_started_again_is_one_link(const char *transport)
{
    struct xfer_pair t;
    struct rig_node old;
    struct sl_link_report r[4];
    size_t n = 0;
    pair_open(&t, transport, NULL, NULL);
    pair_transfer(&t, "before", 1);
    rig_wait_link(&t.p, "d0", "up");
    old = t.d;
    rig_open(&t.d, &(struct rig_opts){.transport = transport, .name = "d0", .boot_id = 2});
    pair_transfer(&t, "after", 2);
    for (uint64_t end = sl_now_ms() + RIG_WAIT_MS; sl_now_ms() < end; usleep(2000)) {
        n = sl_xfer_links(t.p.x, r, SL_COUNTOF(r));
        if (n == 1 && r[0].peer_boot_id == 2 && r[0].pages_sent > 0)
            break;
    }
    assert_int_equal(n, 1);
    assert_string_equal(r[0].state, "up");
    assert_true(r[0].pages_sent < sl_xfer_totals(t.p.x).pages_sent); /* those to the old start beside it */
    rig_close(&old);
    pair_close(&t);
}

void case_unreachable_peer_ends_the_session(const char *transport)
{
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("nobody", 1);
    struct sl_xfer_peer nobody = {.name = "d9", .boot_id = 1, .address = "127.0.0.1:1"};
    pair_open(&t, transport, NULL, NULL);
    assert_int_equal(sl_xfer_send_open(t.p.x, &k, &nobody, PT, RIG_DEADLINE_MS), SL_OK);
    assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_EPEER);
    assert_int_equal(sl_xfer_open_sessions(t.p.x), 0);
    snprintf(nobody.address, sizeof nobody.address, "not an address");
    k.epoch++;
    assert_int_equal(sl_xfer_send_open(t.p.x, &k, &nobody, PT, RIG_DEADLINE_MS), SL_OK);
    assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_EPEER);
    pair_transfer(&t, "after", 1);
    pair_close(&t);
}

void case_many_sessions_share_the_link(const char *transport)
{
    enum { N = 60, EACH = 4 };
    struct xfer_pair t;
    struct sl_xfer_key there[N], back[N];
    struct rig_opts o = {.n_pages = 4 * N * EACH};
    uint32_t pages[EACH];
    pair_open(&t, transport, &o, &o);
    for (uint32_t i = 0; i < N; i++) { /* both nodes are P and D */
        char id[32];
        snprintf(id, sizeof id, "many-%u", i);
        there[i] = rig_key(id, 0);
        back[i] = rig_key(id, 1);
        rig_iota(pages, EACH, i * EACH);
        for (uint32_t j = 0; j < EACH; j++)
            rig_fill(&t.p, pages[j], i, j);
        rig_iota(pages, EACH, (N + i) * EACH);
        for (uint32_t j = 0; j < EACH; j++)
            rig_fill(&t.d, pages[j], 1000 + i, j);
    }
    for (uint32_t i = 0; i < N; i++) {
        rig_iota(pages, EACH, i * EACH);
        assert_int_equal(sl_xfer_send_open(t.p.x, &there[i], &t.d.peer, EACH * PT, RIG_DEADLINE_MS), SL_OK);
        assert_int_equal(sl_xfer_recv_open(t.d.x, &there[i], &t.p.peer, pages, EACH * PT, 0, RIG_DEADLINE_MS),
                         SL_OK);
        assert_int_equal(sl_xfer_send_ready(t.p.x, &there[i], pages, EACH * PT), SL_OK);
        rig_iota(pages, EACH, (N + i) * EACH);
        assert_int_equal(sl_xfer_recv_open(t.p.x, &back[i], &t.d.peer, pages, EACH * PT, 0, RIG_DEADLINE_MS),
                         SL_OK);
        assert_int_equal(sl_xfer_send_open(t.d.x, &back[i], &t.p.peer, EACH * PT, RIG_DEADLINE_MS), SL_OK);
        assert_int_equal(sl_xfer_send_ready(t.d.x, &back[i], pages, EACH * PT), SL_OK);
    }
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &there[i]).err, SL_OK);
        assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &there[i]).err, SL_OK);
        assert_int_equal(rig_wait(&t.d, SL_XFER_SEND_DONE, &back[i]).err, SL_OK);
        assert_int_equal(rig_wait(&t.p, SL_XFER_RECV_DONE, &back[i]).err, SL_OK);
        for (uint32_t j = 0; j < EACH; j++) {
            assert_true(rig_page_is(&t.d, i * EACH + j, i, j));
            assert_true(rig_page_is(&t.p, (N + i) * EACH + j, 1000 + i, j));
        }
    }
    pair_close(&t);
    /* one more than max_sessions is refused, and the place comes back */
    struct rig_opts few = {.max_sessions = 2};
    pair_open(&t, transport, &few, NULL);
    assert_int_equal(sl_xfer_send_open(t.p.x, &there[0], &t.d.peer, PT, RIG_DEADLINE_MS), SL_OK);
    assert_int_equal(sl_xfer_send_open(t.p.x, &there[1], &t.d.peer, PT, RIG_DEADLINE_MS), SL_OK);
    assert_int_equal(sl_xfer_send_open(t.p.x, &there[2], &t.d.peer, PT, RIG_DEADLINE_MS), SL_EAGAIN);
    assert_int_equal(sl_xfer_send_abort(t.p.x, &there[0], &t.d.peer, ""), SL_OK);
    rig_wait(&t.p, SL_XFER_SEND_DONE, &there[0]);
    assert_int_equal(sl_xfer_send_open(t.p.x, &there[2], &t.d.peer, PT, RIG_DEADLINE_MS), SL_OK);
    pair_close(&t);
}

void case_link_is_measured(const char *transport)
{
    struct xfer_pair t;
    pair_open(&t, transport, &(struct rig_opts){.link_test = true}, NULL);
    pair_transfer(&t, "measured", 1);
    struct sl_link_report r = rig_wait_link(&t.p, "d0", "up");
    while (r.pages_sent < 5) { /* reports are made some times a second */
        usleep(1000);
        r = rig_wait_link(&t.p, "d0", "up");
    }
    assert_true(r.bytes_per_s > 0);
    assert_true(r.latency_us > 0);
    assert_int_equal(r.pages_sent, 5);
    assert_int_equal(r.bytes_sent, 5 * t.p.page_bytes);
    assert_true(r.peer_boot_id == 1);
    assert_true(strncmp(r.transport, transport, strlen(transport)) == 0);
    assert_int_equal(sl_xfer_links(t.d.x, &r, 1), 0); /* D has dialled nobody */
    pair_close(&t);
}

static uint64_t cpu_us(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000u +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

void case_idle_transfer_takes_no_cpu(const char *transport)
{
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("idle", 1);
    uint32_t d[4] = {0, 1, 2, 3}, p[4] = {0, 1, 2, 3};
    pair_open(&t, transport, NULL, NULL);
    pair_begin(&t, &k, 4 * PT, d, 0);
    rig_wait(&t.p, SL_XFER_GRANTED, &k);
    ready(&t, &k, p, 2 * PT);
    rig_wait_ready(&t.d, &k, 2 * PT);
    uint64_t wall = sl_now_us(), cpu = cpu_us();
    usleep(500000);
    wall = sl_now_us() - wall;
    cpu = cpu_us() - cpu;
    print_message("idle %s: %.2f %% of a CPU for both ends\n", transport, (double)cpu * 100 / (double)wall);
    assert_true(cpu * 4 < wall); /* a busy loop takes all of it, an idle pair some tenths of a percent */
    pair_close(&t);
}
