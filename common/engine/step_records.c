/* common/engine/step_records.c - what the last steps were like, for people who watch. A ring that is written once
 * a step and read when somebody asks; nothing here decides anything. */
#include "common/engine/engine_impl.h"

void sl_step_record_add(struct sl_engine *e)
{
    const struct sl_step *st = &e->step;
    e->records[e->total.steps % SL_STEP_RECORDS] = (struct sl_step_record){
        .seq = e->total.steps,
        .ended_us = sl_engine_uptime_us(e),
        .took_us = (uint32_t)(st->actual_ms * 1e3),
        .predicted_us = (uint32_t)(st->predicted_ms * 1e3),
        .decode_rows = st->n_decode,
        .draft_rows = st->load.decode_rows - st->n_decode,
        .prompt_rows = st->load.prompt_rows,
        .n_prompts = st->batch.n_runs - st->n_decode,
    };
}

size_t sl_engine_step_records(const struct sl_engine *e, uint64_t after, struct sl_step_record *out,
                              size_t max)
{
    uint64_t last = e->total.steps, first = last < SL_STEP_RECORDS ? 1 : last - SL_STEP_RECORDS + 1;
    size_t n = 0;
    if (after > last)
        after = 0; /* of a life before */
    for (uint64_t seq = after + 1 > first ? after + 1 : first; seq <= last && n < max; seq++)
        out[n++] = e->records[seq % SL_STEP_RECORDS];
    return n;
}

uint64_t sl_engine_uptime_us(const struct sl_engine *e)
{
    return e->clock_us() - e->opened_us;
}
