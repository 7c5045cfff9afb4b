/* router/admin/cluster_events.c - a ring of sentences. States of nodes and links are seen by comparing them at
 * the flow's tick, so that whoever changes one need not know of this; a state that lasted less than a tick was
 * not worth a line. */
#include "router/admin/cluster_events.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"

struct sl_cluster_events {
    uint64_t added;
    struct sl_cluster_event ring[SL_CLUSTER_EVENTS];
};

struct sl_cluster_events *sl_cluster_events_new(void)
{
    return sl_xcalloc(1, sizeof(struct sl_cluster_events));
}

void sl_cluster_events_free(struct sl_cluster_events *e)
{
    sl_free(e);
}

void sl_cluster_event(struct sl_cluster_events *e, const char *level, const char *kind, const char *subject,
                      const char *fmt, ...)
{
    struct sl_cluster_event new = {.level = level, .kind = kind, .at_ms = sl_now_ms()};
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    new.wall_ms = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
    snprintf(new.subject, sizeof new.subject, "%s", subject);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(new.text, sizeof new.text, fmt, ap);
    va_end(ap);
    for (uint64_t i = e->added; strstr(new.text, "refused") && i > 0 && i + SL_CLUSTER_EVENTS_SAME > e->added;
         i--) {
        struct sl_cluster_event *old = &e->ring[(i - 1) % SL_CLUSTER_EVENTS];
        if (strcmp(old->subject, new.subject) == 0 && strcmp(old->text, new.text) == 0) {
            old->at_ms = new.at_ms;
            return;
        }
    }
    new.seq = ++e->added;
    e->ring[(new.seq - 1) % SL_CLUSTER_EVENTS] = new;
}

const struct sl_cluster_event *sl_cluster_events_nth(const struct sl_cluster_events *e, uint32_t n)
{
    return n < e->added && n < SL_CLUSTER_EVENTS ? &e->ring[(e->added - 1 - n) % SL_CLUSTER_EVENTS] : NULL;
}

static void watch_link(struct sl_cluster_events *e, const struct sl_node *n, struct sl_node_peer *p)
{
    if (strcmp(p->told, p->state) == 0)
        return;
    bool good = strcmp(p->state, "up") == 0;
    if (good || strcmp(p->state, "testing") != 0) /* every link begins so */
        sl_cluster_event(e, good ? "info" : "warning", "link", n->name, "to %s: %s%s%s", p->peer, p->state,
                         p->why[0] && !good ? ", " : "", good ? "" : p->why);
    memcpy(p->told, p->state, sizeof p->told);
}

void sl_cluster_events_watch(struct sl_cluster_events *e, const struct sl_node_table *nodes)
{
    static const char *const texts[] = {"takes work", "drains: nothing new is placed there",
                                        "is stalled: no layer computed for long with work at hand",
                                        "is dead: its requests are placed again"};
    for (uint32_t i = 0; i < sl_node_table_len(nodes); i++) {
        struct sl_node *n = sl_node_table_at(nodes, i);
        if (!n->told || n->told_state != n->state)
            sl_cluster_event(e, n->state < SL_NODE_STALLED ? "info" : "warning", "node", n->name, "%s",
                             texts[n->state]);
        n->told = true;
        n->told_state = n->state;
        for (uint32_t k = 0; k < n->n_peers && n->state != SL_NODE_DEAD; k++)
            watch_link(e, n, &n->peers[k]);
    }
}

static void row(struct sl_admin_out *o, const struct sl_cluster_event *ev)
{
    char when[40];
    time_t seconds = (time_t)(ev->wall_ms / 1000);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    sl_admin_row(o);
    sl_admin_cell(o, "%" PRIu64, ev->seq);
    sl_admin_cell(o, "%s", when);
    sl_admin_cell(o, "%s", ev->level);
    sl_admin_cell(o, "%s", ev->kind);
    sl_admin_cell(o, "%s", ev->subject);
    sl_admin_cell(o, "%s", ev->text);
}

void sl_admin_events(struct sl_admin_out *o, const struct sl_cluster_events *e, uint32_t n)
{
    sl_admin_table(o, "events", "seq,time,level,kind,of,text");
    uint32_t kept = e->added < SL_CLUSTER_EVENTS ? (uint32_t)e->added : SL_CLUSTER_EVENTS;
    if (n > SL_ADMIN_MAX_ROWS)
        n = SL_ADMIN_MAX_ROWS;
    for (uint32_t i = n < kept ? n : kept; i > 0; i--)
        row(o, sl_cluster_events_nth(e, i - 1));
}

void sl_admin_events_after(struct sl_admin_out *o, const struct sl_cluster_events *e, uint64_t after)
{
    uint64_t later = after <= e->added ? e->added - after : e->added; /* else it is another router's number */
    sl_admin_events(o, e, later < SL_CLUSTER_EVENTS ? (uint32_t)later : SL_CLUSTER_EVENTS);
}
