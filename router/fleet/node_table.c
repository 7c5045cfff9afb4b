/* router/fleet/node_table.c - an array of pointers in order of first registration; the table has tens of
 * entries, so every search is a walk. */
#include "router/fleet/node_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <math.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/hashmap.h"
#include "common/base/mem.h"

#define FORGET_MS (15u * 60 * 1000) /* a dead node is shown this long */

struct sl_node_table {
    struct sl_node_conf conf;
    uint8_t digest[16];
    uint32_t n;
    struct sl_node *nodes[SL_PLACE_MAX_NODES];
    struct sl_hashmap *by_name; /* -> struct sl_node */
};

const char *sl_node_state_name(enum sl_node_state s)
{
    static const char *const names[] = {"up", "draining", "stalled", "dead"};
    return (unsigned)s < SL_COUNTOF(names) ? names[s] : "?";
}

struct sl_node_table *sl_node_table_new(const struct sl_node_conf *conf)
{
    struct sl_node_table *t = sl_xcalloc(1, sizeof *t);
    t->conf = *conf;
    t->by_name = sl_hashmap_new();
    if (conf->model_digest) {
        memcpy(t->digest, conf->model_digest, sizeof t->digest);
        t->conf.model_digest = t->digest;
    }
    return t;
}

/* Their legs outlive the node's life; they find themselves in no list then. */
static void let_prompts_go(struct sl_node *n)
{
    while (!sl_list_empty(&n->prompts))
        sl_list_remove(n->prompts.next);
}

static void node_free(struct sl_node *n)
{
    let_prompts_go(n);
    sl_prefix_set_fini(&n->prefixes);
    sl_free(n);
}

void sl_node_table_free(struct sl_node_table *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->n; i++)
        node_free(t->nodes[i]);
    sl_hashmap_free(t->by_name);
    sl_free(t);
}

uint32_t sl_node_table_len(const struct sl_node_table *t)
{
    return t->n;
}

struct sl_node *sl_node_table_at(const struct sl_node_table *t, uint32_t i)
{
    SL_ASSERT(i < t->n);
    return t->nodes[i];
}

struct sl_node *sl_node_table_find(const struct sl_node_table *t, const char *name)
{
    return sl_hashmap_get(t->by_name, name, strlen(name));
}

/* Takes it out of the table; it is the caller's. */
static struct sl_node *take_out(struct sl_node_table *t, uint32_t i)
{
    struct sl_node *n = t->nodes[i];
    sl_hashmap_del(t->by_name, n->name, strlen(n->name));
    for (t->n--; i < t->n; i++) {
        t->nodes[i] = t->nodes[i + 1];
        t->nodes[i]->index = i;
    }
    return n;
}

struct sl_node *sl_node_table_find_boot(const struct sl_node_table *t, const char *name, uint64_t boot_id)
{
    struct sl_node *n = sl_node_table_find(t, name);
    return n && n->boot_id == boot_id ? n : NULL;
}

static void copy(char *out, size_t size, const char *s)
{
    snprintf(out, size, "%s", s ? s : "");
}

static void refresh_state(struct sl_node *n)
{
    if (n->state == SL_NODE_DEAD)
        return;
    n->state = n->drain_asked || n->drain_reported ? SL_NODE_DRAINING
               : n->stalled                        ? SL_NODE_STALLED
                                                   : SL_NODE_UP;
}

void sl_node_digest_text(const uint8_t digest[16], char out[SL_NODE_DIGEST])
{
    for (int i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

bool sl_node_digest_parse(const char *text, uint8_t out[16])
{
    if (strlen(text) != 32 || strspn(text, "0123456789abcdefABCDEF") != 32)
        return false;
    for (int i = 0; i < 16; i++) {
        unsigned byte;
        sscanf(text + 2 * i, "%2x", &byte);
        out[i] = (uint8_t)byte;
    }
    return true;
}

static enum sl_err check_digest(const struct sl_node_table *t, const struct sl_node *ref,
                                const Sluice__NodeInfo *in, struct sl_why *why)
{
    const Sluice__ModelInfo *m = in->model;
    const uint8_t *want = t->conf.model_digest ? t->conf.model_digest : ref ? ref->model.digest : NULL;
    if (!want || memcmp(want, m->digest.data, 16) == 0)
        return SL_OK;
    char theirs[SL_NODE_DIGEST], ours[SL_NODE_DIGEST];
    sl_node_digest_text(m->digest.data, theirs);
    sl_node_digest_text(want, ours);
    if (t->conf.model_digest)
        return sl_why_set(why, SL_EMISMATCH,
                          "Node %.64s has model '%.64s' of digest %s; this router takes %s only "
                          "(model_digest). Give the node that model file.",
                          in->name, m->name, theirs, ours);
    return sl_why_set(
        why, SL_EMISMATCH,
        "Node %.64s has model '%.64s' of digest %s; node %s, which was here first, has %s. Give "
        "both one model file: if that of %s is wrong, stop it, or set model_digest at the router.",
        in->name, m->name, theirs, ref->name, ours, ref->name);
}

static uint32_t degree_of(const Sluice__ModelInfo *m)
{
    return m->has_tensor_parallel ? m->tensor_parallel : 1;
}

static enum sl_err check_geometry(const struct sl_node *ref, const Sluice__NodeInfo *in, struct sl_why *why)
{
    const Sluice__ModelInfo *m = in->model;
    const struct {
        const char *what;
        uint64_t theirs, ours;
    } values[] = {
        {"page_tokens", m->page_tokens, ref->model.page_tokens},
        {"page_bytes", m->page_bytes, ref->model.page_bytes},
        {"kv_dtype", m->kv_dtype, ref->model.kv_dtype},
        {"n_layers", m->n_layers, ref->model.n_layers},
        {"n_kv_heads", m->n_kv_heads, ref->model.n_kv_heads},
        {"head_dim", m->head_dim, ref->model.head_dim},
        {"tensor_parallel", degree_of(m), ref->model.tensor_parallel},
    };
    for (size_t i = 0; i < SL_COUNTOF(values); i++)
        if (values[i].theirs != values[i].ours)
            return sl_why_set(why, SL_EMISMATCH,
                              "Node %.64s has %s %" PRIu64 ", node %s has %" PRIu64
                              ": their KV pages cannot be exchanged. Start both with the same setting.",
                              in->name, values[i].what, values[i].theirs, ref->name, values[i].ours);
    return SL_OK;
}

/* Against the router's own settings and the first other node alive, so that what died binds nobody. */
static enum sl_err check_fits(const struct sl_node_table *t, const Sluice__NodeInfo *in, struct sl_why *why)
{
    const Sluice__ModelInfo *m = in->model;
    const struct sl_node *ref = NULL;
    for (uint32_t i = 0; i < t->n && !ref; i++)
        if (t->nodes[i]->state != SL_NODE_DEAD && strcmp(t->nodes[i]->name, in->name) != 0)
            ref = t->nodes[i];
    enum sl_err err = check_digest(t, ref, in, why);
    if (err)
        return err;
    if (t->conf.n_vocab && m->n_vocab < t->conf.n_vocab)
        return sl_why_set(why, SL_EMISMATCH,
                          "Node %.64s has a vocabulary of %u tokens, this router's tokenizer has %u. Give "
                          "both the same model file.",
                          in->name, m->n_vocab, t->conf.n_vocab);
    if (!ref)
        return SL_OK;
    err = check_geometry(ref, in, why);
    if (err)
        return err;
    if (t->conf.exact && m->numerics_id != ref->model.numerics_id)
        return sl_why_set(
            why, SL_EMISMATCH,
            "Node %.64s computes with numerics id %016" PRIx64 ", node %s with %016" PRIx64
            ": answers would depend on the node. Use the same backend and KV type, or set exact = false.",
            in->name, m->numerics_id, ref->name, ref->model.numerics_id);
    return SL_OK;
}

static enum sl_err check_sane(const Sluice__NodeInfo *in, struct sl_why *why)
{
    const Sluice__ModelInfo *m = in->model;
    if (!in->name[0] || strlen(in->name) >= SL_NODE_NAME)
        return sl_why_set(why, SL_EINVAL, "A node's name must have 1 to %d bytes.", SL_NODE_NAME - 1);
    if (in->boot_id == 0)
        return sl_why_set(why, SL_EINVAL, "Node %s sent boot id 0.", in->name);
    if (m->digest.len != 16)
        return sl_why_set(why, SL_EINVAL, "Node %s sent a model digest of %zu bytes, 16 were expected.",
                          in->name, m->digest.len);
    if (m->page_tokens == 0 || m->page_bytes == 0 || in->kv_pages == 0)
        return sl_why_set(why, SL_EINVAL,
                          "Node %s has page_tokens %u, page_bytes %" PRIu64
                          " and %u KV pages; none may be 0.",
                          in->name, m->page_tokens, m->page_bytes, in->kv_pages);
    if (in->n_permits == 0)
        return sl_why_set(why, SL_EINVAL,
                          "Node %s is permitted no duty; name prefill, decode or both in 'roles'.", in->name);
    if (strlen(in->command_url) >= SL_NODE_URL || strlen(in->transfer_address) >= SL_NODE_URL)
        return sl_why_set(why, SL_EINVAL, "Node %s has an address longer than %d bytes.", in->name,
                          SL_NODE_URL - 1);
    return SL_OK;
}

/* 0 when absent or not a time. */
static double cost_term(protobuf_c_boolean has, float ms)
{
    return has && ms > 0 && ms < 1e9f ? (double)ms : 0;
}

/* A cost model is believed only when it is whole; else the one before stays. */
static void take_cost(struct sl_cost_model *out, const Sluice__CostModel *in)
{
    if (!in || in->n_tokens == 0 || in->n_tokens != in->n_step_ms)
        return;
    struct sl_cost_model m = {0};
    size_t stride = (in->n_tokens + SL_COST_POINTS - 1) / SL_COST_POINTS;
    for (size_t i = 0; i < in->n_tokens; i += stride) {
        uint32_t rows = in->tokens[i];
        double ms = (double)in->step_ms[i];
        if (rows == 0 || !(ms > 0) || ms > 1e7 || (m.n_points && rows <= m.rows[m.n_points - 1]))
            return;
        m.rows[m.n_points] = rows;
        m.ms[m.n_points++] = ms;
    }
    m.head_ms_per_row = cost_term(in->has_head_ms_per_row, in->head_ms_per_row);
    m.prompt_attn_ms_per_mtoken = cost_term(in->has_attn_ms_per_mtoken, in->attn_ms_per_mtoken);
    m.prompt_read_ms_per_mtoken = cost_term(in->has_read_ms_per_mtoken, in->read_ms_per_mtoken);
    m.decode_attn_ms_per_mtoken = cost_term(in->has_decode_attn_ms_per_mtoken, in->decode_attn_ms_per_mtoken);
    m.error = in->has_error && in->error >= 0 ? (double)in->error : 0;
    *out = m;
}

/* Numbers of a node that are not numbers count as not told. */
static double sane_ms(double v)
{
    return v > 0 && isfinite(v) ? v : 0;
}

/* What an administrator may change while the node runs. */
static void take_duties(struct sl_node *n, const Sluice__NodeInfo *in)
{
    n->may_prefill = n->may_decode = false;
    for (size_t i = 0; i < in->n_permits; i++) {
        n->may_prefill |= in->permits[i] == SLUICE__ROLE__ROLE_PREFILL;
        n->may_decode |= in->permits[i] == SLUICE__ROLE__ROLE_DECODE;
    }
    n->chunk_tokens = in->has_chunk_tokens ? in->chunk_tokens : -1;
    n->tpot_target_ms = in->has_tpot_target_ms ? sane_ms(in->tpot_target_ms) : 0;
    n->chunk_stretch = in->has_chunk_stretch ? sane_ms(in->chunk_stretch) : 0;
}

static void take_info(struct sl_node *n, const Sluice__NodeInfo *in)
{
    take_duties(n, in);
    const Sluice__ModelInfo *m = in->model;
    copy(n->name, sizeof n->name, in->name);
    n->boot_id = in->boot_id;
    n->prefers_prefill = in->prefers == SLUICE__ROLE__ROLE_PREFILL;
    copy(n->command_url, sizeof n->command_url, in->command_url);
    copy(n->transfer_address, sizeof n->transfer_address, in->transfer_address);
    copy(n->cpus, sizeof n->cpus, in->cpus);
    copy(n->backend, sizeof n->backend, in->backend);
    copy(n->version, sizeof n->version, in->sluice_version);
    copy(n->model.name, sizeof n->model.name, m->name);
    memcpy(n->model.digest, m->digest.data, sizeof n->model.digest);
    n->model.context_length = m->context_length;
    n->model.n_vocab = m->n_vocab;
    n->model.n_layers = m->n_layers;
    n->model.n_kv_heads = m->n_kv_heads;
    n->model.head_dim = m->head_dim;
    n->model.kv_dtype = m->kv_dtype;
    n->model.page_tokens = m->page_tokens;
    n->model.tensor_parallel = degree_of(m);
    n->model.page_bytes = m->page_bytes;
    n->model.numerics_id = m->numerics_id;
    n->kv_pages = in->kv_pages;
    n->threads = in->threads;
    n->max_batch_tokens = in->has_max_batch_tokens ? in->max_batch_tokens : 0;
    take_cost(&n->cost, in->cost);
}

/* A new life of the node: nothing of the old one holds. */
static void reset_life(struct sl_node *n, uint64_t now_ms)
{
    sl_prefix_set_fini(&n->prefixes);
    n->state = SL_NODE_UP;
    n->stalled = n->stall_told = false;
    n->drain_asked = n->drain_reported = false;
    sl_cost_init_linear(&n->cost, 5, 0.5); /* until it tells: the same for every node, so load decides */
    n->n_peers = 0;
    n->sent = n->accepted = (struct sl_node_ledger){0};
    let_prompts_go(n);
    n->heartbeats = n->steps_seen = 0;
    n->steps_asked = false;
    n->tells_steps = true;
    n->registered_ms = n->heard_ms = n->progressed_ms = now_ms;
}

static void forget_oldest_dead(struct sl_node_table *t)
{
    uint32_t oldest = t->n;
    for (uint32_t i = 0; i < t->n; i++)
        if (t->nodes[i]->state == SL_NODE_DEAD && !t->nodes[i]->link &&
            (oldest == t->n || t->nodes[i]->heard_ms < t->nodes[oldest]->heard_ms))
            oldest = i;
    if (oldest == t->n)
        return;
    node_free(take_out(t, oldest));
}

/* n: the node of this name, or NULL. */
static enum sl_err check_alone(const struct sl_node *n, const Sluice__NodeInfo *in, struct sl_why *why)
{
    if (!n || n->state == SL_NODE_DEAD || n->boot_id == in->boot_id)
        return SL_OK;
    for (size_t i = 0; i < SL_NODE_FORMER; i++)
        if (n->former[i] == in->boot_id)
            return sl_why_set(
                why, SL_EMISMATCH,
                "Two nodes are called %s, this one at %s and a newer one at %s. Give each a name "
                "of its own (option name).",
                n->name, in->command_url, n->command_url);
    return SL_OK;
}

enum sl_err sl_node_table_register(struct sl_node_table *t, const Sluice__NodeInfo *info, uint64_t now_ms,
                                   struct sl_node **out, enum sl_node_joined *joined, uint64_t *old_boot_id,
                                   struct sl_why *why)
{
    enum sl_err err = check_sane(info, why);
    if (!err)
        err = check_fits(t, info, why);
    struct sl_node *n = err ? NULL : sl_node_table_find(t, info->name);
    if (!err)
        err = check_alone(n, info, why);
    if (err)
        return err;

    *old_boot_id = 0;
    if (n && n->boot_id == info->boot_id && n->state != SL_NODE_DEAD) {
        n->heard_ms = now_ms;
        take_duties(n, info);
        *joined = SL_NODE_SAME;
        *out = n;
        return SL_OK;
    }
    if (n) {
        if (n->boot_id != info->boot_id) {
            n->event_seq = 0; /* one that was only taken for dead counts on */
            memmove(n->former + 1, n->former, sizeof n->former - sizeof *n->former);
            n->former[0] = n->boot_id;
        }
        *joined = SL_NODE_RESTARTED;
        *old_boot_id = n->boot_id;
    } else {
        if (t->n == SL_PLACE_MAX_NODES)
            forget_oldest_dead(t);
        if (t->n == SL_PLACE_MAX_NODES)
            return sl_why_set(why, SL_EAGAIN, "This router serves %d nodes already; node %s is one too many.",
                              SL_PLACE_MAX_NODES, info->name);
        n = sl_xcalloc(1, sizeof *n);
        sl_list_init(&n->prompts);
        n->index = t->n;
        t->nodes[t->n++] = n;
        *joined = SL_NODE_NEW;
    }
    reset_life(n, now_ms);
    take_info(n, info);
    sl_hashmap_put(t->by_name, n->name, strlen(n->name), n);
    n->load = (struct sl_node_load){.free_pages = info->kv_pages, .total_pages = info->kv_pages};
    *out = n;
    return SL_OK;
}

static void take_links(struct sl_node *n, const Sluice__Heartbeat *hb)
{
    n->n_peers = 0;
    for (size_t i = 0; i < hb->n_links && n->n_peers < SL_NODE_LINKS; i++) {
        const Sluice__LinkReport *l = hb->links[i];
        struct sl_node_peer *p = &n->peers[n->n_peers++];
        char told[sizeof p->told] = "";
        if (strcmp(p->peer, l->peer) == 0) /* a node reports its links in the order it met the peers */
            memcpy(told, p->told, sizeof told);
        *p = (struct sl_node_peer){.peer_boot_id = l->peer_boot_id,
                                   .pages_sent = l->pages_sent,
                                   .bytes_sent = l->bytes_sent,
                                   .rejects = l->rejects};
        copy(p->peer, sizeof p->peer, l->peer);
        copy(p->transport, sizeof p->transport, l->transport);
        copy(p->state, sizeof p->state, l->state);
        copy(p->why, sizeof p->why, l->why);
        memcpy(p->told, told, sizeof told);
        p->bytes_per_s = l->has_bytes_per_s && l->bytes_per_s > 0 ? l->bytes_per_s : 0;
        p->latency_us = l->has_latency_us && l->latency_us > 0 ? l->latency_us : 0;
    }
}

struct sl_node *sl_node_table_heartbeat(struct sl_node_table *t, const Sluice__Heartbeat *hb, uint64_t now_ms)
{
    struct sl_node *n = sl_node_table_find_boot(t, hb->node, hb->boot_id);
    if (!n || n->state == SL_NODE_DEAD)
        return NULL;
    const Sluice__NodeLoad *l = hb->load;
    uint64_t progress = n->load.progress;
    n->load = (struct sl_node_load){.free_pages = l->free_pages,
                                    .total_pages = l->total_pages,
                                    .running = l->running,
                                    .waiting = l->waiting,
                                    .decode_rows = l->decode_rows,
                                    .leases = l->leases,
                                    .cached_pages = l->cached_pages,
                                    .queued_prompt_tokens = l->queued_prompt_tokens,
                                    .decode_context_tokens = l->decode_context_tokens,
                                    .steps = l->steps,
                                    .progress = l->progress,
                                    .has_progress = l->has_progress,
                                    .tpot_wish_ms = l->has_tpot_wish_ms ? sane_ms(l->tpot_wish_ms) : 0,
                                    .prompt_tokens = l->prompt_tokens,
                                    .decode_tokens = l->decode_tokens,
                                    .rows_without_wish =
                                        l->has_rows_without_wish ? l->rows_without_wish : l->decode_rows};
    /* what decodes is stepped always; prompts may wait for pages or another node, unless a step is in flight */
    bool prompts = l->has_computing ? l->computing : l->queued_prompt_tokens > 0;
    if (!l->has_progress || l->progress != progress || (l->decode_rows == 0 && !prompts))
        n->progressed_ms = now_ms;
    n->drain_reported = l->has_draining && l->draining;
    n->heard_ms = now_ms;
    n->heartbeats++;
    n->accepted = (struct sl_node_ledger){0}; /* the report counts them now */
    take_links(n, hb);
    take_cost(&n->cost, hb->cost);
    sl_prefix_set_update(&n->prefixes, hb->prefix_hashes, hb->n_prefix_hashes);
    n->stalled = now_ms - n->progressed_ms >= t->conf.stall_ms;
    n->stall_told &= n->stalled;
    refresh_state(n);
    return n;
}

void sl_node_table_mark_dead(struct sl_node *n)
{
    n->state = SL_NODE_DEAD;
    n->sent = n->accepted = (struct sl_node_ledger){0};
    let_prompts_go(n);
    n->load = (struct sl_node_load){.total_pages = n->load.total_pages};
    sl_prefix_set_fini(&n->prefixes);
}

void sl_node_table_forgive(struct sl_node_table *t, uint64_t ms, uint64_t now_ms)
{
    for (uint32_t i = 0; i < t->n; i++) {
        struct sl_node *n = t->nodes[i];
        n->heard_ms = sl_heard_ms(n->heard_ms, ms, now_ms);
        n->progressed_ms = sl_heard_ms(n->progressed_ms, ms, now_ms);
    }
}

struct sl_node *sl_node_table_expire(struct sl_node_table *t, uint64_t now_ms)
{
    for (uint32_t i = 0; i < t->n; i++) {
        struct sl_node *n = t->nodes[i];
        if (n->state == SL_NODE_DEAD) {
            if (!n->link && now_ms - n->heard_ms >= FORGET_MS) {
                node_free(take_out(t, i--));
            }
            continue;
        }
        if (now_ms - n->heard_ms >= t->conf.dead_ms) {
            sl_node_table_mark_dead(n);
            return n;
        }
    }
    return NULL;
}

uint64_t sl_node_table_next_loss(const struct sl_node_table *t)
{
    uint64_t at = UINT64_MAX;
    for (uint32_t i = 0; i < t->n; i++) {
        uint64_t dies = t->nodes[i]->heard_ms + t->conf.dead_ms;
        if (t->nodes[i]->state != SL_NODE_DEAD && dies < at)
            at = dies;
    }
    return at;
}

void sl_node_set_drain(struct sl_node *n, bool on)
{
    n->drain_asked = on;
    if (!on)
        n->drain_reported = false; /* until the next report says otherwise */
    refresh_state(n);
}

bool sl_node_newly_stalled(struct sl_node *n)
{
    bool newly = n->state != SL_NODE_DEAD && n->stalled && !n->stall_told;
    n->stall_told |= newly;
    return newly;
}
