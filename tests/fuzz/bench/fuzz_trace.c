/* tests/fuzz/bench/fuzz_trace.c - any bytes as a trace of requests: refused with a sentence, or as many requests as were
 * asked for, in order of time, each with its blocks within the trace. */
#include <math.h>
#include <stdint.h>

#include "tests/bench/trace.h"
#include "tests/fuzz/input_file.h"

#define N_REQUESTS 16
#define MAX_TOTAL  100000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_trace t;
    struct sl_why why = {{0}};
    const struct sl_trace_conf conf = {.path = sl_input_file(0, data, size),
                                       .rate = size % 2 ? 5 : 0,
                                       .n = N_REQUESTS,
                                       .max_total = MAX_TOTAL,
                                       .seed = 1};
    if (sl_trace_open(&conf, &t, &why) != SL_OK) {
        SL_ASSERT(why.text[0]);
        return 0;
    }
    SL_ASSERT(t.n == N_REQUESTS);
    for (size_t i = 0; i < t.n; i++) {
        const struct sl_trace_request *q = &t.requests[i];
        SL_ASSERT(isfinite(q->at_s) && (i == 0 || q->at_s >= q[-1].at_s));
        SL_ASSERT(q->n_prompt > 0 && q->n_output > 0 && q->n_prompt < MAX_TOTAL && q->n_output < MAX_TOTAL);
        SL_ASSERT((uint64_t)q->first_block + q->n_blocks <= t.n_blocks);
    }
    sl_trace_close(&t);
    return 0;
}
