/* common/sched/cost_presets.h - cost models of GPUs with a model on them, from published measurements: for
 * the simulator, and for a router that plans hardware it has not got. */
#ifndef SLUICE_COMMON_SCHED_COST_PRESETS_H
#define SLUICE_COMMON_SCHED_COST_PRESETS_H

#include "common/sched/cost_model.h"

struct sl_cost_preset {
    const char *name;            /* "a100-llama3-8b" */
    const char *what;            /* one line, with the source */
    uint32_t kv_bytes_per_token; /* of one node, bf16 */
    uint64_t kv_memory_bytes;    /* of one node: 90 % of its memory less the weights */
    struct sl_cost_model cost;
};

/* NULL when there is none of that name. */
const struct sl_cost_preset *sl_cost_preset_find(const char *name);
/* The i-th, NULL behind the last. */
const struct sl_cost_preset *sl_cost_preset_at(uint32_t i);

#endif
