/* tests/unit/transfer/test_transfer_device.c - pages on a device, which go through a stage: what it alone can get wrong
 * (few slots for many pages, pages that came when there was none, a device at one side only, ends in the middle, after
 * which no page stays in it), and the cases of a transport that it takes part in, over UCX and the fake NCCL. Those of
 * the loop all run with pages on devices in unit.transfer.transfer_loop_device. */
#include "tests/unit/transfer/raw_peer.h"
#include "tests/unit/transfer/xfer_cases.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/transfer/kv_wire.h"
#include "common/transfer/link_loop.h"
#include "common/transfer/ucx_load.h"
#include "kernels/cuda/cuda_dev.h"
#include "kernels/cuda/emulation/cu_emu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define PT      RIG_PAGE_TOKENS
#define N_PAGES 30u
#define HEAD    1024u /* pages of 32 KiB: rendezvous where many are in a message */

static const struct rig_opts few_slots = {.n_pages = N_PAGES, .head_dim = HEAD, .stage_bytes = 1};

/* Pages of either side lie anywhere: backwards at P, in steps at D. */
static void lists(uint32_t p[N_PAGES], uint32_t d[N_PAGES])
{
    for (uint32_t i = 0; i < N_PAGES; i++) {
        p[i] = N_PAGES - 1 - i;
        d[i] = i * 7 % N_PAGES;
    }
}

static void expect(struct xfer_pair *t, const struct sl_xfer_key *k, enum sl_err p, enum sl_err d)
{
    assert_int_equal(rig_wait(&t->d, SL_XFER_RECV_DONE, k).err, d);
    assert_int_equal(rig_wait(&t->p, SL_XFER_SEND_DONE, k).err, p);
}

static void host_that_touches_a_page_of_the_device_dies(void **state)
{
    (void)state;
    struct rig_node n;
    int status = 0;
    rig_set_devices("n");
    rig_open(&n, &(struct rig_opts){0});
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* cmocka's, or a sanitizer's */
        _exit(*(volatile uint8_t *)n.device.kv->base & 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    rig_close(&n);
}

/* Five slots, one of them kept: P sends four pages a message, and D, whose peer may send all it has in one, lets most of them wait. */
static void carry_many_pages(const char *devices, const char *transport, const struct rig_opts *o)
{
    struct xfer_pair t;
    uint32_t p[N_PAGES], d[N_PAGES];
    rig_set_devices(devices);
    lists(p, d);
    pair_open(&t, transport, o, o);
    if (!strchr(devices, 'p'))
        rig_iota(p, N_PAGES, 0); /* neighbours at the host, so that a message has many */
    for (uint32_t round = 0; round < 2; round++) {
        struct sl_xfer_key k = rig_key("few", round);
        pair_fill(&t, round, p, N_PAGES);
        pair_begin(&t, &k, N_PAGES * PT - 1, d, 0);
        assert_int_equal(sl_xfer_send_ready(t.p.x, &k, p, N_PAGES * PT - 1), SL_OK);
        expect(&t, &k, SL_OK, SL_OK);
        pair_check(&t, round, d, 0, N_PAGES);
    }
    pair_close(&t);
}

static void few_slots_carry_many_pages_whoever_has_a_device(void **state)
{
    static const char *const devices[] = {"pd", "p", "d"}, *const transports[] = {"loop", "ucx"};
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(devices); i++)
        for (size_t j = 0; j < SL_COUNTOF(transports); j++)
            carry_many_pages(devices[i], transports[j], &few_slots);
}

/* ---- a UCX that takes memory of the device: this one, with that memory brought to the host and back ---- */

static struct {
    struct sl_ucx real;
    ucs_status_t status;
    uint64_t memory_types;
    atomic_uint sent, received, mapped;
} cuda_ucx;

static ucs_status_t query_cuda(ucp_context_h context, ucp_context_attr_t *a)
{
    (void)context;
    assert_int_equal(a->field_mask, UCP_ATTR_FIELD_MEMORY_TYPES);
    a->memory_types = cuda_ucx.memory_types;
    return cuda_ucx.status;
}

static bool is_cuda(const ucp_request_param_t *p)
{
    return p->op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE && p->memory_type == UCS_MEMORY_TYPE_CUDA;
}

static void device_copy(void *to, const void *from, size_t n)
{
    cu_emu_memory_open(0);
    memcpy(to, from, n);
    cu_emu_memory_close();
}

/* A payload of the device, in memory of the host meanwhile. */
struct brought {
    void *host, *device;
    size_t n;
    ucp_request_param_t p; /* the caller's */
};

static struct brought *brought_new(const void *device, size_t n, const ucp_request_param_t *p,
                                   ucp_request_param_t *mine)
{
    struct brought *b = sl_xalloc(sizeof *b);
    *b = (struct brought){sl_xalloc(n), (void *)(uintptr_t)device, n, *p};
    *mine = *p;
    mine->op_attr_mask &= ~(uint32_t)UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    mine->user_data = b;
    return b;
}

static void brought_free(struct brought *b)
{
    sl_free(b->host);
    sl_free(b);
}

static void brought_left(void *request, ucs_status_t status, void *arg)
{
    struct brought *b = arg;
    b->p.cb.send(request, status, b->p.user_data);
    brought_free(b);
}

static ucs_status_ptr_t send_cuda(ucp_ep_h ep, unsigned id, const void *header, size_t header_len,
                                  const void *payload, size_t n, const ucp_request_param_t *p)
{
    ucp_request_param_t mine;
    if (!is_cuda(p))
        return cuda_ucx.real.am_send_nbx(ep, id, header, header_len, payload, n, p);
    struct brought *b = brought_new(payload, n, p, &mine);
    device_copy(b->host, payload, n);
    mine.cb.send = brought_left;
    atomic_fetch_add(&cuda_ucx.sent, 1);
    ucs_status_ptr_t r = cuda_ucx.real.am_send_nbx(ep, id, header, header_len, b->host, n, &mine);
    if (!UCS_PTR_IS_PTR(r))
        brought_free(b);
    return r;
}

static void brought_landed(void *request, ucs_status_t status, size_t length, void *arg)
{
    struct brought *b = arg;
    if (status == UCS_OK)
        device_copy(b->device, b->host, b->n);
    b->p.cb.recv_am(request, status, length, b->p.user_data);
    brought_free(b);
}

static ucs_status_ptr_t recv_cuda(ucp_worker_h worker, void *data, void *dst, size_t n,
                                  const ucp_request_param_t *p)
{
    ucp_request_param_t mine;
    if (!is_cuda(p))
        return cuda_ucx.real.am_recv_data_nbx(worker, data, dst, n, p);
    struct brought *b = brought_new(dst, n, p, &mine);
    mine.cb.recv_am = brought_landed;
    atomic_fetch_add(&cuda_ucx.received, 1);
    ucs_status_ptr_t r = cuda_ucx.real.am_recv_data_nbx(worker, data, b->host, n, &mine);
    if (r == NULL)
        device_copy(dst, b->host, n);
    if (!UCS_PTR_IS_PTR(r))
        brought_free(b);
    return r;
}

static ucs_status_t map_cuda(ucp_context_h context, const ucp_mem_map_params_t *p, ucp_mem_h *out)
{
    static char some[4096];
    ucp_mem_map_params_t mine = *p;
    if (p->field_mask & UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE && p->memory_type == UCS_MEMORY_TYPE_CUDA) {
        mine.field_mask &= ~(uint64_t)UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
        mine.address = some;
        mine.length = sizeof some;
        atomic_fetch_add(&cuda_ucx.mapped, 1);
    }
    return cuda_ucx.real.mem_map(context, &mine, out);
}

static void set_cuda_ucx(ucs_status_t status, uint64_t memory_types)
{
    struct sl_why why;
    assert_int_equal(sl_ucx_load(&why), SL_OK);
    cuda_ucx.real = sl_ucx;
    cuda_ucx.status = status;
    cuda_ucx.memory_types = memory_types;
    sl_ucx.context_query = query_cuda;
    sl_ucx.am_send_nbx = send_cuda;
    sl_ucx.am_recv_data_nbx = recv_cuda;
    sl_ucx.mem_map = map_cuda;
}

static void ucx_takes_the_device_when_it_says_so(void **state)
{
    static const struct {
        ucs_status_t status;
        uint64_t memory_types;
        bool takes;
    } cases[] = {{UCS_OK, UCS_BIT(UCS_MEMORY_TYPE_HOST), false},
                 {UCS_OK, UCS_BIT(UCS_MEMORY_TYPE_HOST) | UCS_BIT(UCS_MEMORY_TYPE_CUDA), true},
                 {UCS_OK, UCS_BIT(UCS_MEMORY_TYPE_HOST) | UCS_BIT(UCS_MEMORY_TYPE_ROCM), false},
                 {UCS_ERR_UNSUPPORTED, UCS_BIT(UCS_MEMORY_TYPE_CUDA), false}};
    const struct sl_link_conf conf = {.listen = "127.0.0.1:0"}, nowhere = {.listen = "no address"};
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        set_cuda_ucx(cases[i].status, cases[i].memory_types);
        assert_int_equal(sl_link_ucx.takes_device(&conf), cases[i].takes);
        assert_false(sl_link_ucx.takes_device(&nowhere));
        sl_ucx = cuda_ucx.real;
    }
}

/* Pages that come by rendezvous go from slot to slot of the devices; those that came eagerly are in host memory, and go
 * through the host's. */
static void pages_go_from_the_device_when_ucx_takes_it(void **state)
{
    static const char *const devices[] = {"pd", "p", "d"};
    /* a message of a MiB, and one of 7.5 KiB */
    const struct rig_opts large = {.n_pages = N_PAGES, .head_dim = HEAD}, small = {.n_pages = N_PAGES};
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(devices); i++) {
        bool p = strchr(devices[i], 'p'), d = strchr(devices[i], 'd');
        set_cuda_ucx(UCS_OK, UCS_BIT(UCS_MEMORY_TYPE_HOST) | UCS_BIT(UCS_MEMORY_TYPE_CUDA));
        atomic_store(&cuda_ucx.sent, 0);
        atomic_store(&cuda_ucx.received, 0);
        atomic_store(&cuda_ucx.mapped, 0);
        carry_many_pages(devices[i], "ucx", &large);
        assert_int_equal(atomic_load(&cuda_ucx.sent) > 0, p);
        assert_int_equal(atomic_load(&cuda_ucx.received) > 0, d);
        assert_int_equal(atomic_load(&cuda_ucx.mapped), p + d);
        atomic_store(&cuda_ucx.received, 0);
        carry_many_pages(devices[i], "ucx", &small);
        assert_int_equal(atomic_load(&cuda_ucx.received), 0);
        sl_ucx = cuda_ucx.real;
    }
}

static enum sl_loop_fault hold_pages(void *arg, const void *header, size_t header_len, size_t payload_len)
{
    struct sl_kv_header h;
    (void)arg;
    (void)payload_len;
    return sl_kv_header_unpack(header, header_len, &h) == SL_OK && h.type == SL_KV_PAGES ? SL_LOOP_HOLD
                                                                                         : SL_LOOP_DELIVER;
}

static void wait_staged(struct rig_node *n, uint32_t pages)
{
    for (uint64_t end = sl_now_ms() + RIG_WAIT_MS; sl_xfer_staged_pages(n->x) < pages; usleep(1000))
        if (sl_now_ms() > end)
            fail_msg("%u pages come into the stage of %s, not %u", sl_xfer_staged_pages(n->x), n->peer.name,
                     pages);
}

/* Pages are held between the nodes, in slots and beside them, when one side gives up or closes: nobody is told of an
 * end before they are out of the stage or the connection is gone, and then they are. */
static void ends_in_the_middle_leave_no_page_in_the_stage(void **state)
{
    enum { P_ABORTS, D_CANCELS, P_CLOSES, D_CLOSES, N_WAYS };
    (void)state;
    rig_set_devices("pd");
    for (int way = 0; way < N_WAYS; way++) {
        struct xfer_pair t;
        struct sl_xfer_key k = rig_key("middle", 1);
        uint32_t p[N_PAGES], d[N_PAGES];
        lists(p, d);
        sl_link_loop_set_fault(hold_pages, NULL);
        pair_open(&t, "loop", &(struct rig_opts){.n_pages = N_PAGES, .head_dim = HEAD}, &few_slots);
        pair_fill(&t, 1, p, N_PAGES);
        pair_begin(&t, &k, N_PAGES * PT, d, 0);
        assert_int_equal(sl_xfer_send_ready(t.p.x, &k, p, N_PAGES * PT), SL_OK);
        wait_staged(&t.p, 1);
        wait_staged(&t.d, 1);
        struct rig_node *left = way == P_CLOSES ? &t.d : &t.p;
        if (way == P_ABORTS || way == D_CANCELS) {
            assert_int_equal(way == P_ABORTS ? sl_xfer_send_abort(t.p.x, &k, &t.d.peer, "enough")
                                             : sl_xfer_recv_cancel(t.d.x, &k),
                             SL_OK);
            struct sl_xfer_key other = rig_key("other", 1); /* both have read what was said */
            pair_begin(&t, &other, PT, p, 1);
            rig_wait(&t.p, SL_XFER_GRANTED, &other);
            assert_int_equal(sl_xfer_send_ready(t.p.x, &other, NULL, PT), SL_OK);
            expect(&t, &other, SL_OK, SL_OK);
            assert_false(rig_has(&t.d, SL_XFER_RECV_DONE, &k));
            assert_false(rig_has(&t.p, SL_XFER_SEND_DONE, &k));
            sl_link_loop_set_fault(NULL, NULL);
            sl_link_loop_release();
            expect(&t, &k, SL_ECANCELED, way == P_ABORTS ? SL_EPEER : SL_ECANCELED);
            rig_wait_unstaged(&t.d);
        } else {
            struct rig_node *goes = way == P_CLOSES ? &t.p : &t.d;
            sl_xfer_close(goes->x);
            goes->x = NULL;
            assert_int_equal(rig_wait(left, way == P_CLOSES ? SL_XFER_RECV_DONE : SL_XFER_SEND_DONE, &k).err,
                             SL_EPEER);
        }
        rig_wait_unstaged(left);
        sl_link_loop_set_fault(NULL, NULL);
        pair_close(&t);
    }
}

/* A mover that moves nothing before it may, and then takes longer for each payload than a round of the link, which
 * brings up to 64 messages. */
enum { BURST = 600, ROUND_MESSAGES = 64, ROUNDS_PER_MOVE = 8, SLOTS = 5 };
static struct {
    struct sl_kv_mover_ops ops;
    int (*done)(struct sl_kv_mover *m, uint64_t ticket);
    atomic_bool may;
    _Atomic(struct sl_xfer *) x;
    atomic_uint most_staged;
    uint32_t asked; /* the transfer thread's */
} slow;

static int slow_done(struct sl_kv_mover *m, uint64_t ticket)
{
    struct sl_xfer *x = atomic_load(&slow.x);
    uint32_t staged = x ? sl_xfer_staged_pages(x) : 0;
    if (staged > atomic_load(&slow.most_staged))
        atomic_store(&slow.most_staged, staged);
    return atomic_load(&slow.may) && ++slow.asked % ROUNDS_PER_MOVE == 0 ? slow.done(m, ticket) : 0;
}

static const struct sl_kv_mover_ops *slow_mover(const struct sl_kv_mover_ops *of)
{
    slow.ops = *of;
    slow.done = of->done;
    slow.ops.done = slow_done;
    return &slow.ops;
}

static void peer_faster_than_the_mover_waits(void **state)
{
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("burst", 1);
    uint32_t p[BURST], d[BURST];
    (void)state;
    for (uint32_t i = 0; i < BURST; i++) { /* no neighbours at P: a message a page */
        p[i] = BURST - 1 - i;
        d[i] = i * 7 % BURST;
    }
    rig_set_devices("d");
    pair_open(&t, "loop", &(struct rig_opts){.n_pages = BURST},
              &(struct rig_opts){.n_pages = BURST, .stage_bytes = 1, .mover = slow_mover});
    atomic_store(&slow.x, t.d.x);
    pair_fill(&t, 1, p, BURST);
    pair_begin(&t, &k, BURST * PT, d, 0);
    assert_int_equal(sl_xfer_send_ready(t.p.x, &k, p, BURST * PT), SL_OK);
    for (uint64_t end = sl_now_ms() + RIG_WAIT_MS; sl_xfer_totals(t.p.x).pages_sent < BURST; usleep(1000))
        if (sl_now_ms() > end)
            fail_msg("the link does not take all pages");
    atomic_store(&slow.may, true);
    expect(&t, &k, SL_OK, SL_OK);
    pair_check(&t, 1, d, 0, BURST);
    /* slots, as many beside them, and what one round brings */
    assert_in_range(atomic_load(&slow.most_staged), SLOTS, 2 * SLOTS + ROUND_MESSAGES);
    pair_close(&t);
}

static enum sl_loop_fault hold_slow_pages(void *arg, const void *header, size_t header_len,
                                          size_t payload_len)
{
    struct sl_kv_header h;
    bool hit = hold_pages(arg, header, header_len, payload_len) == SL_LOOP_HOLD &&
               sl_kv_header_unpack(header, header_len, &h) == SL_OK && strcmp(h.key.request, "slow") == 0;
    return hit ? SL_LOOP_HOLD : SL_LOOP_DELIVER;
}

/* Payloads that a link has yet to bring hold all slots but the kept one, through which others go. */
static void slow_payloads_do_not_hold_up_those_that_have_landed(void **state)
{
    struct xfer_pair t;
    struct sl_xfer_key held = rig_key("slow", 1), k = rig_key("fast", 1);
    uint32_t p[N_PAGES], d[N_PAGES], e[N_PAGES];
    (void)state;
    lists(p, d);
    for (uint32_t i = 0; i < N_PAGES; i++)
        e[i] = N_PAGES + d[i];
    rig_set_devices("d");
    sl_link_loop_set_fault(hold_slow_pages, NULL);
    pair_open(&t, "loop", &few_slots,
              &(struct rig_opts){.n_pages = 2 * N_PAGES, .head_dim = HEAD, .stage_bytes = 1});
    pair_fill(&t, 1, p, N_PAGES);
    pair_begin(&t, &held, N_PAGES * PT, d, 0);
    assert_int_equal(sl_xfer_send_ready(t.p.x, &held, p, N_PAGES * PT), SL_OK);
    wait_staged(&t.d, N_PAGES);
    pair_begin(&t, &k, N_PAGES * PT, e, 0);
    assert_int_equal(sl_xfer_send_ready(t.p.x, &k, p, N_PAGES * PT), SL_OK);
    expect(&t, &k, SL_OK, SL_OK);
    assert_false(rig_has(&t.d, SL_XFER_RECV_DONE, &held));
    pair_check(&t, 1, e, 0, N_PAGES);
    sl_link_loop_set_fault(NULL, NULL);
    sl_link_loop_release();
    expect(&t, &held, SL_OK, SL_OK);
    pair_check(&t, 1, d, 0, N_PAGES);
    pair_close(&t);
}

/* A window is 16 MiB. */
static void peer_that_keeps_no_window_is_disconnected(void **state)
{
    enum { MANY = 1100 }; /* 34 MiB */
    struct rig_node d;
    struct raw_peer r;
    struct sl_xfer_key k = rig_key("wide", 1);
    uint32_t *pages = sl_xcalloc(MANY, sizeof *pages);
    (void)state;
    rig_set_devices("d");
    rig_iota(pages, MANY, 0);
    rig_open(&d, &(struct rig_opts){.name = "d0", .n_pages = MANY, .head_dim = HEAD, .stage_bytes = 1});
    raw_open(&r, "loop", "p0", 7);
    r.hello.id.geometry.head_dim = HEAD;
    raw_join(&r, &d);
    struct sl_xfer_peer from = raw_ref(&r);
    assert_int_equal(sl_xfer_recv_open(d.x, &k, &from, pages, MANY * PT, 0, RIG_DEADLINE_MS), SL_OK);
    struct sl_kv_header h = {.type = SL_KV_ANNOUNCE, .key = k, .n_tokens = MANY * PT, .deadline_ms = 1000};
    raw_send(&r, &h, NULL, 0);
    raw_free(raw_wait(&r, SL_KV_GRANT));
    unsigned char *junk = sl_xcalloc(MANY, d.page_bytes);
    h = (struct sl_kv_header){.type = SL_KV_PAGES, .key = k, .count = MANY};
    raw_send(&r, &h, junk, MANY * d.page_bytes);
    raw_wait_closed(&r);
    assert_int_equal(rig_wait(&d, SL_XFER_RECV_DONE, &k).err, SL_EPEER);
    rig_wait_unstaged(&d);
    raw_close(&r);
    rig_close(&d);
    sl_free(junk);
    sl_free(pages);
}

/* One that is damaged on its way is found by the device's digest, fetched again and placed again. */
static enum sl_loop_fault corrupt_one(void *arg, const void *header, size_t header_len, size_t payload_len)
{
    int *left = arg;
    struct sl_kv_header h;
    (void)payload_len;
    bool hit =
        sl_kv_header_unpack(header, header_len, &h) == SL_OK && h.type == SL_KV_PAGES && h.index > 0 && *left;
    *left -= hit;
    return hit ? SL_LOOP_CORRUPT : SL_LOOP_DELIVER;
}

static void damage_is_found_on_the_device_and_mended(void **state)
{
    struct xfer_pair t;
    struct sl_xfer_key k = rig_key("damage", 1);
    uint32_t p[N_PAGES], d[N_PAGES];
    int left = 1;
    (void)state;
    lists(p, d);
    rig_set_devices("pd");
    sl_link_loop_set_fault(corrupt_one, &left);
    pair_open(&t, "loop", &few_slots, &few_slots);
    pair_fill(&t, 1, p, N_PAGES);
    pair_begin(&t, &k, N_PAGES * PT, d, 0);
    assert_int_equal(sl_xfer_send_ready(t.p.x, &k, p, N_PAGES * PT), SL_OK);
    assert_int_equal(rig_wait(&t.d, SL_XFER_RECV_DONE, &k).resends, 1);
    assert_int_equal(rig_wait(&t.p, SL_XFER_SEND_DONE, &k).err, SL_OK);
    assert_int_equal(left, 0);
    pair_check(&t, 1, d, 0, N_PAGES);
    pair_close(&t);
    sl_link_loop_set_fault(NULL, NULL);
}

#define EACH_CASE(X)                                                                                         \
    X(whole_prompt_arrives_with_its_first_token)                                                             \
    X(chunks_are_ready_one_by_one)                                                                           \
    X(prefix_hit_is_not_sent)                                                                                \
    X(scattered_pages_land_where_the_receiver_says)                                                          \
    X(sender_aborts_at_every_stage)                                                                          \
    X(receiver_cancels_at_every_stage)                                                                       \
    X(peer_closes_in_the_middle)                                                                             \
    X(many_sessions_share_the_link)                                                                          \
    X(link_is_measured)
#define ON_DEVICES(name)                                                                                     \
    static void ucx_##name(void **state)                                                                     \
    {                                                                                                        \
        (void)state;                                                                                         \
        rig_set_devices("p"); /* and D's pages are the host's */                                             \
        case_##name("ucx");                                                                                  \
    }                                                                                                        \
    static void nccl_##name(void **state)                                                                    \
    {                                                                                                        \
        (void)state;                                                                                         \
        rig_set_devices("pd");                                                                               \
        case_##name("nccl");                                                                                 \
    }
EACH_CASE(ON_DEVICES)

static void ucx_large_pages_either_side_gives_up_in_the_middle(void **state)
{
    (void)state;
    rig_set_devices("pd");
    case_large_pages_either_side_gives_up_in_the_middle("ucx");
}

int main(void)
{
#define ENTRIES(name) cmocka_unit_test(ucx_##name), cmocka_unit_test(nccl_##name),
    const struct CMUnitTest tests[] = {
        EACH_CASE(ENTRIES) cmocka_unit_test(ucx_large_pages_either_side_gives_up_in_the_middle),
        cmocka_unit_test(host_that_touches_a_page_of_the_device_dies),
        cmocka_unit_test(few_slots_carry_many_pages_whoever_has_a_device),
        cmocka_unit_test(ucx_takes_the_device_when_it_says_so),
        cmocka_unit_test(pages_go_from_the_device_when_ucx_takes_it),
        cmocka_unit_test(ends_in_the_middle_leave_no_page_in_the_stage),
        cmocka_unit_test(peer_faster_than_the_mover_waits),
        cmocka_unit_test(slow_payloads_do_not_hold_up_those_that_have_landed),
        cmocka_unit_test(peer_that_keeps_no_window_is_disconnected),
        cmocka_unit_test(damage_is_found_on_the_device_and_mended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
