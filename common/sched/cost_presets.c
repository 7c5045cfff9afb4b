/* common/sched/cost_presets.c - tables of the linear layers over total rows, and attention terms.
 *
 * Tables: medians of every linear op, norm, activation and add, summed over the layers, of the vidur profiles
 * (microsoft/vidur, data/profiling/compute, MIT). They are not monotone: tiles of 128 and 256 rows, waves.
 * Attention is not in those profiles, so its terms are computed:
 *  - prompt: 4 n_layers n_heads head_dim FLOP for each pair of a row and a position, at 60 % of the dense
 *    bf16 peak on A100 (312 TFLOP/s), 50 % on H100 (989);
 *  - history of a chunk, and context of decode rows: KV bytes at 80 % of the memory's rate (A100 2.0, H100
 *    3.35, H200 4.8 TB/s). For decode on A100 this gives 82 ms per million positions; the published fit of
 *    QoServe for the same model is 111.
 *  - head: 5 us a row for sampling, the order of published per-request costs.
 * H200 is H100 with the other memory: its table is the H100's where compute bounds it, and below 128 rows,
 * where reading the weights does, in proportion to the memory's rate. */
#include "common/sched/cost_presets.h"

#include <string.h>

#define TABLE_ROWS                                                                                           \
    {                                                                                                        \
        1, 8, 16, 32, 64, 128, 136, 256, 264, 384, 512, 520, 768, 1024, 2048, 4096                           \
    }

static const struct sl_cost_preset presets[] = {
    {"a100-llama3-8b",
     "Llama-3-8B on one A100-80G",
     131072,
     UINT64_C(56) << 30,
     {.n_points = 16,
      .rows = TABLE_ROWS,
      .ms = {9.76, 10.06, 10.21, 10.98, 11.33, 13.29, 18.17, 19.63, 26.67, 27.96, 34.88, 39.02, 53.31, 75.61,
             146.56, 275.6},
      .head_ms_per_row = 0.005,
      .prompt_attn_ms_per_mtoken = 2.8,
      .prompt_read_ms_per_mtoken = 82,
      .decode_attn_ms_per_mtoken = 82}},
    {"h100-llama2-7b",
     "Llama-2-7B (no GQA) on one H100",
     524288,
     UINT64_C(58) << 30,
     {.n_points = 16,
      .rows = TABLE_ROWS,
      .ms = {5.63, 5.54, 5.85, 5.86, 5.92, 6.44, 8.55, 9.26, 9.48, 11.18, 12.13, 15.57, 19.0, 21.28, 40.86,
             84.58},
      .head_ms_per_row = 0.005,
      .prompt_attn_ms_per_mtoken = 1.06,
      .prompt_read_ms_per_mtoken = 196,
      .decode_attn_ms_per_mtoken = 196}},
    {"h100-llama2-70b-tp4",
     "Llama-2-70B on four H100",
     327680,
     UINT64_C(148) << 30,
     {.n_points = 16,
      .rows = TABLE_ROWS,
      .ms = {14.48, 15.13, 14.69, 15.48, 15.45, 16.17, 19.13, 19.54, 30.5, 29.42, 30.59, 45.99, 47.8, 63.25,
             113.14, 228.01},
      .head_ms_per_row = 0.005,
      .prompt_attn_ms_per_mtoken = 1.33,
      .prompt_read_ms_per_mtoken = 30.6,
      .decode_attn_ms_per_mtoken = 30.6}},
    {"h200-llama2-70b-tp4",
     "Llama-2-70B on four H200, scaled from H100",
     327680,
     UINT64_C(367) << 30,
     {.n_points = 16,
      .rows = TABLE_ROWS,
      .ms = {10.11, 10.56, 10.25, 10.8, 10.78, 16.17, 19.13, 19.54, 30.5, 29.42, 30.59, 45.99, 47.8, 63.25,
             113.14, 228.01},
      .head_ms_per_row = 0.005,
      .prompt_attn_ms_per_mtoken = 1.33,
      .prompt_read_ms_per_mtoken = 21.3,
      .decode_attn_ms_per_mtoken = 21.3}},
};

const struct sl_cost_preset *sl_cost_preset_find(const char *name)
{
    for (uint32_t i = 0; i < SL_COUNTOF(presets); i++)
        if (strcmp(presets[i].name, name) == 0)
            return &presets[i];
    return NULL;
}

const struct sl_cost_preset *sl_cost_preset_at(uint32_t i)
{
    return i < SL_COUNTOF(presets) ? &presets[i] : NULL;
}
