/* Pages between the pool and a transport's slots on an emulated device: every byte and every digest, through the
 * host and on the device alone, with many under way, in both schedules; and of pools whose heads several devices
 * share, none of which may touch another's memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "common/base/mem.h"
#include "kernels/cuda/emulation/cu_emu.h"
#include "tests/kernels/op_setup.h"

#define N_PAGES      12u
#define MOST_DEVICES 4u
#define N_SLOTS      8u

static const struct sl_kv_geometry shapes[] = {
    {2, 3, 16, 64, SL_BF16}, /* whole copies of 16 bytes */
    {1, 2, 5, 10, SL_BF16},  /* none, and strips of few bytes */
    {3, 1, 7, 34, SL_F32},   {2, 2, 48, 128, SL_F16},
    {2, 2, 5, 10, SL_Q8}, /* scales behind the values of a strip */
};

struct rig {
    const struct sl_backend_ops *ops;
    const struct sl_kv_mover_ops *mv;
    uint32_t n_devices;
    struct sl_dev *d, *devices[MOST_DEVICES]; /* d is the first */
    struct sl_kv *kv, *parts[MOST_DEVICES];   /* with several devices */
    struct sl_kv_mover *m;
    struct sl_kv_slots slots;
    size_t page_bytes;
    uint8_t *pages; /* [N_PAGES, page_bytes] what the pool has */
};

static void pool_open(struct rig *r, const struct sl_kv_geometry *g)
{
    struct sl_why why = {""};
    for (uint32_t i = 0; i < r->n_devices; i++) {
        const struct sl_dev_conf c = {
            .n_threads = 1, .max_rows = 4, .device = MOST_DEVICES - r->n_devices + i};
        assert_int_equal(r->ops->open(&c, &r->devices[i], &why), SL_OK);
    }
    r->d = r->devices[0];
    if (r->n_devices == 1) {
        assert_int_equal(r->ops->kv_open(r->d, g, N_PAGES, &r->kv, &why), SL_OK);
        return;
    }
    uint32_t n_heads = g->n_kv_heads / r->n_devices;
    assert_int_equal(r->ops->kv_open_parts(r->d, g, N_PAGES, r->n_devices, &r->kv, &why), SL_OK);
    for (uint32_t i = 0; i < r->n_devices; i++)
        assert_int_equal(r->ops->kv_part(r->devices[i], r->kv, i * n_heads, n_heads, &r->parts[i], &why),
                         SL_OK);
}

static struct rig rig_open(const struct sl_kv_geometry *g, uint32_t n_devices)
{
    struct rig r = {.ops = op_backend("cuda"), .page_bytes = sl_kv_page_bytes(g), .n_devices = n_devices};
    struct sl_why why = {""};
    r.mv = r.ops->mover;
    assert_non_null(r.mv);
    pool_open(&r, g);
    assert_int_equal(r.mv->open(r.d, r.kv, N_SLOTS, &r.m, &why), SL_OK);
    r.slots = r.mv->slots(r.m);
    assert_int_equal(r.slots.n_slots, N_SLOTS);
    assert_int_equal(r.slots.page_bytes, r.page_bytes);
    r.pages = sl_xalloc(N_PAGES * r.page_bytes);
    struct op_rand rand = {3};
    for (size_t i = 0; i < N_PAGES * r.page_bytes; i++)
        r.pages[i] = (uint8_t)(op_rand_u32(&rand) >> 9);
    for (uint32_t p = 0; p < N_PAGES; p++)
        r.ops->kv_write(r.d, r.kv, p, r.pages + p * r.page_bytes);
    return r;
}

static void rig_close(struct rig *r)
{
    r->mv->close(r->m);
    r->ops->kv_close(r->d, r->kv);
    for (uint32_t i = 0; i < r->n_devices; i++) {
        r->ops->kv_close(r->devices[i], r->parts[i]);
        r->ops->close(r->devices[i]);
    }
    sl_free(r->pages);
}

static const uint8_t *page(const struct rig *r, uint32_t i)
{
    return r->pages + i * r->page_bytes;
}

static const uint8_t *host_slot(const struct rig *r, uint32_t i)
{
    return (const uint8_t *)r->slots.host + i * r->page_bytes;
}

static void assert_pool(struct rig *r)
{
    uint8_t *got = sl_xalloc(r->page_bytes);
    for (uint32_t p = 0; p < N_PAGES; p++) {
        r->ops->kv_read(r->d, r->kv, p, got);
        assert_memory_equal(got, page(r, p), r->page_bytes);
    }
    sl_free(got);
}

/* Two runs of pages out to the host, with the digests of whole pages and of parts. */
static void check_fetch(struct rig *r, const struct sl_kv_geometry *g)
{
    uint32_t first[] = {7, 0, 11}, second[] = {3, 4}, n_tokens[] = {g->page_tokens, 1, g->page_tokens - 1};
    const uint32_t kept[] = {7, 0, 11}, kept_tokens[] = {g->page_tokens, 1, g->page_tokens - 1};
    uint64_t a = r->mv->fetch(r->m, first, n_tokens, 3, 1), b = r->mv->fetch(r->m, second, NULL, 2, 5);
    memset(first, 0xff, sizeof first); /* the lists are the caller's again */
    memset(n_tokens, 0, sizeof n_tokens);
    assert_true(b > a);
    assert_false(r->mv->done(r->m, b)); /* this device is late */
    r->mv->wait(r->m, a);
    assert_true(r->mv->done(r->m, a));
    for (uint32_t i = 0; i < 3; i++) {
        assert_memory_equal(host_slot(r, 1 + i), page(r, kept[i]), r->page_bytes);
        assert_true(r->slots.digests[1 + i] == sl_kv_page_digest(g, page(r, kept[i]), kept_tokens[i]));
    }
    while (!r->mv->done(r->m, b))
        ;
    assert_memory_equal(host_slot(r, 5), page(r, 3), r->page_bytes);
    assert_memory_equal(host_slot(r, 6), page(r, 4), r->page_bytes);
}

/* Slots of the host's into pages. */
static void check_place(struct rig *r, const struct sl_kv_geometry *g)
{
    const uint32_t to[] = {9, 2}, n_tokens[] = {2, g->page_tokens};
    for (uint32_t i = 0; i < 2; i++) {
        memset((uint8_t *)r->slots.host + i * r->page_bytes, 0x30 + (int)i, r->page_bytes);
        memset(r->pages + to[i] * r->page_bytes, 0x30 + (int)i, r->page_bytes);
    }
    r->mv->wait(r->m, r->mv->place(r->m, to, n_tokens, 2, 0));
    for (uint32_t i = 0; i < 2; i++)
        assert_true(r->slots.digests[i] == sl_kv_page_digest(g, page(r, to[i]), n_tokens[i]));
    assert_pool(r);
}

/* Through the device's slots alone, as a transport that sends from the device does: a page to another's place. More
 * of them than the mover keeps tickets. */
static void check_device_slots(struct rig *r)
{
    uint64_t last = 0;
    for (uint32_t i = 0; i < 50; i++) {
        uint32_t from = i * 5 % N_PAGES, to = (from + 1 + i % (N_PAGES - 1)) % N_PAGES, slot = i % N_SLOTS;
        r->mv->gather(r->m, &from, NULL, 1, slot);
        last = r->mv->scatter(r->m, &to, NULL, 1, slot);
        memcpy(r->pages + to * r->page_bytes, page(r, from), r->page_bytes);
    }
    r->mv->wait(r->m, last);
    assert_true(r->mv->done(r->m, 1));
    assert_true(r->mv->done(r->m, last));
    assert_pool(r);
}

static void check_shape(const struct sl_kv_geometry *g, uint32_t n_devices)
{
    for (int s = CU_EMU_FORWARD; s <= CU_EMU_REVERSE; s++) {
        cu_emu_set_schedule((enum cu_emu_schedule)s);
        struct rig r = rig_open(g, n_devices);
        check_fetch(&r, g);
        check_place(&r, g);
        check_device_slots(&r);
        rig_close(&r);
    }
}

static void pages_move_with_their_digests(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(shapes); i++)
        check_shape(&shapes[i], 1);
}

static void pages_of_several_devices_move_as_those_of_one(void **state)
{
    (void)state;
    static const struct {
        struct sl_kv_geometry g;
        uint32_t n_devices;
    } shared[] = {{{2, 4, 16, 64, SL_BF16}, 2}, {{3, 4, 5, 10, SL_Q8}, 4}, {{2, 6, 7, 34, SL_F32}, 3}};
    cu_emu_guard(true);
    for (size_t i = 0; i < SL_COUNTOF(shared); i++)
        check_shape(&shared[i].g, shared[i].n_devices);
    cu_emu_guard(false);
}

static void mover_closes_with_pages_under_way(void **state)
{
    (void)state;
    struct rig r = rig_open(&shapes[1], 2);
    const uint32_t pages[] = {1, 2};
    r.mv->fetch(r.m, pages, NULL, 2, 0);
    rig_close(&r);
    op_backend("cuda")->mover->close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_move_with_their_digests),
        cmocka_unit_test(pages_of_several_devices_move_as_those_of_one),
        cmocka_unit_test(mover_closes_with_pages_under_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
