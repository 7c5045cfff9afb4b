/* tests/unit/engine/engine_support.h - a tiny model on disk, and requests run through one or two engines. */
#ifndef SLUICE_TESTS_UNIT_ENGINE_SUPPORT_H
#define SLUICE_TESTS_UNIT_ENGINE_SUPPORT_H

#include "common/engine/engine.h"

#define TINY_VOCAB   512
#define JOB_MAX_OUT  64
#define JOB_MAX_TEXT 512

/* Random-weight models of two layers. mistral is llama with a window of fewer positions than most prompts
 * have; gemma3's first layer has it too. */
enum tiny_arch { TINY_LLAMA, TINY_MISTRAL, TINY_QWEN2, TINY_QWEN3, TINY_GEMMA3, TINY_ARCHS };
extern const char *const tiny_arch_names[TINY_ARCHS]; /* as the model file says it */

struct tiny_choice {
    enum tiny_arch arch;
    enum sl_dtype type; /* of all matrices */
    enum sl_dtype kv;
    const char *backend;
    uint32_t tensor_parallel; /* 2 or 4: with heads and widths that can be cut so; 0 = off */
};

/* Chunk auto, no profile, a clock that goes on with the steps of jobs_run(), room for n_pages. The model is
 * written at the first use and removed at exit. */
struct sl_engine_conf tiny_conf(const struct tiny_choice *c, uint32_t n_threads, uint32_t page_tokens,
                                uint32_t n_pages);
struct sl_engine *tiny_engine(const struct sl_engine_conf *conf);

/* One request: prompt in, tokens and digests out, in any of the three modes. */
struct job {
    /* asked for */
    int32_t prompt[JOB_MAX_TEXT];
    uint32_t n_prompt, max_tokens;
    struct sl_sampling sampling;
    const char *salt;
    bool cache;
    int32_t chunk_tokens, p_chunk_tokens, speculation;
    uint32_t split;     /* s; 0 = colocated */
    int32_t lose_after; /* pages after which P is lost; -1 = never */
    /* found */
    uint32_t n_out;
    int32_t out[JOB_MAX_OUT];
    uint64_t digests[JOB_MAX_OUT];
    float logprobs[JOB_MAX_OUT]; /* 0 when none are asked for */
    bool first_from_p, finished;
    enum sl_finish reason;
    uint32_t chunks, prompt_tokens_computed, hit_tokens, preemptions, pages_moved, drafted, accepted;
    /* the driver's */
    struct sl_seq *d, *p;
    uint32_t copied; /* tokens at D */
    bool lost, p_done;
};

void job_init(struct job *j, unsigned long long *rng, uint32_t n_prompt, uint32_t max_tokens);
/* Runs all jobs to their ends, together. p may be NULL when no job is split. Fails the test when nothing
 * moves any more or pages are lost. */
void jobs_run(struct sl_engine *d, struct sl_engine *p, struct job *jobs, uint32_t n);
/* Fails the test with name when tokens, digests or log-probabilities differ. */
void job_equal(const struct job *want, const struct job *got, const char *name);
/* Fails when three requests, greedy and drawn, are not the same together in chunks of 16, one colocated, one in hybrid and
 * one in pd from p, as on d alone one after the other and whole. */
void jobs_equal_over_modes(struct sl_engine *d, struct sl_engine *p, const char *name);

#endif
