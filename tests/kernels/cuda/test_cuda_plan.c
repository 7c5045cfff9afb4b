/* The plan of attention over tiles: every row and head sees each of its positions once, decode rows stay off
 * the prompt's tile, the blocks of the grid share the work, and nothing goes beyond the arrays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "common/base/mem.h"
#include "kernels/cuda/cuda_plan.h"
#include "tests/kernels/op_setup.h"

#define MAX_RUNS 64u

struct rig {
    struct cuda_plan_shape shape;
    struct sl_batch b;
    struct sl_batch_run runs[MAX_RUNS];
    struct cuda_plan plan;
};

static void add_run(struct rig *g, uint32_t first_pos, uint32_t n_rows)
{
    g->runs[g->b.n_runs++] = (struct sl_batch_run){g->b.n_rows, n_rows, first_pos, NULL, 3};
    g->b.n_rows += n_rows;
    g->b.runs = g->runs;
}

static void make(struct rig *g)
{
    cuda_plan_init(&g->plan, &g->shape, g->b.n_rows);
    cuda_plan_make(&g->shape, &g->b, &g->plan);
    assert_true(g->plan.n_items <= cuda_plan_max_items(&g->shape, g->b.n_rows));
    assert_true(g->plan.n_merges <= cuda_plan_max_merges(&g->shape));
    assert_true(g->plan.n_partials <= cuda_plan_max_partials(&g->shape));
    assert_int_equal(g->plan.block_items[0], 0);
    assert_int_equal(g->plan.block_items[g->shape.n_blocks], g->plan.n_items);
}

/* Positions that the items give to a row and head, in all and the first and last of them. */
struct seen {
    uint32_t n, first, end, n_items;
    int partial;
};

static struct seen seen_by(const struct rig *g, uint32_t run, uint32_t t, uint32_t head)
{
    uint32_t group = g->shape.n_heads / g->shape.n_kv_heads, pos = g->runs[run].first_pos + t;
    struct seen s = {.first = UINT32_MAX};
    for (uint32_t i = 0; i < g->plan.n_items; i++) {
        const struct cu_item *it = &g->plan.items[i];
        uint32_t p = t * group + head % group;
        if (it->first_row != g->runs[run].first_row || it->kv_head != head / group || p < it->p0 ||
            p >= it->p0 + it->n_p)
            continue;
        assert_int_equal(it->kv_begin % CU_KV_BLOCK, 0);
        assert_int_equal(it->first_page, 3 * run);
        uint32_t from = it->kv_begin > it->kv_first ? it->kv_begin : it->kv_first;
        uint32_t to = it->kv_end < pos + 1 ? it->kv_end : pos + 1;
        if (g->shape.window && pos + 1 > g->shape.window && from < pos + 1 - g->shape.window)
            from = pos + 1 - g->shape.window;
        s.n += to > from ? to - from : 0;
        s.first = to > from && from < s.first ? from : s.first;
        s.end = to > s.end ? to : s.end;
        s.n_items++;
        s.partial |= it->partial != CU_NO_PARTIAL;
    }
    return s;
}

static uint32_t merges_of(const struct rig *g, uint32_t row, uint32_t head)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->plan.n_merges; i++)
        if (g->plan.merges[i].row == row && g->plan.merges[i].head == head)
            n += g->plan.merges[i].n;
    return n;
}

static void check_cover(const struct rig *g)
{
    for (uint32_t u = 0; u < g->b.n_runs; u++)
        for (uint32_t t = 0; t < g->runs[u].n_rows; t++)
            for (uint32_t h = 0; h < g->shape.n_heads; h++) {
                uint32_t pos = g->runs[u].first_pos + t, window = g->shape.window;
                uint32_t n = window && window < pos + 1 ? window : pos + 1;
                struct seen s = seen_by(g, u, t, h);
                assert_int_equal(s.n, n);
                assert_int_equal(s.end, pos + 1);
                assert_int_equal(s.first, pos + 1 - n);
                assert_int_equal(s.partial, s.n_items > 1);
                assert_int_equal(merges_of(g, g->runs[u].first_row + t, h), s.n_items > 1 ? s.n_items : 0);
            }
}

static void check_partials_apart(const struct rig *g)
{
    uint8_t *taken = sl_xcalloc(g->plan.n_partials + 1, 1);
    for (uint32_t i = 0; i < g->plan.n_items; i++)
        for (uint32_t m = 0; g->plan.items[i].partial != CU_NO_PARTIAL && m < g->plan.items[i].n_p; m++)
            assert_int_equal(taken[g->plan.items[i].partial + m]++, 0);
    for (uint32_t i = 0; i < g->plan.n_merges; i++)
        for (uint32_t c = 0; c < g->plan.merges[i].n; c++)
            assert_int_equal(taken[g->plan.merges[i].partial + c * g->plan.merges[i].stride]++, 1);
    sl_free(taken);
}

static void random_batches_are_covered_once(void **state)
{
    (void)state;
    static const uint32_t heads[][2] = {{9, 3}, {32, 8}, {20, 1}, {4, 4}, {14, 2}};
    struct op_rand r = {1};
    for (uint32_t i = 0; i < 60; i++) {
        struct rig g = {.shape = {heads[i % 5][0], heads[i % 5][1],
                                  i % 3 == 2 ? 1 + op_rand_below(&r, 200) : 0, 1 + op_rand_below(&r, 20)}};
        uint32_t n_runs = 1 + op_rand_below(&r, 8);
        for (uint32_t u = 0; u < n_runs; u++)
            add_run(&g, op_rand_below(&r, 1500), op_rand_below(&r, 2) ? 1 : 1 + op_rand_below(&r, 30));
        make(&g);
        check_cover(&g);
        check_partials_apart(&g);
        cuda_plan_fini(&g.plan);
    }
}

static uint32_t cost_of(const struct rig *g, uint32_t block)
{
    uint32_t n = 0;
    for (uint32_t i = g->plan.block_items[block]; i < g->plan.block_items[block + 1]; i++)
        n += (g->plan.items[i].kv_end - g->plan.items[i].kv_begin + CU_KV_BLOCK - 1) / CU_KV_BLOCK;
    return n;
}

static void one_long_decode_row_keeps_the_grid_busy(void **state)
{
    (void)state;
    struct rig g = {.shape = {32, 8, 0, 264}}; /* two blocks on each of 132 multiprocessors */
    add_run(&g, 32767, 1);
    make(&g);
    uint32_t most = 0, all = 0;
    for (uint32_t i = 0; i < g.shape.n_blocks; i++) {
        uint32_t n = cost_of(&g, i);
        most = n > most ? n : most;
        all += n;
    }
    assert_int_equal(all, 8 * 32768 / CU_KV_BLOCK);
    assert_true(most * g.shape.n_blocks <= all + all / 10);
    cuda_plan_fini(&g.plan);
}

static void decode_rows_stay_off_the_prompts_tile(void **state)
{
    (void)state;
    struct rig g = {.shape = {32, 8, 0, 264}};
    for (uint32_t i = 0; i < 32; i++)
        add_run(&g, 2048, 1);
    add_run(&g, 0, 512);
    make(&g);
    for (uint32_t i = 0; i < g.plan.n_items; i++)
        assert_int_equal(g.plan.items[i].tile,
                         g.plan.items[i].first_row < 32 ? CU_SMALL_TILE : CU_LARGE_TILE);
    cuda_plan_fini(&g.plan);
}

static void a_batch_without_runs_has_no_items(void **state)
{
    (void)state;
    struct rig g = {.shape = {9, 3, 0, 4}};
    g.b.n_rows = 3;
    make(&g);
    assert_int_equal(g.plan.n_items, 0);
    cuda_plan_fini(&g.plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_batches_are_covered_once),
        cmocka_unit_test(one_long_decode_row_keeps_the_grid_busy),
        cmocka_unit_test(decode_rows_stay_off_the_prompts_tile),
        cmocka_unit_test(a_batch_without_runs_has_no_items),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
