/* tests/bench/cmd_stall.c - what running streams feel when a long prompt arrives.
 *
 * n streams decode; after a while one long prompt is sent. Measured: the median gap of the streams before,
 * the longest gap of any stream while the prompt is computed, and the prompt's TTFT. Works against any
 * OpenAI-compatible server that takes token-id prompts, so that a peer can stand in the same table. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/conf.h"
#include "common/base/mem.h"
#include "common/base/rand.h"
#include "tests/bench/bench.h"
#include "tests/bench/cluster_info.h"
#include "tests/bench/stats.h"
#include "tests/bench/workload.h"

#define FIRST_TEXT_ID                                                                                        \
    300 /* below lie control tokens and single bytes: a stream of partial characters would look silent */
#define STREAM_PROMPT 64

struct options {
    char *url, *api_key, *mode, *json, *node;
    struct sl_conf_list chunks;
    uint32_t streams, prompt_tokens, stream_tokens, rounds, vocab;
    double lead_s, timeout_s;
    uint64_t seed;
};

static const struct sl_conf_opt option_table[] = {
    {"url", SL_CONF_STRING, offsetof(struct options, url), "http://127.0.0.1:8000", "the server", 0, 0, NULL},
    {"api_key", SL_CONF_STRING, offsetof(struct options, api_key), NULL, "bearer key", 0, 0, NULL},
    {"mode", SL_CONF_STRING, offsetof(struct options, mode), "colocated", "X-Sluice-Mode of all requests", 0,
     0, NULL},
    {"node", SL_CONF_STRING, offsetof(struct options, node), NULL,
     "decode node of all requests (X-Sluice-Decode-Node)", 0, 0, NULL},
    {"chunks", SL_CONF_LIST, offsetof(struct options, chunks), "auto,0",
     "X-Sluice-Chunk of the long prompt, one arm each", 0, 0, NULL},
    {"streams", SL_CONF_U32, offsetof(struct options, streams), "7", "streams that decode", 1, 1000, NULL},
    {"prompt_tokens", SL_CONF_U32, offsetof(struct options, prompt_tokens), "4096",
     "length of the long prompt", 1, 1e6, NULL},
    {"stream_tokens", SL_CONF_U32, offsetof(struct options, stream_tokens), "600",
     "answer length of a stream", 16, 1e6, NULL},
    {"rounds", SL_CONF_U32, offsetof(struct options, rounds), "5", "repetitions; medians are printed", 1,
     1000, NULL},
    {"lead_s", SL_CONF_F64, offsetof(struct options, lead_s), "1.5", "seconds of decoding before the prompt",
     0.1, 1000, NULL},
    {"vocab", SL_CONF_U32, offsetof(struct options, vocab), "0", "vocabulary size; 0 = ask the server", 0,
     1e7, NULL},
    {"timeout_s", SL_CONF_F64, offsetof(struct options, timeout_s), "300", "limit of one repetition", 1, 1e5,
     NULL},
    {"seed", SL_CONF_U64, offsetof(struct options, seed), "1", "of the prompts", 0, 0, NULL},
    {"json", SL_CONF_STRING, offsetof(struct options, json), NULL, "write the result there", 0, 0, NULL},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

struct arm {
    struct sl_samples base_gap, longest_gap, ratio, ttft, gap_during, p99_during;
};

static bool measure(const struct options *o, struct sl_job *jobs, struct arm *a, struct sl_why *why)
{
    struct sl_job *prompt = &jobs[o->streams];
    if (prompt->n_tokens == 0) {
        sl_why_set(why, SL_EPROTO, "the long prompt was not answered: %s", prompt->error);
        return false;
    }
    double t0 = prompt->sent_s, t1 = prompt->token_s[0], longest = 0;
    struct sl_samples before = {0}, during = {0};
    uint32_t n_silent = 0;
    for (uint32_t i = 0; i < o->streams; i++) {
        const struct sl_job *j = &jobs[i];
        /* A peer holds incomplete characters back: a stream that looks silent says nothing about gaps. */
        if (j->n_tokens < 2 || j->token_s[j->n_tokens - 1] < t0) {
            n_silent++;
            continue;
        }
        for (size_t k = 1; k < j->n_tokens; k++) {
            double gap = j->token_s[k] - j->token_s[k - 1];
            if (j->token_s[k] <= t0 && j->token_s[k - 1] > t0 - 0.7 * o->lead_s)
                sl_samples_add(&before, gap * 1e3);
            else if (j->token_s[k] > t0 && j->token_s[k - 1] < t1) {
                sl_samples_add(&during, gap * 1e3);
                longest = fmax(longest, gap * 1e3);
            }
        }
        /* A stream that has not moved since: its gap is at least that long. */
        double open = (prompt->done_s - j->token_s[j->n_tokens - 1]) * 1e3;
        if (j->token_s[j->n_tokens - 1] < t1) {
            sl_samples_add(&during, open);
            longest = fmax(longest, open);
        }
    }
    if (2 * n_silent > o->streams) {
        sl_why_set(why, SL_EPROTO,
                   "%u of %u streams were silent or over when the prompt came; raise --stream-tokens",
                   n_silent, o->streams);
        sl_samples_fini(&before);
        sl_samples_fini(&during);
        return false;
    }
    double base = sl_samples_percentile(&before, 50);
    sl_samples_add(&a->base_gap, base);
    sl_samples_add(&a->gap_during, sl_samples_percentile(&during, 50));
    sl_samples_add(&a->p99_during, sl_samples_percentile(&during, 99));
    sl_samples_add(&a->longest_gap, longest);
    sl_samples_add(&a->ratio, longest / base);
    sl_samples_add(&a->ttft, (t1 - t0) * 1e3);
    sl_samples_fini(&before);
    sl_samples_fini(&during);
    return true;
}

static void plan(const struct options *o, uint32_t round, size_t arm, uint64_t run_id,
                 const struct sl_model_ref *m, struct sl_job *jobs)
{
    for (uint32_t i = 0; i <= o->streams; i++) {
        bool is_prompt = i == o->streams;
        struct sl_draw d = {o->seed + round, i, 0};
        struct sl_prompt p;
        char salt[64];
        snprintf(salt, sizeof salt, "%" PRIx64 "-%zu-%u", run_id, arm, round);
        sl_prompt_random(&d, is_prompt ? o->prompt_tokens : STREAM_PROMPT, FIRST_TEXT_ID, m->n_vocab, &p);
        jobs[i] = (struct sl_job){.at_s = is_prompt ? o->lead_s : 0, .ends_run = is_prompt};
        sl_job_completion(&jobs[i], &p,
                          &(struct sl_completion_opts){.model = m->id,
                                                       .max_tokens = is_prompt ? 4 : o->stream_tokens,
                                                       .temperature = 1.0,
                                                       .seed = o->seed + i,
                                                       .cache_salt = salt,
                                                       .token_ids = true});
        sl_job_header(&jobs[i], "X-Sluice-Mode", o->mode);
        if (o->node)
            sl_job_header(&jobs[i], "X-Sluice-Decode-Node", o->node);
        sl_job_header(&jobs[i], "X-Sluice-Chunk", o->chunks.items[arm]);
        sl_free(p.tokens);
    }
}

static int run(const void *options, struct sl_why *why)
{
    const struct options *o = options;
    struct sl_router_ref router = {o->url, o->api_key};
    struct sl_model_ref model = {0};
    int rc = SL_BENCH_OK;
    if (sl_info_model(&router, &model, why))
        return SL_BENCH_UNREACHABLE;
    if (o->vocab)
        model.n_vocab = o->vocab;
    if (model.n_vocab <= FIRST_TEXT_ID) {
        sl_why_set(why, SL_EPROTO, "the server does not say its vocabulary size; give --vocab");
        return SL_BENCH_USAGE;
    }
    struct arm *arms = sl_xcalloc(o->chunks.n, sizeof *arms);
    struct sl_job *jobs = sl_xcalloc(o->streams + 1, sizeof *jobs);
    uint64_t run_id = sl_random_u64();
    for (uint32_t round = 0; round < o->rounds && rc == SL_BENCH_OK; round++)
        for (size_t a = 0; a < o->chunks.n && rc == SL_BENCH_OK; a++) {
            char label[64];
            snprintf(label, sizeof label, "round %u of %u, chunk %s", round + 1, o->rounds,
                     o->chunks.items[a]);
            plan(o, round, a, run_id, &model, jobs);
            if (sl_client_run(o->url, o->api_key, jobs, o->streams + 1, o->timeout_s, label))
                rc = SL_BENCH_UNREACHABLE;
            else if (!measure(o, jobs, &arms[a], why))
                rc = SL_BENCH_FAILED;
            for (uint32_t i = 0; i <= o->streams; i++)
                sl_job_fini(&jobs[i]);
        }
    if (rc == SL_BENCH_OK) {
        json_t *doc = json_object();
        printf("%u-token prompt into %u decoding streams, medians of %u\n", o->prompt_tokens, o->streams,
               o->rounds);
        printf("%-8s %14s %14s %10s %14s %10s %12s\n", "chunk", "gap before ms", "gap during ms", "P99 ms",
               "longest ms", "ratio", "TTFT ms");
        for (size_t a = 0; a < o->chunks.n; a++) {
            double v[] = {sl_samples_percentile(&arms[a].base_gap, 50),
                          sl_samples_percentile(&arms[a].gap_during, 50),
                          sl_samples_percentile(&arms[a].p99_during, 50),
                          sl_samples_percentile(&arms[a].longest_gap, 50),
                          sl_samples_percentile(&arms[a].ratio, 50),
                          sl_samples_percentile(&arms[a].ttft, 50)};
            printf("%-8s %14.1f %14.1f %10.1f %14.1f %10.2f %12.0f\n", o->chunks.items[a], v[0], v[1], v[2],
                   v[3], v[4], v[5]);
            json_object_set_new(doc, o->chunks.items[a],
                                json_pack("{s:f,s:f,s:f,s:f,s:f,s:f}", "gap_before_ms", v[0], "gap_during_ms",
                                          v[1], "p99_during_ms", v[2], "longest_gap_ms", v[3], "ratio", v[4],
                                          "ttft_ms", v[5]));
        }
        if (o->json && json_dump_file(doc, o->json, JSON_INDENT(1)) != 0)
            sl_why_set(why, SL_EIO, "cannot write %s", o->json);
        json_decref(doc);
    }
    for (size_t a = 0; a < o->chunks.n; a++) {
        sl_samples_fini(&arms[a].base_gap);
        sl_samples_fini(&arms[a].longest_gap);
        sl_samples_fini(&arms[a].ratio);
        sl_samples_fini(&arms[a].ttft);
        sl_samples_fini(&arms[a].gap_during);
        sl_samples_fini(&arms[a].p99_during);
    }
    sl_free(arms);
    sl_free(jobs);
    return rc;
}

const struct sl_bench_command sl_bench_stall = {
    .name = "stall",
    .usage = "[options]",
    .help = "what running streams feel when a long prompt arrives",
    .options = option_table,
    .options_bytes = sizeof(struct options),
    .run = run,
};
