/* tests/bench/simulate/sim_cluster.c - the cluster file.
 *
 *     [cluster]
 *     link_bytes_per_s = 50e9
 *     [group decode]
 *     count = 8
 *     model = h100-llama2-70b-tp4
 *     prefers = decode
 *
 * One table names the keys of both sections; what is not in it is refused. */
#include "tests/bench/simulate/sim.h"

#include <ini.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/conf.h"
#include "common/base/mem.h"

#define PAGE_TOKENS      16u
#define LINK_BYTES_PER_S 50e9 /* 400 Gbit/s */
#define LINK_LATENCY_US  10.0
#define HEARTBEAT_MS     1000u
#define MAX_BATCH_TOKENS 8192u
#define MAX_SEQUENCES    256u

struct reader {
    struct sim_cluster *c;
    struct sim_group *group; /* NULL in [cluster] */
    struct sl_why *why;
    bool failed;
};

static void group_init(struct sim_group *g, const char *name)
{
    *g = (struct sim_group){.count = 1,
                            .may_prefill = true,
                            .may_decode = true,
                            .chunk_tokens = SL_CHUNK_AUTO,
                            .max_batch_tokens = MAX_BATCH_TOKENS,
                            .max_sequences = MAX_SEQUENCES,
                            .chunk_stretch = SL_PLAN_STRETCH};
    snprintf(g->name, sizeof g->name, "%s", name);
}

static bool set_model(struct sim_group *g, const char *name)
{
    const struct sl_cost_preset *p = sl_cost_preset_find(name);
    if (!p)
        return false;
    snprintf(g->model, sizeof g->model, "%s", p->name);
    g->cost = p->cost;
    g->kv_bytes_per_token = p->kv_bytes_per_token;
    if (!g->kv_memory_bytes)
        g->kv_memory_bytes = p->kv_memory_bytes;
    return true;
}

static bool set_number(double *to, const char *value)
{
    char *end;
    *to = strtod(value, &end);
    return end != value && *end == '\0';
}

enum type { U32, U64, I32, F64, PREFERS, PERMITS, MODEL, COST_ROWS, COST_MS };

struct key {
    const char *name;
    enum type type;
    size_t at;
    double min, max;
};

#define C(m) offsetof(struct sim_cluster, m)
#define G(m) offsetof(struct sim_group, m)
static const struct key cluster_keys[] = {{"link_bytes_per_s", F64, C(link_bytes_per_s), 1e3, 1e13},
                                          {"link_latency_us", F64, C(link_latency_us), 0, 1e6},
                                          {"router_ms", F64, C(router_ms), 0, 1e4},
                                          {"heartbeat_ms", U32, C(heartbeat_ms), 1, 1e6},
                                          {"page_tokens", U32, C(page_tokens), 1, 4096},
                                          {NULL, U32, 0, 0, 0}};
static const struct key group_keys[] = {
    {"count", U32, G(count), 1, SL_PLACE_MAX_NODES},
    {"model", MODEL, 0, 0, 0},
    {"prefers", PREFERS, 0, 0, 0},
    {"permits", PERMITS, 0, 0, 0},
    {"cost_rows", COST_ROWS, 0, 0, 0},
    {"cost_ms", COST_MS, 0, 0, 0},
    {"cost_head_ms_per_row", F64, G(cost.head_ms_per_row), 0, 1e6},
    {"cost_prompt_attn_ms_per_mtoken", F64, G(cost.prompt_attn_ms_per_mtoken), 0, 1e6},
    {"cost_prompt_read_ms_per_mtoken", F64, G(cost.prompt_read_ms_per_mtoken), 0, 1e6},
    {"cost_decode_attn_ms_per_mtoken", F64, G(cost.decode_attn_ms_per_mtoken), 0, 1e6},
    {"kv_bytes_per_token", U32, G(kv_bytes_per_token), 1, 1e9},
    {"ungranted_pages", U32, G(ungranted_pages), 0, 1e9},
    {"chunk_tokens", I32, G(chunk_tokens), -1, 1 << 20},
    {"max_batch_tokens", U32, G(max_batch_tokens), 1, 1 << 20},
    {"max_sequences", U32, G(max_sequences), 1, 1 << 16},
    {"kv_memory_bytes", U64, G(kv_memory_bytes), 1, 1e15},
    {"tpot_target_ms", F64, G(tpot_target_ms), 0, 1e6},
    {"chunk_stretch", F64, G(chunk_stretch), 1, 100},
    {NULL, U32, 0, 0, 0}};

/* "1 8 16": the numbers, ascending where they are rows. Both lists of a table have equally many. */
static bool set_table(struct sl_cost_model *c, bool rows, const char *value)
{
    uint32_t n = 0;
    for (; value[strspn(value, " ")]; n++) {
        char *end;
        double v = strtod(value, &end);
        if (end == value || n == SL_COST_POINTS || !(v > 0) || v > UINT32_MAX)
            return false;
        if (!rows)
            c->ms[n] = v;
        else if (n == 0 || v > c->rows[n - 1])
            c->rows[n] = (uint32_t)v;
        else
            return false;
        value = end;
    }
    bool fits = n > 0 && (c->n_points == 0 || c->n_points == n);
    c->n_points = n;
    return fits && (!rows || c->rows[0] == 1);
}

static bool set_key(const struct key *k, void *to, const char *value)
{
    double v = 0;
    struct sim_group *g = to;
    if (k->type <= F64 && (!set_number(&v, value) || v < k->min || v > k->max))
        return false;
    switch (k->type) {
    case U32:
        *(uint32_t *)(void *)((char *)to + k->at) = (uint32_t)v;
        return true;
    case U64:
        *(uint64_t *)(void *)((char *)to + k->at) = (uint64_t)v;
        return true;
    case I32:
        *(int32_t *)(void *)((char *)to + k->at) = (int32_t)v;
        return true;
    case F64:
        *(double *)(void *)((char *)to + k->at) = v;
        return true;
    case MODEL:
        return set_model(g, value);
    case COST_ROWS:
    case COST_MS:
        snprintf(g->model, sizeof g->model, "measured");
        return set_table(&g->cost, k->type == COST_ROWS, value);
    case PREFERS:
        g->prefers_prefill = strcmp(value, "prefill") == 0;
        return g->prefers_prefill || strcmp(value, "decode") == 0;
    case PERMITS:
        g->may_prefill = strcmp(value, "decode") != 0;
        g->may_decode = strcmp(value, "prefill") != 0;
        return !g->may_prefill || !g->may_decode || strcmp(value, "both") == 0;
    }
    return false;
}

static int refuse(struct reader *r, const char *what, const char *name, const char *value, const char *hint)
{
    if (!r->failed)
        sl_why_set(r->why, SL_ECONFIG, "%s \"%s%s%s\": %s", what, name, value ? " = " : "",
                   value ? value : "", hint);
    r->failed = true;
    return 0;
}

static int on_key(void *user, const char *section, const char *name, const char *value)
{
    struct reader *r = user;
    struct sim_cluster *c = r->c;
    r->group = NULL;
    if (strncmp(section, "group ", 6) == 0) {
        for (uint32_t i = 0; i < c->n_groups; i++)
            if (strcmp(c->groups[i].name, section + 6) == 0)
                r->group = &c->groups[i];
        if (!r->group) {
            if (c->n_groups == SIM_MAX_GROUPS)
                return refuse(r, "section", section, NULL, "at most 16 groups of nodes");
            r->group = &c->groups[c->n_groups++];
            group_init(r->group, section + 6);
        }
    } else if (strcmp(section, "cluster") != 0) {
        return refuse(r, "section", section, NULL, "expected [cluster] or [group NAME]");
    }
    const struct key *keys = r->group ? group_keys : cluster_keys;
    for (; keys->name; keys++)
        if (strcmp(keys->name, name) == 0)
            return set_key(keys, r->group ? (void *)r->group : c, value)
                       ? 1
                       : refuse(r, "value", name, value, "out of range, or not one of the known names");
    return refuse(r, "key", name, NULL, "not known in this section");
}

static enum sl_err check(const struct sim_cluster *c, struct sl_why *why)
{
    uint32_t nodes = 0, decode = 0;
    for (uint32_t i = 0; i < c->n_groups; i++) {
        const struct sim_group *g = &c->groups[i];
        if (!g->model[0])
            return sl_why_set(why, SL_ECONFIG,
                              "group %s names no model (sluice-bench simulate --help lists them) and has no "
                              "cost_rows and cost_ms",
                              g->name);
        if (g->cost.rows[0] == 0 || !(g->cost.ms[0] > 0) || !g->kv_bytes_per_token || !g->kv_memory_bytes)
            return sl_why_set(why, SL_ECONFIG,
                              "group %s: a measured model needs cost_rows, cost_ms, kv_bytes_per_token and "
                              "kv_memory_bytes",
                              g->name);
        if (g->kv_bytes_per_token != c->groups[0].kv_bytes_per_token)
            return sl_why_set(why, SL_ECONFIG,
                              "groups %s and %s have pages of different size; all nodes serve one model",
                              c->groups[0].name, g->name);
        nodes += g->count;
        decode += g->may_decode ? g->count : 0;
    }
    if (nodes > SL_PLACE_MAX_NODES || decode == 0)
        return sl_why_set(why, SL_ECONFIG,
                          "%u nodes, %u may decode; expected 1 to %d, one at least that decodes", nodes,
                          decode, SL_PLACE_MAX_NODES);
    return SL_OK;
}

static void cluster_init(struct sim_cluster *c)
{
    *c = (struct sim_cluster){.link_bytes_per_s = LINK_BYTES_PER_S,
                              .link_latency_us = LINK_LATENCY_US,
                              .heartbeat_ms = HEARTBEAT_MS,
                              .page_tokens = PAGE_TOKENS};
}

enum sl_err sim_cluster_read(const char *path, struct sim_cluster *out, struct sl_why *why)
{
    cluster_init(out);
    struct reader r = {.c = out, .why = why};
    int line = ini_parse(path, on_key, &r);
    if (line < 0)
        return sl_why_set(why, SL_EIO, "cannot read the cluster file %s", path);
    if (r.failed) {
        char text[sizeof why->text];
        snprintf(text, sizeof text, "%s", why->text);
        return sl_why_set(why, SL_ECONFIG, "%s:%d: %.400s", path, line, text);
    }
    if (line > 0)
        return sl_why_set(why, SL_ECONFIG, "%s:%d: expected [section], key = value or a comment", path, line);
    return check(out, why);
}

enum sl_err sim_cluster_plain(const char *preset, uint32_t n_prefill, uint32_t n_decode,
                              struct sim_cluster *out, struct sl_why *why)
{
    cluster_init(out);
    const uint32_t counts[] = {n_prefill, n_decode};
    static const char *const names[] = {"prefill", "decode"};
    for (uint32_t i = 0; i < 2; i++) {
        if (counts[i] == 0)
            continue;
        struct sim_group *g = &out->groups[out->n_groups++];
        group_init(g, names[i]);
        g->count = counts[i];
        g->prefers_prefill = i == 0;
        if (!set_model(g, preset))
            return sl_why_set(why, SL_ECONFIG,
                              "there is no model \"%s\"; sluice-bench simulate --help lists them", preset);
    }
    return check(out, why);
}
