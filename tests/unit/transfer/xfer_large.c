/* tests/unit/transfer/xfer_large.c - cases of xfer_cases.h with large pages and with many. */
#include "tests/unit/transfer/xfer_cases.h"

#include <unistd.h>

#include "common/base/mem.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define PT       RIG_PAGE_TOKENS
#define BIG_PAGE XFER_BIG_PAGE
#define N_BIG    XFER_N_BIG

void case_large_begin(struct xfer_pair *t, const struct sl_xfer_key *k, uint32_t pages[N_BIG])
{
    rig_iota(pages, N_BIG, 0);
    pair_begin(t, k, N_BIG * PT, pages, 0);
    rig_wait(&t->p, SL_XFER_GRANTED, k);
    assert_int_equal(sl_xfer_send_ready(t->p.x, k, pages, N_BIG * PT), SL_OK);
}

static void open_big(struct xfer_pair *t, const char *transport)
{
    struct rig_opts o = {.head_dim = BIG_PAGE, .n_pages = N_BIG};
    uint32_t pages[N_BIG];
    pair_open(t, transport, &o, &o);
    rig_iota(pages, N_BIG, 0);
    pair_fill(t, 1, pages, N_BIG);
}

/* D's pages are D's alone again: nothing that was under way may still land in them. */
static void own_pages(struct rig_node *d)
{
    for (uint32_t i = 0; i < N_BIG; i++)
        rig_fill(d, i, 1000, i);
}

static void check_owned(const struct rig_node *d)
{
    for (uint32_t i = 0; i < N_BIG; i++)
        if (!rig_page_is(d, i, 1000, i))
            fail_msg("page %u was written after its transfer was over", i);
}

void case_thousands_of_pages_arrive_as_sent(const char *transport)
{
    enum { SESSIONS = 24, EACH = 200 }; /* 4800 pages of 8 KiB, 6 sessions at a time */
    struct xfer_pair t;
    struct rig_opts o = {.head_dim = 256, .n_pages = 6 * EACH};
    pair_open(&t, transport, &o, &o);
    uint32_t *p = sl_xalloc(6 * EACH * sizeof *p), *d = sl_xalloc(6 * EACH * sizeof *d);
    unsigned long long seed = 7;
    rig_iota(p, 6 * EACH, 0);
    rig_iota(d, 6 * EACH, 0);
    for (uint32_t i = 6 * EACH - 1; i > 0; i--) { /* D's pages lie anywhere, P's in runs with holes */
        uint32_t j = (uint32_t)(sl_test_random(&seed) % (i + 1)), v = d[i];
        d[i] = d[j];
        d[j] = v;
        if (i % 17 == 0) {
            v = p[i];
            p[i] = p[i - 1];
            p[i - 1] = v;
        }
    }
    for (uint32_t first = 0; first < SESSIONS; first += 6) {
        for (uint32_t i = 0; i < 6; i++) {
            struct sl_xfer_key k = rig_key("thousands", first + i);
            pair_fill(&t, first + i, p + i * EACH, EACH);
            pair_begin(&t, &k, EACH * PT - 1, d + i * EACH, 0);
            assert_int_equal(sl_xfer_send_ready(t.p.x, &k, p + i * EACH, EACH * PT - 1), SL_OK);
        }
        for (uint32_t i = 0; i < 6; i++) {
            struct sl_xfer_key k = rig_key("thousands", first + i);
            assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k).err, SL_OK);
            assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_OK);
            pair_check(&t, first + i, d + i * EACH, 0, EACH);
        }
    }
    sl_free(p);
    sl_free(d);
    pair_close(&t);
}

/* 22 MB are ready at once: more than may be on the way. */
void case_a_prompt_larger_than_the_window_arrives(const char *transport)
{
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("window", 1);
    struct rig_opts po = {.head_dim = BIG_PAGE, .n_pages = 30, .link_test = true};
    struct rig_opts dopts = {.head_dim = BIG_PAGE, .n_pages = 30};
    uint32_t p[30], d[30];
    pair_open(&t, transport, &po, &dopts);
    rig_iota(p, 30, 0);
    for (uint32_t i = 0; i < 30; i++)
        d[i] = (i * 7) % 30;
    pair_fill(&t, 1, p, 30);
    pair_begin(&t, &k, 30 * PT, d, 0);
    assert_int_equal(sl_xfer_send_ready(t.p.x, &k, p, 30 * PT), SL_OK);
    assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k).err, SL_OK);
    struct sl_xfer_event s = rig_wait(&t.p, SL_XFER_SEND_DONE, &k);
    assert_int_equal(s.err, SL_OK);
    assert_int_equal(s.bytes_after_ready, 30 * t.p.page_bytes);
    assert_true(s.transfer_ms > 0);
    pair_check(&t, 1, d, 0, 30);
    pair_close(&t);
}

void case_large_pages_either_side_gives_up_in_the_middle(const char *transport)
{
    struct xfer_pair t;
    unsigned long long seed = 5;
    open_big(&t, transport);
    for (uint32_t round = 0; round < 12; round++) {
        struct sl_xfer_key k = rig_key("gives-up", round);
        uint32_t pages[N_BIG];
        bool p_gives_up = round % 2;
        rig_clear(&t.d);
        case_large_begin(&t, &k, pages);
        usleep((useconds_t)(sl_test_random(&seed) % 12000));
        if (p_gives_up)
            assert_int_equal(sl_xfer_send_abort(t.p.x, &k, &t.d.peer, "enough"), SL_OK);
        else
            assert_int_equal(sl_xfer_recv_cancel(t.d.x, &k), SL_OK);
        struct sl_xfer_event s = rig_wait(&t.p, SL_XFER_SEND_DONE, &k),
                             r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
        assert_true(r.err == SL_OK || r.err == (p_gives_up ? SL_EPEER : SL_ECANCELED));
        assert_true(s.err == SL_OK || s.err == SL_ECANCELED);
        pair_check(&t, 1, pages, 0, r.n_tokens / PT);
        own_pages(&t.d);
        /* the link and both nodes go on */
        usleep(2000);
        check_owned(&t.d);
        assert_int_equal(sl_xfer_open_sessions(t.p.x), 0);
        assert_int_equal(sl_xfer_open_sessions(t.d.x), 0);
    }
    struct sl_xfer_key k = rig_key("after", 1);
    uint32_t pages[N_BIG];
    case_large_begin(&t, &k, pages);
    assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k).err, SL_OK);
    pair_check(&t, 1, pages, 0, N_BIG);
    pair_close(&t);
}

void case_large_pages_a_node_closes_in_the_middle_and_comes_back(const char *transport)
{
    struct xfer_pair t;
    unsigned long long seed = 6;
    open_big(&t, transport);
    for (uint32_t round = 0; round < 8; round++) {
        struct sl_xfer_key k = rig_key("closes", round);
        uint32_t pages[N_BIG];
        struct rig_node *goes = round % 2 ? &t.p : &t.d;
        struct rig_opts again = {.transport = transport,
                                 .head_dim = BIG_PAGE,
                                 .n_pages = N_BIG,
                                 .name = round % 2 ? "p0" : "d0",
                                 .boot_id = round + 2};
        case_large_begin(&t, &k, pages);
        usleep((useconds_t)(sl_test_random(&seed) % 8000));
        sl_xfer_close(goes->x);
        goes->x = NULL;
        if (goes == &t.p) {
            struct sl_xfer_event r = rig_wait(&t.d, SL_XFER_RECV_DONE, &k);
            assert_true(r.err == SL_OK || r.err == SL_EPEER);
            pair_check(&t, 1, pages, 0, r.n_tokens / PT);
            own_pages(&t.d);
        } else {
            enum sl_err e = rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err;
            assert_true(e == SL_OK || e == SL_EPEER);
        }
        rig_close(goes);
        rig_open(goes, &again);
        if (goes == &t.p) {
            rig_iota(pages, N_BIG, 0);
            pair_fill(&t, 1, pages, N_BIG);
            check_owned(&t.d);
        }
        struct sl_xfer_key next = rig_key("comes-back", round);
        case_large_begin(&t, &next, pages);
        assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &next).err, SL_OK);
        assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &next).err, SL_OK);
        pair_check(&t, 1, pages, 0, N_BIG);
    }
    pair_close(&t);
}
