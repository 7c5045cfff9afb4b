/* common/node/node_stats.c - reads engine, transfers and legs into messages. Nothing here changes state. */
#include "common/node/node_stats.h"

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/memory_info.h"
#include "common/node/node_leg.h"

#define MAX_LINKS         64u   /* as many as a router keeps (node_table.h) */
#define MAX_PREFIX_HASHES 1024u /* the newest pages, 8 KiB of each heartbeat */

void sl_node_load(struct sl_node *n, Sluice__NodeLoad *out)
{
    struct sl_engine_stats s;
    sl_engine_stats(n->engine, &s);
    sluice__node_load__init(out);
    out->free_pages = s.free_pages + s.evictable_pages;
    out->total_pages = s.total_pages;
    out->running = s.running;
    out->waiting = s.waiting;
    out->queued_prompt_tokens = s.queued_prompt_tokens;
    out->decode_rows = s.decode_rows;
    out->has_decode_context_tokens = out->has_draining = out->has_progress = out->has_steps = true;
    out->has_computing = true;
    out->computing = sl_engine_in_flight(n->engine);
    out->has_leases = out->has_cached_pages = out->has_tpot_wish_ms = out->has_rows_without_wish = true;
    out->decode_context_tokens = s.decode_context_tokens;
    out->draining = n->draining;
    out->progress = sl_engine_progress(n->engine);
    out->steps = s.steps;
    out->leases = sl_xfer_open_sessions(n->xfer);
    out->cached_pages = s.cached_pages;
    out->tpot_wish_ms = s.tpot_wish_ms;
    out->rows_without_wish = s.rows_without_wish;
    out->has_prompt_tokens = out->has_decode_tokens = true;
    out->prompt_tokens = s.prompt_tokens;
    out->decode_tokens = s.decode_tokens;
}

Sluice__CostModel *sl_node_cost(struct sl_node *n, struct sl_arena *a)
{
    const struct sl_cost_model *c = sl_engine_cost(n->engine);
    Sluice__CostModel *m = sl_arena_alloc(a, sizeof *m);
    uint32_t *tokens = sl_arena_alloc(a, SL_COST_POINTS * sizeof *tokens);
    float *ms = sl_arena_alloc(a, SL_COST_POINTS * sizeof *ms);
    if (!m || !tokens || !ms)
        return NULL;
    sluice__cost_model__init(m);
    for (uint32_t i = 0; i < c->n_points; i++) {
        tokens[i] = c->rows[i];
        ms[i] = (float)c->ms[i];
    }
    m->n_tokens = m->n_step_ms = c->n_points;
    m->tokens = tokens;
    m->step_ms = ms;
    m->has_attn_ms_per_mtoken = m->has_decode_attn_ms_per_mtoken = m->has_error = true;
    m->has_head_ms_per_row = m->has_read_ms_per_mtoken = true;
    m->head_ms_per_row = (float)c->head_ms_per_row;
    m->read_ms_per_mtoken = (float)c->prompt_read_ms_per_mtoken;
    m->attn_ms_per_mtoken = (float)c->prompt_attn_ms_per_mtoken;
    m->decode_attn_ms_per_mtoken = (float)c->decode_attn_ms_per_mtoken;
    m->error = (float)c->error;
    return m;
}

static char *copy(struct sl_arena *a, const char *s)
{
    return sl_arena_strndup(a, s ? s : "", strlen(s ? s : ""));
}

size_t sl_node_links(struct sl_node *n, struct sl_arena *a, Sluice__LinkReport ***out)
{
    struct sl_link_report *links = sl_arena_alloc(a, MAX_LINKS * sizeof *links);
    Sluice__LinkReport *m = sl_arena_alloc(a, MAX_LINKS * sizeof *m),
                       **p = sl_arena_alloc(a, MAX_LINKS * sizeof *p);
    if (!links || !m || !p)
        return 0;
    size_t n_links = sl_xfer_links(n->xfer, links, MAX_LINKS);
    for (size_t i = 0; i < n_links; i++) {
        const struct sl_link_report *l = &links[i];
        p[i] = &m[i];
        sluice__link_report__init(&m[i]);
        m[i].peer = copy(a, l->peer);
        m[i].peer_boot_id = l->peer_boot_id;
        m[i].transport = copy(a, l->transport);
        m[i].state = copy(a, l->state);
        m[i].has_bytes_per_s = l->bytes_per_s > 0;
        m[i].bytes_per_s = l->bytes_per_s;
        m[i].has_latency_us = l->latency_us > 0;
        m[i].latency_us = l->latency_us;
        m[i].why = l->why[0] ? copy(a, l->why) : NULL;
        m[i].has_pages_sent = m[i].has_bytes_sent = m[i].has_rejects = true;
        m[i].pages_sent = l->pages_sent;
        m[i].bytes_sent = l->bytes_sent;
        m[i].rejects = l->rejects;
    }
    *out = p;
    return n_links;
}

size_t sl_node_prefix_hashes(struct sl_node *n, struct sl_arena *a, uint64_t **out)
{
    uint64_t *h = sl_arena_alloc(a, MAX_PREFIX_HASHES * sizeof *h);
    if (!h)
        return 0;
    *out = h;
    return sl_engine_prefix_hashes(n->engine, h, MAX_PREFIX_HASHES);
}

Sluice__NodeInfo *sl_node_info(struct sl_node *n, struct sl_arena *a)
{
    const struct sl_node_conf *c = n->conf;
    const struct sl_model_conf *mc = sl_engine_model(n->engine);
    const struct sl_kv_geometry g = sl_engine_geometry(n->engine);
    Sluice__NodeInfo *m = sl_arena_alloc(a, sizeof *m);
    Sluice__ModelInfo *model = sl_arena_alloc(a, sizeof *model);
    Sluice__Role *permits = sl_arena_alloc(a, 2 * sizeof *permits);
    SL_ASSERT(m && model && permits);
    sluice__node_info__init(m);
    sluice__model_info__init(model);
    model->name = copy(a, mc->name[0] ? mc->name : mc->arch);
    model->digest.len = sizeof mc->digest;
    model->digest.data = (uint8_t *)(uintptr_t)&mc->digest;
    model->context_length = mc->context_length;
    model->n_vocab = mc->n_vocab;
    model->n_layers = g.n_layers;
    model->n_kv_heads = g.n_kv_heads;
    model->head_dim = g.head_dim;
    model->kv_dtype = (uint32_t)g.dtype;
    model->page_tokens = g.page_tokens;
    model->page_bytes = sl_kv_page_bytes(&g);
    model->has_tensor_parallel = true;
    model->tensor_parallel = c->tensor_parallel;
    model->numerics_id = sl_engine_numerics_id(n->engine);
    m->name = c->name;
    m->boot_id = n->boot_id;
    m->prefers = c->prefers;
    m->permits = permits;
    if (c->may_prefill)
        permits[m->n_permits++] = SLUICE__ROLE__ROLE_PREFILL;
    if (c->may_decode)
        permits[m->n_permits++] = SLUICE__ROLE__ROLE_DECODE;
    m->command_url = n->command_url;
    m->transfer_address = n->transfer_address;
    m->model = model;
    m->kv_pages = sl_engine_n_pages(n->engine);
    m->threads = c->threads;
    m->cpus = c->cpus && *c->cpus ? c->cpus : NULL;
    m->has_max_batch_tokens = m->has_chunk_tokens = m->has_tpot_target_ms = m->has_chunk_stretch = true;
    m->max_batch_tokens = c->max_batch_tokens;
    m->chunk_tokens = c->chunk_tokens;
    m->tpot_target_ms = c->tpot_target_ms;
    m->chunk_stretch = c->chunk_stretch;
    m->cost = sl_node_cost(n, a);
    m->backend = copy(a, sl_engine_backend(n->engine));
    m->sluice_version = copy(a, SL_VERSION);
    return m;
}

struct named {
    const char *name;
    double value;
};

#define COST_NAME_BYTES 40

/* The cost model as it is now, so that a cluster can be simulated as it runs (sluice-bench snapshot). */
static size_t cost_values(const struct sl_cost_model *c, char names[SL_COST_POINTS][COST_NAME_BYTES],
                          struct named out[SL_COST_VALUES])
{
    for (uint32_t i = 0; i < c->n_points; i++) {
        snprintf(names[i], COST_NAME_BYTES, "cost_ms_at_%u_rows", c->rows[i]);
        out[i] = (struct named){names[i], c->ms[i]};
    }
    const struct named terms[SL_COST_TERMS] = {
        {"cost_head_ms_per_row", c->head_ms_per_row},
        {"cost_prompt_attn_ms_per_mtoken", c->prompt_attn_ms_per_mtoken},
        {"cost_prompt_read_ms_per_mtoken", c->prompt_read_ms_per_mtoken},
        {"cost_decode_attn_ms_per_mtoken", c->decode_attn_ms_per_mtoken}};
    memcpy(out + c->n_points, terms, sizeof terms);
    return c->n_points + SL_COST_TERMS;
}

static size_t fill_values(struct sl_node *n, struct sl_arena *a, Sluice__StatValue ***out)
{
    struct sl_engine_stats s;
    sl_engine_stats(n->engine, &s);
    const struct sl_node_counters *c = &n->counters;
    const struct sl_engine_memory *memory = sl_engine_memory(n->engine);
    const struct sl_kv_geometry geometry = sl_engine_geometry(n->engine);
    const struct sl_engine_limits limits = sl_engine_limits(n->engine);
    const struct named rows[] = {
        {"pages_total", s.total_pages},
        {"pages_free", s.free_pages},
        {"pages_evictable", s.evictable_pages},
        {"pages_cached", s.cached_pages},
        {"memory_weights_bytes", (double)memory->weights},
        {"memory_kv_bytes", (double)memory->kv},
        {"memory_scratch_bytes", (double)memory->scratch},
        {"memory_resident_bytes", (double)sl_memory_resident()},
        {"sequences_waiting", s.waiting},
        {"sequences_running", s.running},
        {"decode_rows", s.decode_rows},
        {"transfers_open", sl_xfer_open_sessions(n->xfer)},
        {"legs_active", n->legs.n_active},
        {"legs_finished_kept", n->legs.n_finished},
        {"legs_constrained", n->legs.n_constrained},
        {"steps_total", (double)s.steps},
        {"layers_total", (double)sl_engine_progress(n->engine)},
        {"prompt_tokens_total", (double)s.prompt_tokens},
        {"decode_tokens_total", (double)s.decode_tokens},
        {"sampled_tokens_total", (double)s.sampled_tokens},
        {"preemptions_total", (double)s.preemptions},
        {"prefix_queries_tokens_total", (double)s.prefix_queries_tokens},
        {"prefix_hits_tokens_total", (double)s.prefix_hits_tokens},
        {"drafted_tokens_total", (double)s.drafted_tokens},
        {"accepted_tokens_total", (double)s.accepted_tokens},
        {"step_busy_ms_total", s.busy_ms},
        {"step_predicted_ms_total", s.predicted_ms},
        {"step_actual_ms_total", s.actual_ms},
        {"step_error_p50", s.step_error_p50},
        {"step_error_p90", s.step_error_p90},
        {"max_batch_tokens", limits.max_batch_tokens},
        {"max_sequences", limits.max_sequences},
        {"ungranted_pages", limits.ungranted_pages},
        {"chunk_tokens", limits.chunk_tokens},
        {"tpot_target_ms", limits.tpot_target_ms},
        {"chunk_stretch", limits.chunk_stretch},
        {"page_tokens", geometry.page_tokens},
        {"page_bytes", (double)sl_kv_page_bytes(&geometry)},
        {"requests_accepted_total", (double)c->accepted},
        {"requests_refused_total", (double)c->refused},
        {"requests_duplicate_total", (double)c->duplicates},
        {"requests_superseded_total", (double)c->superseded},
        {"requests_canceled_total", (double)c->canceled},
        {"requests_expired_total", (double)c->expired},
        {"peers_lost_total", (double)c->peers_lost},
        {"tokens_sent_total", (double)c->tokens_sent},
        {"batches_sent_total", (double)c->batches_sent},
        {"batches_lost_total", (double)c->batches_lost},
        {"resyncs_total", (double)c->resyncs},
        {"control_replays_total", (double)sl_wire_server_refused(n->server)},
    };
    char names[SL_COST_POINTS][COST_NAME_BYTES];
    struct named cost[SL_COST_VALUES];
    size_t n_cost = cost_values(sl_engine_cost(n->engine), names, cost), all = SL_COUNTOF(rows) + n_cost;
    Sluice__StatValue *m = sl_arena_alloc(a, sizeof *m * all);
    Sluice__StatValue **p = sl_arena_alloc(a, sizeof *p * all);
    if (!m || !p)
        return 0;
    for (size_t i = 0; i < all; i++) {
        const struct named *row = i < SL_COUNTOF(rows) ? &rows[i] : &cost[i - SL_COUNTOF(rows)];
        sluice__stat_value__init(&m[i]);
        m[i].name = copy(a, row->name);
        m[i].value = row->value;
        p[i] = &m[i];
    }
    *out = p;
    return all;
}

static size_t fill_sequences(struct sl_node *n, struct sl_arena *a, Sluice__SequenceInfo ***out)
{
    Sluice__SequenceInfo *m = sl_arena_alloc(a, sizeof *m * n->legs.n_active);
    Sluice__SequenceInfo **p = sl_arena_alloc(a, sizeof *p * n->legs.n_active);
    size_t i = 0;
    if (!m || !p)
        return 0;
    SL_LIST_FOREACH (at, &n->legs.active) {
        const struct sl_leg *l = SL_CONTAINER_OF(at, struct sl_leg, link);
        Sluice__SequenceInfo *s = p[i] = &m[i];
        sluice__sequence_info__init(s);
        s->request_id = copy(a, l->key.request);
        s->attempt = l->key.epoch;
        s->duty = copy(a, l->duty->name);
        s->state = copy(a, l->state);
        s->tokens = l->n_tokens;
        s->peer = l->xfer == SL_LEG_XFER_OPEN ? copy(a, l->peer.name) : NULL;
        s->has_age_ms = true;
        s->age_ms = sl_leg_age_us(l) / 1000;
        if (l->seq) {
            struct sl_seq_view v;
            sl_seq_view(l->seq, &v);
            if (!l->ended && strcmp(l->state, "waiting") != 0)
                s->state = copy(a, sl_seq_state_name(v.state));
            s->tokens = v.n_tokens;
            s->computed = v.computed_tokens;
            s->pages = v.n_pages;
        }
        i++;
    }
    *out = p;
    return i;
}

void sl_node_stats_reply(struct sl_node *n, struct sl_arena *a, bool sequences, Sluice__StatsReply *out)
{
    sluice__stats_reply__init(out);
    out->load = sl_arena_alloc(a, sizeof *out->load);
    SL_ASSERT(out->load);
    sl_node_load(n, out->load);
    out->n_links = sl_node_links(n, a, &out->links);
    out->n_values = fill_values(n, a, &out->values);
    if (sequences)
        out->n_sequences = fill_sequences(n, a, &out->sequences);
}

/* Fills the columns of m, which have room for n. */
static void fill_columns(Sluice__StepLog *m, const struct sl_step_record *r, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        m->ended_us[i] = r[i].ended_us;
        m->took_us[i] = r[i].took_us;
        m->predicted_us[i] = r[i].predicted_us;
        m->decode_rows[i] = r[i].decode_rows;
        m->draft_rows[i] = r[i].draft_rows;
        m->prompt_rows[i] = r[i].prompt_rows;
        m->prompts[i] = r[i].n_prompts;
    }
    m->n_ended_us = m->n_took_us = m->n_predicted_us = m->n_decode_rows = m->n_draft_rows = n;
    m->n_prompt_rows = m->n_prompts = n;
    m->first_step = n ? r[0].seq : 0;
}

void sl_node_steps_reply(struct sl_node *n, struct sl_arena *a, uint64_t after, Sluice__StatsReply *out)
{
    struct sl_engine_stats s;
    struct sl_step_record *r = sl_arena_alloc(a, SL_STEP_RECORDS * sizeof *r);
    Sluice__StepLog *m = sl_arena_alloc(a, sizeof *m);
    sluice__stats_reply__init(out);
    out->load = sl_arena_alloc(a, sizeof *out->load);
    SL_ASSERT(r && m && out->load);
    sl_node_load(n, out->load);
    sluice__step_log__init(m);
    size_t n_records = sl_engine_step_records(n->engine, after, r, SL_STEP_RECORDS);
    uint32_t **const columns[] = {&m->took_us,    &m->predicted_us, &m->decode_rows,
                                  &m->draft_rows, &m->prompt_rows,  &m->prompts};
    m->ended_us = sl_arena_alloc(a, SL_STEP_RECORDS * sizeof *m->ended_us);
    SL_ASSERT(m->ended_us);
    for (size_t i = 0; i < SL_COUNTOF(columns); i++) {
        *columns[i] = sl_arena_alloc(a, SL_STEP_RECORDS * sizeof **columns[i]);
        SL_ASSERT(*columns[i]);
    }
    fill_columns(m, r, n_records);
    sl_engine_stats(n->engine, &s);
    m->uptime_us = sl_engine_uptime_us(n->engine);
    m->has_prompt_tokens = m->has_decode_tokens = true;
    m->prompt_tokens = s.prompt_tokens;
    m->decode_tokens = s.decode_tokens;
    out->steps = m;
}
