/* tests/bench/cmd_policies.c - what decisions cost: processor time of one step plan, one placement, one
 * choice among those that wait, of tokenising a long prompt, and of which tokens a schema allows. The clock is the thread's own, so that other
 * work on the machine counts little; the least of several rounds is what the code takes, the median what it
 * took here. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/mem.h"
#include "common/base/philox.h"
#include "common/grammar/constraint.h"
#include "common/grammar/json_schema.h"
#include "common/sched/cost_presets.h"
#include "common/sched/step_plan.h"
#include "common/text/tokenizer.h"
#include "common/text/vocab.h"
#include "router/place/fair_share.h"
#include "router/place/place.h"
#include "tests/bench/bench.h"
#include "tests/bench/stats.h"

#define SEQUENCES   256u
#define REPEAT      200u /* of one round: long enough for the clock */
#define HELD        1024u
#define LONG_TOKENS 100000u
#define NAME_BYTES  16u
#define WALK_TOKENS 200u /* of an answer that has to fit a schema */

struct options {
    char *model, *cost;
    uint32_t rounds;
};

#define AT(member) offsetof(struct options, member)
static const struct sl_conf_opt option_table[] = {
    {"model", SL_CONF_STRING, AT(model), NULL,
     "model file whose tokenizer, and schemas with its tokens, are measured; none = they are not", 0, 0,
     NULL},
    {"cost", SL_CONF_STRING, AT(cost), "h100-llama2-70b-tp4", "cost model that is planned with", 0, 0, NULL},
    {"rounds", SL_CONF_U32, AT(rounds), "15", "rounds; the least and the median are printed", 1, 10000, NULL},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

static double cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static volatile double sink; /* nothing measured is optimised away */

/* What is measured: `work` of it, with its index. */
typedef void work_fn(void *arg, uint32_t i);

static void measure(const char *name, uint32_t rounds, work_fn *fn, void *arg)
{
    struct sl_samples us = {0};
    for (uint32_t r = 0; r < rounds; r++) {
        double began = cpu_us();
        for (uint32_t i = 0; i < REPEAT; i++)
            fn(arg, i);
        sl_samples_add(&us, (cpu_us() - began) / REPEAT);
    }
    printf("%-58s %9.2f %9.2f us\n", name, sl_samples_percentile(&us, 0), sl_samples_percentile(&us, 50));
    sl_samples_fini(&us);
}

/* ---- step plan ---- */

struct plan_case {
    struct sl_plan_state state;
    struct sl_plan_prompt prompts[SEQUENCES];
    struct sl_plan_chunk chunks[SEQUENCES];
};

static void run_plan(void *arg, uint32_t i)
{
    struct plan_case *c = arg;
    struct sl_plan p = {.chunks = c->chunks};
    sl_plan_step(&c->state, 1000000 + i, &p);
    sink = p.predicted_ms;
}

static void measure_plans(const struct sl_cost_model *cost, uint32_t rounds)
{
    static const uint32_t prompts[] = {32, 128, 256};
    struct plan_case *c = sl_xcalloc(1, sizeof *c);
    for (size_t k = 0; k < SL_COUNTOF(prompts); k++) {
        uint32_t n = prompts[k];
        c->state = (struct sl_plan_state){.cost = cost,
                                          .pace_cost = cost,
                                          .prompts = c->prompts,
                                          .n_prompts = n,
                                          .decode_rows = SEQUENCES - n,
                                          .decode_context = (SEQUENCES - n) * 1500.0,
                                          .pace_context = (SEQUENCES - n) * 1500.0,
                                          .max_rows = 8192,
                                          .align = SL_PLAN_ALIGN,
                                          .stretch = SL_PLAN_STRETCH,
                                          .prompt_step_ms = SL_PLAN_PROMPT_STEP_MS};
        for (uint32_t i = 0; i < n; i++) {
            uint32_t length =
                16 + (uint32_t)(sl_philox_uniform(1, 0, i) * 100); /* short: many fit in one step */
            c->prompts[i] = (struct sl_plan_prompt){.history = i % 3 * 500,
                                                    .remaining = length,
                                                    .total = length,
                                                    .chunk_tokens = SL_CHUNK_AUTO,
                                                    .priority = (int32_t)(i % 2),
                                                    .arrived_us = i * 1000,
                                                    .first_token_us = i % 4 ? 0 : 2000000};
        }
        char name[80];
        snprintf(name, sizeof name, "step plan, %u rows that decode, %u prompts", SEQUENCES - n, n);
        measure(name, rounds, run_plan, c);
    }
    sl_free(c);
}

/* ---- placement ---- */

struct place_case {
    struct sl_place_state state;
    struct sl_place_node nodes[SL_PLACE_MAX_NODES];
    char names[SL_PLACE_MAX_NODES][NAME_BYTES];
    struct sl_place_link links[SL_PLACE_MAX_LINKS];
    struct sl_place_req req;
    struct sl_place_choice choice;
};

static void run_place(void *arg, uint32_t i)
{
    struct place_case *c = arg;
    struct sl_why why;
    c->req.n_tokens = c->req.n_prompt = 1000 + i;
    SL_ASSERT(sl_place(&c->state, &c->req, &c->choice, &why) == SL_OK);
    sink = c->choice.best.predicted.cost_ms;
}

static void fill_nodes(struct place_case *c, const struct sl_cost_model *cost, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        double u = (double)sl_philox_uniform(2, 0, i), v = (double)sl_philox_uniform(2, 1, i);
        snprintf(c->names[i], NAME_BYTES, "node-%u", i);
        c->nodes[i] = (struct sl_place_node){.name = c->names[i],
                                             .may_prefill = true,
                                             .may_decode = true,
                                             .prefers_prefill = i % 2 == 0,
                                             .page_tokens = 16,
                                             .page_bytes = 5 << 20,
                                             .free_pages = 2000,
                                             .total_pages = 20000,
                                             .queued_prompt_tokens = u * 8000,
                                             .decode_rows = (uint32_t)(v * 64),
                                             .decode_context_tokens = v * 64 * 1500,
                                             .rows_without_wish = 1,
                                             .hit_tokens = i % 8 ? 0 : 512,
                                             .chunk_tokens = SL_CHUNK_AUTO,
                                             .max_batch_tokens = 8192,
                                             .cost = cost};
    }
    c->state = (struct sl_place_state){.nodes = c->nodes, .n_nodes = n, .links = c->links};
    for (uint32_t i = 0; i + 1 < n && c->state.n_links < SL_PLACE_MAX_LINKS; i += 2)
        c->links[c->state.n_links++] =
            (struct sl_place_link){.p = i, .d = i + 1, .bytes_per_s = 25e9, .latency_us = 20};
}

static void measure_placements(const struct sl_cost_model *cost, uint32_t rounds)
{
    static const uint32_t nodes[] = {8, 64, 1000};
    struct place_case *c = sl_xcalloc(1, sizeof *c);
    for (size_t k = 0; k < SL_COUNTOF(nodes); k++)
        for (int wish = 0; wish < 2; wish++) {
            fill_nodes(c, cost, nodes[k]);
            c->req = (struct sl_place_req){
                .max_new = 512, .mode = SL_PLACE_HYBRID, .split = -1, .chunk = -2, .tpot_ms = wish ? 40 : 0};
            char name[80];
            snprintf(name, sizeof name, "placement, hybrid, %u nodes%s", nodes[k],
                     wish ? ", a wish for 40 ms" : "");
            measure(name, rounds, run_place, c);
        }
    sl_free(c);
}

/* ---- who goes next ---- */

static void run_next(void *arg, uint32_t i)
{
    sink = sl_share_next(arg, HELD, 5000000 + i);
}

static void measure_turns(uint32_t rounds)
{
    struct sl_share_entry *held = sl_xcalloc(HELD, sizeof *held);
    struct sl_account accounts[8];
    for (uint32_t i = 0; i < SL_COUNTOF(accounts); i++)
        accounts[i] = (struct sl_account){.weight = 1, .used = i};
    for (uint32_t i = 0; i < HELD; i++)
        held[i] = (struct sl_share_entry){.account = &accounts[i % SL_COUNTOF(accounts)],
                                          .priority = (int32_t)(i % 3),
                                          .arrived_us = i,
                                          .since_us = i,
                                          .work = 100};
    measure("whose turn it is, 1024 that wait", rounds, run_next, held);
    sl_free(held);
}

/* ---- schemas ---- */

static const char *piece(const void *tokenizer, uint32_t id, size_t *n)
{
    return sl_tokenizer_piece(tokenizer, id, false, n);
}

/* An allowed token that ends neither a string nor a list, or else any, drawn by its number in the answer; SL_VOCAB_NO_ID: there is none. */
static uint32_t draw(const struct sl_token_bytes *words, const uint64_t *allowed, uint32_t step)
{
    uint32_t start = (uint32_t)(sl_philox_uniform(4, 0, step) * words->n_vocab), plain = SL_VOCAB_NO_ID;
    for (uint32_t k = 0; k < words->n_vocab; k++) {
        uint32_t id = (start + k) % words->n_vocab, n = words->at[id + 1] - words->at[id];
        if (!(allowed[id / 64] >> id % 64 & 1) || n == 0)
            continue;
        const char *bytes = words->bytes + words->at[id];
        if (!memchr(bytes, '"', n) && !memchr(bytes, ']', n))
            return id;
        plain = plain == SL_VOCAB_NO_ID ? id : plain;
    }
    return plain;
}

/* An answer of random tokens: the compiling, and the sets of allowed tokens, by the token. */
static void measure_schema(const char *name, const char *text, const struct sl_token_bytes *words,
                           uint32_t rounds)
{
    struct sl_samples compile_us = {0}, mean_us = {0}, worst_us = {0};
    json_t *schema = json_loads(text, 0, NULL);
    for (uint32_t r = 0; r < rounds; r++) {
        struct sl_grammar *g;
        struct sl_why why = {0};
        double began = cpu_us(), sum = 0, worst = 0;
        uint32_t n = 0, id = 0;
        SL_ASSERT(sl_json_schema_compile(schema, NULL, &g, &why) == SL_OK);
        sl_samples_add(&compile_us, cpu_us() - began);
        struct sl_constraint *c = sl_constraint_new(words, g, NULL, 0, -1);
        for (; n < WALK_TOKENS && id != SL_VOCAB_NO_ID; n++) {
            began = cpu_us();
            if (n)
                sl_constraint_take(c, (int32_t)id);
            const uint64_t *allowed = sl_constraint_allowed(c);
            double us = cpu_us() - began;
            sum += us;
            worst = us > worst ? us : worst;
            id = draw(words, allowed, n);
        }
        sl_samples_add(&mean_us, sum / n);
        sl_samples_add(&worst_us, worst);
        sl_constraint_free(c);
    }
    printf("schema: %-32s %9.0f us, then %7.1f us a token, %7.0f at most\n", name,
           sl_samples_percentile(&compile_us, 0), sl_samples_percentile(&mean_us, 0),
           sl_samples_percentile(&worst_us, 0));
    sl_samples_fini(&compile_us);
    sl_samples_fini(&mean_us);
    sl_samples_fini(&worst_us);
    json_decref(schema);
}

static void measure_schemas(const struct sl_tokenizer *t, uint32_t rounds)
{
    static const struct {
        const char *name, *schema;
    } cases[] = {
        {"a string", "{\"type\":\"string\"}"},
        {"a string of up to 1000", "{\"type\":\"string\",\"maxLength\":1000}"},
        {"pattern ^[a-z ]+$", "{\"type\":\"string\",\"pattern\":\"^[a-z ]+$\"}"},
        {"pattern foo, anywhere", "{\"type\":\"string\",\"pattern\":\"foo\"}"},
        {"pattern ^[^x]+$, up to 1000", "{\"type\":\"string\",\"pattern\":\"^[^x]+$\",\"maxLength\":1000}"},
        {"list of format date-time",
         "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"format\":\"date-time\"}}"},
        {"list of format email", "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"format\":\"email\"}}"},
        {"list of numbers, -3.5 to 1200", "{\"type\":\"array\",\"items\":{\"type\":"
                                          "\"number\",\"minimum\":-3.5,\"maximum\":1200}}"},
    };
    struct sl_token_bytes *words = sl_token_bytes_new(sl_tokenizer_n_vocab(t), piece, t);
    for (size_t i = 0; i < SL_COUNTOF(cases); i++)
        measure_schema(cases[i].name, cases[i].schema, words, rounds);
    sl_token_bytes_free(words);
}

/* ---- tokens ---- */

/* Words of a prose that no file need bring: a few hundred of different length, commas, stops and numbers. */
static size_t write_text(char *out, size_t size)
{
    static const char *const syllables[] = {"the", "re", "con", "ti", "on", "er",  "ing", "for", "al", "pro",
                                            "un",  "de", "is",  "ly", "st", "and", "com", "in",  "es", "per"};
    size_t n = 0;
    for (uint64_t i = 0; n + 64 < size; i++) {
        uint32_t parts = 1 + (uint32_t)(sl_philox_uniform(3, 0, i) * 3);
        for (uint32_t k = 0; k < parts; k++) {
            const char *s = syllables[(size_t)(sl_philox_uniform(3, 1 + k, i % 997) * SL_COUNTOF(syllables))];
            n += (size_t)snprintf(out + n, size - n, "%s", s);
        }
        n += (size_t)snprintf(out + n, size - n, "%s", i % 61 == 0 ? " 2024.\n" : i % 13 == 0 ? ", " : " ");
    }
    return n;
}

static enum sl_err measure_tokens(const char *model, uint32_t rounds, struct sl_why *why)
{
    struct sl_vocab_src vocab;
    struct sl_model_info info;
    struct sl_tokenizer *t = NULL;
    sl_vocab_src_init(&vocab);
    enum sl_err e = sl_vocab_load(model, &vocab, &info, why);
    if (e == SL_OK)
        e = sl_tokenizer_open(&vocab, &t, why);
    if (e) {
        sl_vocab_src_fini(&vocab);
        return e;
    }
    size_t size = LONG_TOKENS * 8u, n_ids = 0;
    char *text = sl_xalloc(size);
    struct sl_encode_in in = {.text = text, .len = write_text(text, size), .max_tokens = UINT32_MAX};
    struct sl_samples speed = {0};
    for (uint32_t r = 0; r < rounds && e == SL_OK; r++) {
        uint32_t *ids;
        double began = cpu_us();
        e = sl_tokenizer_encode(t, &in, &ids, &n_ids, why);
        double us = cpu_us() - began;
        if (e)
            break;
        sl_free(ids);
        if (n_ids > LONG_TOKENS) { /* the first round finds the length */
            in.len = (size_t)((double)in.len * LONG_TOKENS / (double)n_ids);
            continue;
        }
        sl_samples_add(&speed, (double)in.len / us);
    }
    if (e == SL_OK)
        printf("tokenising %zu tokens of %.2f bytes each %*s %9.2f %9.2f MB/s\n", n_ids,
               (double)in.len / (double)n_ids, 14, "", sl_samples_percentile(&speed, 100),
               sl_samples_percentile(&speed, 50));
    sl_samples_fini(&speed);
    sl_free(text);
    measure_schemas(t, rounds);
    sl_tokenizer_close(t);
    sl_vocab_src_fini(&vocab);
    return e;
}

static int run(const void *options, struct sl_why *why)
{
    const struct options *o = options;
    const struct sl_cost_preset *preset = sl_cost_preset_find(o->cost);
    if (!preset) {
        sl_why_set(why, SL_EINVAL, "there is no cost model \"%s\"; sluice-bench simulate --help lists them",
                   o->cost);
        return SL_BENCH_USAGE;
    }
    printf("%-58s %9s %9s\n", "processor time of one thread", "best", "median");
    measure_plans(&preset->cost, o->rounds);
    measure_placements(&preset->cost, o->rounds);
    measure_turns(o->rounds);
    return o->model && measure_tokens(o->model, o->rounds, why) ? SL_BENCH_FAILED : SL_BENCH_OK;
}

const struct sl_bench_command sl_bench_policies = {
    .name = "policies",
    .usage = "[--model FILE]",
    .help = "what decisions cost: step plan, placement, turns, tokens of a long prompt, schemas",
    .options = option_table,
    .options_bytes = sizeof(struct options),
    .run = run,
};
