/* router/ctl/cmd_fleet.c - commands that ask each node in its turn, by way of the router, and put one table
 * together: a node that does not answer is a line on stderr, not the end. */
#include "router/ctl/ctl.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/wire/wire_sock.h"

#define MAX_COLUMNS 12u
#define CELL_BYTES  96u

struct fleet { /* the table that is put together */
    const struct sl_ctl_call *call;
    Sluice__AdminTable table;
    const char *node; /* that is asked */
};

static void add_row(struct fleet *f, char cells[][CELL_BYTES])
{
    Sluice__AdminRow *r = sl_xcalloc(1, sizeof *r);
    sluice__admin_row__init(r);
    r->cells = sl_xcalloc(f->table.n_columns, sizeof *r->cells);
    r->n_cells = f->table.n_columns;
    for (size_t i = 0; i < r->n_cells; i++)
        r->cells[i] = sl_xstrdup(cells[i]);
    f->table.rows = sl_xrealloc_array(f->table.rows, f->table.n_rows + 1, sizeof *f->table.rows);
    f->table.rows[f->table.n_rows++] = r;
}

typedef void each_fn(struct fleet *f, const Sluice__AdminReply *of_node);

/* Op to every node that is alive, or only to that of the first argument. */
static enum sl_ctl_exit for_each(struct fleet *f, const char *op, each_fn *each)
{
    const struct sl_ctl_call *call = f->call;
    Sluice__Envelope *all, *one;
    struct sl_why why = {{0}};
    enum sl_ctl_exit code = sl_ctl_question(call, "nodes", NULL, 0, &all, &why), worst = SL_CTL_OK;
    if (code != SL_CTL_OK) {
        sl_ctl_complain(why.text);
        return code;
    }
    const Sluice__AdminTable *nodes = sl_ctl_table(all->admin_reply, "nodes");
    bool found = call->n_args == 0;
    for (size_t i = 0; nodes && i < nodes->n_rows; i++) {
        f->node = sl_ctl_cell(nodes, i, "node");
        if (call->n_args && strcmp(call->args[0], f->node) != 0)
            continue;
        found = true;
        if (strcmp(sl_ctl_cell(nodes, i, "state"), "dead") == 0)
            continue;
        code = sl_ctl_question(call, op, &f->node, 1, &one, &why);
        if (code != SL_CTL_OK) {
            sl_ctl_complain(why.text);
            worst = code;
            break;
        }
        if (one->admin_reply->code != SL_OK) {
            sl_ctl_complain(one->admin_reply->text ? one->admin_reply->text : f->node);
            worst = SL_CTL_REFUSED;
        } else {
            each(f, one->admin_reply);
        }
        sl_wire_free(one);
    }
    if (!found) {
        sl_ctl_complain("There is no node of that name; `sluicectl nodes` lists them.");
        worst = SL_CTL_REFUSED;
    }
    sl_wire_free(all);
    return worst;
}

static enum sl_ctl_exit finish(struct fleet *f, enum sl_ctl_exit code, const char *none)
{
    Sluice__AdminTable *tables[] = {&f->table};
    Sluice__AdminReply r = SLUICE__ADMIN_REPLY__INIT;
    r.tables = tables;
    r.n_tables = 1;
    r.text = f->table.n_rows == 0 ? (char *)(uintptr_t)none : NULL;
    if (code != SL_CTL_UNREACHABLE)
        sl_ctl_print(f->call, &r, stdout);
    for (size_t i = 0; i < f->table.n_rows; i++) {
        for (size_t k = 0; k < f->table.rows[i]->n_cells; k++)
            sl_free(f->table.rows[i]->cells[k]);
        sl_free(f->table.rows[i]->cells);
        sl_free(f->table.rows[i]);
    }
    sl_free(f->table.rows);
    return code;
}

static struct fleet fleet(const struct sl_ctl_call *call, const char *title, const char *const *columns,
                          size_t n)
{
    struct fleet f = {.call = call};
    sluice__admin_table__init(&f.table);
    f.table.title = (char *)(uintptr_t)title;
    f.table.columns = (char **)(uintptr_t)columns;
    f.table.n_columns = n;
    return f;
}

static void leases_of(struct fleet *f, const Sluice__AdminReply *reply)
{
    const Sluice__AdminTable *t = sl_ctl_table(reply, "sequences");
    for (size_t i = 0; t && i < t->n_rows; i++) {
        static const char *const names[] = {"duty", "peer", "request", "attempt", "state", "pages", "age_s"};
        char cells[MAX_COLUMNS][CELL_BYTES];
        if (strcmp(sl_ctl_cell(t, i, "peer"), "-") == 0)
            continue;
        snprintf(cells[0], CELL_BYTES, "%s", f->node);
        for (size_t k = 0; k < SL_COUNTOF(names); k++)
            snprintf(cells[k + 1], CELL_BYTES, "%s", sl_ctl_cell(t, i, names[k]));
        add_row(f, cells);
    }
}

enum sl_ctl_exit sl_ctl_leases(const struct sl_ctl_call *call)
{
    static const char *const columns[] = {"node",    "duty",  "peer",  "request",
                                          "attempt", "state", "pages", "age_s"};
    struct fleet f = fleet(call, "leases", columns, SL_COUNTOF(columns));
    return finish(&f, for_each(&f, "nodes", leases_of), "No transfer of pages is open.");
}

static double counter(const Sluice__AdminReply *reply, const char *key)
{
    const Sluice__AdminTable *t = sl_ctl_table(reply, "counters");
    for (size_t i = 0; t && i < t->n_rows; i++)
        if (strcmp(sl_ctl_cell(t, i, "key"), key) == 0)
            return strtod(sl_ctl_cell(t, i, "value"), NULL);
    return 0;
}

static void pages_of(struct fleet *f, const Sluice__AdminReply *reply)
{
    char cells[MAX_COLUMNS][CELL_BYTES];
    double total = counter(reply, "pages_total"), free = counter(reply, "pages_free");
    double evictable = counter(reply, "pages_evictable"), bytes = counter(reply, "page_bytes");
    double asked = counter(reply, "prefix_queries_tokens_total"),
           hit = counter(reply, "prefix_hits_tokens_total");
    const double values[] = {total, free, evictable, total - free - evictable,
                             counter(reply, "pages_cached")};
    snprintf(cells[0], CELL_BYTES, "%s", f->node);
    for (size_t i = 0; i < SL_COUNTOF(values); i++)
        snprintf(cells[i + 1], CELL_BYTES, "%.0f", values[i]);
    snprintf(cells[6], CELL_BYTES, "%.0f", counter(reply, "page_tokens"));
    snprintf(cells[7], CELL_BYTES, "%.1f", total * bytes / (1 << 20));
    if (asked > 0)
        snprintf(cells[8], CELL_BYTES, "%.1f", 100 * hit / asked);
    else
        snprintf(cells[8], CELL_BYTES, "-");
    add_row(f, cells);
}

enum sl_ctl_exit sl_ctl_pages(const struct sl_ctl_call *call)
{
    static const char *const columns[] = {"node",   "pages",       "free", "evictable",  "in_use",
                                          "cached", "page_tokens", "mib",  "hit_percent"};
    struct fleet f = fleet(call, "pages", columns, SL_COUNTOF(columns));
    return finish(&f, for_each(&f, "nodes", pages_of), "No node is alive.");
}

static void retest_said(struct fleet *f, const Sluice__AdminReply *reply)
{
    char cells[MAX_COLUMNS][CELL_BYTES];
    (void)reply;
    snprintf(cells[0], CELL_BYTES, "%s", f->node);
    snprintf(cells[1], CELL_BYTES, "measures its links again");
    add_row(f, cells);
}

enum sl_ctl_exit sl_ctl_retest(const struct sl_ctl_call *call)
{
    static const char *const columns[] = {"node", "does"};
    struct fleet f = fleet(call, "retest", columns, SL_COUNTOF(columns));
    return finish(&f, for_each(&f, "retest", retest_said), "No node is alive.");
}

enum sl_ctl_exit sl_ctl_roles(const struct sl_ctl_call *call)
{
    const char *both = strcmp(call->args[1], "both") == 0 ? "prefill,decode" : call->args[1];
    const char *const args[] = {call->args[0], "roles", both};
    Sluice__Envelope *answer;
    struct sl_why why = {{0}};
    enum sl_ctl_exit code = sl_ctl_question(call, "set", args, 3, &answer, &why);
    if (code != SL_CTL_OK) {
        sl_ctl_complain(why.text);
        return code;
    }
    code = sl_ctl_print(call, answer->admin_reply, stdout);
    sl_wire_free(answer);
    return code;
}
