/* tests/bench/workload.h - seeded requests: lengths, arrival times, token ids. The same seed gives the same
 * requests in every arm. */
#ifndef SLUICE_TESTS_BENCH_WORKLOAD_H
#define SLUICE_TESTS_BENCH_WORKLOAD_H

#include "tests/bench/client.h"

struct sl_range {
    uint32_t lo, hi;
};
/* "64" or "64:512". */
SL_MUST_CHECK enum sl_err sl_range_parse(const char *text, struct sl_range *out, struct sl_why *why);

/* A stream of uniform numbers in [0, 1) for (seed, stream): Philox. */
struct sl_draw {
    uint64_t seed;
    uint32_t stream;
    uint64_t n;
};
double sl_draw(struct sl_draw *d);
uint32_t sl_draw_range(struct sl_draw *d, struct sl_range r);

struct sl_prompt {
    int32_t *tokens; /* owned */
    uint32_t n;
};
/* Random ids in [first_id, n_vocab): ids below first_id are control tokens in the vocabularies served here.
 */
void sl_prompt_random(struct sl_draw *d, uint32_t n, uint32_t first_id, uint32_t n_vocab,
                      struct sl_prompt *out);

struct sl_completion_opts {
    const char *model;
    uint32_t max_tokens;
    double temperature;
    uint64_t seed;
    const char *cache_salt; /* NULL = shared */
    bool want_digest, token_ids;
};
/* Fills j->path, body and the headers of a streamed /v1/completions request over token ids that runs to
 * max_tokens. */
void sl_job_completion(struct sl_job *j, const struct sl_prompt *p, const struct sl_completion_opts *o);

#endif
