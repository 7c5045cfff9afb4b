/* tests/unit/engine/engine_support.c - the driver stands for both nodes: it moves pages by copying them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/engine/engine_support.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "tests/support/make_model/make_model.h"
#include "tests/support/support.h"

#define STALL_STEPS 10000

const char *const tiny_arch_names[TINY_ARCHS] = {"llama", "llama", "qwen2", "qwen3", "gemma3"};

#define WINDOW     40u
#define MAX_MODELS 128u

static struct {
    enum tiny_arch arch;
    enum sl_dtype type;
    bool shared;
    char *path;
} models[MAX_MODELS];
static uint32_t n_models;
static atomic_uint_fast64_t clock_us = 1000;

static uint64_t clock_now(void)
{
    return atomic_load(&clock_us);
}

static void remove_models(void)
{
    for (uint32_t i = 0; i < n_models; i++) {
        unlink(models[i].path);
        sl_free(models[i].path);
    }
}

/* Rows of the K types are blocks of 256. shared: also of a rank's share of columns. */
static struct sl_make_model shape_of(enum tiny_arch arch, enum sl_dtype type, bool shared)
{
    bool wide = type == SL_Q4_K || type == SL_Q5_K || type == SL_Q6_K;
    struct sl_make_model m = {.arch = tiny_arch_names[arch],
                              .name = "equal",
                              .n_layers = 2,
                              .d_model = wide ? 256 : 64,
                              .n_heads = wide ? 8 : 4,
                              .n_kv_heads = 2,
                              .head_dim = wide ? 32 : 16,
                              .d_ff = wide ? 256 : 128,
                              .n_vocab = TINY_VOCAB,
                              .context_length = 1024,
                              .rope_theta = 10000,
                              .tied = true,
                              .type = type,
                              .embed_type = type,
                              .seed = 1};
    if (shared) {
        m.n_heads = 8;
        m.n_kv_heads = 4;
        m.head_dim = wide ? 64 : 32;
        m.d_ff = wide ? 1024 : 512;
    }
    if (arch == TINY_MISTRAL || arch == TINY_GEMMA3)
        m.sliding_window = WINDOW;
    if (arch == TINY_GEMMA3)
        m.window_pattern = 2;
    return m;
}

static const char *model_of(enum tiny_arch arch, enum sl_dtype type, bool shared)
{
    for (uint32_t i = 0; i < n_models; i++)
        if (models[i].arch == arch && models[i].type == type && models[i].shared == shared)
            return models[i].path;
    struct sl_make_model m = shape_of(arch, type, shared);
    struct sl_why why = {0};
    char *path = sl_test_temp_file("", 0);
    if (sl_make_model_write(&m, path, &why) != SL_OK)
        fail_msg("%s", why.text);
    if (n_models == 0)
        atexit(remove_models);
    assert_true(n_models < MAX_MODELS);
    models[n_models].arch = arch;
    models[n_models].type = type;
    models[n_models].shared = shared;
    models[n_models++].path = path;
    return path;
}

struct sl_engine_conf tiny_conf(const struct tiny_choice *c, uint32_t n_threads, uint32_t page_tokens,
                                uint32_t n_pages)
{
    struct sl_make_model m = shape_of(c->arch, c->type, c->tensor_parallel > 0);
    struct sl_kv_geometry g = {.n_layers = m.n_layers,
                               .n_kv_heads = m.n_kv_heads,
                               .page_tokens = page_tokens,
                               .head_dim = m.head_dim,
                               .dtype = c->kv};
    return (struct sl_engine_conf){
        .model_path = model_of(c->arch, c->type, c->tensor_parallel > 0),
        .backend = c->backend,
        .tensor_parallel = c->tensor_parallel,
        .n_threads = n_threads,
        .kv_dtype = c->kv,
        .page_tokens = page_tokens,
        .kv_memory_bytes = sl_kv_page_bytes(&g) * n_pages,
        .max_batch_tokens = 256,
        .max_sequences = 16,
        .max_waiting = 64,
        .chunk_tokens = SL_CHUNK_AUTO,
        .ungranted_pages = n_pages,
        .clock_us = clock_now,
        .skip_profile = true,
    };
}

struct sl_engine *tiny_engine(const struct sl_engine_conf *conf)
{
    struct sl_engine *e = NULL;
    struct sl_why why = {0};
    if (sl_engine_open(conf, &e, &why) != SL_OK)
        fail_msg("%s", why.text);
    return e;
}

void job_init(struct job *j, unsigned long long *rng, uint32_t n_prompt, uint32_t max_tokens)
{
    *j = (struct job){.n_prompt = n_prompt,
                      .max_tokens = max_tokens,
                      .sampling = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .ignore_eos = true},
                      .cache = true,
                      .chunk_tokens = SL_CHUNK_DEFAULT,
                      .p_chunk_tokens = SL_CHUNK_DEFAULT,
                      .lose_after = -1};
    assert_true(n_prompt <= JOB_MAX_TEXT && max_tokens <= JOB_MAX_OUT);
    for (uint32_t i = 0; i < n_prompt; i++)
        j->prompt[i] = (int32_t)(sl_test_random(rng) % TINY_VOCAB);
    j->sampling.seed = sl_test_random(rng);
}

static void open_seqs(struct sl_engine *d, struct sl_engine *p, struct job *j)
{
    struct sl_why why = {0};
    struct sl_seq_spec spec = {
        .owner = j,
        .tokens = j->prompt,
        .n_tokens = j->n_prompt,
        .n_prompt = j->n_prompt,
        .max_tokens = j->max_tokens,
        .sampling = &j->sampling,
        .cache_salt = j->salt,
        .use_prefix_cache = j->cache,
        .remote_to = j->split,
        .compute_to = j->n_prompt,
        .sample = true,
        .decode = true,
        .granted = true,
        .want_digest = true,
        .chunk_tokens = j->chunk_tokens,
        .speculation = j->speculation,
    };
    if (sl_engine_seq_open(d, &spec, &j->d, &why) != SL_OK)
        fail_msg("%s", why.text);
    if (!j->split)
        return;
    assert_non_null(p);
    sl_engine_seq_pin(d, j->d, true);
    spec.remote_to = 0;
    spec.compute_to = j->split;
    spec.decode = false;
    spec.chunk_tokens = j->p_chunk_tokens;
    if (sl_engine_seq_open(p, &spec, &j->p, &why) != SL_OK)
        fail_msg("%s", why.text);
}

static void add_token(struct job *j, const struct sl_sampled *t)
{
    assert_true(j->n_out < j->max_tokens);
    j->digests[j->n_out] = t->logits_digest;
    j->logprobs[j->n_out] = t->logprob;
    j->out[j->n_out++] = t->token;
}

static void lose_p(struct sl_engine *d, struct sl_engine *p, struct job *j)
{
    j->lost = true;
    sl_engine_seq_go_local(d, j->d);
    sl_engine_seq_pin(d, j->d, false);
    sl_engine_seq_close(p, j->p);
    j->p = NULL;
}

/* Both engines stand still. */
static void copy_page(struct sl_engine *d, uint32_t to, struct sl_engine *p, uint32_t from, size_t bytes)
{
    const struct sl_backend_ops *ops;
    struct sl_why why = {0};
    char *page = sl_xalloc(bytes);
    if (sl_backend_find(sl_engine_backend(d), &ops, &why) != SL_OK)
        fail_msg("%s", why.text);
    struct sl_kv_on_device a = sl_engine_kv_on_device(p), b = sl_engine_kv_on_device(d);
    ops->kv_read(a.dev, a.kv, from, page);
    ops->kv_write(b.dev, b.kv, to, page);
    sl_free(page);
}

/* Copies what P finished and D lacks; then whatever follows from it. */
static void move_pages(struct sl_engine *d, struct sl_engine *p, struct job *j)
{
    struct sl_seq_view dv, pv;
    sl_seq_view(j->d, &dv);
    sl_seq_view(j->p, &pv);
    if (dv.state != SL_SEQ_REMOTE)
        return;
    struct sl_kv_geometry g = sl_engine_geometry(d);
    size_t bytes = sl_kv_page_bytes(&g);
    uint32_t to = pv.computed_tokens < j->split ? pv.computed_tokens : j->split;
    if (to < j->split)
        to -= to % g.page_tokens;
    if (dv.computed_tokens > j->copied)
        j->copied = dv.computed_tokens; /* prefix hit at D */
    while (j->copied < to) {
        uint32_t i = j->copied / g.page_tokens;
        if (j->lose_after >= 0 && j->pages_moved >= (uint32_t)j->lose_after)
            break;
        copy_page(d, dv.pages[i], p, pv.pages[i], bytes);
        j->pages_moved++;
        j->copied = (i + 1) * g.page_tokens < j->split ? (i + 1) * g.page_tokens : j->split;
        sl_engine_seq_ready(d, j->d, j->copied);
    }
    if (j->lose_after >= 0 && j->pages_moved >= (uint32_t)j->lose_after) {
        lose_p(d, p, j);
        return;
    }
    bool whole = j->split == j->n_prompt;
    if (j->copied < j->split || (whole && !j->p_done))
        return;
    if (whole) {
        struct sl_sampled first = {.token = j->out[0], .logits_digest = j->digests[0]};
        j->first_from_p = true;
        sl_engine_seq_first_token(d, j->d, &first);
    }
    sl_engine_seq_pin(d, j->d, false);
    sl_engine_seq_close(p, j->p);
    j->p = NULL;
}

static void hear(struct sl_engine *e, bool is_p)
{
    struct sl_engine_event ev[8];
    size_t n;
    while ((n = sl_engine_poll(e, ev, SL_COUNTOF(ev))) > 0)
        for (size_t i = 0; i < n; i++) {
            struct job *j = ev[i].owner;
            assert_ptr_equal(ev[i].seq, is_p ? j->p : j->d);
            if (ev[i].kind == SL_EV_TOKEN && !j->lost) {
                assert_int_equal(ev[i].token_index, j->n_out);
                add_token(j, &ev[i].sampled);
            } else if (ev[i].kind == SL_EV_TOKEN) {
                /* P's first token was thrown away with it */
                if (ev[i].token_index == 0)
                    j->n_out = 0;
                add_token(j, &ev[i].sampled);
            } else if (ev[i].kind == SL_EV_FINISHED && is_p) {
                j->p_done = true;
            } else if (ev[i].kind == SL_EV_FINISHED) {
                j->finished = true;
                j->reason = ev[i].reason;
            }
        }
}

static void check_pages(struct sl_engine *e)
{
    struct sl_why why = {0};
    if (sl_engine_check_pages(e, &why) != SL_OK)
        fail_msg("%s", why.text);
}

static void end_job(struct sl_engine *d, struct sl_engine *p, struct job *j)
{
    struct sl_seq_view v;
    sl_seq_view(j->d, &v);
    j->chunks = v.chunks;
    j->prompt_tokens_computed = v.prompt_tokens_computed;
    j->hit_tokens = v.hit_tokens;
    j->preemptions = v.preemptions;
    j->drafted = v.drafted;
    j->accepted = v.accepted;
    sl_engine_seq_close(d, j->d);
    j->d = NULL;
    if (j->p)
        sl_engine_seq_close(p, j->p);
    j->p = NULL;
}

static void tell_engine(const char *name, const struct sl_engine *e)
{
    struct sl_engine_stats s;
    sl_engine_stats(e, &s);
    print_message("%s: pages free %u evictable %u cached %u total %u, waiting %u running %u\n", name,
                  s.free_pages, s.evictable_pages, s.cached_pages, s.total_pages, s.waiting, s.running);
}

static void tell_seq(const char *name, const struct sl_seq *s)
{
    struct sl_seq_view v;
    if (!s)
        return;
    sl_seq_view(s, &v);
    print_message("  %s %s tokens %u computed %u hit %u pages %u preemptions %u\n", name,
                  sl_seq_state_name(v.state), v.n_tokens, v.computed_tokens, v.hit_tokens, v.n_pages,
                  v.preemptions);
}

static void tell_states(const struct sl_engine *d, const struct sl_engine *p, const struct job *jobs,
                        uint32_t n)
{
    tell_engine("D", d);
    if (p)
        tell_engine("P", p);
    for (uint32_t i = 0; i < n; i++) {
        if (!jobs[i].d)
            continue;
        print_message("request %u: prompt %u max %u split %u copied %u lost %d\n", i, jobs[i].n_prompt,
                      jobs[i].max_tokens, jobs[i].split, jobs[i].copied, jobs[i].lost);
        tell_seq("d", jobs[i].d);
        tell_seq("p", jobs[i].p);
    }
}

void jobs_run(struct sl_engine *d, struct sl_engine *p, struct job *jobs, uint32_t n)
{
    uint32_t left = n, stalled = 0;
    for (uint32_t i = 0; i < n; i++)
        open_seqs(d, p, &jobs[i]);
    while (left) {
        uint64_t now_us = atomic_fetch_add(&clock_us, 1000) + 1000;
        bool moved = sl_engine_step(d, now_us);
        moved |= p && sl_engine_step(p, now_us);
        sl_engine_wait(d);
        if (p)
            sl_engine_wait(p);
        hear(d, false);
        if (p)
            hear(p, true);
        for (uint32_t i = 0; i < n; i++) {
            struct job *j = &jobs[i];
            if (j->d && j->p && !j->finished)
                move_pages(d, p, j);
        }
        hear(d, false); /* a first token may end it */
        for (uint32_t i = 0; i < n; i++)
            if (jobs[i].d && jobs[i].finished) {
                end_job(d, p, &jobs[i]);
                left--;
                moved = true;
            }
        stalled = moved ? 0 : stalled + 1;
        if (stalled > STALL_STEPS) {
            tell_states(d, p, jobs, n);
            fail_msg("%u of %u requests do not end", left, n);
        }
    }
    check_pages(d);
    if (p)
        check_pages(p);
}

void job_equal(const struct job *want, const struct job *got, const char *name)
{
    if (want->n_out != got->n_out)
        fail_msg("%s: %u tokens, expected %u", name, got->n_out, want->n_out);
    for (uint32_t i = 0; i < want->n_out; i++)
        if (want->out[i] != got->out[i] || want->digests[i] != got->digests[i])
            fail_msg("%s: token %u is %d (logits %016llx), expected %d (%016llx)", name, i, got->out[i],
                     (unsigned long long)got->digests[i], want->out[i], (unsigned long long)want->digests[i]);
    if (memcmp(want->logprobs, got->logprobs, want->n_out * sizeof want->logprobs[0]) != 0)
        fail_msg("%s: log-probabilities differ", name);
    if (want->reason != got->reason)
        fail_msg("%s: ended by %d, expected %d", name, got->reason, want->reason);
}

#define MODE_JOBS 3u

static void mode_jobs_init(struct job *jobs)
{
    unsigned long long rng = 5;
    static const uint32_t n_prompt[MODE_JOBS] = {50, 23, 33};
    for (uint32_t i = 0; i < MODE_JOBS; i++) {
        job_init(&jobs[i], &rng, n_prompt[i], 6);
        jobs[i].cache = false;
    }
    jobs[0].sampling.temperature = 0.8f;
    jobs[0].sampling.top_p = 0.9f;
    jobs[0].sampling.n_logprobs = 3;
    jobs[1].sampling.temperature = 1.2f;
    jobs[1].sampling.top_k = 30;
    jobs[1].sampling.repetition_penalty = 1.3f;
    jobs[1].sampling.frequency_penalty = 0.5f;
    jobs[2].sampling.n_logprobs = 0; /* greedy */
}

void jobs_equal_over_modes(struct sl_engine *d, struct sl_engine *p, const char *name)
{
    static struct job want[MODE_JOBS], got[MODE_JOBS];
    mode_jobs_init(want);
    for (uint32_t i = 0; i < MODE_JOBS; i++) {
        want[i].chunk_tokens = SL_CHUNK_WHOLE;
        jobs_run(d, NULL, &want[i], 1);
    }
    mode_jobs_init(got);
    for (uint32_t i = 0; i < MODE_JOBS; i++)
        got[i].chunk_tokens = got[i].p_chunk_tokens = 16;
    got[0].split = 32;              /* the rest of the prompt is computed where it decodes */
    got[2].split = got[2].n_prompt; /* all of it, and the first token, come from the other */
    jobs_run(d, p, got, MODE_JOBS);
    for (uint32_t i = 0; i < MODE_JOBS; i++)
        job_equal(&want[i], &got[i], name);
    assert_true(got[0].pages_moved > 0);
    assert_true(got[2].first_from_p);
}
