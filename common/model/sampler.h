/* common/model/sampler.h - from a row of logits to a token. A pure function of (logits, parameters, history,
 * position): the same token on every node, in every mode, after every fault.
 *
 * Order, as the field has it: tokens that are not allowed are out, logit bias, repetition / presence /
 * frequency penalties, banned tokens (min_tokens), then temperature 0 = argmax (lowest id wins a tie), else
 * temperature, top_k, top_p, min_p over candidates sorted by (logit, id), and one Philox uniform keyed by
 * (seed, choice) with the token's position as counter. */
#ifndef SLUICE_COMMON_MODEL_SAMPLER_H
#define SLUICE_COMMON_MODEL_SAMPLER_H

#include "common/base/err.h"
#include "kernels/sample.h"
#include <stdint.h>

#define SL_MAX_LOGPROBS   SL_PICK_MAX_TOP /* 20: top_logprobs, OpenAI's and vLLM's limit */
#define SL_MAX_LOGIT_BIAS 1024            /* entries per request */
#define SL_MAX_STOP_IDS   16              /* stop_token_ids plus the model's end tokens */

struct sl_logit_bias {
    int32_t token;
    float bias;
};

struct sl_sampling {
    float temperature;                         /* 0 = greedy */
    float top_p;                               /* 1 = off */
    uint32_t top_k;                            /* 0 = off */
    float min_p;                               /* 0 = off */
    float repetition_penalty;                  /* 1 = off; over prompt and output */
    float presence_penalty, frequency_penalty; /* 0 = off; over output */
    uint64_t seed;
    uint32_t choice;
    uint32_t min_tokens; /* stop ids are banned while fewer were generated */
    bool ignore_eos;     /* stop ids do not end and are not banned */
    int32_t stop_ids[SL_MAX_STOP_IDS];
    uint32_t n_stop_ids;
    int32_t n_logprobs; /* -1 = none, else top entries 0..SL_MAX_LOGPROBS besides the sampled token's */
    const struct sl_logit_bias *bias;
    uint32_t n_bias;
    /* Tokens that may be sampled, bit t % 64 of word t / 64; NULL = all. Changes from token to token. */
    const uint64_t *allowed;
};

struct sl_sampled {
    int32_t token;
    float logprob; /* of the raw logits (before temperature and filters), natural log; only when n_logprobs >=
                      0 */
    uint32_t n_top;
    int32_t top_token[SL_MAX_LOGPROBS];
    float top_logprob[SL_MAX_LOGPROBS];
    uint64_t logits_digest; /* of the raw row; only when asked */
};

struct sl_sampler; /* opaque: scratch for one thread */
struct sl_sampler *sl_sampler_new(uint32_t n_vocab);
void sl_sampler_free(struct sl_sampler *s);

/* logits [n_vocab] is overwritten. history: all tokens so far, the first n_prompt are the prompt as the
 * client sent it (penalties and min_tokens count the rest as output, also after a migration). The sampled
 * token's position is n_history. */
void sl_sample(struct sl_sampler *s, float *logits, const struct sl_sampling *p, const int32_t *history,
               uint32_t n_history, uint32_t n_prompt, bool want_digest, struct sl_sampled *out);

/* The same for a device that samples itself (kernels/backend.h, sample): what it must know of the row. edits
 * [max_edits] is the caller's, *out points to it and to p->allowed. False: this row is the host's. */
bool sl_sampler_pick(struct sl_sampler *s, const struct sl_sampling *p, const int32_t *history,
                     uint32_t n_history, uint32_t n_prompt, bool want_digest, struct sl_logit_edit *edits,
                     uint32_t max_edits, struct sl_pick *out);
/* What the device gave, as sl_sample() gives it. */
void sl_sampled_from_pick(const struct sl_pick *pick, const struct sl_picked *got, struct sl_sampled *out);

#endif
