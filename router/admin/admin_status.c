/* router/admin/admin_status.c - one screen: is the cluster ready, what is wrong, and what to do about it.
 *
 * A problem is a row (level, problem, do), the worst first: error = requests fail, warning = fewer or slower
 * than they could be, note = as somebody wanted it. Each check looks at the tables alone; none needs an answer
 * of a node, so status works when nodes do not. */
#include "router/admin/admin_tables.h"

#include <inttypes.h>
#include <string.h>

#define REFUSED_MS     60000 /* a node that was refused tries every few seconds */
#define BAD_PREDICTION 0.5   /* relative error of step times from where placement is led astray */
#define FEW_PAGES      20    /* 1/20 of the pages of all that decode */
#define MOST           16u   /* problems of one level shown */

enum level { ERROR, WARNING, NOTE, N_LEVELS };
static const char *const level_words[] = {"error", "warning", "note"};

struct count {
    uint32_t by_state[SL_NODE_DEAD + 1], prefill, decode, may_prefill, page_tokens;
    uint64_t free_pages, pages;
    const char *model, *version;
    const struct sl_node *other_version; /* NULL: all the same */
    uint32_t requests[SL_REQ_ENDING + 1];
};

static void count_nodes(const struct sl_admin_state *s, struct count *c)
{
    for (uint32_t i = 0; i < sl_node_table_len(s->nodes); i++) {
        const struct sl_node *n = sl_node_table_at(s->nodes, i);
        c->by_state[n->state]++;
        if (n->state == SL_NODE_DEAD)
            continue;
        c->prefill += n->prefers_prefill;
        c->decode += !n->prefers_prefill;
        c->may_prefill += n->may_prefill && n->state == SL_NODE_UP;
        c->model = n->model.name;
        c->page_tokens = n->model.page_tokens;
        if (!c->version)
            c->version = n->version;
        else if (strcmp(c->version, n->version) != 0)
            c->other_version = n;
        if (n->may_decode) {
            c->free_pages += n->load.free_pages;
            c->pages += n->load.total_pages;
        }
    }
    for (const struct sl_request *r = sl_request_table_next(s->requests, NULL); r;
         r = sl_request_table_next(s->requests, r))
        c->requests[r->state]++;
}

struct problems { /* rows are added level by level: each check is asked once for each */
    struct sl_admin_out *out;
    enum level now;
    uint32_t n[N_LEVELS];
};

/* True: fill the two cells of the row. */
static bool problem(struct problems *p, enum level level)
{
    if (level != p->now || ++p->n[level] > MOST)
        return false;
    sl_admin_row(p->out);
    sl_admin_cell(p->out, "%s", level_words[level]);
    return true;
}

static void check_node(struct problems *p, const struct sl_admin_state *s, const struct sl_node *n)
{
    uint64_t silent_s = (s->now_ms - n->heard_ms) / 1000;
    if (n->state == SL_NODE_DEAD && problem(p, WARNING)) {
        sl_admin_cell(p->out, "Node %s is dead: silent for %" PRIu64 " s.", n->name, silent_s);
        sl_admin_cell(p->out, "On its machine: systemctl status 'sluice-*', journalctl -u 'sluice-*' -n 20.");
    }
    if (n->state == SL_NODE_STALLED && problem(p, WARNING)) {
        sl_admin_cell(p->out, "Node %s has work and computes none of it.", n->name);
        sl_admin_cell(p->out, "Look whether its CPUs are given to others (cpus) or its device hangs; the "
                              "watchdog starts it again.");
    }
    if (n->state == SL_NODE_DRAINING && problem(p, NOTE)) {
        sl_admin_cell(p->out, "Node %s drains: %u sequences still run.", n->name, n->load.running);
        sl_admin_cell(p->out, "When it is to take work again: sluicectl node undrain %s.", n->name);
    }
    if (n->state == SL_NODE_UP && n->load.steps && n->cost.error > BAD_PREDICTION && problem(p, WARNING)) {
        sl_admin_cell(p->out, "Step times of node %s are predicted with an error of %.0f %%.", n->name,
                      n->cost.error * 100);
        sl_admin_cell(p->out, "Give it CPUs of its own (cpus); what is placed there may come late.");
    }
}

static void check_links(struct problems *p, const struct sl_admin_state *s, const struct sl_node *n)
{
    for (uint32_t k = 0; k < n->n_peers; k++) {
        const struct sl_node_peer *l = &n->peers[k];
        const struct sl_node *peer = sl_node_table_find(s->nodes, l->peer);
        bool bad = strcmp(l->state, "refused") == 0 || strcmp(l->state, "down") == 0 ||
                   strcmp(l->state, "degraded") == 0;
        if (!bad || !peer || peer->state == SL_NODE_DEAD || peer->boot_id != l->peer_boot_id ||
            !problem(p, WARNING))
            continue;
        sl_admin_cell(p->out, "Link %s to %s is %s%s%s.", n->name, l->peer, l->state, l->why[0] ? ": " : "",
                      l->why);
        sl_admin_cell(
            p->out, "%s",
            l->state[0] == 'r'
                ? "Give both the same model file, kv_dtype, page_tokens and backend."
                : "Check transfer_listen and ucx_devices of both, and the firewall between them; then "
                  "sluicectl links.");
    }
}

static void check_refused(struct problems *p, const struct sl_admin_state *s)
{
    const struct sl_cluster_event *e;
    for (uint32_t i = 0; (e = sl_cluster_events_nth(s->events, i)) != NULL; i++) {
        const struct sl_node *n = sl_node_table_find(s->nodes, e->subject);
        bool joined = n && n->state != SL_NODE_DEAD;
        if (strcmp(e->kind, "node") != 0 || strncmp(e->text, "refused", 7) != 0 || joined ||
            s->now_ms - e->at_ms > REFUSED_MS || !problem(p, WARNING))
            continue;
        sl_admin_cell(p->out, "A node %s asks to join and is %s", e->subject, e->text);
        sl_admin_cell(p->out, "Mend what differs in its config file and start it again.");
    }
}

static void check_cluster(struct problems *p, const struct sl_admin_state *s, const struct count *c,
                          const char *not_ready)
{
    if (not_ready && problem(p, ERROR)) {
        sl_admin_cell(p->out, "%s", not_ready);
        sl_admin_cell(p->out, "%s",
                      sl_node_table_len(s->nodes) == 0
                          ? "Start a node whose option routers is this router's register_url."
                          : "Start one of them, or undrain it; `sluicectl nodes` has their states.");
    }
    if (s->mode == SL_PLACE_PD && !not_ready && c->may_prefill == 0 && problem(p, WARNING)) {
        sl_admin_cell(p->out, "The mode is pd and no node that is up may prefill: requests run colocated.");
        sl_admin_cell(p->out, "Start a prefill node, or say so: sluicectl mode colocated.");
    }
    if (c->requests[SL_REQ_WAITING] && problem(p, WARNING)) {
        sl_admin_cell(p->out, "%u requests wait at the router: all nodes are full.",
                      c->requests[SL_REQ_WAITING]);
        sl_admin_cell(p->out, "More nodes, or max_wait_ms to refuse early; see docs, Tuning.");
    }
    if (c->pages && c->free_pages < c->pages / FEW_PAGES && problem(p, WARNING)) {
        sl_admin_cell(p->out, "KV memory is nearly full: %" PRIu64 " of %" PRIu64 " pages are free.",
                      c->free_pages, c->pages);
        sl_admin_cell(p->out, "Raise kv_memory, take kv_dtype = q8, or add decode nodes.");
    }
    if (c->other_version && problem(p, NOTE)) {
        sl_admin_cell(p->out, "Nodes run different versions: %s has %s, others %s.", c->other_version->name,
                      c->other_version->version, c->version);
        sl_admin_cell(p->out, "Go on with the upgrade, one node at a time.");
    }
}

static void problems_table(struct sl_admin_out *o, const struct sl_admin_state *s, const struct count *c,
                           const char *not_ready, struct problems *p)
{
    *p = (struct problems){.out = o};
    sl_admin_table(o, "problems", "level,problem,do");
    for (p->now = ERROR; p->now < N_LEVELS; p->now++) {
        check_cluster(p, s, c, not_ready);
        check_refused(p, s);
        for (uint32_t i = 0; i < sl_node_table_len(s->nodes); i++) {
            const struct sl_node *n = sl_node_table_at(s->nodes, i);
            check_node(p, s, n);
            if (n->state != SL_NODE_DEAD)
                check_links(p, s, n);
        }
    }
}

static void status_table(struct sl_admin_out *o, const struct sl_admin_state *s, const struct count *c,
                         bool ready)
{
    sl_admin_table(o, "status", "key,value");
    sl_admin_pair(o, "ready", "%s", ready && !s->draining ? "yes" : "no");
    sl_admin_pair(o, "mode", "%s", sl_place_mode_name(s->mode));
    sl_admin_pair(o, "model", "%s", c->model ? c->model : "-");
    sl_admin_pair(o, "page_tokens", "%u", c->page_tokens);
    sl_admin_pair(o, "nodes_up", "%u", c->by_state[SL_NODE_UP]);
    sl_admin_pair(o, "nodes_draining", "%u", c->by_state[SL_NODE_DRAINING]);
    sl_admin_pair(o, "nodes_stalled", "%u", c->by_state[SL_NODE_STALLED]);
    sl_admin_pair(o, "nodes_dead", "%u", c->by_state[SL_NODE_DEAD]);
    sl_admin_pair(o, "prefer_prefill", "%u", c->prefill);
    sl_admin_pair(o, "prefer_decode", "%u", c->decode);
    sl_admin_pair(o, "requests_placed", "%u", c->requests[SL_REQ_PLACED]);
    sl_admin_pair(o, "requests_streaming", "%u", c->requests[SL_REQ_STREAMING]);
    sl_admin_pair(o, "requests_waiting", "%u", c->requests[SL_REQ_WAITING]);
    sl_admin_pair(o, "requests_ending", "%u", c->requests[SL_REQ_ENDING]);
    sl_admin_pair(o, "decode_pages_free", "%" PRIu64, c->free_pages);
    sl_admin_pair(o, "decode_pages", "%" PRIu64, c->pages);
    sl_admin_pair(o, "router_boot", "%016" PRIx64, s->boot_id);
}

void sl_admin_status(struct sl_admin_out *o, const struct sl_admin_state *s)
{
    struct count c = {0};
    struct problems p;
    struct sl_why why = {{0}};
    count_nodes(s, &c);
    bool ready = sl_node_table_ready(s->nodes, &why);
    problems_table(o, s, &c, ready ? NULL : why.text, &p);
    status_table(o, s, &c, ready);
    if (s->draining)
        sl_admin_say(o, "Draining: no new requests; %zu still run.", sl_request_table_len(s->requests));
    else if (!ready)
        sl_admin_refuse(o, SL_ENOTREADY, "Not ready: %s", why.text);
    else
        sl_admin_say(o, "Ready: mode %s, %u of %u nodes up, %zu requests open, %u warning%s.",
                     sl_place_mode_name(s->mode), c.by_state[SL_NODE_UP], sl_node_table_len(s->nodes),
                     sl_request_table_len(s->requests), p.n[WARNING], p.n[WARNING] == 1 ? "" : "s");
}
