/* tests/bench/trace.h - when requests come and how long they are: from files as published, or drawn.
 *
 * A trace holds no text. Where it names the blocks of its prompts, equal numbers stand for the same tokens
 * behind the same prefix. */
#ifndef SLUICE_TESTS_BENCH_TRACE_H
#define SLUICE_TESTS_BENCH_TRACE_H

#include <stdint.h>

#include "common/base/err.h"

#define SL_TRACE_MAX_TOKENS (1u << 22) /* of a prompt or an answer: four times the longest context there is */

struct sl_trace_request {
    double at_s;
    uint32_t n_prompt, n_output;
    uint32_t first_block, n_blocks; /* of trace.blocks: the prompt's full blocks in order */
};

struct sl_trace {
    struct sl_trace_request *requests; /* by at_s */
    size_t n;
    uint64_t *blocks; /* equal number = same content behind the same prefix; NULL = the trace has none */
    size_t n_blocks;
    uint32_t block_tokens; /* 0 = none */
};

struct sl_trace_conf {
    const char *path;   /* a file; NULL = drawn: lengths log-uniform, Poisson */
    double speed;       /* arrivals are that much faster than in the file; 0 = 1 */
    double rate;        /* Poisson arrivals at this rate instead of the file's times; 0 = the file's */
    double token_scale; /* prompts, outputs and blocks are that much longer than in the file; 0 = 1 */
    size_t n;           /* requests: the file is cut, or repeated end to end; 0 = as many as it has */
    uint32_t max_total; /* longer requests are cut to it, prompt first; 0 = never */
    uint64_t seed;
};

/* Files: CSV with a header (arrival_us,prompt_tokens,output_tokens[,blocksN], N tokens a block, or Azure's
 * TIMESTAMP,ContextTokens,GeneratedTokens or num_prefill_tokens,num_decode_tokens, which needs a rate), or
 * Mooncake's JSON lines; or a model fitted to a trace (trace_fit.c), drawn with the seed. SL_EIO, SL_EPARSE
 * (file and line), SL_EINVAL. */
SL_MUST_CHECK enum sl_err sl_trace_open(const struct sl_trace_conf *c, struct sl_trace *out,
                                        struct sl_why *why);
void sl_trace_close(struct sl_trace *t);

#endif
