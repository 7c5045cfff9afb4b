/* tests/bench/cmd_speculation.c - what guessed tokens bring: the same requests with and without them.
 *
 *     sluice-bench speculation --model FILE --threads 2 --batch 1,8 --tokens 192
 *
 * Two workloads. "copy": a passage, then its beginning again; a model goes on copying, and what it writes
 * lies in the prompt. "new": the passage alone, continued by sampling at temperature 1; hardly anything
 * repeats. Each runs through one engine, off and auto by turns, medians of --rounds. Counted are the tokens
 * and the time from the moment when all sequences have their first token. Tokens must not differ, or the exit
 * status is 1. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/conf.h"
#include "common/base/mem.h"
#include "common/engine/engine.h"
#include "common/text/tokenizer.h"
#include "tests/bench/bench.h"
#include "tests/bench/stats.h"

#define MAX_BATCH   64u
#define MAX_BATCHES 8u
#define MAX_PROMPT  2048u
#define MAX_OUT     1024u
#define PAGE_TOKENS 32u
#define COPIED      24u /* tokens of the passage that are there again */

static const char passage[] = "The lighthouse keeper wrote every evening, whatever the weather. On the ninth "
                              "of March he noted that the wind had "
                              "turned to the north-east before noon, that two fishing boats had come in "
                              "early with little to show for their trouble, "
                              "and that the oil for the lamp would last another eleven days if he was "
                              "careful with it. He had mended the railing on "
                              "the gallery with a length of rope, because the smith would not be back from "
                              "the mainland until the end of the month. "
                              "In the afternoon a flock of geese passed over the island, flying low, and "
                              "settled for an hour on the wet field behind "
                              "the store. His daughter counted forty-two of them and drew seven. Towards "
                              "sunset the barometer fell so quickly that he "
                              "climbed the stairs before his supper, trimmed both wicks, and closed the iron "
                              "shutters on the seaward side. The first "
                              "squall came at a quarter past eight with hail as large as peas. At ten he saw "
                              "the lights of a steamer, far out and "
                              "labouring, and he stayed beside the lamp until she had passed the point. He "
                              "finished the page by candle, blotted it, "
                              "and set the book back on its shelf between the almanac and the tide tables.";

struct options {
    char *model, *backend;
    struct sl_conf_list batch;
    uint32_t threads, tokens, rounds;
    bool json;
};

#define AT(m) offsetof(struct options, m)
static const struct sl_conf_opt option_table[] = {
    {"model", SL_CONF_STRING, AT(model), NULL, "GGUF file or Hugging Face folder", 0, 0, NULL},
    {"threads", SL_CONF_U32, AT(threads), "1", "compute threads", 1, 1024, NULL},
    {"tokens", SL_CONF_U32, AT(tokens), "192", "tokens of each sequence", 1, MAX_OUT, NULL},
    {"batch", SL_CONF_LIST, AT(batch), "1,8", "sequences at once, each 1 to 64", 0, 0, NULL},
    {"rounds", SL_CONF_U32, AT(rounds), "3", "rounds after a warm-up; medians are printed", 1, 1000, NULL},
    {"backend", SL_CONF_STRING, AT(backend), "auto", "auto, or one of the backends", 0, 0, NULL},
    {"json", SL_CONF_BOOL, AT(json), "false", "print JSON instead of a table", 0, 0, NULL},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

struct stream {
    int32_t prompt[MAX_PROMPT], out[MAX_OUT];
    uint32_t n_prompt, n_out, drafted, accepted;
    struct sl_seq *seq;
};

struct bench {
    const struct options *o;
    struct sl_engine *e;
    int32_t text[MAX_PROMPT];
    uint32_t n_text;
    struct stream streams[MAX_BATCH], without[MAX_BATCH];
};

struct figures {
    double tokens_per_s;
    uint32_t drafted, accepted;
};

static enum sl_err read_text(struct bench *b, struct sl_why *why)
{
    struct sl_vocab_src src;
    struct sl_model_info model;
    struct sl_tokenizer *t = NULL;
    uint32_t *ids = NULL;
    size_t n = 0;
    sl_vocab_src_init(&src);
    enum sl_err err = sl_vocab_load(b->o->model, &src, &model, why);
    if (!err)
        err = sl_tokenizer_open(&src, &t, why);
    struct sl_encode_in in = {.text = passage, .len = sizeof passage - 1, .max_tokens = MAX_PROMPT / 2};
    if (!err)
        err = sl_tokenizer_encode(t, &in, &ids, &n, why);
    for (size_t i = 0; i < n; i++)
        b->text[i] = (int32_t)ids[i];
    b->n_text = (uint32_t)n;
    sl_free(ids);
    sl_tokenizer_close(t);
    sl_vocab_src_fini(&src);
    return err;
}

/* Stream i begins at another place of the passage, so that no two are alike. */
static void make_prompt(const struct bench *b, struct stream *s, uint32_t i, bool copy)
{
    uint32_t n = b->n_text, at = i * 5 % n;
    *s = (struct stream){.n_prompt = n};
    for (uint32_t k = 0; k < n; k++)
        s->prompt[k] = b->text[(at + k) % n];
    for (uint32_t k = 0; copy && k < COPIED; k++)
        s->prompt[s->n_prompt++] = s->prompt[k];
}

static void hear(struct bench *b)
{
    struct sl_engine_event ev[32];
    size_t n;
    while ((n = sl_engine_poll(b->e, ev, SL_COUNTOF(ev))) > 0)
        for (size_t i = 0; i < n; i++) {
            struct stream *s = ev[i].owner;
            if (ev[i].kind == SL_EV_TOKEN)
                s->out[s->n_out++] = ev[i].sampled.token;
        }
}

static bool all_began(const struct bench *b, uint32_t batch)
{
    for (uint32_t i = 0; i < batch; i++)
        if (b->streams[i].n_out == 0)
            return false;
    return true;
}

static uint32_t written(const struct bench *b, uint32_t batch)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < batch; i++)
        n += b->streams[i].n_out;
    return n;
}

static enum sl_err run_once(struct bench *b, uint32_t batch, bool copy, int32_t speculation,
                            struct figures *out, struct sl_why *why)
{
    for (uint32_t i = 0; i < batch; i++) {
        struct stream *s = &b->streams[i];
        make_prompt(b, s, i, copy);
        struct sl_sampling sampling = {.temperature = copy ? 0 : 1,
                                       .top_p = 1,
                                       .repetition_penalty = 1,
                                       .n_logprobs = -1,
                                       .seed = 1 + i,
                                       .ignore_eos = true};
        struct sl_seq_spec spec = {.owner = s,
                                   .tokens = s->prompt,
                                   .n_tokens = s->n_prompt,
                                   .n_prompt = s->n_prompt,
                                   .max_tokens = b->o->tokens,
                                   .sampling = &sampling,
                                   .compute_to = s->n_prompt,
                                   .sample = true,
                                   .decode = true,
                                   .granted = true,
                                   .chunk_tokens = SL_CHUNK_DEFAULT,
                                   .speculation = speculation};
        enum sl_err err = sl_engine_seq_open(b->e, &spec, &s->seq, why);
        if (err)
            return err;
    }
    uint64_t began = 0;
    uint32_t before = 0;
    for (bool more = true; more;) {
        more = sl_engine_step(b->e, sl_now_us());
        sl_engine_wait(b->e);
        hear(b);
        if (!began && all_began(b, batch)) {
            began = sl_now_ns();
            before = written(b, batch);
        }
    }
    *out =
        (struct figures){.tokens_per_s = (written(b, batch) - before) * 1e9 / (double)(sl_now_ns() - began)};
    for (uint32_t i = 0; i < batch; i++) {
        struct sl_seq_view v;
        sl_seq_view(b->streams[i].seq, &v);
        out->drafted += v.drafted;
        out->accepted += v.accepted;
        sl_engine_seq_close(b->e, b->streams[i].seq);
    }
    return SL_OK;
}

static bool differ(const struct bench *b, uint32_t batch)
{
    for (uint32_t i = 0; i < batch; i++)
        if (b->streams[i].n_out != b->without[i].n_out ||
            memcmp(b->streams[i].out, b->without[i].out, b->streams[i].n_out * sizeof(int32_t)) != 0)
            return true;
    return false;
}

/* One row of the table. *equal becomes false when tokens differ. */
static enum sl_err measure(struct bench *b, bool copy, uint32_t batch, json_t *rows, bool *equal,
                           struct sl_why *why)
{
    struct sl_samples off = {0}, on = {0};
    struct figures f = {0};
    enum sl_err err = SL_OK;
    for (uint32_t r = 0; r <= b->o->rounds && !err; r++) { /* the first is the warm-up */
        struct figures without = {0};
        err = run_once(b, batch, copy, SL_SPEC_OFF, &without, why);
        memcpy(b->without, b->streams, sizeof b->without);
        if (!err)
            err = run_once(b, batch, copy, SL_SPEC_AUTO, &f, why);
        if (err || r == 0)
            continue;
        *equal &= !differ(b, batch);
        sl_samples_add(&off, without.tokens_per_s);
        sl_samples_add(&on, f.tokens_per_s);
    }
    double a = sl_samples_percentile(&off, 50), z = sl_samples_percentile(&on, 50);
    sl_samples_fini(&off);
    sl_samples_fini(&on);
    if (err)
        return err;
    if (!b->o->json)
        printf("%-8s %6u %10.1f %10.1f %8.2f %9u %9u\n", copy ? "copy" : "new", batch, a, z, z / a, f.drafted,
               f.accepted);
    json_array_append_new(rows,
                          json_pack("{s:s,s:i,s:f,s:f,s:f,s:i,s:i}", "workload", copy ? "copy" : "new",
                                    "batch", (int)batch, "off_tokens_per_s", a, "auto_tokens_per_s", z,
                                    "ratio", z / a, "drafted", (int)f.drafted, "accepted", (int)f.accepted));
    return SL_OK;
}

static enum sl_err open_engine(struct bench *b, struct sl_why *why)
{
    const struct options *o = b->o;
    struct sl_engine_conf c = {.model_path = o->model,
                               .backend = o->backend,
                               .n_threads = o->threads,
                               .kv_dtype = SL_BF16,
                               .page_tokens = PAGE_TOKENS,
                               .kv_memory_bytes = UINT64_C(1) << 30,
                               .max_batch_tokens = 2048,
                               .max_sequences = MAX_BATCH,
                               .chunk_tokens = SL_CHUNK_AUTO};
    return sl_engine_open(&c, &b->e, why);
}

static enum sl_err read_batches(const struct sl_conf_list *list, uint32_t *batches, struct sl_why *why)
{
    if (list->n == 0 || list->n > MAX_BATCHES)
        return sl_why_set(why, SL_EINVAL, "%zu batch sizes given; expected 1 to %u", list->n, MAX_BATCHES);
    for (size_t i = 0; i < list->n; i++) {
        char *end;
        unsigned long v = strtoul(list->items[i], &end, 10);
        if (*end || v == 0 || v > MAX_BATCH)
            return sl_why_set(why, SL_EINVAL, "batch is \"%s\"; expected 1 to %u", list->items[i], MAX_BATCH);
        batches[i] = (uint32_t)v;
    }
    return SL_OK;
}

static int run(const void *options, struct sl_why *why)
{
    const struct options *o = options;
    uint32_t batches[MAX_BATCHES], n_batches = (uint32_t)o->batch.n;
    if (!o->model) {
        sl_why_set(why, SL_ECONFIG, "no model; give --model FILE");
        return SL_BENCH_USAGE;
    }
    if (read_batches(&o->batch, batches, why))
        return SL_BENCH_USAGE;
    struct bench *b = sl_xcalloc(1, sizeof *b);
    bool equal = true;
    json_t *rows = json_array();
    b->o = o;
    enum sl_err err = read_text(b, why);
    if (!err)
        err = open_engine(b, why);
    if (!err && !o->json)
        printf("%s, %s, %u threads\n%-8s %6s %10s %10s %8s %9s %9s\n", o->model, sl_engine_backend(b->e),
               o->threads, "", "batch", "off tok/s", "auto tok/s", "ratio", "drafted", "accepted");
    for (uint32_t i = 0; i < 2 * n_batches && !err; i++)
        err = measure(b, i < n_batches, batches[i % n_batches], rows, &equal, why);
    if (!err && !equal)
        sl_why_set(why, SL_EDIGEST, "tokens differ");
    if (!err && o->json) {
        json_dumpf(rows, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        putchar('\n');
    }
    json_decref(rows);
    sl_engine_close(b->e);
    sl_free(b);
    return err ? SL_BENCH_USAGE : equal ? SL_BENCH_OK : SL_BENCH_FAILED;
}

const struct sl_bench_command sl_bench_speculation = {
    .name = "speculation",
    .usage = "--model FILE [options]",
    .help = "what guessed tokens bring, on text that repeats itself and on text that does not",
    .options = option_table,
    .options_bytes = sizeof(struct options),
    .run = run,
};
