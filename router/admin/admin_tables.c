/* router/admin/admin_tables.c - the cluster in tables: one function per operation. */
#include "router/admin/admin_tables.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void age_cell(struct sl_admin_out *o, uint64_t ms)
{
    if (ms < 10000)
        sl_admin_cell(o, "%.1fs", (double)ms / 1e3);
    else if (ms < 3600000)
        sl_admin_cell(o, "%" PRIu64 "m%02" PRIu64 "s", ms / 60000, ms / 1000 % 60);
    else
        sl_admin_cell(o, "%" PRIu64 "h%02" PRIu64 "m", ms / 3600000, ms / 60000 % 60);
}

static const char *permits(const struct sl_node *n)
{
    return n->may_prefill && n->may_decode ? "prefill+decode" : n->may_prefill ? "prefill" : "decode";
}

void sl_admin_nodes(struct sl_admin_out *o, const struct sl_admin_state *s)
{
    sl_admin_table(o, "nodes",
                   "node,state,prefers,permits,running,waiting,rows,queued_tokens,pages_free,pages,cached_"
                   "pages,transfers,"
                   "step_error,threads,tensor_parallel,cpus,backend,chunk_tokens,prompt_tokens,decode_tokens,"
                   "heard,version,"
                   "boot,command,transfer,model_digest");
    for (uint32_t i = 0; i < sl_node_table_len(s->nodes); i++) {
        const struct sl_node *n = sl_node_table_at(s->nodes, i);
        sl_admin_row(o);
        sl_admin_cell(o, "%s", n->name);
        sl_admin_cell(o, "%s", sl_node_state_name(n->state));
        sl_admin_cell(o, "%s", n->prefers_prefill ? "prefill" : "decode");
        sl_admin_cell(o, "%s", permits(n));
        sl_admin_cell(o, "%u", n->load.running);
        sl_admin_cell(o, "%u", n->load.waiting);
        sl_admin_cell(o, "%u", n->load.decode_rows);
        sl_admin_cell(o, "%" PRIu64, n->load.queued_prompt_tokens);
        sl_admin_cell(o, "%u", n->load.free_pages);
        sl_admin_cell(o, "%u", n->load.total_pages);
        sl_admin_cell(o, "%u", n->load.cached_pages);
        sl_admin_cell(o, "%u", n->load.leases);
        sl_admin_cell(o, "%.0f%%", n->cost.error * 100);
        sl_admin_cell(o, "%u", n->threads);
        sl_admin_cell(o, "%u", n->model.tensor_parallel);
        sl_admin_cell(o, "%s", n->cpus);
        sl_admin_cell(o, "%s", n->backend);
        sl_admin_cell(o, "%d", n->chunk_tokens);
        sl_admin_cell(o, "%" PRIu64, n->load.prompt_tokens);
        sl_admin_cell(o, "%" PRIu64, n->load.decode_tokens);
        age_cell(o, s->now_ms - n->heard_ms);
        sl_admin_cell(o, "%s", n->version);
        sl_admin_cell(o, "%016" PRIx64, n->boot_id);
        sl_admin_cell(o, "%s", n->command_url);
        sl_admin_cell(o, "%s", n->transfer_address);
        char digest[SL_NODE_DIGEST];
        sl_node_digest_text(n->model.digest, digest);
        sl_admin_cell(o, "%s", digest);
    }
    if (sl_node_table_len(s->nodes) == 0)
        sl_admin_say(o, "No node has registered.");
}

void sl_admin_node(struct sl_admin_out *o, const char *node, const Sluice__StatsReply *reply)
{
    sl_admin_say(o, "Node %s: %zu parts of requests, %u of %u pages free.", node, reply->n_sequences,
                 reply->load->free_pages, reply->load->total_pages);
    sl_admin_table(o, "sequences", "request,attempt,duty,state,tokens,computed,pages,peer,age_s");
    for (size_t i = 0; i < reply->n_sequences; i++) {
        const Sluice__SequenceInfo *q = reply->sequences[i];
        sl_admin_row(o);
        sl_admin_cell(o, "%s", q->request_id);
        sl_admin_cell(o, "%u", q->attempt);
        sl_admin_cell(o, "%s", q->duty);
        sl_admin_cell(o, "%s", q->state);
        sl_admin_cell(o, "%u", q->tokens);
        sl_admin_cell(o, "%u", q->computed);
        sl_admin_cell(o, "%u", q->pages);
        sl_admin_cell(o, "%s", q->peer ? q->peer : "");
        sl_admin_cell(o, "%.1f", q->age_ms / 1e3);
    }
    sl_admin_table(o, "counters", "key,value");
    for (size_t i = 0; i < reply->n_values; i++)
        sl_admin_pair(o, reply->values[i]->name, "%.10g", reply->values[i]->value);
}

void sl_admin_links(struct sl_admin_out *o, const struct sl_admin_state *s)
{
    uint32_t links = 0;
    sl_admin_table(o, "links",
                   "prefill,decode,state,transport,mb_per_s,latency_us,pages_sent,mb_sent,rejects,why");
    for (uint32_t i = 0; i < sl_node_table_len(s->nodes); i++) {
        const struct sl_node *n = sl_node_table_at(s->nodes, i);
        for (uint32_t k = 0; k < n->n_peers; k++, links++) {
            const struct sl_node_peer *p = &n->peers[k];
            sl_admin_row(o);
            sl_admin_cell(o, "%s", n->name);
            sl_admin_cell(o, "%s", p->peer);
            sl_admin_cell(o, "%s", n->state == SL_NODE_DEAD ? "dead" : p->state);
            sl_admin_cell(o, "%s", p->transport);
            if (p->bytes_per_s > 0)
                sl_admin_cell(o, "%.1f", p->bytes_per_s / 1e6);
            else
                sl_admin_cell(o, "-");
            if (p->latency_us > 0)
                sl_admin_cell(o, "%.0f", p->latency_us);
            else
                sl_admin_cell(o, "-");
            sl_admin_cell(o, "%" PRIu64, p->pages_sent);
            sl_admin_cell(o, "%.1f", (double)p->bytes_sent / 1e6);
            sl_admin_cell(o, "%" PRIu64, p->rejects);
            sl_admin_cell(o, "%s", p->why);
        }
    }
    if (links == 0)
        sl_admin_say(o, "No pair of nodes has met yet; links are tested when a prefill node first sends to a "
                        "decode node.");
}

static void request_row(struct sl_admin_out *o, const struct sl_decision *d, const char *state,
                        uint32_t generated, uint64_t age_us)
{
    const struct sl_decision_attempt *a = sl_decision_last(d);
    sl_admin_row(o);
    sl_admin_cell(o, "%s", d->id);
    sl_admin_cell(o, "%s", state);
    sl_admin_cell(o, "%s", a ? sl_place_mode_name(a->mode) : "-");
    sl_admin_cell(o, "%s", a ? a->p : "-");
    if (a)
        sl_admin_cell(o, "%u", a->split);
    else
        sl_admin_cell(o, "-");
    sl_admin_cell(o, "%s", a ? a->d : "-");
    sl_admin_cell(o, "%u", d->n_attempts);
    sl_admin_cell(o, "%u", d->n_prompt);
    sl_admin_cell(o, "%u", generated);
    age_cell(o, age_us / 1000);
}

void sl_admin_requests(struct sl_admin_out *o, const struct sl_admin_state *s, uint32_t n_open,
                       uint32_t n_recent)
{
    sl_admin_table(o, "requests", "id,state,mode,P,s,D,attempts,prompt_tokens,tokens,age");
    for (const struct sl_request *r = sl_request_table_next(s->requests, NULL); r && n_open > 0;
         r = sl_request_table_next(s->requests, r), n_open--)
        request_row(o, r->record, sl_req_state_name(r->state), r->n_received,
                    s->now_us - r->record->arrived_us);
    uint32_t shown = 0;
    for (uint32_t i = 0; shown < n_recent; i++) {
        const struct sl_decision *d = sl_decisions_nth(s->decisions, i);
        if (!d)
            break;
        if (!d->finish[0])
            continue;
        request_row(o, d, d->finish, d->n_generated, s->now_us - d->arrived_us);
        shown++;
    }
}
