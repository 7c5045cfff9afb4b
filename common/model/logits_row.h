/* common/model/logits_row.h - the passes over a whole row of logits that sampling needs, by instruction set.
 *
 * Every value is computed by the same IEEE operations in the same order whatever the vector width: the tables
 * differ in speed only (tests/unit/model/test_logits_row.c compares them). */
#ifndef SLUICE_COMMON_MODEL_LOGITS_ROW_H
#define SLUICE_COMMON_MODEL_LOGITS_ROW_H

#include <stdint.h>
#include "kernels/sample.h" /* SL_ROW_BINS, SL_BINS_PER_NAT, SL_ROW_LANES */

#define SL_ROW_BLOCK  64u         /* entries whose largest is kept: searches look at blocks first */
#define SL_ROW_NO_BIN SL_ROW_BINS /* banned, or not a number */

static inline uint32_t sl_row_blocks(uint32_t n)
{
    return (n + SL_ROW_BLOCK - 1) / SL_ROW_BLOCK;
}

struct sl_row_passes {
    const char *name;
    /* block_max[i] = the largest of block i, -inf where there is none; what is not a number never wins. */
    void (*block_max)(const float *x, uint32_t n, float *block_max);
    /* With d = (x - max) * inv_temperature: weight e^d, bin floor(-d * SL_BINS_PER_NAT). */
    void (*weigh)(const float *x, uint32_t n, float max, float inv_temperature, float *weight, uint16_t *bin);
    /* The indices with this bin, rising; there are exactly count. */
    void (*members)(const uint16_t *bin, uint32_t n, uint16_t which, uint32_t count, uint32_t *out);
    /* Sum of e^(x - max): lanes of float over 1024 entries, those in double. */
    double (*sum_exp)(const float *x, uint32_t n, float max);
};

/* All that this machine can run, the fastest first; ends with NULL. */
const struct sl_row_passes *const *sl_row_passes_all(void);

#endif
