/* Property: under any order of open, close, ready, first token, loss of P, grant, pin, step and poll, no page
 * leaks, KV in place is the KV of the tokens, every token is the one the tokens call for, and when the owner
 * stops interfering everything ends. Small pools, so that admission, eviction and preemption are the rule.
 *
 * The model is fake (fake_model.h); engine, pool, cache and scheduler are the real ones. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/engine/engine.h"
#include "tests/sim/fake_model.h"
#include "tests/support/support.h"

#define MAX_OPEN 24
#define MAX_TEXT 200
#define MAX_OUT  60
#define PATIENCE 20000 /* steps after which all must have ended */

enum duty { COLOCATED, REMOTE_SOME, REMOTE_ALL, PREFILL, N_DUTIES };

struct client {
    struct sl_seq *seq; /* NULL = free slot */
    enum duty duty;
    int32_t tokens[MAX_TEXT + MAX_OUT];
    uint64_t kv[MAX_TEXT + MAX_OUT];
    uint32_t n_prompt, max_tokens, goal; /* goal: compute_to */
    uint32_t split, ready;
    uint32_t n_heard; /* generated tokens that were heard of or handed in */
    bool admitted, finished, pinned, local, granted;
    uint32_t n_preempted, n_before_pin; /* preemptions that were heard of; those before it was pinned last */
};

struct world {
    unsigned long long rng;
    uint32_t page_tokens, n_pages;
    struct sl_engine *e;
    struct client c[MAX_OPEN];
    uint32_t n_opened, n_finished, n_preempted, n_closed_early, n_refused;
};

static uint32_t n_preempted; /* in all walks */
static uint64_t n_drafted, n_accepted;

static uint32_t below(struct world *w, uint32_t n)
{
    return (uint32_t)(sl_test_random(&w->rng) % n);
}

/* None, as many as pay, or some. */
static int32_t drafts_of(struct world *w)
{
    static const int32_t some[] = {SL_SPEC_OFF, SL_SPEC_AUTO, SL_SPEC_AUTO, 1, 5, SL_SPEC_MAX};
    return some[below(w, SL_COUNTOF(some))];
}

static void open_client(struct world *w, struct client *c)
{
    *c = (struct client){.duty = (enum duty)below(w, N_DUTIES), .granted = true};
    c->n_prompt = 1 + below(w, MAX_TEXT);
    c->max_tokens = 1 + below(w, MAX_OUT);
    uint32_t n = c->n_prompt + c->max_tokens;
    for (uint32_t i = 0; i < c->n_prompt; i++) /* few letters, long runs: prompts share beginnings */
        c->tokens[i] = i < 40 ? 0 : (int32_t)below(w, 2);
    for (uint32_t i = 0; i < n; i++) {
        fake_kv(c->tokens, i + 1, c->kv);
        if (i + 1 >= c->n_prompt && i + 1 < n)
            c->tokens[i + 1] = fake_next_token(c->kv[i]);
    }
    struct sl_sampling greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .ignore_eos = true};
    struct sl_seq_spec spec = {
        .owner = c,
        .tokens = c->tokens,
        .n_tokens = c->n_prompt,
        .n_prompt = c->n_prompt,
        .max_tokens = c->max_tokens,
        .sampling = &greedy,
        .use_prefix_cache = below(w, 4) > 0,
        .compute_to = c->n_prompt,
        .sample = true,
        .decode = true,
        .granted = true,
        .chunk_tokens = (int32_t)below(w, 4) - 2,
        .speculation = drafts_of(w),
        .priority = (int32_t)below(w, 3),
    };
    if (spec.chunk_tokens == 1)
        spec.chunk_tokens = 1 + (int32_t)below(w, 40);
    if (c->duty == REMOTE_SOME)
        spec.remote_to = c->n_prompt / w->page_tokens * w->page_tokens;
    if (c->duty == REMOTE_ALL)
        spec.remote_to = c->n_prompt;
    if (c->duty == PREFILL) {
        spec.decode = false;
        spec.granted = c->granted = below(w, 2);
        if (below(w, 2) && c->n_prompt > w->page_tokens)
            spec.compute_to = c->n_prompt / w->page_tokens * w->page_tokens;
    }
    c->goal = spec.compute_to;
    c->split = spec.remote_to;
    struct sl_why why = {0};
    enum sl_err err = sl_engine_seq_open(w->e, &spec, &c->seq, &why);
    if (err != SL_OK) {
        assert_true(err == SL_EAGAIN || err == SL_ETOOBIG);
        assert_true(why.text[0] != 0);
        c->seq = NULL;
        w->n_refused++;
        return;
    }
    w->n_opened++;
}

static void close_client(struct world *w, struct client *c)
{
    w->n_closed_early += !c->finished;
    sl_engine_seq_close(w->e, c->seq);
    c->seq = NULL;
}

/* Pages of a remote prompt arrive: up to the given position. */
static void arrive(struct world *w, struct client *c, uint32_t to)
{
    struct sl_seq_view v;
    sl_seq_view(c->seq, &v);
    if (v.state != SL_SEQ_REMOTE || c->local || to <= v.computed_tokens)
        return;
    for (uint32_t i = v.computed_tokens; i < to; i++)
        fake_page_set(sl_engine_page_base(w->e), w->page_tokens, v.pages[i / w->page_tokens],
                      i % w->page_tokens, c->kv[i]);
    sl_engine_seq_ready(w->e, c->seq, to);
    c->ready = to;
}

static void first_token(struct world *w, struct client *c)
{
    struct sl_seq_view v;
    sl_seq_view(c->seq, &v);
    if (c->split != c->n_prompt || v.state != SL_SEQ_REMOTE || v.computed_tokens < c->n_prompt || c->n_heard)
        return;
    c->n_heard = 1;
    sl_engine_seq_pin(w->e, c->seq, c->pinned = false);
    sl_engine_seq_first_token(w->e, c->seq, &(struct sl_sampled){.token = c->tokens[c->n_prompt]});
}

static void set_pin(struct world *w, struct client *c, bool pinned)
{
    struct sl_seq_view v;
    sl_seq_view(c->seq, &v);
    c->n_before_pin = v.preemptions;
    sl_engine_seq_pin(w->e, c->seq, c->pinned = pinned);
}

static void go_local(struct world *w, struct client *c)
{
    c->local = true;
    sl_engine_seq_go_local(w->e, c->seq);
    sl_engine_seq_pin(w->e, c->seq, c->pinned = false);
}

static void hear(struct world *w, const struct sl_engine_event *ev)
{
    struct client *c = ev->owner;
    assert_ptr_equal(c->seq, ev->seq); /* nothing is heard of a closed one */
    struct sl_seq_view v;
    sl_seq_view(c->seq, &v);
    switch (ev->kind) {
    case SL_EV_ADMITTED:
        assert_false(c->admitted);
        c->admitted = true;
        break;
    case SL_EV_PREEMPTED:
        c->n_preempted++; /* one from before the pin may be heard after it */
        assert_true(c->admitted && (!c->pinned || c->n_preempted <= c->n_before_pin));
        assert_true(!c->finished || !c->granted);
        c->admitted = c->finished = false;
        c->local = true;
        w->n_preempted++;
        break;
    case SL_EV_COMPUTED:
        assert_true(c->admitted && ev->computed_tokens <= v.n_tokens);
        break;
    case SL_EV_TOKEN:
        assert_false(c->finished);
        assert_int_equal(ev->token_index, c->n_heard);
        assert_int_equal(ev->sampled.token, c->tokens[c->n_prompt + c->n_heard]);
        c->n_heard++;
        break;
    case SL_EV_FINISHED:
        assert_false(c->finished);
        c->finished = true;
        w->n_finished++;
        if (c->duty != PREFILL)
            assert_int_equal(c->n_heard, c->max_tokens);
        else if (c->goal == c->n_prompt)
            assert_int_equal(c->n_heard, 1);
    }
}

static void poll_some(struct world *w, size_t max)
{
    struct sl_engine_event ev[16];
    size_t n = sl_engine_poll(w->e, ev, max);
    for (size_t i = 0; i < n; i++)
        hear(w, &ev[i]);
}

static void check(struct world *w)
{
    struct sl_why why = {0};
    if (sl_engine_check_pages(w->e, &why) != SL_OK)
        fail_msg("%s", why.text);
    uint32_t ungranted = 0;
    for (uint32_t i = 0; i < MAX_OPEN; i++) {
        struct client *c = &w->c[i];
        if (!c->seq)
            continue;
        struct sl_seq_view v;
        sl_seq_view(c->seq, &v);
        assert_true(v.n_pages * w->page_tokens >= v.computed_tokens);
        assert_memory_equal(v.tokens, c->tokens, v.n_tokens * sizeof *v.tokens);
        for (uint32_t k = 0; k < v.computed_tokens; k++)
            if (fake_page_get(sl_engine_page_base(w->e), w->page_tokens, v.pages[k / w->page_tokens],
                              k % w->page_tokens) != c->kv[k])
                fail_msg("KV of position %u of %u is wrong (state %s, hit %u, ready %u)", k,
                         v.computed_tokens, sl_seq_state_name(v.state), v.hit_tokens, c->ready);
        ungranted += c->granted ? 0 : v.n_pages;
    }
    assert_true(ungranted <= w->n_pages / 3);
}

static void act(struct world *w)
{
    struct client *c = &w->c[below(w, MAX_OPEN)];
    if (!c->seq) {
        open_client(w, c);
        return;
    }
    switch (below(w, 12)) {
    case 0:
        close_client(w, c);
        break;
    case 1:
    case 2:
    case 3:
        if (c->split)
            arrive(w, c, below(w, 3) ? c->split : below(w, c->split) / w->page_tokens * w->page_tokens);
        break;
    case 4:
    case 5:
        first_token(w, c);
        break;
    case 6:
        if (c->split && !c->local && !below(w, 3))
            go_local(w, c);
        break;
    case 7:
        sl_engine_seq_grant(w->e, c->seq);
        c->granted = true;
        break;
    case 8:
        set_pin(w, c, below(w, 3) == 0 && c->admitted);
        break;
    default:
        if (c->finished)
            close_client(w, c);
    }
}

/* The owner does its duty now: grants, hands over what is missing, closes what ended. */
static void settle(struct world *w)
{
    for (uint32_t i = 0; i < MAX_OPEN; i++) {
        struct client *c = &w->c[i];
        if (!c->seq)
            continue;
        sl_engine_seq_grant(w->e, c->seq);
        c->granted = true;
        sl_engine_seq_pin(w->e, c->seq, c->pinned = false);
        if (c->split)
            arrive(w, c, c->split);
        first_token(w, c);
    }
}

static uint32_t close_finished(struct world *w)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < MAX_OPEN; i++)
        if (w->c[i].seq && w->c[i].finished)
            close_client(w, &w->c[i]);
        else
            left += w->c[i].seq != NULL;
    return left;
}

static void tell(const struct world *w)
{
    struct sl_engine_stats s;
    sl_engine_stats(w->e, &s);
    print_message("pages free %u evictable %u of %u, waiting %u, running %u\n", s.free_pages,
                  s.evictable_pages, s.total_pages, s.waiting, s.running);
    for (uint32_t i = 0; i < MAX_OPEN; i++) {
        const struct client *c = &w->c[i];
        struct sl_seq_view v;
        if (!c->seq)
            continue;
        sl_seq_view(c->seq, &v);
        print_message("  duty %d %s: prompt %u max %u split %u goal %u tokens %u computed %u hit %u pages %u "
                      "heard %u local %d preempted %u\n",
                      c->duty, sl_seq_state_name(v.state), c->n_prompt, c->max_tokens, c->split, c->goal,
                      v.n_tokens, v.computed_tokens, v.hit_tokens, v.n_pages, c->n_heard, c->local,
                      v.preemptions);
    }
}

static struct sl_engine *open_engine(uint32_t page_tokens, uint32_t n_pages)
{
    struct sl_engine_conf conf = {
        .model_path = "none",
        .backend = "fake",
        .n_threads = 1,
        .kv_dtype = SL_F32,
        .page_tokens = page_tokens,
        .kv_memory_bytes = fake_page_bytes(page_tokens) * n_pages,
        .max_batch_tokens = 64,
        .max_sequences = 10,
        .max_waiting = 12,
        .chunk_tokens = SL_CHUNK_AUTO,
        .ungranted_pages = n_pages / 3,
        .clock_us = fake_clock_us,
        .skip_profile = true,
    };
    struct sl_engine *e = NULL;
    struct sl_why why = {0};
    if (sl_engine_open(&conf, &e, &why) != SL_OK)
        fail_msg("%s", why.text);
    return e;
}

static void walk(unsigned long long seed, uint32_t page_tokens, uint32_t n_pages, uint32_t n_acts)
{
    struct world *w = test_calloc(1, sizeof *w);
    w->rng = seed;
    w->page_tokens = page_tokens;
    w->n_pages = n_pages;
    w->e = open_engine(page_tokens, n_pages);
    for (uint32_t i = 0; i < n_acts; i++) {
        for (uint32_t k = below(w, 3); k > 0; k--)
            act(w); /* also while a step is in flight */
        sl_engine_step(w->e, fake_tick_us());
        for (uint32_t k = below(w, 2); k > 0; k--)
            act(w);
        if (below(w, 4)) {
            sl_engine_wait(w->e);
            poll_some(w, 1 + below(w, 16));
            check(w);
        }
    }
    uint32_t rounds = 0;
    do {
        settle(w);
        sl_engine_step(w->e, fake_tick_us());
        sl_engine_wait(w->e);
        for (int k = 0; k < 8; k++)
            poll_some(w, 16);
        if (rounds % 64 == 0)
            check(w);
        if (++rounds > PATIENCE) {
            tell(w);
            fail_msg("seed %llu: requests do not end", seed);
        }
    } while (close_finished(w));
    check(w);
    struct sl_engine_stats s;
    sl_engine_stats(w->e, &s);
    assert_int_equal(s.free_pages + s.evictable_pages, s.total_pages);
    assert_int_equal(s.waiting + s.running, 0);
    print_message("pages %u x %u: %u opened, %u refused, %u finished, %u closed early, %u preempted\n",
                  n_pages, page_tokens, w->n_opened, w->n_refused, w->n_finished, w->n_closed_early,
                  w->n_preempted);
    assert_true(w->n_finished > 0 && w->n_closed_early > 0);
    n_preempted += w->n_preempted;
    n_drafted += s.drafted_tokens;
    n_accepted += s.accepted_tokens;
    sl_engine_close(w->e);
    test_free(w);
}

static void engine_any_order_of_calls_keeps_pages_and_tokens(void **state)
{
    (void)state;
    static const struct {
        uint32_t page_tokens, n_pages;
    } pools[] = {{16, 18}, {16, 40}, {4, 66}, {1, 300}, {32, 9}, {7, 60}};
    for (uint32_t i = 0; i < SL_COUNTOF(pools); i++)
        for (unsigned long long seed = 1; seed <= 3; seed++) {
            fake_alphabet(seed == 3 ? FAKE_VOCAB
                                    : (uint32_t)seed + 1); /* two or three letters: drafts come true */
            walk(seed * 100 + i, pools[i].page_tokens, pools[i].n_pages, 2000);
        }
    assert_true(n_preempted > 20 && n_accepted > 1000 && n_drafted > n_accepted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_any_order_of_calls_keeps_pages_and_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
