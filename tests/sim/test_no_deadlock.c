/* Property: on two prefill and two decode nodes whose pools hold 1.2 of the longest prompts, no request waits
 * for ever, whatever the order of arrivals, splits, page moves, cancels and lost prefill sides.
 *
 * Engines are real, the model is fake; the nodes are reduced to their rules: D grants when it admitted and
 * keeps the sequence pinned while pages come; P computes ahead without a grant within ungranted_pages, and
 * hands pages over, pinned, once it is granted. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/engine/engine.h"
#include "tests/sim/fake_model.h"
#include "tests/support/support.h"

#define PT         8u
#define LONGEST    160u /* tokens of prompt */
#define MAX_OUT    12u
#define N_REQUESTS 60u
#define PATIENCE   40000u

struct node {
    struct sl_engine *e;
    uint32_t preempted;
};

struct request {
    uint32_t p, d; /* nodes */
    int32_t prompt[LONGEST];
    uint32_t n_prompt, max_tokens, split;
    struct sl_seq *on_p, *on_d;
    bool admitted, granted, p_admitted, p_done, done;
    uint32_t p_computed, copied;
    int32_t first; /* token that P sampled */
};

struct world {
    unsigned long long rng;
    struct node p[2], d[2];
    struct request r[N_REQUESTS];
    uint32_t n_open, n_canceled, n_lost, n_split;
};

static uint32_t below(struct world *w, uint32_t n)
{
    return (uint32_t)(sl_test_random(&w->rng) % n);
}

static struct sl_engine *open_engine(uint32_t ungranted_pages)
{
    uint32_t n_pages = (LONGEST + MAX_OUT) / PT * 12 / 10;
    struct sl_engine_conf conf = {.model_path = "none",
                                  .backend = "fake",
                                  .kv_dtype = SL_F32,
                                  .page_tokens = PT,
                                  .kv_memory_bytes = fake_page_bytes(PT) * n_pages,
                                  .max_batch_tokens = 48,
                                  .max_sequences = 16,
                                  .max_waiting = N_REQUESTS,
                                  .chunk_tokens = SL_CHUNK_AUTO,
                                  .ungranted_pages = ungranted_pages,
                                  .speculation = SL_SPEC_AUTO,
                                  .clock_us = fake_clock_us,
                                  .skip_profile = true};
    struct sl_engine *e = NULL;
    struct sl_why why = {0};
    if (sl_engine_open(&conf, &e, &why) != SL_OK)
        fail_msg("%s", why.text);
    return e;
}

static void submit(struct world *w, struct request *r)
{
    *r = (struct request){.p = below(w, 2), .d = below(w, 2)};
    r->n_prompt = below(w, 3) ? LONGEST - below(w, 16) : 1 + below(w, LONGEST);
    r->max_tokens = 1 + below(w, MAX_OUT);
    for (uint32_t i = 0; i < r->n_prompt; i++)
        r->prompt[i] = (int32_t)below(w, FAKE_VOCAB);
    uint32_t pages = r->n_prompt / PT;
    r->split = below(w, 2) ? r->n_prompt : below(w, pages + 1) * PT;
    w->n_split += r->split > 0;
    static const struct sl_sampling greedy = {
        .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .ignore_eos = true};
    struct sl_seq_spec spec = {.owner = r,
                               .tokens = r->prompt,
                               .n_tokens = r->n_prompt,
                               .n_prompt = r->n_prompt,
                               .max_tokens = r->max_tokens,
                               .sampling = &greedy,
                               .use_prefix_cache = below(w, 2),
                               .remote_to = r->split,
                               .compute_to = r->n_prompt,
                               .sample = true,
                               .decode = true,
                               .granted = true,
                               .chunk_tokens = SL_CHUNK_DEFAULT};
    struct sl_why why = {0};
    if (sl_engine_seq_open(w->d[r->d].e, &spec, &r->on_d, &why) != SL_OK)
        fail_msg("%s", why.text);
    if (!r->split)
        return;
    spec.remote_to = 0;
    spec.compute_to = r->split;
    spec.decode = spec.granted = false;
    if (sl_engine_seq_open(w->p[r->p].e, &spec, &r->on_p, &why) != SL_OK)
        fail_msg("%s", why.text);
}

static void close_on_p(struct world *w, struct request *r)
{
    if (r->on_p)
        sl_engine_seq_close(w->p[r->p].e, r->on_p);
    r->on_p = NULL;
}

static void end(struct world *w, struct request *r)
{
    close_on_p(w, r);
    sl_engine_seq_close(w->d[r->d].e, r->on_d);
    r->on_d = NULL;
    r->done = true;
    w->n_open--;
}

static void hear_p(struct node *n)
{
    struct sl_engine_event ev[16];
    size_t k;
    while ((k = sl_engine_poll(n->e, ev, SL_COUNTOF(ev))) > 0)
        for (size_t i = 0; i < k; i++) {
            struct request *r = ev[i].owner;
            if (ev[i].kind == SL_EV_COMPUTED)
                r->p_computed = ev[i].computed_tokens;
            if (ev[i].kind == SL_EV_TOKEN)
                r->first = ev[i].sampled.token;
            if (ev[i].kind == SL_EV_FINISHED)
                r->p_done = true;
            if (ev[i].kind == SL_EV_PREEMPTED) {
                assert_false(r->granted);
                r->p_computed = 0;
                r->p_done = false;
                n->preempted++;
            }
        }
}

static void hear_d(struct world *w, struct node *n)
{
    struct sl_engine_event ev[16];
    size_t k;
    while ((k = sl_engine_poll(n->e, ev, SL_COUNTOF(ev))) > 0)
        for (size_t i = 0; i < k; i++) {
            struct request *r = ev[i].owner;
            if (ev[i].kind == SL_EV_ADMITTED) {
                r->admitted = true;
                r->copied = ev[i].computed_tokens;
                if (r->on_p)
                    sl_engine_seq_pin(n->e, r->on_d, true);
            }
            if (ev[i].kind == SL_EV_PREEMPTED)
                n->preempted++;
            if (ev[i].kind == SL_EV_FINISHED)
                end(w, r);
        }
}

/* The grant travels, then pages, a few at a time; the last brings the first token. */
static void transfer(struct world *w, struct request *r)
{
    struct sl_engine *p = w->p[r->p].e, *d = w->d[r->d].e;
    if (!r->granted) {
        r->granted = true;
        sl_engine_seq_pin(p, r->on_p, true);
        sl_engine_seq_grant(p, r->on_p);
    }
    struct sl_seq_view pv, dv;
    sl_seq_view(r->on_p, &pv);
    sl_seq_view(r->on_d, &dv);
    uint32_t to = r->p_computed < r->split ? r->p_computed / PT * PT : r->split;
    for (uint32_t i = r->copied; i < to; i++)
        fake_page_set(sl_engine_page_base(d), PT, dv.pages[i / PT], i % PT,
                      fake_page_get(sl_engine_page_base(p), PT, pv.pages[i / PT], i % PT));
    if (to > r->copied)
        sl_engine_seq_ready(d, r->on_d, r->copied = to);
    if (r->copied < r->split || (r->split == r->n_prompt && !r->p_done))
        return;
    sl_engine_seq_pin(d, r->on_d, false);
    if (r->split == r->n_prompt)
        sl_engine_seq_first_token(d, r->on_d, &(struct sl_sampled){.token = r->first});
    close_on_p(w, r);
}

static void lose_p(struct world *w, struct request *r)
{
    sl_engine_seq_go_local(w->d[r->d].e, r->on_d);
    sl_engine_seq_pin(w->d[r->d].e, r->on_d, false);
    close_on_p(w, r);
    w->n_lost++;
}

static void one_round(struct world *w)
{
    for (uint32_t i = 0; i < 2; i++) {
        sl_engine_step(w->p[i].e, fake_tick_us());
        sl_engine_step(w->d[i].e, fake_tick_us());
    }
    for (uint32_t i = 0; i < 2; i++) {
        sl_engine_wait(w->p[i].e);
        sl_engine_wait(w->d[i].e);
        hear_p(&w->p[i]);
        hear_d(w, &w->d[i]);
    }
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        struct request *r = &w->r[i];
        if (!r->on_d)
            continue;
        if (r->on_p && r->admitted && below(w, 3))
            transfer(w, r);
        if (r->on_p && below(w, 2000) == 0)
            lose_p(w, r);
        if (below(w, 3000) == 0) { /* the client left */
            end(w, r);
            w->n_canceled++;
        }
    }
}

static void run(unsigned long long seed, uint32_t ungranted_pages)
{
    struct world *w = test_calloc(1, sizeof *w);
    w->rng = seed;
    fake_alphabet(seed % 2 ? 2 : FAKE_VOCAB); /* two letters: drafts come true */
    for (uint32_t i = 0; i < 2; i++) {
        w->p[i].e = open_engine(ungranted_pages);
        w->d[i].e = open_engine(ungranted_pages);
    }
    uint32_t submitted = 0, rounds = 0;
    while (submitted < N_REQUESTS || w->n_open) {
        for (uint32_t k = below(w, 3); k > 0 && submitted < N_REQUESTS; k--, submitted++) {
            submit(w, &w->r[submitted]);
            w->n_open++;
        }
        one_round(w);
        if (++rounds > PATIENCE)
            fail_msg("seed %llu: %u requests wait for ever", seed, w->n_open);
    }
    struct sl_why why = {0};
    for (uint32_t i = 0; i < 2; i++) {
        if (sl_engine_check_pages(w->p[i].e, &why) != SL_OK ||
            sl_engine_check_pages(w->d[i].e, &why) != SL_OK)
            fail_msg("%s", why.text);
        sl_engine_close(w->p[i].e);
        sl_engine_close(w->d[i].e);
    }
    print_message(
        "seed %llu ungranted %u: %u rounds, %u split, %u lost, %u canceled, preempted on P %u, on D %u\n",
        seed, ungranted_pages, rounds, w->n_split, w->n_lost, w->n_canceled,
        w->p[0].preempted + w->p[1].preempted, w->d[0].preempted + w->d[1].preempted);
    test_free(w);
}

static void requests_on_tight_pools_all_end(void **state)
{
    (void)state;
    for (unsigned long long seed = 1; seed <= 8; seed++) {
        run(seed, 0);
        run(seed, 10);
        run(seed, 1000); /* no limit: granted work evicts what is in its way */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_on_tight_pools_all_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
