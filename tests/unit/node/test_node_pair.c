/* Two real daemons on loopback and a router that is only this test: every placement gives the same tokens,
 * and whatever ends early leaves nothing behind. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/support/make_model/make_model.h"
#include "tests/support/support.h"
#include "tests/unit/node/fake_router.h"

#define PAGE   16u
#define PROMPT 100u
#define LONG   1536u

struct cluster {
    struct fake_router router;
    pid_t p_pid, d_pid;
    struct fake_node *p, *d;
    uint32_t serial;
};

static char folder[] = "/tmp/sluice-node-XXXXXX",
            model_path[64]; /* the model, and what nodes keep for a next start */
static int32_t prompt[LONG];

static pid_t start(struct cluster *c, const char *program, const char *const *more)
{
    const char *args[40];
    char routers[96], model[96], cache[96];
    size_t n = 0;
    snprintf(routers, sizeof routers, "--routers=%s", fake_router_url(&c->router));
    snprintf(model, sizeof model, "--model=%s", model_path);
    snprintf(cache, sizeof cache, "--cache-dir=%s/cache", folder);
    const char *fixed[] = {routers, model, "--page-tokens=16", "--kv-memory=16M", cache, "--backend=portable",
                           "--threads=1", "--max-batch-tokens=2048", "--log-level=warn",
                           /* who is slow is not dead */
                           "--peer-dead-ms=300000", "--peer-wait-ms=300000", "--drain-ms=300000"};
    for (; n < SL_COUNTOF(fixed); n++)
        args[n] = fixed[n];
    for (; more && *more; more++)
        args[n++] = *more;
    args[n] = NULL;
    return fake_daemon_start(program, args);
}

static void cluster_open_with(struct cluster *c, const char *const *p_more, const char *const *d_more)
{
    memset(c, 0, sizeof *c);
    fake_router_open(&c->router);
    c->p_pid = start(c, SL_SLUICE_PREFILL, p_more);
    c->d_pid = start(c, SL_SLUICE_DECODE, d_more);
    c->p = fake_router_node(&c->router, "prefill");
    c->d = fake_router_node(&c->router, "decode");
}

static int cluster_open(void **state)
{
    static struct cluster c;
    cluster_open_with(&c, NULL, NULL);
    *state = &c;
    return 0;
}

/* Each daemon still running drains and finds all its pages: exit status 0. */
static void stop(struct cluster *c, pid_t *pid)
{
    if (!*pid)
        return;
    kill(*pid, SIGTERM);
    assert_int_equal(fake_daemon_wait_served(&c->router, *pid), 0);
    *pid = 0;
}

static void close_own(struct cluster *c)
{
    stop(c, &c->p_pid);
    stop(c, &c->d_pid);
    fake_router_close(&c->router);
}

static int cluster_close(void **state)
{
    close_own(*state);
    return 0;
}

static struct fake_ask make_ask(struct cluster *c, char id[32], uint32_t split)
{
    snprintf(id, 32, "r%u", ++c->serial);
    return (struct fake_ask){.id = id,
                             .attempt = 1,
                             .tokens = prompt,
                             .n_tokens = PROMPT,
                             .n_prompt = PROMPT,
                             .max_tokens = 24,
                             .temperature = 0.8f,
                             .seed = 7,
                             .split = split,
                             .chunk = -2,
                             .n_logprobs = -1,
                             .salt = id,
                             .stop_id = -1,
                             .p = c->p,
                             .d = c->d};
}

static struct fake_request *run(struct cluster *c, const struct fake_ask *a)
{
    assert_int_equal(fake_submit(&c->router, a), SL_OK);
    if (a->split)
        assert_int_equal(fake_prefill(&c->router, a), SL_OK);
    struct fake_request *q = fake_router_request(&c->router, a->id, a->attempt);
    FAKE_WAIT(&c->router, q->d.done && (!a->split || q->p.done));
    return q;
}

static void expect_same(const struct fake_request *a, const struct fake_request *b, uint32_t from, uint32_t n)
{
    if (b->first_index + b->n_tokens != from + n)
        fail_msg("%u tokens from %u on, expected up to %u; the decode leg ended with reason %d, code %u: %s",
                 b->n_tokens, b->first_index, from + n, b->d.reason, b->d.code, b->d.why);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(a->tokens[from + i - a->first_index], b->tokens[from + i - b->first_index]);
        assert_true(a->digests[from + i - a->first_index] == b->digests[from + i - b->first_index]);
    }
    /* a decode node that gave up waiting samples the first token too, and tells it again: the same one */
    assert_int_equal(b->n_different, 0);
    assert_true(b->n_duplicates == 0 || b->d.report.recovered_tokens > 0);
}

static void every_split_gives_the_same_tokens_and_moves_its_pages(void **state)
{
    struct cluster *c = *state;
    char id[32];
    struct fake_ask a = make_ask(c, id, 0);
    struct fake_request *base = run(c, &a);
    assert_int_equal(base->d.reason, SLUICE__DONE_REASON__DONE_LENGTH);
    assert_int_equal(base->n_tokens, 24);
    assert_int_equal(base->d.report.prompt_tokens_computed, PROMPT);
    assert_int_equal(base->d.report.pages_received, 0);

    const uint32_t splits[] = {PAGE, 48, 96, PROMPT};
    const int32_t chunks[] = {-2, 0, 16, 7};
    for (size_t i = 0; i < SL_COUNTOF(splits); i++) {
        for (size_t k = 0; k < SL_COUNTOF(chunks); k++) {
            a = make_ask(c, id, splits[i]);
            a.chunk = chunks[k];
            struct fake_request *q = run(c, &a);
            assert_int_equal(q->d.reason, SLUICE__DONE_REASON__DONE_LENGTH);
            assert_int_equal(q->p.reason, SLUICE__DONE_REASON__DONE_PREFILLED);
            expect_same(base, q, 0, 24);
            assert_int_equal(q->p.report.pages_sent, (splits[i] + PAGE - 1) / PAGE);
            assert_int_equal(q->d.report.pages_received, (splits[i] + PAGE - 1) / PAGE);
            assert_int_equal(q->p.report.prompt_tokens_computed, splits[i]);
            assert_int_equal(q->d.report.prompt_tokens_computed, PROMPT - splits[i]);
            assert_int_equal(q->d.n_done, 1);
            assert_int_equal(q->p.n_done, 1);
        }
    }
    /* the prefill node decodes as well: a fair comparison counts it */
    a = make_ask(c, id, 0);
    a.d = c->p;
    expect_same(base, run(c, &a), 0, 24);
    fake_expect_no_leak(&c->router, c->p);
    fake_expect_no_leak(&c->router, c->d);
    assert_int_equal(c->d->n_gaps + c->p->n_gaps + c->d->n_repeated + c->p->n_repeated, 0);
}

static void prefix_hit_on_both_nodes_gives_the_same_tokens(void **state)
{
    struct cluster *c = *state;
    char id[32], salt[32];
    struct fake_ask a = make_ask(c, id, PROMPT);
    snprintf(salt, sizeof salt, "%s", id);
    struct fake_request *base = run(c, &a);
    for (uint32_t split = 0; split <= PROMPT; split += split + PAGE > PROMPT ? PROMPT - split : PAGE) {
        a = make_ask(c, id, split);
        a.salt = salt;
        struct fake_request *q = run(c, &a);
        expect_same(base, q, 0, 24);
        assert_int_equal(q->d.report.cached_tokens, PROMPT / PAGE * PAGE);
        if (split == PROMPT)
            break;
    }
    fake_expect_no_leak(&c->router, c->p);
    fake_expect_no_leak(&c->router, c->d);
}

static void request_continued_after_a_fault_goes_on_where_it_was(void **state)
{
    struct cluster *c = *state;
    char id[32];
    struct fake_ask a = make_ask(c, id, 0);
    struct fake_request *base = run(c, &a);
    int32_t tokens[PROMPT + 24];
    memcpy(tokens, prompt, sizeof prompt[0] * PROMPT);
    memcpy(tokens + PROMPT, base->tokens, 24 * sizeof tokens[0]);
    const uint32_t splits[] = {0, 64, PROMPT + 9};
    for (size_t i = 0; i < SL_COUNTOF(splits); i++) {
        a = make_ask(c, id, splits[i]);
        a.attempt = 2;
        a.tokens = tokens;
        a.n_tokens = PROMPT + 9;
        struct fake_request *q = run(c, &a);
        assert_int_equal(q->first_index, 9);
        expect_same(base, q, 9, 24 - 9);
    }
}

static void first_token_that_ends_the_request_ends_it_on_both_nodes(void **state)
{
    struct cluster *c = *state;
    char id[32];
    struct fake_ask a = make_ask(c, id, 0);
    struct fake_request *base = run(c, &a);
    a = make_ask(c, id, PROMPT);
    a.stop_id = base->tokens[0];
    struct fake_request *q = run(c, &a);
    assert_int_equal(q->d.reason, SLUICE__DONE_REASON__DONE_STOP);
    assert_int_equal(q->p.reason, SLUICE__DONE_REASON__DONE_PREFILLED);
    assert_int_equal(q->n_tokens, 1);
    a = make_ask(c, id, PROMPT);
    a.max_tokens = 1;
    q = run(c, &a);
    assert_int_equal(q->d.reason, SLUICE__DONE_REASON__DONE_LENGTH);
    assert_int_equal(q->n_tokens, 1);
    assert_int_equal(q->tokens[0], base->tokens[0]);
    fake_expect_no_leak(&c->router, c->d);
}

static void logprobs_come_with_every_token_in_every_mode(void **state)
{
    struct cluster *c = *state;
    char id[32];
    struct fake_ask a = make_ask(c, id, 0);
    a.n_logprobs = 3;
    struct fake_request *base = run(c, &a);
    a = make_ask(c, id, PROMPT);
    a.n_logprobs = 3;
    struct fake_request *q = run(c, &a);
    expect_same(base, q, 0, 24);
    for (int i = 0; i < 24; i++) {
        assert_true(q->logprobs[i] < 0);
        assert_true(q->logprobs[i] == base->logprobs[i]);
    }
}

static void command_sent_twice_runs_once(void **state)
{
    struct cluster *c = *state;
    char id[32];
    struct fake_ask a = make_ask(c, id, PROMPT);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(fake_submit(&c->router, &a), SL_OK);
        assert_int_equal(fake_prefill(&c->router, &a), SL_OK);
    }
    struct fake_request *q = fake_router_request(&c->router, id, 1);
    FAKE_WAIT(&c->router, q->d.done && q->p.done);
    assert_int_equal(fake_submit(&c->router, &a), SL_OK); /* also when it is over */
    fake_expect_no_leak(&c->router, c->d);
    fake_expect_no_leak(&c->router, c->p);
    assert_int_equal(q->d.n_done, 1);
    assert_int_equal(q->p.n_done, 1);
    assert_int_equal(q->n_tokens, 24);
}

/* The nodes are held in the middle: while a prompt is computed, while its pages travel, while tokens come. */
static void request_canceled_frees_everything_at_once(void **state)
{
    (void)state;
    static const char *const hold_10[] = {"--fault-hold-after=10", NULL},
                             *const hold_110[] = {"--fault-hold-after=110", NULL}; /* 96 chunks, and tokens */
    static const struct {
        const char *const *p_more, *const *d_more;
        uint32_t split, n_states, n_tokens;
    } cases[] = {{NULL, hold_10, 0, 1, 0}, {hold_10, NULL, LONG, 3, 0}, {NULL, hold_110, 0, 1, 4}};
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct cluster c;
        cluster_open_with(&c, cases[i].p_more, cases[i].d_more);
        char id[32];
        struct fake_ask a = make_ask(&c, id, cases[i].split);
        a.n_tokens = a.n_prompt = LONG;
        a.max_tokens = 2000;
        a.chunk = 16;
        assert_int_equal(fake_submit(&c.router, &a), SL_OK);
        if (a.split)
            assert_int_equal(fake_prefill(&c.router, &a), SL_OK);
        struct fake_request *q = fake_router_request(&c.router, id, 1);
        FAKE_WAIT(&c.router, q->n_states >= cases[i].n_states && q->n_tokens >= cases[i].n_tokens);
        assert_int_equal(fake_cancel(&c.router, c.d, id, 1, 1000), SL_OK);
        if (a.split)
            assert_int_equal(fake_cancel(&c.router, c.p, id, 1, 1000), SL_OK);
        FAKE_WAIT(&c.router, q->d.done && (!a.split || q->p.done));
        assert_int_equal(q->d.reason, SLUICE__DONE_REASON__DONE_CANCELED);
        fake_expect_no_leak(&c.router, c.d);
        fake_expect_no_leak(&c.router, c.p);
        assert_int_equal(q->d.n_done, 1);
        close_own(&c);
    }
}

static void cancel_of_the_decode_leg_ends_the_prefill_leg_too(void **state)
{
    struct cluster *c = *state;
    char id[32];
    struct fake_ask a = make_ask(c, id, LONG);
    a.n_tokens = a.n_prompt = LONG;
    a.chunk = 16;
    assert_int_equal(fake_submit(&c->router, &a), SL_OK);
    assert_int_equal(fake_prefill(&c->router, &a), SL_OK);
    struct fake_request *q = fake_router_request(&c->router, id, 1);
    FAKE_WAIT(&c->router, q->n_states > 2);
    assert_int_equal(fake_cancel(&c->router, c->d, id, 1, 1000), SL_OK);
    FAKE_WAIT(&c->router, q->d.done && q->p.done);
    fake_expect_no_leak(&c->router, c->p);
    fake_expect_no_leak(&c->router, c->d);
}

static void cancel_that_comes_first_refuses_the_submit(void **state)
{
    struct cluster *c = *state;
    char id[32];
    struct fake_ask a = make_ask(c, id, 0);
    assert_int_equal(fake_cancel(&c->router, c->d, id, 1, FAKE_WAIT_MS), SL_OK);
    assert_int_equal(fake_submit(&c->router, &a), SL_ECANCELED);
    a.attempt = 2; /* placed again: another thing */
    struct fake_request *q = run(c, &a);
    assert_int_equal(q->d.reason, SLUICE__DONE_REASON__DONE_LENGTH);
    a.attempt = 1;
    assert_int_equal(fake_submit(&c->router, &a), SL_ECANCELED);
}

static void later_attempt_supersedes_the_one_that_runs(void **state)
{
    (void)state;
    static const char *const hold[] = {"--fault-hold-after=20", NULL};
    struct cluster c;
    cluster_open_with(&c, NULL, hold);
    char id[32];
    struct fake_ask a = make_ask(&c, id, 0);
    a.max_tokens = 2000;
    assert_int_equal(fake_submit(&c.router, &a), SL_OK);
    struct fake_request *first = fake_router_request(&c.router, id, 1),
                        *second = fake_router_request(&c.router, id, 2);
    FAKE_WAIT(&c.router, first->n_tokens > 0);
    a.attempt = 2;
    a.max_tokens = 24;
    assert_int_equal(fake_submit(&c.router, &a), SL_OK);
    kill(c.d_pid, SIGUSR1);
    FAKE_WAIT(&c.router, first->d.done && second->d.done);
    assert_int_equal(first->d.reason, SLUICE__DONE_REASON__DONE_CANCELED);
    assert_int_equal(second->n_tokens, 24);
    a.attempt = 1;
    assert_int_equal(fake_submit(&c.router, &a), SL_ECANCELED); /* arrives late: not run again */
    fake_expect_no_leak(&c.router, c.d);
    assert_int_equal(first->d.n_done, 1);
    close_own(&c);
}

static void deadline_passed_ends_the_leg_with_edeadline(void **state)
{
    struct cluster *c = *state;
    char id[32];
    struct fake_ask a = make_ask(c, id, PAGE); /* the prefill never comes */
    a.deadline_ms = 80;
    assert_int_equal(fake_submit(&c->router, &a), SL_OK);
    struct fake_request *q = fake_router_request(&c->router, id, 1);
    FAKE_WAIT(&c->router, q->d.done);
    assert_int_equal(q->d.reason, SLUICE__DONE_REASON__DONE_ERROR);
    assert_int_equal(q->d.code, SL_EDEADLINE);
    fake_expect_no_leak(&c->router, c->d);
}

static void bad_orders_are_refused_in_words(void **state)
{
    struct cluster *c = *state;
    char id[32];
    struct fake_ask a = make_ask(c, id, 0);
    int32_t bad_tokens[] = {1, 2, 1000000};
    a.tokens = bad_tokens;
    a.n_tokens = a.n_prompt = 3;
    assert_int_equal(fake_submit(&c->router, &a), SL_EINVAL);
    a = make_ask(c, id, 17); /* no page boundary */
    assert_int_equal(fake_submit(&c->router, &a), SL_EINVAL);
    a = make_ask(c, id, 0);
    a.temperature = -1;
    assert_int_equal(fake_submit(&c->router, &a), SL_EINVAL);
    a = make_ask(c, id, 0);
    a.n_prompt = PROMPT + 1;
    assert_int_equal(fake_submit(&c->router, &a), SL_EINVAL);
    a = make_ask(c, id, 0);
    a.max_tokens = 0;
    assert_int_equal(fake_submit(&c->router, &a), SL_EINVAL);
    a = make_ask(c, id, 0);
    assert_int_equal(fake_prefill(&c->router, &a), SL_EINVAL);
    uint64_t boot = c->router.boot_id;
    a = make_ask(c, id, 0);
    c->router.boot_id++;
    assert_int_equal(fake_submit(&c->router, &a), SL_ENOTREADY);
    c->router.boot_id = boot;
    fake_expect_no_leak(&c->router, c->d);
}

static void prefill_refused_is_computed_at_the_decode_node(void **state)
{
    struct cluster *c = *state;
    char id[32];
    struct fake_ask a = make_ask(c, id, 0);
    struct fake_request *base = run(c, &a);
    Sluice__Drain m = SLUICE__DRAIN__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_DRAIN;
    e.drain = &m;
    m.on = true;
    assert_int_equal(fake_command(&c->router, c->p, &e), SL_OK);
    FAKE_WAIT(&c->router, c->p->draining);
    a = make_ask(c, id, PROMPT);
    assert_int_equal(fake_submit(&c->router, &a), SL_OK);
    assert_int_equal(fake_prefill(&c->router, &a), SL_EDRAINING);
    struct fake_request *q = fake_router_request(&c->router, id, 1);
    FAKE_WAIT(&c->router, q->d.done);
    expect_same(base, q, 0, 24);
    assert_int_equal(q->d.report.recovered_tokens, PROMPT);
    m.on = false;
    assert_int_equal(fake_command(&c->router, c->p, &e), SL_OK);
    a = make_ask(c, id, PROMPT);
    expect_same(base, run(c, &a), 0, 24);
}

static void resync_answers_during_and_after_the_request(void **state)
{
    struct cluster *c = *state;
    char id[32];
    struct fake_ask a = make_ask(c, id, 0);
    struct fake_request *q = run(c, &a);
    Sluice__Resync m = SLUICE__RESYNC__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT, *answer;
    e.body_case = SLUICE__ENVELOPE__BODY_RESYNC;
    e.resync = &m;
    m.request_id = id;
    m.attempt = 1;
    m.from_index = 20;
    assert_non_null(answer = fake_call(&c->router, c->d, &e, FAKE_WAIT_MS));
    const Sluice__ResyncReply *r = answer->resync_reply;
    assert_int_equal(r->code, SL_OK);
    assert_int_equal(r->n_tokens, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(r->tokens[i]->index, 20 + i);
        assert_int_equal(r->tokens[i]->token, q->tokens[20 + i]);
        assert_true(r->tokens[i]->logits_digest == q->digests[20 + i]);
    }
    assert_non_null(r->done);
    assert_int_equal(r->done->reason, SLUICE__DONE_REASON__DONE_LENGTH);
    sl_wire_free(answer);
    m.attempt = 9;
    assert_non_null(answer = fake_call(&c->router, c->d, &e, FAKE_WAIT_MS));
    assert_int_equal(answer->resync_reply->code, SL_ELOST);
    assert_int_equal(answer->resync_reply->n_tokens, 0);
    sl_wire_free(answer);
}

static void many_requests_at_once_in_all_modes_are_equal_and_leave_nothing(void **state)
{
    struct cluster *c = *state;
    enum { N = 24 };
    struct fake_ask asks[N];
    static char ids[N][32];
    char id[32];
    struct fake_ask a = make_ask(c, id, 0);
    struct fake_request *base = run(c, &a);
    const uint32_t splits[] = {0, 32, PROMPT, 80};
    for (int i = 0; i < N; i++) {
        asks[i] = make_ask(c, ids[i], splits[i % 4]);
        if (i % 4 == 3) { /* the other way round: the decode node prefills */
            asks[i].p = c->d;
            asks[i].d = c->p;
        }
        if (i % 2 || !asks[i].split)
            assert_int_equal(fake_submit(&c->router, &asks[i]), SL_OK);
        if (asks[i].split)
            assert_int_equal(fake_prefill(&c->router, &asks[i]), SL_OK);
        if (!(i % 2) && asks[i].split)
            assert_int_equal(fake_submit(&c->router, &asks[i]), SL_OK);
    }
    for (int i = 0; i < N; i++) {
        struct fake_request *q = fake_router_request(&c->router, ids[i], 1);
        FAKE_WAIT(&c->router, q->d.done && (!asks[i].split || q->p.done));
        expect_same(base, q, 0, 24);
    }
    fake_expect_no_leak(&c->router, c->p);
    fake_expect_no_leak(&c->router, c->d);
}

/* KV in place for the request's sequence at n, by its statistics; 0 when there is none. */
static uint32_t computed_at(struct fake_router *r, struct fake_node *n, const char *id)
{
    Sluice__StatsRequest m = SLUICE__STATS_REQUEST__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    m.has_requests = m.requests = true;
    e.body_case = SLUICE__ENVELOPE__BODY_STATS;
    e.stats = &m;
    Sluice__Envelope *a = fake_call(r, n, &e, FAKE_WAIT_MS);
    assert_non_null(a);
    uint32_t computed = 0;
    for (size_t i = 0; i < a->stats_reply->n_sequences; i++) {
        if (strcmp(a->stats_reply->sequences[i]->request_id, id) == 0)
            computed = a->stats_reply->sequences[i]->computed;
    }
    sl_wire_free(a);
    return computed;
}

static void prefill_node_killed_in_the_middle_is_not_seen_in_the_tokens(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open_with(&c, NULL, NULL);
    char id[32];
    struct fake_ask a = make_ask(&c, id, 0);
    a.n_tokens = a.n_prompt = LONG;
    struct fake_request *base = run(&c, &a);
    a = make_ask(&c, id, LONG);
    a.n_tokens = a.n_prompt = LONG;
    a.chunk = 8;
    assert_int_equal(fake_submit(&c.router, &a), SL_OK);
    assert_int_equal(fake_prefill(&c.router, &a), SL_OK);
    struct fake_request *q = fake_router_request(&c.router, id, 1);
    FAKE_WAIT(&c.router, computed_at(&c.router, c.d, id) >= 4 * PAGE);
    kill(c.p_pid, SIGKILL);
    fake_daemon_wait(c.p_pid);
    c.p_pid = 0;
    FAKE_WAIT(&c.router, q->d.done);
    expect_same(base, q, 0, 24);
    print_message("[ recovered] %u of %u tokens, %u pages had come\n", q->d.report.recovered_tokens, LONG,
                  q->d.report.pages_received);
    assert_true(q->d.report.pages_received >= 4 && q->d.report.recovered_tokens <= LONG - 4 * PAGE);
    fake_expect_no_leak(&c.router, c.d);
    close_own(&c);
}

static void decode_node_killed_in_the_middle_ends_the_prefill_leg(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open_with(&c, NULL, NULL);
    char id[32];
    struct fake_ask a = make_ask(&c, id, LONG);
    a.n_tokens = a.n_prompt = LONG;
    a.chunk = 8;
    assert_int_equal(fake_submit(&c.router, &a), SL_OK);
    assert_int_equal(fake_prefill(&c.router, &a), SL_OK);
    struct fake_request *q = fake_router_request(&c.router, id, 1);
    FAKE_WAIT(&c.router, computed_at(&c.router, c.d, id) >= 4 * PAGE);
    kill(c.d_pid, SIGKILL);
    fake_daemon_wait(c.d_pid);
    c.d_pid = 0;
    FAKE_WAIT(&c.router, q->p.done);
    assert_int_equal(q->p.n_done, 1);
    fake_expect_no_leak(&c.router, c.p);
    close_own(&c);
}

static void node_at_sigterm_finishes_what_runs_and_takes_nothing_new(void **state)
{
    (void)state;
    struct cluster c;
    static const char *const hold[] = {"--fault-hold-after=100", NULL};
    cluster_open_with(&c, NULL, hold);
    char id[32], id2[32];
    struct fake_ask a = make_ask(&c, id, 0);
    a.max_tokens = 300;
    assert_int_equal(fake_submit(&c.router, &a), SL_OK);
    struct fake_request *q = fake_router_request(&c.router, id, 1);
    FAKE_WAIT(&c.router, q->n_tokens > 0);
    kill(c.d_pid, SIGTERM);
    FAKE_WAIT(&c.router, c.d->draining || q->d.done);
    if (!q->d.done) {
        struct fake_ask b = make_ask(&c, id2, 0);
        enum sl_err err = fake_submit(&c.router, &b);
        assert_true(err == SL_EDRAINING);
    }
    FAKE_WAIT(&c.router, q->d.done);
    assert_int_equal(q->d.reason, SLUICE__DONE_REASON__DONE_LENGTH);
    assert_int_equal(q->n_tokens, 300);
    assert_int_equal(fake_daemon_wait_served(&c.router, c.d_pid), 0);
    c.d_pid = 0;
    close_own(&c);
}

/* Else the stream would stand still at its router until that takes the node for dead. */
static void node_that_stops_waits_until_its_last_events_are_taken(void **state)
{
    (void)state;
    struct cluster c;
    cluster_open_with(&c, NULL, NULL);
    char id[32];
    struct fake_ask a = make_ask(&c, id, 0);
    c.router.takes_late = true;
    assert_int_equal(run(&c, &a)->n_tokens, 24);
    kill(c.d_pid, SIGTERM);
    FAKE_WAIT(&c.router, c.d->draining);
    uint32_t beats = c.d->n_heartbeats + 100; /* many more than fit into a moment */
    int status, ended = 0;
    FAKE_WAIT(&c.router, c.d->n_heartbeats > beats || (ended = waitpid(c.d_pid, &status, WNOHANG)) != 0);
    assert_int_equal(ended, 0);
    c.router.takes_late = false;
    close_own(&c);
}

/* They went with a connection, and no later batch shows that. */
static void node_that_stops_has_its_lost_events_asked_for(void **state)
{
    (void)state;
    struct cluster c;
    static const char *const long_drain[] = {"--drain-ms=600000", NULL};
    cluster_open_with(&c, NULL, long_drain);
    char id[32];
    struct fake_ask a = make_ask(&c, id, 0);
    assert_int_equal(run(&c, &a)->n_tokens, 24);
    uint32_t gaps = c.d->n_gaps;
    c.d->last_seq--;
    kill(c.d_pid, SIGTERM);
    assert_int_equal(fake_daemon_wait_served(&c.router, c.d_pid), 0);
    assert_int_equal(c.d->n_gaps, gaps + 1);
    c.d_pid = 0;
    close_own(&c);
}

static void drain_that_runs_out_of_time_gives_the_request_back(void **state)
{
    (void)state;
    struct cluster c;
    static const char *const short_drain[] = {"--drain-ms=1", "--fault-hold-after=100", NULL};
    cluster_open_with(&c, NULL, short_drain);
    char id[32];
    struct fake_ask a = make_ask(&c, id, 0);
    a.max_tokens = 3900;
    assert_int_equal(fake_submit(&c.router, &a), SL_OK);
    struct fake_request *q = fake_router_request(&c.router, id, 1);
    FAKE_WAIT(&c.router, q->n_tokens > 0);
    kill(c.d_pid, SIGTERM);
    FAKE_WAIT(&c.router, q->d.done);
    assert_int_equal(q->d.reason, SLUICE__DONE_REASON__DONE_ERROR);
    assert_int_equal(q->d.code, SL_EDRAINING);
    assert_int_equal(fake_daemon_wait_served(&c.router, c.d_pid), 0);
    c.d_pid = 0;
    close_own(&c);
}

static void router_that_falls_silent_has_its_requests_canceled(void **state)
{
    (void)state;
    struct cluster c;
    memset(&c, 0, sizeof c);
    fake_router_open(&c.router);
    c.router.router_dead_ms = 300;
    c.d_pid = start(&c, SL_SLUICE_DECODE, NULL);
    c.p = c.d = fake_router_node(&c.router, "decode");
    char id[32];
    struct fake_ask a = make_ask(&c, id, PAGE); /* waits for a prefill that never comes */
    assert_int_equal(fake_submit(&c.router, &a), SL_OK);
    c.router.mute = true;
    struct fake_request *q = fake_router_request(&c.router, id, 1);
    FAKE_WAIT(&c.router, q->d.done);
    assert_int_equal(q->d.reason, SLUICE__DONE_REASON__DONE_CANCELED);
    assert_int_equal(q->d.code, SL_EPEER);
    c.router.mute = false;
    /* and it serves again: at a router that comes back with more patience, as this test may be slow */
    c.router.router_dead_ms = FAKE_WAIT_MS;
    c.router.boot_id++;
    FAKE_WAIT(&c.router, c.d->beats_for == c.router.boot_id);
    a = make_ask(&c, id, 0);
    assert_int_equal(run(&c, &a)->n_tokens, 24);
    close_own(&c);
}

static void changed_option_is_told_again_when_the_router_did_not_answer(void **state)
{
    (void)state;
    struct cluster c;
    memset(&c, 0, sizeof c);
    fake_router_open(&c.router);
    c.d_pid = start(&c, SL_SLUICE_DECODE, NULL);
    c.p = c.d = fake_router_node(&c.router, "decode");
    char *args[] = {(char *)"drain_ms", (char *)"200000"};
    Sluice__AdminRequest m = SLUICE__ADMIN_REQUEST__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    m.op = (char *)"set";
    m.n_args = SL_COUNTOF(args);
    m.args = args;
    e.body_case = SLUICE__ENVELOPE__BODY_ADMIN;
    e.admin = &m;
    c.router.mute = true;
    Sluice__Envelope *a = fake_call(&c.router, c.d, &e, FAKE_WAIT_MS);
    assert_non_null(a);
    assert_int_equal(a->admin_reply->code, SL_OK);
    sl_wire_free(a);
    FAKE_WAIT(&c.router, c.router.n_unheard > 0);
    uint32_t before = c.d->n_registered;
    c.router.mute = false;
    FAKE_WAIT(&c.router, c.d->n_registered > before);
    close_own(&c);
}

static void router_that_restarts_is_registered_at_again(void **state)
{
    (void)state;
    struct cluster c;
    memset(&c, 0, sizeof c);
    fake_router_open(&c.router);
    c.d_pid = start(&c, SL_SLUICE_DECODE, NULL);
    c.p = c.d = fake_router_node(&c.router, "decode");
    char id[32];
    struct fake_ask a = make_ask(&c, id, PAGE);
    assert_int_equal(fake_submit(&c.router, &a), SL_OK);
    c.router.boot_id++;
    FAKE_WAIT(&c.router, c.d->beats_for == c.router.boot_id);
    fake_expect_no_leak(&c.router, c.d); /* the old router's request is gone */
    a = make_ask(&c, id, 0);
    assert_int_equal(run(&c, &a)->n_tokens, 24);
    assert_int_equal(c.d->n_repeated, 0); /* numbers of batches count on: the old router may come back */
    close_own(&c);
}

/* Both nodes prefill for each other with room for little more than one prompt each: whoever holds pages while
 * it waits could stop all. */
static void pools_of_little_more_than_a_prompt_serve_everything(void **state)
{
    (void)state;
    enum { N = 32 };
    static const char *const small[] = {"--kv-memory=64K", NULL}; /* 10 pages; a request needs 8 */
    static char ids[N][32];
    struct fake_ask asks[N], a;
    struct cluster c;
    char id[32];
    cluster_open_with(&c, small, small);
    assert_int_equal(c.p->kv_pages, 10);
    a = make_ask(&c, id, 0);
    struct fake_request *base = run(&c, &a);
    const uint32_t splits[] = {PROMPT, 0, 64, PROMPT, PAGE};
    for (int i = 0; i < N; i++) {
        asks[i] = make_ask(&c, ids[i], splits[i % SL_COUNTOF(splits)]);
        if (i & 1) {
            asks[i].p = c.d;
            asks[i].d = c.p;
        }
        if (asks[i].split)
            assert_int_equal(fake_prefill(&c.router, &asks[i]), SL_OK);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(fake_submit(&c.router, &asks[i]), SL_OK);
    for (int i = 0; i < N; i++) {
        struct fake_request *q = fake_router_request(&c.router, ids[i], 1);
        FAKE_WAIT(&c.router, q->d.done && (!asks[i].split || q->p.done));
        expect_same(base, q, 0, 24);
    }
    fake_expect_no_leak(&c.router, c.p);
    fake_expect_no_leak(&c.router, c.d);
    close_own(&c);
}

static void bit_flipped_on_the_way_is_sent_again_and_without_digests_is_seen(void **state)
{
    (void)state;
    static const char *const flip[] = {"--fault-flip-bit=2", NULL};
    static const char *const flip_blind[] = {"--fault-flip-bit=2", "--digests=false", NULL};
    static const char *const blind[] = {"--digests=false", NULL};
    for (int digests = 1; digests >= 0; digests--) {
        struct cluster c;
        cluster_open_with(&c, digests ? flip : flip_blind, digests ? NULL : blind);
        char id[32];
        struct fake_ask a = make_ask(&c, id, 0);
        struct fake_request *base = run(&c, &a);
        a = make_ask(&c, id, PROMPT);
        struct fake_request *q = run(&c, &a);
        uint32_t n_different = 0;
        for (uint32_t i = 0; i < 24; i++)
            n_different += base->digests[i] != q->digests[i];
        assert_true(digests ? q->p.report.resends > 0 : q->p.report.resends == 0);
        assert_true(digests ? n_different == 0 : n_different > 0);
        close_own(&c);
    }
}

static void node_permitted_one_duty_refuses_the_other(void **state)
{
    (void)state;
    struct cluster c;
    memset(&c, 0, sizeof c);
    fake_router_open(&c.router);
    static const char *const only_prefill[] = {"--roles=prefill", NULL};
    c.p_pid = start(&c, SL_SLUICE_PREFILL, only_prefill);
    c.p = c.d = fake_router_node(&c.router, "prefill");
    char id[32];
    struct fake_ask a = make_ask(&c, id, 0);
    assert_int_equal(fake_submit(&c.router, &a), SL_EUNSUPPORTED);
    close_own(&c);
}

static void daemon_with_a_wrong_option_or_model_exits_78(void **state)
{
    (void)state;
    const char *bad_key[] = {"--modle=x", NULL}, *no_model[] = {"--name=a", NULL},
               *missing[] = {"--model=/nonexistent.gguf", NULL},
               *not_a_model[] = {"--model=/proc/self/status", NULL},
               *bad_chunk[] = {"--model=/dev/null", "--chunk-tokens=lots", NULL};
    const char *const *cases[] = {bad_key, no_model, missing, not_a_model, bad_chunk};
    for (size_t i = 0; i < SL_COUNTOF(cases); i++)
        assert_int_equal(fake_daemon_wait(fake_daemon_start(SL_SLUICE_DECODE, cases[i])), 78);
}

static int make_model_file(void **state)
{
    (void)state;
    struct sl_make_model m;
    struct sl_why why = {{0}};
    assert_true(sl_make_model_preset("tiny", &m));
    m.context_length = 4096;
    assert_non_null(mkdtemp(folder));
    snprintf(model_path, sizeof model_path, "%s/tiny.gguf", folder);
    if (sl_make_model_write(&m, model_path, &why) != SL_OK)
        fail_msg("%s", why.text);
    for (uint32_t i = 0; i < LONG; i++)
        prompt[i] = (int32_t)(i * 2654435761u % (m.n_vocab - 10));
    return 0;
}

static int remove_model_file(void **state)
{
    (void)state;
    return sl_test_remove_tree(folder);
}

int main(void)
{
    const struct CMUnitTest shared[] = {
        cmocka_unit_test(every_split_gives_the_same_tokens_and_moves_its_pages),
        cmocka_unit_test(prefix_hit_on_both_nodes_gives_the_same_tokens),
        cmocka_unit_test(request_continued_after_a_fault_goes_on_where_it_was),
        cmocka_unit_test(first_token_that_ends_the_request_ends_it_on_both_nodes),
        cmocka_unit_test(logprobs_come_with_every_token_in_every_mode),
        cmocka_unit_test(command_sent_twice_runs_once),
        cmocka_unit_test(cancel_of_the_decode_leg_ends_the_prefill_leg_too),
        cmocka_unit_test(cancel_that_comes_first_refuses_the_submit),
        cmocka_unit_test(deadline_passed_ends_the_leg_with_edeadline),
        cmocka_unit_test(bad_orders_are_refused_in_words),
        cmocka_unit_test(prefill_refused_is_computed_at_the_decode_node),
        cmocka_unit_test(resync_answers_during_and_after_the_request),
        cmocka_unit_test(many_requests_at_once_in_all_modes_are_equal_and_leave_nothing),
    };
    const struct CMUnitTest own[] = {
        cmocka_unit_test(request_canceled_frees_everything_at_once),
        cmocka_unit_test(later_attempt_supersedes_the_one_that_runs),
        cmocka_unit_test(prefill_node_killed_in_the_middle_is_not_seen_in_the_tokens),
        cmocka_unit_test(decode_node_killed_in_the_middle_ends_the_prefill_leg),
        cmocka_unit_test(node_at_sigterm_finishes_what_runs_and_takes_nothing_new),
        cmocka_unit_test(node_that_stops_waits_until_its_last_events_are_taken),
        cmocka_unit_test(node_that_stops_has_its_lost_events_asked_for),
        cmocka_unit_test(drain_that_runs_out_of_time_gives_the_request_back),
        cmocka_unit_test(router_that_falls_silent_has_its_requests_canceled),
        cmocka_unit_test(changed_option_is_told_again_when_the_router_did_not_answer),
        cmocka_unit_test(router_that_restarts_is_registered_at_again),
        cmocka_unit_test(pools_of_little_more_than_a_prompt_serve_everything),
        cmocka_unit_test(bit_flipped_on_the_way_is_sent_again_and_without_digests_is_seen),
        cmocka_unit_test(node_permitted_one_duty_refuses_the_other),
        cmocka_unit_test(daemon_with_a_wrong_option_or_model_exits_78),
    };
    void *none = NULL;
    make_model_file(&none);
    int failed = cmocka_run_group_tests_name("one pair", shared, cluster_open, cluster_close);
    failed += cmocka_run_group_tests_name("own daemons", own, NULL, NULL);
    remove_model_file(&none);
    return failed;
}
