/* tests/bench/simulate/sim_run.c - the loop: arrivals are placed by the router's code, nodes step, pages
 * travel.
 *
 * A request is a job with one leg on D and, when its placement has a split, one on P. Whatever happens is an
 * event; a node that is idle is kicked when something came for it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/philox.h"
#include "router/fleet/node_table.h"
#include "router/place/fair_share.h"
#include "tests/bench/simulate/sim_events.h"
#include "tests/bench/simulate/sim_node.h"
#include "tests/bench/stats.h"

#define COMMAND_S      0.0005 /* a control message between two machines */
#define MAX_HASHES     1024u  /* of a heartbeat, as in life */
#define ERROR_SAMPLE   61u    /* every so many steps go into the median of the prediction's error */
#define TELL_EVERY_NS  UINT64_C(1000000000)
#define GIVE_UP_FACTOR 20.0 /* times the trace's own span: the cluster does not keep up, and will not */
#define GIVE_UP_S      3600.0
#define LET_GO_TRIES   4u /* as the router's */
/* A twentieth of the steps delayed so is what a quiet small computer does: sluice-bench steps, P95 1.15, P99 1.45. */
#define SPIKE_MEAN 0.2

struct sim_job {
    uint32_t index, split, output, emitted, sent;
    const struct sim_class *class;
    struct sl_account *account;
    uint32_t pending; /* events that name it */
    bool granted, over, missed;
    struct sim_leg p, d;
    struct sl_node *at_p, *at_d;
    struct sl_charge charge_p, charge_d;
    double arrived_s, first_s, last_s, second_s;
    double ttft_ms, tpot_ms; /* wished; 0 = no wish */
    struct run *run;
};

struct run {
    const struct sim_cluster *cluster;
    const struct sl_trace *trace;
    const struct sim_conf *conf;
    struct sim_result *out;
    uint32_t page_tokens;
    struct sim_node *nodes;
    uint32_t n_nodes;
    struct sl_node_table *table;
    struct sl_node_view *view;
    struct sim_events events;
    struct sl_samples errors;
    double last_token_s;
    size_t n_open;
    struct sim_class plain;
    struct sl_account accounts[SIM_MAX_KEYS];
    struct sl_output_mean outputs[SIM_MAX_CLASSES];
    struct sl_share share;
    struct sl_share_entry *held; /* [held_cap] */
    uint32_t n_held, held_cap;
    bool room;              /* a node has less to do than before */
    struct sim_job **ended; /* not freed yet: an event or a step names them */
    size_t n_ended, ended_cap;
    uint64_t told_ns, *hashes;
};

/* ---- what the router hears ---- */

static void fill_cost(const struct sl_cost_model *m, Sluice__CostModel *c, float *ms)
{
    sluice__cost_model__init(c);
    c->n_tokens = c->n_step_ms = m->n_points;
    c->tokens = (uint32_t *)m->rows;
    c->step_ms = ms;
    for (uint32_t i = 0; i < m->n_points; i++)
        ms[i] = (float)m->ms[i];
    c->has_attn_ms_per_mtoken = c->has_decode_attn_ms_per_mtoken = c->has_head_ms_per_row =
        c->has_read_ms_per_mtoken = true;
    c->attn_ms_per_mtoken = (float)m->prompt_attn_ms_per_mtoken;
    c->decode_attn_ms_per_mtoken = (float)m->decode_attn_ms_per_mtoken;
    c->head_ms_per_row = (float)m->head_ms_per_row;
    c->read_ms_per_mtoken = (float)m->prompt_read_ms_per_mtoken;
}

static enum sl_err join(struct run *r, uint32_t i, struct sl_why *why)
{
    struct sim_node *n = &r->nodes[i];
    const struct sim_group *g = n->group;
    uint8_t digest[16] = {1};
    float ms[SL_COST_POINTS];
    Sluice__CostModel cost;
    fill_cost(&n->belief, &cost, ms);
    Sluice__ModelInfo model = SLUICE__MODEL_INFO__INIT;
    model.name = (char *)g->model;
    model.digest = (ProtobufCBinaryData){.len = sizeof digest, .data = digest};
    model.n_vocab = model.n_layers = model.n_kv_heads = model.head_dim = 1;
    model.page_tokens = r->page_tokens;
    model.page_bytes = (uint64_t)g->kv_bytes_per_token * r->page_tokens;
    Sluice__Role permits[2];
    Sluice__NodeInfo info = SLUICE__NODE_INFO__INIT;
    info.name = n->name;
    info.boot_id = i + 1;
    info.prefers = g->prefers_prefill ? SLUICE__ROLE__ROLE_PREFILL : SLUICE__ROLE__ROLE_DECODE;
    if (g->may_prefill)
        permits[info.n_permits++] = SLUICE__ROLE__ROLE_PREFILL;
    if (g->may_decode)
        permits[info.n_permits++] = SLUICE__ROLE__ROLE_DECODE;
    info.permits = permits;
    info.command_url = info.transfer_address = (char *)"simulated";
    info.model = &model;
    info.kv_pages = n->total_pages;
    info.threads = 1;
    info.has_max_batch_tokens = info.has_chunk_tokens = true;
    info.max_batch_tokens = g->max_batch_tokens;
    info.chunk_tokens = g->chunk_tokens;
    info.has_tpot_target_ms = info.has_chunk_stretch = true;
    info.tpot_target_ms = g->tpot_target_ms;
    info.chunk_stretch = g->chunk_stretch;
    info.cost = &cost;
    struct sl_node *node;
    enum sl_node_joined joined;
    uint64_t old;
    return sl_node_table_register(r->table, &info, 0, &node, &joined, &old, why);
}

static void heartbeat(struct run *r, struct sim_node *n, double now_s)
{
    uint32_t i = (uint32_t)(n - r->nodes);
    float ms[SL_COST_POINTS];
    Sluice__CostModel cost;
    fill_cost(&n->belief, &cost, ms);
    struct sim_load now;
    sim_node_load(n, &now);
    Sluice__NodeLoad load = SLUICE__NODE_LOAD__INIT;
    load.free_pages = sim_node_available_pages(n);
    load.total_pages = n->total_pages;
    load.running = n->n_running;
    load.waiting = n->n_waiting;
    load.queued_prompt_tokens = now.queued_tokens;
    load.decode_rows = now.rows;
    load.has_decode_context_tokens = load.has_tpot_wish_ms = load.has_rows_without_wish = true;
    load.decode_context_tokens = now.context_tokens;
    load.tpot_wish_ms = now.tpot_wish_ms;
    load.rows_without_wish = now.rows_without_wish;
    /* one measured link: the pairs that did not meet yet count as fast as those that did */
    struct sim_node *peer = &r->nodes[(i + 1) % r->n_nodes];
    Sluice__LinkReport link = SLUICE__LINK_REPORT__INIT, *links[] = {&link};
    link.peer = peer->name;
    link.peer_boot_id = (uint64_t)(peer - r->nodes) + 1;
    link.transport = (char *)"simulated";
    link.state = (char *)"up";
    link.has_bytes_per_s = link.has_latency_us = true;
    link.bytes_per_s = r->cluster->link_bytes_per_s;
    link.latency_us = r->cluster->link_latency_us;
    Sluice__Heartbeat hb = SLUICE__HEARTBEAT__INIT;
    hb.node = n->name;
    hb.boot_id = i + 1;
    hb.load = &load;
    hb.cost = &cost;
    hb.links = links;
    hb.n_links = n->group->may_prefill && r->n_nodes > 1 && i < SL_PLACE_MAX_LINKS;
    hb.prefix_hashes = r->hashes;
    hb.n_prefix_hashes = sim_node_blocks(n, r->hashes, MAX_HASHES);
    SL_ASSERT(sl_node_table_heartbeat(r->table, &hb, (uint64_t)(now_s * 1e3)) != NULL);
    sim_events_add(&r->events, now_s + r->cluster->heartbeat_ms / 1e3, SIM_HEARTBEAT, n, 0);
}

/* ---- nodes ---- */

static double noise(const struct run *r, const struct sim_node *n)
{
    const uint64_t seed = r->conf->seed + (uint64_t)(n - r->nodes);
    double factor = 1;
    if (r->conf->noise > 0) {
        double u = sl_philox_uniform(seed, 4, n->steps), v = sl_philox_uniform(seed, 5, n->steps);
        double z = sqrt(-2 * log1p(-u)) * cos(2 * 3.14159265358979 * v);
        factor = exp(r->conf->noise * z);
    }
    if (r->conf->spikes > 0 && (double)sl_philox_uniform(seed, 7, n->steps) < r->conf->spikes)
        factor *= 1 - SPIKE_MEAN * log1p(-(double)sl_philox_uniform(seed, 8, n->steps));
    return factor;
}

static void kick(struct run *r, struct sim_node *n, double now_s)
{
    if (n->in_step)
        return;
    double ms = sim_node_begin(n, now_s) * noise(r, n);
    if (ms > 0)
        sim_events_add(&r->events, now_s + ms / 1e3, SIM_STEP_END, n, 0);
}

static void end_step(struct run *r, struct sim_node *n, double now_s)
{
    double real_ms = (now_s - n->step_began_s) * 1e3;
    if (r->out->steps++ % ERROR_SAMPLE == 0)
        sl_samples_add(&r->errors, fabs(n->predicted_ms - real_ms) / real_ms);
    sim_node_end(n, now_s, real_ms);
    kick(r, n, now_s);
}

/* As sl_node's on_blocking(): twice in a row, and the youngest request is computed where it waits. */
static void unblock(struct run *r, struct sim_node *n, double now_s)
{
    struct sim_leg *l = sim_node_blocking(n);
    if (l && l == n->blocking && l->job->emitted == 0) {
        struct sim_job *j = l->job;
        sim_node_go_local(l);
        sim_node_close(&j->p);
        sl_node_charge_drop(j->at_p, &j->charge_p, true);
        kick(r, j->p.node, now_s);
        kick(r, n, now_s);
        l = NULL;
    }
    n->blocking = l;
}

/* ---- jobs ---- */

static void add_ended(struct run *r, struct sim_job *j)
{
    if (r->n_ended == r->ended_cap) {
        r->ended_cap = r->ended_cap ? 2 * r->ended_cap : 64;
        r->ended = sl_xrealloc_array(r->ended, r->ended_cap, sizeof(struct sim_job *));
    }
    r->ended[r->n_ended++] = j;
}

static void free_ended(struct run *r, bool all)
{
    size_t kept = 0;
    for (size_t i = 0; i < r->n_ended; i++) {
        struct sim_job *j = r->ended[i];
        if (all || (j->pending == 0 && !j->p.in_step && !j->d.in_step))
            sl_free(j);
        else
            r->ended[kept++] = j;
    }
    r->n_ended = kept;
}

static void name_job(struct run *r, double at_s, enum sim_event_kind kind, struct sim_job *j, uint32_t amount)
{
    j->pending++;
    sim_events_add(&r->events, at_s, kind, j, amount);
}

/* Sends what P has and D lacks, whole pages, or all at the end. */
static void push(struct sim_job *j, double now_s)
{
    struct run *r = j->run;
    uint32_t to = j->p.computed, from = j->sent > j->d.computed ? j->sent : j->d.computed;
    if (!j->granted || j->over || j->p.closing)
        return;
    if (to < j->split)
        to -= to % r->page_tokens;
    if (to <= from && to < j->split)
        return;
    if (j->sent >= j->split)
        return;
    struct sim_node *p = j->p.node, *d = j->d.node;
    double bytes = (to > from ? to - from : 0) * (double)p->group->kv_bytes_per_token;
    double start = fmax(now_s, fmax(p->egress_free_s, d->ingress_free_s));
    double end = start + bytes / r->cluster->link_bytes_per_s;
    p->egress_free_s = d->ingress_free_s = end;
    j->sent = to;
    r->out->moved_tokens += to > from ? to - from : 0;
    name_job(r, end + r->cluster->link_latency_us / 1e6, SIM_PAGES, j, to);
}

/* What it would feel on an idle node of g. */
static void feel_alone(const struct sim_group *g, const struct sl_trace_request *q, struct sim_outcome *o)
{
    double left = q->n_prompt, alone = 0;
    while (left > 0) {
        double c = fmin(left, g->max_batch_tokens), before = q->n_prompt - left;
        alone += sl_cost_predict_ms(&g->cost, &(struct sl_step_load){.prompt_rows = (uint32_t)c,
                                                                     .prompt_attn = c * (before + c / 2),
                                                                     .prompt_history = before});
        left -= c;
    }
    o->alone_ttft = (float)alone;
    o->alone_gap = (float)sl_cost_predict_ms(
        &g->cost,
        &(struct sl_step_load){.decode_rows = 1, .decode_context = (double)q->n_prompt + q->n_output});
}

bool sim_is_late(const struct sim_limits *l, const struct sim_outcome *o)
{
    return o->ttft > l->ttft_times * o->alone_ttft;
}

bool sim_is_paused(const struct sim_limits *l, const struct sim_outcome *o)
{
    return o->gap_max > l->gap_times * o->alone_gap;
}

/* Counts a miss once, as soon as it is one. */
static void judge(struct sim_job *j)
{
    const struct sim_limits *l = &j->run->conf->limits;
    const struct sim_outcome *o = &j->run->out->outcomes[j->index];
    if (j->missed || j->index < l->skip || l->ttft_times <= 0)
        return;
    j->missed = sim_is_late(l, o) || sim_is_paused(l, o);
    j->run->out->n_missed += j->missed;
}

static void record(struct sim_job *j)
{
    struct sim_outcome *o = &j->run->out->outcomes[j->index];
    o->done = true;
    o->hit_d = j->d.hit;
    o->hit_p = j->p.hit;
    o->second = (float)((j->second_s - j->arrived_s) * 1e3);
    o->tpot = (float)(j->output > 1 ? (j->last_s - j->first_s) * 1e3 / (j->output - 1) : 0);
}

static void end_job(struct sim_job *j, double now_s)
{
    struct run *r = j->run;
    record(j);
    sim_node_close(&j->d);
    sl_node_charge_drop(j->at_d, &j->charge_d, false);
    if (j->split) {
        sim_node_close(&j->p);
        sl_node_charge_drop(j->at_p, &j->charge_p, false);
    }
    j->over = true;
    r->room = true;
    sl_output_mean_add(&r->outputs[r->out->outcomes[j->index].class], j->emitted);
    add_ended(r, j);
    r->n_open--;
    r->last_token_s = now_s;
}

static void on_token(struct sim_leg *l, double now_s)
{
    struct sim_job *j = l->job;
    struct sim_outcome *o = &j->run->out->outcomes[j->index];
    j->run->out->tokens++;
    sl_share_charge(j->account, SL_SHARE_OUTPUT);
    if (j->emitted++ == 0) {
        j->run->room = true;
        j->first_s = now_s;
        o->ttft = (float)((now_s - j->arrived_s) * 1e3);
        judge(j);
        if (j->split)
            sl_node_charge_drop(j->at_p, &j->charge_p, true);
        sl_node_charge_drop(j->at_d, &j->charge_d, true);
    } else {
        float gap = (float)((now_s - j->last_s) * 1e3);
        if (gap > o->gap_max) {
            o->gap_max = gap;
            o->gap_token = j->emitted;
            o->gap_s = now_s;
            judge(j);
        }
        if (j->emitted == 2)
            j->second_s = now_s;
    }
    j->last_s = now_s;
    if (j->emitted == j->output)
        end_job(j, now_s);
}

static void on_admitted(struct sim_leg *l, double now_s)
{
    struct sim_job *j = l->job;
    if (!l->is_p && j->split && l->state == SIM_REMOTE)
        name_job(j->run, now_s + COMMAND_S, SIM_GRANT, j, 0);
    if (!l->is_p && l->state != SIM_REMOTE && j->split && !j->granted) /* D has it all: P is not needed */
        sim_node_close(&j->p);
}

static void on_computed(struct sim_leg *l, double now_s)
{
    if (l->is_p)
        push(l->job, now_s);
}

static const struct sim_hooks hooks = {on_admitted, on_computed, on_token};

static void granted(struct sim_job *j, double now_s)
{
    if (j->over || j->p.closing)
        return;
    j->granted = true;
    sim_node_grant(&j->p);
    push(j, now_s);
    kick(j->run, j->p.node, now_s);
}

static void arrived(struct sim_job *j, uint32_t tokens, double now_s)
{
    if (j->over)
        return;
    sim_node_arrived(&j->d, tokens, j->p.samples);
    if (tokens == j->split) {
        sim_node_close(&j->p);
        sl_node_charge_drop(j->at_p, &j->charge_p, true);
        kick(j->run, j->p.node, now_s);
    }
    kick(j->run, j->d.node, now_s);
}

/* ---- arrivals ---- */

static uint64_t work(uint32_t from, uint32_t to, uint32_t hit)
{
    uint32_t start = hit > from ? hit : from;
    return start < to ? to - start : 0;
}

static void charge(struct sl_node *n, struct sl_charge *c, struct sl_node_ledger amount, int32_t priority,
                   double now_s)
{
    sl_node_charge(n, c, &amount, priority, (uint64_t)(now_s * 1e3));
    sl_node_charge_accepted(n, c);
}

static void open_legs(struct run *r, struct sim_job *j, const struct sl_place_candidate *best, double now_s)
{
    const struct sl_trace_request *q = &r->trace->requests[j->index];
    const struct sl_place_node *views = r->view->nodes;
    const uint64_t *blocks = r->trace->blocks ? &r->trace->blocks[q->first_block] : NULL;
    uint32_t n_blocks = blocks ? q->n_blocks : 0, n = q->n_prompt, d = (uint32_t)best->d;
    uint32_t most = r->conf->max_tokens > q->n_output ? r->conf->max_tokens : q->n_output;
    j->split = best->split;
    j->at_d = sl_node_table_at(r->table, d);
    charge(j->at_d, &j->charge_d,
           (struct sl_node_ledger){.rows = 1,
                                   .pages = n / r->page_tokens + 1,
                                   .prompt_tokens = work(j->split, n, views[d].hit_tokens),
                                   .context_tokens = n},
           j->class->priority, now_s);
    struct sim_leg base = {.job = j,
                           .n_tokens = n,
                           .n_prompt = n,
                           .priority = j->class->priority,
                           .outputs = r->outputs[r->out->outcomes[j->index].class],
                           .first_s = j->ttft_ms > 0 ? j->arrived_s + j->ttft_ms / 1e3 : 0,
                           .tpot_ms = j->tpot_ms,
                           .compute_to = n,
                           .blocks = blocks,
                           .n_blocks = n_blocks};
    j->d = base;
    j->d.granted = j->d.samples = true;
    j->d.limit = n + most;
    j->d.remote_to = j->split;
    bool ok = sim_node_open(&r->nodes[d], &j->d, now_s);
    if (ok && j->split) {
        uint32_t p = (uint32_t)best->p;
        j->at_p = sl_node_table_at(r->table, p);
        charge(j->at_p, &j->charge_p,
               (struct sl_node_ledger){.pages = (j->split + r->page_tokens - 1) / r->page_tokens,
                                       .prompt_tokens = work(0, j->split, views[p].hit_tokens)},
               j->class->priority, now_s);
        j->p = base;
        j->p.is_p = true;
        j->p.samples = j->split == n;
        j->p.compute_to = j->p.limit = j->split;
        ok = sim_node_open(&r->nodes[p], &j->p, now_s);
    }
    SL_ASSERT(ok); /* placement looked at the pools */
    kick(r, &r->nodes[d], now_s);
    if (j->split)
        kick(r, j->p.node, now_s);
}

static enum sl_err choose(struct run *r, const struct sim_job *j, double now_s,
                          struct sl_place_choice *choice)
{
    const struct sl_trace_request *q = &r->trace->requests[j->index];
    double left_ms = j->ttft_ms - (now_s - j->arrived_s) * 1e3;
    uint32_t most = r->conf->max_tokens > q->n_output ? r->conf->max_tokens : q->n_output;
    struct sl_place_req req = {
        .n_tokens = q->n_prompt,
        .n_prompt = q->n_prompt,
        .max_new = most,
        .expected_new = sl_output_mean_expect(&r->outputs[r->out->outcomes[j->index].class], 0, most, 0),
        .mode = r->conf->mode,
        .split = -1,
        .chunk = -2,
        .ttft_ms = j->ttft_ms > 0 ? fmax(left_ms, 1) : 0,
        .tpot_ms = j->tpot_ms};
    const struct sl_node_asker who = {.priority = j->class->priority,
                                      .n_tokens = q->n_prompt,
                                      .chain = r->trace->blocks ? &r->trace->blocks[q->first_block] : NULL,
                                      .n_chain = r->trace->blocks ? q->n_blocks : 0};
    struct sl_why why = {{0}};
    sl_node_table_view(r->table, (uint64_t)(now_s * 1e3), &who, r->view);
    return sl_place(&r->view->state, &req, choice, &why);
}

static void go(struct run *r, struct sim_job *j, const struct sl_place_choice *choice, double now_s)
{
    struct sim_outcome *o = &r->out->outcomes[j->index];
    o->waited = (float)((now_s - j->arrived_s) * 1e3);
    sl_share_charge(j->account, r->trace->requests[j->index].n_prompt);
    o->arrived_s = j->arrived_s;
    o->n_prompt = r->trace->requests[j->index].n_prompt;
    o->n_output = r->trace->requests[j->index].n_output;
    o->predicted_ttft = (float)(choice->best.predicted.ttft_ms + (double)o->waited);
    o->mode = choice->mode;
    o->decoded_by = (uint32_t)choice->best.d;
    o->prefilled_by = choice->best.split ? (uint32_t)choice->best.p : 0;
    o->split = choice->best.split;
    feel_alone(r->nodes[choice->best.d].group, &r->trace->requests[j->index], o);
    r->out->by_mode[choice->mode]++;
    open_legs(r, j, &choice->best, now_s);
}

static void refuse(struct run *r, struct sim_job *j)
{
    r->out->outcomes[j->index].refused = true;
    r->out->n_refused++;
    r->out->n_missed += r->conf->limits.ttft_times > 0 && j->index >= r->conf->limits.skip;
    r->n_open--;
    sl_free(j);
}

/* As router/flow/hold.c: refused now or never. */
static void hold(struct run *r, struct sim_job *j, const struct sl_place_prediction *p, double now_s)
{
    uint64_t now_us = (uint64_t)(now_s * 1e6);
    const struct sl_share_entry mine = {.who = j,
                                        .account = j->account,
                                        .priority = j->class->priority,
                                        .arrived_us = now_us,
                                        .since_us = now_us,
                                        .work = r->trace->requests[j->index].n_prompt};
    sl_share_enter(&r->share, j->account, r->held, r->n_held, now_us);
    double wait_ms = sl_share_wait_ms(&r->share, r->held, r->n_held, &mine,
                                      sl_place_tokens_per_ms(&r->view->state, r->conf->mode));
    double more_ms = fmax(0, p->wait_ms - r->conf->hold_ms), patience = HUGE_VAL;
    if (r->conf->max_wait_ms)
        patience = r->conf->max_wait_ms;
    if (r->conf->refuse && j->ttft_ms > 0)
        patience = fmin(patience, j->ttft_ms - (p->ttft_ms - more_ms));
    if (wait_ms + more_ms > patience) {
        refuse(r, j);
        return;
    }
    if (r->n_held == r->held_cap) {
        r->held_cap = r->held_cap ? 2 * r->held_cap : 64;
        r->held = sl_xrealloc_array(r->held, r->held_cap, sizeof *r->held);
    }
    r->held[r->n_held++] = mine;
    r->room = true;
}

static void let_go(struct run *r, double now_s)
{
    r->room = false;
    sl_share_anew(r->held, r->n_held);
    for (uint32_t tries = 0; tries < LET_GO_TRIES;) {
        uint64_t now_us = (uint64_t)(now_s * 1e6);
        uint32_t i = sl_share_next(r->held, r->n_held, now_us);
        if (i == SL_SHARE_NONE)
            return;
        struct sim_job *j = r->held[i].who;
        struct sl_place_choice choice;
        enum sl_err e = choose(r, j, now_s, &choice);
        SL_ASSERT(e == SL_OK); /* it was when it came, and nodes do not fail */
        if (choice.best.predicted.wait_ms > r->conf->hold_ms) {
            sl_share_skip(&r->held[i]);
            tries++;
            continue;
        }
        sl_share_served(&r->share, r->held, r->n_held, i, now_us);
        r->held[i] = r->held[--r->n_held];
        go(r, j, &choice, now_s);
    }
}

/* The class is drawn; requests of equal number are of the same class in every run. */
static const struct sim_class *class_of(struct run *r, size_t i)
{
    const struct sim_conf *c = r->conf;
    if (c->n_classes == 0)
        return &r->plain;
    double at = (double)sl_philox_uniform(c->seed, 6, i);
    uint32_t k = 0;
    for (; k + 1 < c->n_classes && at >= c->classes[k].share; k++)
        at -= c->classes[k].share;
    r->out->outcomes[i].class = k;
    return &c->classes[k];
}

/* Its class's; where there are no classes and the limits are told, those of a node that may decode it. */
static void make_wishes(struct sim_job *j, const struct sl_trace_request *q)
{
    const struct run *r = j->run;
    j->ttft_ms = j->class->ttft_ms;
    if (r->conf->tell <= 0 || r->conf->n_classes)
        return;
    uint32_t i = 0;
    while (!r->nodes[i].group->may_decode)
        i++;
    struct sim_outcome alone;
    feel_alone(r->nodes[i].group, q, &alone);
    j->ttft_ms = r->conf->limits.ttft_times * (double)alone.alone_ttft;
    j->tpot_ms = r->conf->tell * r->conf->limits.gap_times * (double)alone.alone_gap;
}

static void arrive(struct run *r, size_t i, double now_s)
{
    const struct sl_trace_request *q = &r->trace->requests[i];
    if (i + 1 < r->trace->n)
        sim_events_add(&r->events, r->trace->requests[i + 1].at_s + r->cluster->router_ms / 1e3, SIM_ARRIVAL,
                       (void *)(uintptr_t)(i + 1), 0);
    struct sim_job *j = sl_xcalloc(1, sizeof *j);
    j->run = r;
    j->index = (uint32_t)i;
    j->output = q->n_output;
    j->arrived_s = q->at_s;
    j->class = class_of(r, i);
    make_wishes(j, q);
    j->account = &r->accounts[j->class->key];
    j->account->weight = j->class->key_weight > 0 ? j->class->key_weight : 1;
    r->out->prompt_tokens += q->n_prompt;
    r->n_open++;
    struct sl_place_choice choice;
    const struct sl_place_prediction *p = &choice.best.predicted;
    if (choose(r, j, now_s, &choice) != SL_OK)
        refuse(r, j);
    else if (r->conf->hold_ms && (r->n_held > 0 || p->wait_ms > r->conf->hold_ms))
        hold(r, j, p, now_s);
    else if (r->conf->refuse && p->miss > 0)
        refuse(r, j);
    else
        go(r, j, &choice, now_s);
}

/* ---- the loop ---- */

static void tell(struct run *r, double now_s, size_t arrived_n)
{
    uint64_t now_ns = sl_now_ns();
    if (!r->conf->progress || now_ns - r->told_ns < TELL_EVERY_NS)
        return;
    r->told_ns = now_ns;
    fprintf(stderr, "\r%s: %.0f s of %.0f s simulated, %zu of %zu requests arrived, %zu open ",
            sl_place_mode_name(r->conf->mode), now_s, r->trace->requests[r->trace->n - 1].at_s, arrived_n,
            r->trace->n, r->n_open);
}

static void handle(struct run *r, const struct sim_event *e, size_t *arrived_n)
{
    struct sim_job *j = e->what;
    switch (e->kind) {
    case SIM_ARRIVAL:
        *arrived_n = (size_t)(uintptr_t)e->what + 1;
        arrive(r, *arrived_n - 1, e->at_s);
        return;
    case SIM_STEP_END:
        end_step(r, e->what, e->at_s);
        return;
    case SIM_HEARTBEAT:
        heartbeat(r, e->what, e->at_s);
        unblock(r, e->what, e->at_s);
        r->room = true;
        return;
    case SIM_GRANT:
        granted(j, e->at_s);
        break;
    case SIM_PAGES:
        arrived(j, e->amount, e->at_s);
        break;
    }
    j->pending--;
}

static void loop(struct run *r)
{
    struct sim_event e;
    size_t arrived_n = 0;
    double first = r->trace->requests[0].at_s, span = r->trace->requests[r->trace->n - 1].at_s - first;
    double give_up = first + GIVE_UP_S + GIVE_UP_FACTOR * span;
    sim_events_add(&r->events, first + r->cluster->router_ms / 1e3, SIM_ARRIVAL, 0, 0);
    for (uint32_t i = 0; i < r->n_nodes; i++)
        sim_events_add(&r->events, first + r->cluster->heartbeat_ms / 1e3 * i / r->n_nodes, SIM_HEARTBEAT,
                       &r->nodes[i], 0);
    while (sim_events_next(&r->events, &e) && e.at_s < give_up) {
        handle(r, &e, &arrived_n);
        if (r->room)
            let_go(r, e.at_s);
        free_ended(r, false);
        tell(r, e.at_s, arrived_n);
        if (arrived_n == r->trace->n && r->n_open == 0)
            break;
        r->out->stopped = r->out->n_missed > r->conf->limits.misses;
        if (r->out->stopped)
            break;
    }
    if (r->conf->progress)
        fprintf(stderr, "\r%79s\r", "");
    r->out->n_unfinished = r->n_open;
    r->out->span_s = r->last_token_s - first;
}

static enum sl_err open_nodes(struct run *r, struct sl_why *why)
{
    for (uint32_t g = 0; g < r->cluster->n_groups; g++)
        r->n_nodes += r->cluster->groups[g].count;
    r->nodes = sl_xcalloc(r->n_nodes, sizeof *r->nodes);
    uint32_t i = 0;
    for (uint32_t g = 0; g < r->cluster->n_groups; g++)
        for (uint32_t k = 0; k < r->cluster->groups[g].count; k++, i++) {
            char name[48];
            snprintf(name, sizeof name, "%.31s-%u", r->cluster->groups[g].name, k);
            sim_node_init(&r->nodes[i], &r->cluster->groups[g], name, r->page_tokens, &hooks,
                          r->conf->cost_error, r->conf->seed * SL_PLACE_MAX_NODES + i);
        }
    for (i = 0; i < r->n_nodes; i++) {
        enum sl_err e = join(r, i, why);
        if (e)
            return e;
    }
    return SL_OK;
}

static void sum_up(struct run *r)
{
    double busy = 0;
    for (uint32_t i = 0; i < r->n_nodes; i++) {
        busy += r->nodes[i].busy_s;
        r->out->preemptions += r->nodes[i].preemptions;
        r->out->hit_tokens += r->nodes[i].hit_tokens;
        r->out->over_target += r->nodes[i].over_target;
    }
    r->out->busy_share = r->out->span_s > 0 ? busy / (r->out->span_s * r->n_nodes) : 0;
    r->out->step_error = sl_samples_percentile(&r->errors, 50);
}

/* Jobs that did not end hang on their decode nodes. */
static void free_rest(struct run *r)
{
    free_ended(r, true);
    for (uint32_t i = 0; i < r->n_held; i++)
        sl_free(r->held[i].who);
    sl_free(r->ended);
    for (uint32_t i = 0; i < r->n_nodes; i++) {
        struct sl_list *const lists[] = {&r->nodes[i].waiting, &r->nodes[i].running};
        for (size_t k = 0; k < SL_COUNTOF(lists); k++)
            SL_LIST_FOREACH_SAFE (pos, next, lists[k]) {
                struct sim_leg *l = SL_CONTAINER_OF(pos, struct sim_leg, link);
                if (l->is_p)
                    continue;
                if (l->job->split)
                    sl_list_remove(&l->job->p.link); /* it hangs on another node */
                sl_free(l->job);
            }
        sim_node_fini(&r->nodes[i]);
    }
}

enum sl_err sim_run(const struct sim_cluster *cluster, const struct sl_trace *trace,
                    const struct sim_conf *conf, struct sim_result *out, struct sl_why *why)
{
    uint64_t began = sl_now_ns();
    *out = (struct sim_result){.n = trace->n};
    out->outcomes = sl_xcalloc(trace->n, sizeof *out->outcomes);
    struct sl_node_conf nc = {.dead_ms = UINT32_MAX, .stall_ms = UINT32_MAX};
    struct run r = {.cluster = cluster,
                    .trace = trace,
                    .conf = conf,
                    .out = out,
                    .page_tokens = trace->block_tokens ? trace->block_tokens : cluster->page_tokens,
                    .table = sl_node_table_new(&nc),
                    .view = sl_xcalloc(1, sizeof *r.view),
                    .hashes = sl_xcalloc(MAX_HASHES, sizeof *r.hashes)};
    enum sl_err e = open_nodes(&r, why);
    if (e == SL_OK) {
        loop(&r);
        sum_up(&r);
    }
    sl_node_table_free(r.table); /* before the jobs, whose charges it lists */
    free_rest(&r);
    sim_events_fini(&r.events);
    sl_samples_fini(&r.errors);
    sl_free(r.view);
    sl_free(r.hashes);
    sl_free(r.held);
    sl_free(r.nodes);
    if (e)
        sim_result_fini(out);
    out->wall_s = (double)(sl_now_ns() - began) / 1e9;
    return e;
}

void sim_result_fini(struct sim_result *r)
{
    sl_free(r->outcomes);
    *r = (struct sim_result){0};
}
