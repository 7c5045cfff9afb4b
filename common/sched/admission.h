/* common/sched/admission.h - whether one more sequence fits, today and at the predicted peak (step 8 of the
 * request path). Pure functions.
 *
 * Sequences end one after the other and give their pages back. In order of expected remaining output r, the
 * longest first, the need when the i-th ends is  sum_{j<=i} s_j + i * r_i ; the largest of them is the peak.
 * Far tighter than reserving max_tokens for all. Source: LightLLM. The
 * estimate may be wrong: preemption corrects it (preempt.h). */
#ifndef SLUICE_COMMON_SCHED_ADMISSION_H
#define SLUICE_COMMON_SCHED_ADMISSION_H

#include "common/base/err.h"
#include <stdint.h>

/* Output lengths seen so far. Zero-initialised = none. */
struct sl_output_mean {
    uint32_t n;
    double tokens; /* running mean */
};
void sl_output_mean_add(struct sl_output_mean *m, uint32_t tokens);
/* Expected further tokens of a sequence that generated `generated`, may generate `most` more and was
 * preempted so often (each time doubles the estimate: it was too low). 1..most; 0 when most is 0. */
uint32_t sl_output_mean_expect(const struct sl_output_mean *m, uint32_t generated, uint32_t most,
                               uint32_t preemptions);

struct sl_admission_seq {
    uint32_t own_pages; /* held and not shared; for the new one: what it will take */
    uint32_t remaining_tokens;
};
/* Peak of all, the new one included, in pages; shared_pages are held besides. Reorders seqs. */
uint64_t sl_admission_peak_pages(struct sl_admission_seq *seqs, uint32_t n, uint32_t shared_pages,
                                 uint32_t page_tokens);

/* Pages kept free for growth while anything runs: 1 %. */
uint32_t sl_admission_watermark(uint32_t total_pages);

#endif
