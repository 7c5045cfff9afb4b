/* tests/unit/bench/test_random_clusters.c - properties of the policies together, in virtual time: random
 * clusters, arrivals, lengths, classes, keys and settings. Whatever comes is served once, whole, or refused
 * when it comes; no step is longer than its target but by a guard's tile; no page is given twice; equal runs
 * are equal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/bench/simulate/sim.h"
#include "tests/support/support.h"

#define WALKS       200u
#define MAX_TOTAL   3000u
#define MAX_CLASSES 4u

struct walk {
    unsigned long long rng;
    struct sim_cluster cluster;
    struct sl_trace_conf trace;
    struct sim_class classes[MAX_CLASSES];
    struct sim_conf conf;
};

static uint32_t below(struct walk *w, uint32_t n)
{
    return (uint32_t)(sl_test_random(&w->rng) % n);
}

static double between(struct walk *w, double least, double most)
{
    return least + (most - least) * below(w, 1000) / 1000;
}

static void draw_group(struct walk *w, struct sim_group *g)
{
    static const int32_t chunks[] = {SL_CHUNK_AUTO, SL_CHUNK_AUTO, 64, 512, SL_CHUNK_WHOLE};
    g->chunk_tokens = chunks[below(w, SL_COUNTOF(chunks))];
    g->max_sequences = 4 + below(w, 60);
    g->max_batch_tokens = 256u << below(w, 5);
    g->kv_memory_bytes = (uint64_t)(MAX_TOTAL * 3 + below(w, 40000)) * g->kv_bytes_per_token;
    g->tpot_target_ms = below(w, 2) ? 0 : between(w, 20, 80);
}

static void draw(struct walk *w)
{
    static const enum sl_place_mode modes[] = {SL_PLACE_PD, SL_PLACE_COLOCATED, SL_PLACE_HYBRID};
    struct sl_why why = {{0}};
    if (sim_cluster_plain("a100-llama3-8b", 1 + below(w, 3), 1 + below(w, 3), &w->cluster, &why))
        fail_msg("%s", why.text);
    for (uint32_t g = 0; g < w->cluster.n_groups; g++)
        draw_group(w, &w->cluster.groups[g]);
    w->trace = (struct sl_trace_conf){
        .rate = between(w, 2, 80), .n = 100 + below(w, 300), .seed = below(w, 1000), .max_total = MAX_TOTAL};
    uint32_t n = 1 + below(w, MAX_CLASSES);
    for (uint32_t i = 0; i < n; i++)
        w->classes[i] = (struct sim_class){.share = 1.0 / n,
                                           .priority = (int32_t)below(w, 5) - 2,
                                           .ttft_ms = below(w, 2) ? 0 : between(w, 100, 5000),
                                           .key = below(w, 3),
                                           .key_weight = 1 + below(w, 3)};
    w->conf = (struct sim_conf){.mode = modes[below(w, SL_COUNTOF(modes))],
                                .classes = w->classes,
                                .n_classes = n,
                                .hold_ms = below(w, 3) ? 100 + below(w, 3000) : 0,
                                .max_wait_ms = below(w, 2) ? 0 : 1000 + below(w, 20000),
                                .refuse = below(w, 2),
                                .cost_error = between(w, 0, 0.2),
                                .noise = between(w, 0, 0.1),
                                .max_tokens = 1000,
                                .seed = below(w, 1000)};
}

static void check(const struct walk *w, const struct sl_trace *t, const struct sim_result *r)
{
    uint64_t tokens = 0;
    size_t served = 0;
    assert_int_equal(r->n_unfinished, 0); /* nothing starves */
    for (size_t i = 0; i < r->n; i++) {
        const struct sim_outcome *o = &r->outcomes[i];
        assert_true(o->done != o->refused);
        assert_true(!o->refused || o->waited <= 0); /* refused when it came, or never */
        served += o->done;
        tokens += o->done ? t->requests[i].n_output : 0;
        assert_true(!o->done || (o->ttft > 0 && o->waited <= o->ttft));
    }
    assert_int_equal(r->tokens, tokens); /* every token once */
    assert_int_equal(served + r->n_refused, r->n);
    assert_int_equal(r->over_target, 0);
    if (!w->conf.refuse && !w->conf.max_wait_ms)
        assert_int_equal(r->n_refused, 0);
}

static void random_clusters_keep_all_promises(void **state)
{
    (void)state;
    struct walk w = {.rng = 17};
    size_t refused = 0, preempted = 0, moved = 0;
    for (uint32_t i = 0; i < WALKS; i++) {
        struct sl_trace t;
        struct sim_result r, again;
        struct sl_why why = {{0}};
        draw(&w);
        if (sl_trace_open(&w.trace, &t, &why) || sim_run(&w.cluster, &t, &w.conf, &r, &why))
            fail_msg("walk %u: %s", i, why.text);
        print_message("walk %u: %zu requests, %zu refused\n", i, r.n, r.n_refused);
        check(&w, &t, &r);
        refused += r.n_refused;
        preempted += r.preemptions;
        moved += r.moved_tokens;
        if (i % 10 == 0) {
            assert_int_equal(sim_run(&w.cluster, &t, &w.conf, &again, &why), SL_OK);
            assert_memory_equal(r.outcomes, again.outcomes, r.n * sizeof *r.outcomes);
            sim_result_fini(&again);
        }
        sim_result_fini(&r);
        sl_trace_close(&t);
    }
    assert_true(refused > 0 && preempted > 0 && moved > 0); /* the walks went where it is narrow */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_clusters_keep_all_promises)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
