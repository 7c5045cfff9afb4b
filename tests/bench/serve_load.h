/* tests/bench/serve_load.h - requests for any OpenAI-compatible server, made as `vllm bench serve` makes them:
 * data sets, lengths, arrival times. The same seed gives the same requests. */
#ifndef SLUICE_TESTS_BENCH_SERVE_LOAD_H
#define SLUICE_TESTS_BENCH_SERVE_LOAD_H

#include <jansson.h>

#include "tests/bench/client.h"
#include "tests/bench/workload.h"

enum sl_dataset { SL_DATASET_RANDOM, SL_DATASET_SHAREGPT, SL_DATASET_CUSTOM, SL_DATASET_SONNET };

struct sl_load_conf {
    enum sl_dataset dataset;
    const char *path;      /* of the data set; NULL for random */
    const char *tokenizer; /* GGUF file or Hugging Face folder to count with; NULL = words stand for tokens */
    uint32_t n;
    uint64_t seed;
    uint32_t input_tokens, output_tokens; /* random and sonnet; output_tokens of the others, 0 = theirs */
    double range_ratio;                   /* random: lengths are within (1 -+ range_ratio) */
    uint32_t prefix_tokens; /* random and sonnet: at the start of every prompt, the same for all */
};

struct sl_load_request {
    char *prompt;                /* owned */
    uint32_t n_prompt, n_output; /* tokens; n_prompt is a guess without a tokenizer */
};

struct sl_load {
    struct sl_load_request *requests;
    size_t n;
    bool counted; /* n_prompt is by the tokenizer */
};

/* SL_EIO, SL_EPARSE (file, what was expected), SL_EINVAL; what the tokenizer refuses. */
SL_MUST_CHECK enum sl_err sl_load_open(const struct sl_load_conf *c, struct sl_load *out, struct sl_why *why);
void sl_load_close(struct sl_load *l);

/* Fills path and body of a streamed request. extra (optional) is merged into the body and wins. */
void sl_load_job(const struct sl_load_request *q, const char *path, const char *model, bool ignore_eos,
                 const json_t *extra, struct sl_job *j);

struct sl_arrivals {
    double rate;       /* requests a second; INFINITY = all at once */
    double burstiness; /* shape of the gamma distribution of gaps: 1 = Poisson, below burstier */
    double ramp_from,
        ramp_to; /* requests a second, when ramp_to is not 0: the rate goes from one to the other */
    bool exponential;
    bool exact_end; /* gaps are scaled so that the last request comes at n / rate, as vLLM's client does */
};
/* Planned times of n requests, in order. */
void sl_load_arrivals(const struct sl_arrivals *a, uint64_t seed, double *at_s, size_t n);

#endif
