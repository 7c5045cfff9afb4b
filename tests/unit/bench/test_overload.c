/* tests/unit/bench/test_overload.c - twice what a cluster can serve, in virtual time: urgent requests are
 * served in time, the others share what is left by key, and whoever is refused is refused when it comes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/bench/simulate/sim.h"

#define REQUESTS    4000u
#define HOLD_MS     1000u
#define MAX_WAIT_MS 10000u
#define TRUTH       3.0 /* a wait is predicted within that factor also before anything was seen of the overload */
#define FLOOD_PER_S 120.0 /* far more than two pairs of nodes serve */
#define HALF_PER_S  20.0
#define URGENT      (-10)

/* high: a fifth of the requests, urgent, first token wished within two seconds. The others are of three keys,
 * the first of which asks for four times as much as each of the others. */
enum { HIGH, GREEDY, SMALL_A, SMALL_B, N_CLASSES };
static struct sim_class classes[N_CLASSES] = {
    [HIGH] = {.share = 0.2, .priority = URGENT, .ttft_ms = 2000, .key = 0},
    [GREEDY] = {.share = 0.533, .key = 1},
    [SMALL_A] = {.share = 0.133, .key = 2},
    [SMALL_B] = {.share = 0.134, .key = 3},
};

struct tally {
    double asked, served, late, asked_tokens, tokens;
};

struct outcome {
    struct tally of[N_CLASSES];
    double served_per_s, longest_wait_ms;
};

static void run(enum sl_place_mode mode, double rate, const struct sim_conf *policy, struct outcome *out)
{
    struct sim_cluster c;
    struct sl_trace t;
    struct sim_result r;
    struct sl_why why = {{0}};
    struct sim_conf conf = *policy;
    conf.mode = mode;
    conf.classes = classes;
    conf.n_classes = N_CLASSES;
    conf.cost_error = 0.1;
    conf.noise = 0.05;
    conf.max_tokens = 1024;
    conf.seed = 11;
    struct sl_trace_conf trace = {.rate = rate, .n = REQUESTS, .seed = 5, .max_total = 6000};
    if (sim_cluster_plain("a100-llama3-8b", 2, 2, &c, &why) || sl_trace_open(&trace, &t, &why) ||
        sim_run(&c, &t, &conf, &r, &why))
        fail_msg("%s", why.text);
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < r.n; i++) {
        const struct sim_outcome *o = &r.outcomes[i];
        const double tokens = t.requests[i].n_prompt + t.requests[i].n_output,
                     wish = classes[o->class].ttft_ms;
        struct tally *k = &out->of[o->class];
        assert_true(o->done != o->refused); /* every request ends once */
        k->asked++;
        k->asked_tokens += tokens;
        k->served += o->done;
        k->tokens += o->done ? tokens : 0;
        k->late += wish > 0 && (!o->done || (double)o->ttft > wish);
        out->longest_wait_ms = fmax(out->longest_wait_ms, (double)o->waited);
    }
    out->served_per_s = (double)(r.n - r.n_refused) / r.span_s;
    sim_result_fini(&r);
    sl_trace_close(&t);
}

static const struct sim_conf policy = {.hold_ms = HOLD_MS, .max_wait_ms = MAX_WAIT_MS, .refuse = true};

static void check_twice_the_load(enum sl_place_mode mode)
{
    struct outcome most, o;
    run(mode, FLOOD_PER_S, &policy, &most); /* what it can serve at best */
    run(mode, 2 * most.served_per_s, &policy, &o);
    const struct tally *high = &o.of[HIGH], *greedy = &o.of[GREEDY];
    print_message(
        "mode %s: %.1f requests/s are served, %.1f come: %.0f of %.0f urgent ones late, longest wait %.0f "
        "ms\n",
        sl_place_mode_name(mode), o.served_per_s, 2 * most.served_per_s, high->late, high->asked,
        o.longest_wait_ms);
    assert_true(high->late <= 0.01 * high->asked);
    assert_true(greedy->served < 0.7 * greedy->asked); /* it is overload */
    for (unsigned k = SMALL_A; k <= SMALL_B; k++) /* all that they ask for, or as much as the greedy one */
        assert_true(o.of[k].tokens >= fmin(0.98 * o.of[k].asked_tokens, 0.9 * greedy->tokens));
    assert_true(o.longest_wait_ms <= TRUTH * MAX_WAIT_MS);
}

static void pd_twice_the_load(void **state)
{
    (void)state;
    check_twice_the_load(SL_PLACE_PD);
}

static void colocated_twice_the_load(void **state)
{
    (void)state;
    check_twice_the_load(SL_PLACE_COLOCATED);
}

static void hybrid_twice_the_load(void **state)
{
    (void)state;
    check_twice_the_load(SL_PLACE_HYBRID);
}

/* The control: the same requests as equals, all let in. */
static void without_classes_and_holding_most_are_late(void **state)
{
    (void)state;
    struct outcome o;
    classes[HIGH].priority = 0;
    run(SL_PLACE_PD, FLOOD_PER_S, &(struct sim_conf){0}, &o);
    classes[HIGH].priority = URGENT;
    print_message("as equals, nobody refused: %.0f of %.0f late\n", o.of[HIGH].late, o.of[HIGH].asked);
    assert_true(o.of[HIGH].late > 0.5 * o.of[HIGH].asked);
}

/* Where there is enough for all nobody waits and nobody is refused. */
static void half_the_load_is_served_whole(void **state)
{
    (void)state;
    struct outcome o;
    run(SL_PLACE_HYBRID, HALF_PER_S, &policy, &o);
    for (unsigned k = 0; k < N_CLASSES; k++)
        assert_true(o.of[k].served >= o.of[k].asked && o.of[k].late <= 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pd_twice_the_load),
        cmocka_unit_test(colocated_twice_the_load),
        cmocka_unit_test(hybrid_twice_the_load),
        cmocka_unit_test(without_classes_and_holding_most_are_late),
        cmocka_unit_test(half_the_load_is_served_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
