/* kernels/sample.h - a row of logits to be sampled, as a device sees it: the rules are common/model/sampler.h's;
 * what they need of the request, its history and the host is looked up already.
 *
 * A device gives the token that sampler.c gives, bit for bit, or none: it may leave a row to the host. */
#ifndef SLUICE_KERNELS_SAMPLE_H
#define SLUICE_KERNELS_SAMPLE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where the candidates of a row are cut and drawn (sampler.c): by bins of x = (logit - max) / temperature. */
#define SL_BINS_PER_NAT 64
#define SL_ROW_BINS     4096u /* 64 nats; the last bin takes all that is below, 1e-28 of the weight each */

/* The sum of a row's e^(x - max): SL_ROW_LANES float sums over SL_ROW_FLOAT_SUM entries, those in double. */
#define SL_ROW_LANES     16u
#define SL_ROW_FLOAT_SUM 1024u /* loses nothing that matters */

#define SL_PICK_MAX_ROWS  64u        /* of one call */
#define SL_PICK_MAX_VOCAB (1u << 20) /* 5 times the largest there is; sizes what a block has of a row */
#define SL_PICK_MAX_TOP   20

enum sl_edit_kind {
    SL_EDIT_ADD,    /* logit += value */
    SL_EDIT_REPEAT, /* logit > 0 ? logit / value : logit * value */
    SL_EDIT_BAN     /* logit = -inf */
};

struct sl_logit_edit {
    uint32_t token;
    enum sl_edit_kind kind;
    float value;
};

struct sl_pick {
    const uint64_t *allowed; /* bit t % 64 of word t / 64; NULL = all */
    const struct sl_logit_edit *edits;
    uint32_t n_edits;      /* in the order in which they are done */
    float inv_temperature; /* 0 = greedy */
    uint32_t top_k;        /* 0 = off */
    float top_p;           /* 1 = off */
    float lowest_x;        /* log(min_p); -inf = off */
    float uniform;
    uint32_t n_top; /* of the raw row, at most SL_PICK_MAX_TOP */
    int want_sum, want_digest;
};

#define SL_PICK_LEFT (-1) /* as a token: the device leaves this row to the host */

struct sl_picked {
    uint64_t digest; /* of the raw row */
    double sum_exp;  /* of the raw row: e^(logit - max) */
    int32_t token;
    float max, logit; /* of the raw row; logit is the token's */
    uint32_t n_top;
    int32_t top_token[SL_PICK_MAX_TOP];
    float top_logit[SL_PICK_MAX_TOP];
};

#ifdef __cplusplus
}
#endif
#endif
