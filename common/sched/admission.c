/* common/sched/admission.c - see admission.h. */
#include "common/sched/admission.h"

#define FIRST_MEAN   256.0 /* tokens, before anything was seen */
#define MEAN_SAMPLES 64u   /* the mean forgets beyond this many outputs */
#define MAX_DOUBLING 16u

void sl_output_mean_add(struct sl_output_mean *m, uint32_t tokens)
{
    if (m->n < MEAN_SAMPLES)
        m->n++;
    m->tokens += (tokens - m->tokens) / m->n;
}

uint32_t sl_output_mean_expect(const struct sl_output_mean *m, uint32_t generated, uint32_t most,
                               uint32_t preemptions)
{
    double mean = m->n ? m->tokens : FIRST_MEAN;
    /* Past the mean half of it is still expected: long outputs tend to go on. */
    double expect = generated < mean / 2 ? mean - generated : mean / 2;
    expect *= (double)(1u << (preemptions < MAX_DOUBLING ? preemptions : MAX_DOUBLING));
    if (expect >= most)
        return most;
    return expect > 1 ? (uint32_t)expect : most ? 1 : 0;
}

/* Longest remaining first. Shell sort: in place, no allocation, a few hundred elements. */
static void sort_remaining(struct sl_admission_seq *seqs, uint32_t n)
{
    for (uint32_t gap = n / 2; gap > 0; gap /= 2)
        for (uint32_t i = gap; i < n; i++) {
            struct sl_admission_seq s = seqs[i];
            uint32_t j = i;
            for (; j >= gap && seqs[j - gap].remaining_tokens < s.remaining_tokens; j -= gap)
                seqs[j] = seqs[j - gap];
            seqs[j] = s;
        }
}

uint64_t sl_admission_peak_pages(struct sl_admission_seq *seqs, uint32_t n, uint32_t shared_pages,
                                 uint32_t page_tokens)
{
    sort_remaining(seqs, n);
    uint64_t held = shared_pages, peak = shared_pages;
    for (uint32_t i = 0; i < n; i++) {
        held += seqs[i].own_pages;
        uint64_t growth = ((uint64_t)(i + 1) * seqs[i].remaining_tokens + page_tokens - 1) / page_tokens;
        if (held + growth > peak)
            peak = held + growth;
    }
    return peak;
}

uint32_t sl_admission_watermark(uint32_t total_pages)
{
    return total_pages / 100;
}
