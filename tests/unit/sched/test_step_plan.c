/* common/sched/step_plan: targets, chunk sizes, guards, and random states against the rules. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "common/sched/step_plan.h"
#include "tests/support/support.h"

#define MAX_PROMPTS 8

static struct sl_cost_model linear;
static struct sl_plan_chunk chunks[MAX_PROMPTS];

static int setup(void **state)
{
    (void)state;
    sl_cost_init_linear(&linear, 8, 1);
    linear.prompt_attn_ms_per_mtoken = 500;
    linear.decode_attn_ms_per_mtoken = 500;
    return 0;
}

static struct sl_plan plan_of(const struct sl_plan_prompt *prompts, uint32_t n, uint32_t decode_rows)
{
    struct sl_plan_state s = {.cost = &linear,
                              .pace_cost = &linear,
                              .prompts = prompts,
                              .n_prompts = n,
                              .decode_rows = decode_rows,
                              .decode_context = decode_rows * 100.0,
                              .pace_context = decode_rows * 100.0,
                              .max_rows = 512,
                              .align = SL_PLAN_ALIGN,
                              .stretch = 3};
    struct sl_plan p = {.chunks = chunks};
    sl_plan_step(&s, 0, &p);
    return p;
}

static struct sl_plan_prompt prompt_of(uint32_t history, uint32_t remaining, int32_t chunk)
{
    return (struct sl_plan_prompt){
        .history = history, .remaining = remaining, .total = remaining, .chunk_tokens = chunk};
}

static void no_work_plans_nothing(void **state)
{
    (void)state;
    struct sl_plan p = plan_of(NULL, 0, 0);
    assert_int_equal(p.n_chunks, 0);
    assert_true(p.predicted_ms <= 0);
}

static void decode_rows_alone_are_the_plan(void **state)
{
    (void)state;
    struct sl_plan p = plan_of(NULL, 0, 7);
    assert_int_equal(p.load.decode_rows, 7);
    assert_int_equal(p.n_chunks, 0);
    assert_true(p.predicted_ms < p.target_ms);
}

static void prompts_without_decode_rows_are_not_chunked(void **state)
{
    (void)state;
    struct sl_plan_prompt prompts[] = {prompt_of(0, 300, SL_CHUNK_AUTO), prompt_of(0, 150, SL_CHUNK_AUTO),
                                       prompt_of(0, 200, SL_CHUNK_AUTO)};
    struct sl_plan p = plan_of(prompts, 3, 0);
    assert_int_equal(p.load.prompt_rows, 512); /* the cap cuts the last one */
    assert_int_equal(p.n_chunks, 3);
    assert_int_equal(chunks[2].n_tokens, 512 - chunks[0].n_tokens - chunks[1].n_tokens);
}

/* One client that wishes for the impossible does not stop the prompts of all others. */
static void wish_is_no_tighter_than_what_keeps_prompts_going(void **state)
{
    (void)state;
    struct sl_plan_prompt prompt = prompt_of(0, 400, SL_CHUNK_AUTO);
    struct sl_plan_state s = {.cost = &linear,
                              .pace_cost = &linear,
                              .prompts = &prompt,
                              .n_prompts = 1,
                              .decode_rows = 10,
                              .max_rows = 512,
                              .align = 1,
                              .stretch = 3,
                              .tpot_wish_ms = 1};
    double alone = sl_cost_predict_ms(&linear, &(struct sl_step_load){.decode_rows = 10});
    struct sl_plan p = {.chunks = chunks};
    sl_plan_step(&s, 0, &p);
    assert_true(fabs(p.target_ms - SL_PLAN_MIN_STRETCH * alone) < 1e-9);
    assert_true(p.load.prompt_rows > 0);
    s.tpot_wish_ms = 2 * alone;
    assert_true(fabs(sl_plan_target_ms(&s) - 2 * alone) < 1e-9);
    s.tpot_wish_ms = 100 * alone; /* enough for all: longer steps than the stretch's */
    assert_true(fabs(sl_plan_target_ms(&s) - 100 * alone) < 1e-9);
    s.rows_without_wish = true; /* not enough for the others */
    assert_true(fabs(sl_plan_target_ms(&s) -
                     s.stretch * sl_cost_predict_ms(&linear, &(struct sl_step_load){.decode_rows = 10})) <
                1e-9);
    s.rows_without_wish = false;
    s.tpot_wish_ms = 2 * alone;
    s.tpot_target_ms = 1.5 * alone; /* the node's own is tighter */
    assert_true(fabs(sl_plan_target_ms(&s) - 1.5 * alone) < 1e-9);
}

/* Nearly all steps are to end within a wish, not half of them; what a person set is taken as it is. */
static void wish_is_planned_for_by_how_late_steps_were(void **state)
{
    (void)state;
    struct sl_plan_prompt prompt = prompt_of(0, 400, SL_CHUNK_AUTO);
    struct sl_plan_state s = {.cost = &linear,
                              .pace_cost = &linear,
                              .prompts = &prompt,
                              .n_prompts = 1,
                              .decode_rows = 4,
                              .max_rows = 512,
                              .align = 1,
                              .stretch = 3,
                              .tpot_wish_ms = 90};
    double alone = sl_cost_predict_ms(&linear, &(struct sl_step_load){.decode_rows = 4});
    assert_true(fabs(sl_plan_target_ms(&s) - 90) < 1e-9);
    s.late = 1.5;
    assert_true(fabs(sl_plan_target_ms(&s) - 60) < 1e-9);
    struct sl_plan p = {.chunks = chunks};
    sl_plan_step(&s, 0, &p);
    assert_true(p.predicted_ms <= 60 && p.predicted_ms > 55);
    s.late = 100;
    assert_true(fabs(sl_plan_target_ms(&s) - SL_PLAN_MIN_STRETCH * alone) < 1e-9);
    s.tpot_wish_ms = 0;
    assert_true(fabs(sl_plan_target_ms(&s) - 3 * alone) < 1e-9);
    s.tpot_target_ms = 80;
    assert_true(fabs(sl_plan_target_ms(&s) - 80) < 1e-9);
}

/* A prompt that says when it wants its first token does not hold up who comes meanwhile for rows that cost no less. */
static void prompts_alone_with_wishes_end_their_step_when_rows_are_cheap(void **state)
{
    (void)state;
    struct sl_cost_model cpu = {.n_points = 3, .rows = {1, 16, 512}, .ms = {3, 8, 240}},
                         gpu = {.n_points = 3, .rows = {1, 512, 1024}, .ms = {10, 20, 90}};
    static const uint64_t due_us[] = {0, 1000000};
    for (uint32_t i = 0; i < SL_COUNTOF(due_us); i++) {
        struct sl_plan_prompt prompt = prompt_of(0, 4000, SL_CHUNK_AUTO);
        prompt.first_token_us = due_us[i];
        struct sl_plan_state s = {.cost = &cpu,
                                  .prompts = &prompt,
                                  .n_prompts = 1,
                                  .max_rows = 4096,
                                  .align = SL_PLAN_ALIGN,
                                  .stretch = 3,
                                  .prompt_step_ms = 100};
        struct sl_plan p = {.chunks = chunks};
        sl_plan_step(&s, 0, &p);
        assert_true(due_us[i] ? p.predicted_ms < 30 : p.predicted_ms > 90);
        assert_true(p.predicted_ms / p.load.prompt_rows < 1.15 * 240 / 512);
        s.cost = &gpu; /* the whole of a pass pays */
        sl_plan_step(&s, 0, &p);
        assert_true(due_us[i] ? p.load.prompt_rows >= 300 && p.predicted_ms < 40 : p.load.prompt_rows > 1000);
    }
}

static void prompts_alone_end_their_step_in_time(void **state)
{
    (void)state;
    struct sl_plan_prompt row[] = {prompt_of(0, 4000, SL_CHUNK_AUTO), prompt_of(0, 4000, SL_CHUNK_WHOLE),
                                   prompt_of(400000, 50, SL_CHUNK_AUTO)};
    for (uint32_t i = 0; i < SL_COUNTOF(row); i++) {
        struct sl_plan_state s = {.cost = &linear,
                                  .prompts = &row[i],
                                  .n_prompts = 1,
                                  .max_rows = 512,
                                  .align = SL_PLAN_ALIGN,
                                  .stretch = 3,
                                  .prompt_step_ms = 100};
        struct sl_plan p = {.chunks = chunks};
        sl_plan_step(&s, 0, &p);
        assert_int_equal(p.n_chunks, 1);
        if (i == 0)
            assert_true(p.predicted_ms <= 100 && p.predicted_ms > 80);
        else if (i == 1)
            assert_int_equal(p.load.prompt_rows, 512);
        else /* not even a tile fits: a tile, or it would wait for ever */
            assert_int_equal(p.load.prompt_rows, SL_PLAN_ALIGN);
    }
}

static double predicted_with(const struct sl_plan *p, const struct sl_plan_prompt *prompt, uint32_t n)
{
    struct sl_step_load l = {.prompt_rows = n,
                             .decode_rows = p->load.decode_rows,
                             .prompt_attn = n * (prompt->history + n / 2.0),
                             .prompt_history = prompt->history,
                             .decode_context = p->load.decode_context};
    return sl_cost_predict_ms(&linear, &l);
}

static void chunk_beside_decode_rows_fills_the_target(void **state)
{
    (void)state;
    for (uint32_t history = 0; history < 4000; history += 400) {
        struct sl_plan_prompt prompts[] = {prompt_of(history, 4096, SL_CHUNK_AUTO)};
        struct sl_plan p = plan_of(prompts, 1, 7);
        uint32_t n = p.load.prompt_rows, most = n;
        assert_int_equal(p.n_chunks, 1);
        assert_true(predicted_with(&p, prompts, n) <= p.target_ms);
        while (predicted_with(&p, prompts, most + 1) <= p.target_ms)
            most++;
        assert_true(most - n <= most / 8); /* what rounding may give up */
        if (most >= 64)
            assert_int_equal((n + 7) % SL_PLAN_ALIGN, 0);
    }
}

static void growth_of_contexts_meanwhile_does_not_stretch_the_target(void **state)
{
    (void)state;
    struct sl_plan_prompt prompts[] = {prompt_of(0, 4096, SL_CHUNK_AUTO)};
    struct sl_plan_state s = {.cost = &linear,
                              .pace_cost = &linear,
                              .prompts = prompts,
                              .n_prompts = 1,
                              .decode_rows = 7,
                              .decode_context = 700,
                              .pace_context = 700,
                              .max_rows = 512,
                              .align = SL_PLAN_ALIGN,
                              .stretch = 3};
    struct sl_plan before = {.chunks = chunks}, after = before;
    sl_plan_step(&s, 0, &before);
    s.decode_context = 7000;
    sl_plan_step(&s, 0, &after);
    assert_true(after.target_ms == before.target_ms);
    assert_true(after.load.prompt_rows > 0 && after.load.prompt_rows < before.load.prompt_rows);
    s.decode_context = 700000; /* but prompts go on */
    sl_plan_step(&s, 0, &after);
    assert_true(after.target_ms > before.target_ms);
    assert_true(after.load.prompt_rows > 0);
}

/* The machine becomes slower while a prompt runs: its chunks get smaller, the target stays. */
static void what_mixed_steps_teach_does_not_stretch_the_target(void **state)
{
    (void)state;
    struct sl_plan_prompt prompts[] = {prompt_of(0, 4096, SL_CHUNK_AUTO)};
    struct sl_cost_model slower = linear;
    for (uint32_t i = 0; i < slower.n_points; i++)
        slower.ms[i] *= 1.5;
    struct sl_plan_state s = {.cost = &linear,
                              .pace_cost = &linear,
                              .prompts = prompts,
                              .n_prompts = 1,
                              .decode_rows = 7,
                              .decode_context = 700,
                              .pace_context = 700,
                              .max_rows = 512,
                              .align = SL_PLAN_ALIGN,
                              .stretch = 3};
    struct sl_plan before = {.chunks = chunks}, after = before;
    sl_plan_step(&s, 0, &before);
    s.cost = &slower;
    sl_plan_step(&s, 0, &after);
    assert_true(after.target_ms == before.target_ms);
    assert_true(after.predicted_ms <= after.target_ms);
    assert_true(after.load.prompt_rows > 0 && after.load.prompt_rows < before.load.prompt_rows);
}

static void pace_stands_still_while_prompts_run_but_not_for_ever(void **state)
{
    (void)state;
    struct sl_cost_model later = linear;
    later.ms[0] *= 2;
    struct sl_plan_pace p;
    sl_plan_pace_init(&p, &linear);
    for (int i = 0; i < 1000; i++)
        sl_plan_pace_step(&p, &later, true);
    assert_true(p.cost.ms[0] == linear.ms[0]);
    sl_plan_pace_step(&p, &later, false);
    assert_true(p.cost.ms[0] == later.ms[0]);
    for (int i = 0; i < 3000; i++)
        sl_plan_pace_step(&p, &linear, true);
    assert_true(p.cost.ms[0] == linear.ms[0]);
}

static void chunk_late_in_a_prompt_is_smaller(void **state)
{
    (void)state;
    struct sl_plan_prompt early[] = {prompt_of(0, 4096, SL_CHUNK_AUTO)},
                          late[] = {prompt_of(3000, 1096, SL_CHUNK_AUTO)};
    uint32_t first = plan_of(early, 1, 7).load.prompt_rows, last = plan_of(late, 1, 7).load.prompt_rows;
    assert_true(last > 0 && last < first / 2);
}

static void last_chunk_is_exact(void **state)
{
    (void)state;
    struct sl_plan_prompt prompts[] = {prompt_of(100, 3, SL_CHUNK_AUTO)};
    struct sl_plan p = plan_of(prompts, 1, 7);
    assert_int_equal(p.load.prompt_rows, 3);
}

static void time_left_by_a_last_chunk_goes_to_the_next_prompt(void **state)
{
    (void)state;
    struct sl_plan_prompt prompts[] = {prompt_of(100, 3, SL_CHUNK_AUTO), prompt_of(0, 400, SL_CHUNK_AUTO)};
    prompts[1].arrived_us = 1;
    prompts[0].total = 400;
    struct sl_plan p = plan_of(prompts, 2, 7);
    assert_int_equal(p.n_chunks, 2);
    assert_int_equal(p.load.prompt_rows, 3 + chunks[1].n_tokens);
    assert_true(p.predicted_ms <= p.target_ms);
}

static void tpot_target_overrides_the_stretch(void **state)
{
    (void)state;
    struct sl_plan_prompt prompts[] = {prompt_of(0, 4096, SL_CHUNK_AUTO)};
    struct sl_plan_state s = {.cost = &linear,
                              .pace_cost = &linear,
                              .prompts = prompts,
                              .n_prompts = 1,
                              .decode_rows = 1,
                              .max_rows = 512,
                              .align = SL_PLAN_ALIGN,
                              .stretch = 1.1,
                              .tpot_target_ms = 108.2};
    struct sl_plan p = {.chunks = chunks};
    sl_plan_step(&s, 0, &p);
    assert_true(p.target_ms == 108.2);
    assert_int_equal(p.load.prompt_rows, 95); /* 96 rows and a little attention; 104 are over */
}

static void whole_runs_beside_decode_rows_whatever_it_takes(void **state)
{
    (void)state;
    struct sl_plan_prompt prompts[] = {prompt_of(10, 500, SL_CHUNK_WHOLE)};
    struct sl_plan p = plan_of(prompts, 1, 7);
    assert_int_equal(p.load.prompt_rows, 500);
    assert_true(p.predicted_ms > p.target_ms);
    prompts[0].remaining = 4000; /* the activation cap holds */
    assert_int_equal(plan_of(prompts, 1, 7).load.prompt_rows, 505);
}

static void fixed_chunk_is_a_budget_for_all_prompts_of_the_step(void **state)
{
    (void)state;
    struct sl_plan_prompt prompts[] = {prompt_of(0, 40, 64), prompt_of(0, 400, 64)};
    prompts[1].arrived_us = 1;
    struct sl_plan p = plan_of(prompts, 2, 7);
    assert_int_equal(p.n_chunks, 2);
    assert_int_equal(p.load.prompt_rows, 64);
    p = plan_of(&prompts[1], 1, 0); /* also where no decode row runs */
    assert_int_equal(p.load.prompt_rows, 64);
}

static void starved_prompt_gets_one_tile(void **state)
{
    (void)state;
    struct sl_plan_prompt prompts[] = {prompt_of(5000, 400, SL_CHUNK_AUTO)};
    struct sl_plan_state s = {.cost = &linear,
                              .pace_cost = &linear,
                              .prompts = prompts,
                              .n_prompts = 1,
                              .decode_rows = 100,
                              .max_rows = 512,
                              .align = SL_PLAN_ALIGN,
                              .tpot_target_ms = 1};
    struct sl_plan p = {.chunks = chunks};
    for (s.starved_steps = 0; s.starved_steps + 1 < SL_PLAN_STARVE_STEPS; s.starved_steps++) {
        sl_plan_step(&s, 0, &p);
        assert_int_equal(p.n_chunks, 0);
    }
    sl_plan_step(&s, 0, &p);
    assert_int_equal(p.load.prompt_rows, 4); /* to the next multiple of 8 above 100 */
    assert_int_equal(p.load.decode_rows, 100);
}

static void dip_of_the_table_is_taken(void **state)
{
    (void)state;
    struct sl_cost_model gpu = {.n_points = 5, .rows = {1, 128, 136, 384, 512}, .ms = {10, 12, 17, 30, 26}};
    struct sl_plan_prompt prompts[] = {prompt_of(0, 4096, SL_CHUNK_AUTO)};
    struct sl_plan_state s = {.cost = &gpu,
                              .pace_cost = &gpu,
                              .prompts = prompts,
                              .n_prompts = 1,
                              .decode_rows = 8,
                              .max_rows = 1024,
                              .align = SL_PLAN_ALIGN,
                              .tpot_target_ms = 26.2};
    struct sl_plan p = {.chunks = chunks};
    sl_plan_step(&s, 0, &p);
    assert_int_equal(p.load.prompt_rows + 8, 512);
}

static void full_batch_of_decode_rows_leaves_prompts_waiting(void **state)
{
    (void)state;
    struct sl_plan_prompt prompts[] = {prompt_of(0, 10, SL_CHUNK_WHOLE)};
    struct sl_plan p = plan_of(prompts, 1, 512);
    assert_int_equal(p.n_chunks, 0);
    assert_int_equal(p.load.decode_rows, 512);
}

static void random_states_keep_the_rules(void **state)
{
    (void)state;
    unsigned long long rng = 11;
    for (int round = 0; round < 20000; round++) {
        struct sl_plan_prompt prompts[MAX_PROMPTS];
        uint32_t n = (uint32_t)(sl_test_random(&rng) % (MAX_PROMPTS + 1));
        bool forced = false;
        for (uint32_t i = 0; i < n; i++) {
            int32_t chunk = (int32_t)(sl_test_random(&rng) % 4) - 1;
            prompts[i] =
                prompt_of((uint32_t)(sl_test_random(&rng) % 4000), 1 + (uint32_t)(sl_test_random(&rng) % 600),
                          chunk > 0 ? chunk * 32 : chunk);
            prompts[i].priority = (int32_t)(sl_test_random(&rng) % 3);
            prompts[i].arrived_us = sl_test_random(&rng) % 1000000;
            forced |= chunk >= 0;
        }
        struct sl_plan_state s = {.cost = &linear,
                                  .pace_cost = &linear,
                                  .prompts = prompts,
                                  .n_prompts = n,
                                  .decode_rows = (uint32_t)(sl_test_random(&rng) % 40),
                                  .max_rows = 40 + (uint32_t)(sl_test_random(&rng) % 500),
                                  .align = 1 + (uint32_t)(sl_test_random(&rng) % 16),
                                  .tpot_target_ms = sl_test_random(&rng) % 2 ? 0 : 60,
                                  .stretch = 1 + (double)(sl_test_random(&rng) % 30) / 10,
                                  .starved_steps = (uint32_t)(sl_test_random(&rng) % 8)};
        s.decode_context = s.decode_rows * 300.0;
        s.pace_context = s.decode_rows * (double)(sl_test_random(&rng) % 300);
        struct sl_plan p = {.chunks = chunks}, again = {.chunks = chunks};
        sl_plan_step(&s, 1000000, &again);
        sl_plan_step(&s, 1000000, &p);
        assert_int_equal(p.n_chunks, again.n_chunks);
        assert_int_equal(p.load.decode_rows, s.decode_rows);
        assert_true(p.load.prompt_rows + p.load.decode_rows <= s.max_rows);
        uint32_t rows = 0, unfinished = 0, seen = 0;
        for (uint32_t i = 0; i < p.n_chunks; i++) {
            uint32_t k = chunks[i].prompt;
            assert_true(k < n && !(seen & 1u << k));
            seen |= 1u << k;
            assert_true(chunks[i].n_tokens > 0 && chunks[i].n_tokens <= prompts[k].remaining);
            unfinished += chunks[i].n_tokens < prompts[k].remaining;
            rows += chunks[i].n_tokens;
        }
        assert_int_equal(rows, p.load.prompt_rows);
        assert_true(unfinished <= 1);
        if (s.decode_rows && !forced && p.n_chunks && s.starved_steps + 1 < SL_PLAN_STARVE_STEPS)
            assert_true(p.predicted_ms <= p.target_ms);
        if (n && s.decode_rows < s.max_rows &&
            (!s.decode_rows || s.starved_steps + 1 >= SL_PLAN_STARVE_STEPS))
            assert_true(p.n_chunks > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_work_plans_nothing),
        cmocka_unit_test(decode_rows_alone_are_the_plan),
        cmocka_unit_test(prompts_without_decode_rows_are_not_chunked),
        cmocka_unit_test(wish_is_no_tighter_than_what_keeps_prompts_going),
        cmocka_unit_test(wish_is_planned_for_by_how_late_steps_were),
        cmocka_unit_test(prompts_alone_with_wishes_end_their_step_when_rows_are_cheap),
        cmocka_unit_test(prompts_alone_end_their_step_in_time),
        cmocka_unit_test(chunk_beside_decode_rows_fills_the_target),
        cmocka_unit_test(growth_of_contexts_meanwhile_does_not_stretch_the_target),
        cmocka_unit_test(what_mixed_steps_teach_does_not_stretch_the_target),
        cmocka_unit_test(pace_stands_still_while_prompts_run_but_not_for_ever),
        cmocka_unit_test(chunk_late_in_a_prompt_is_smaller),
        cmocka_unit_test(last_chunk_is_exact),
        cmocka_unit_test(time_left_by_a_last_chunk_goes_to_the_next_prompt),
        cmocka_unit_test(tpot_target_overrides_the_stretch),
        cmocka_unit_test(whole_runs_beside_decode_rows_whatever_it_takes),
        cmocka_unit_test(fixed_chunk_is_a_budget_for_all_prompts_of_the_step),
        cmocka_unit_test(starved_prompt_gets_one_tile),
        cmocka_unit_test(dip_of_the_table_is_taken),
        cmocka_unit_test(full_batch_of_decode_rows_leaves_prompts_waiting),
        cmocka_unit_test(random_states_keep_the_rules),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
