/* common/node/node_admin.c - a table of operations. A changed key is first parsed and checked as the config
 * file's would be; what it means to the engine and to routers follows from one place. */
#include "common/node/node_admin.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/node/node_router.h"
#include "common/text/utf8.h"

#define MAX_KEYS    128 /* options of a node: more than twice as many as there are */
#define VALUE_BYTES 512 /* of an option's value; a longer one is cut where it is shown */

struct say { /* the answer; texts live here until it is sent */
    enum sl_err code;
    char text[512];
    Sluice__AdminTable *table; /* NULL = none */
};

static void say(struct say *s, enum sl_err code, const char *fmt, ...) SL_PRINTF(3, 4);
static void say(struct say *s, enum sl_err code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->text, sizeof s->text, fmt, ap);
    va_end(ap);
    sl_utf8_repair(s->text); /* a router takes nothing else */
    s->code = code;
}

struct keys { /* the table of config */
    Sluice__AdminTable table;
    Sluice__AdminRow rows[MAX_KEYS], *row_of[MAX_KEYS];
    char *cells[MAX_KEYS][4], values[MAX_KEYS][VALUE_BYTES];
};

static void op_config(struct sl_node *n, char **args, struct say *out, struct keys *k)
{
    static char *columns[] = {(char *)"key", (char *)"value", (char *)"default", (char *)"change"};
    (void)args;
    sluice__admin_table__init(&k->table);
    k->table.title = (char *)"config";
    k->table.columns = columns;
    k->table.n_columns = SL_COUNTOF(columns);
    k->table.rows = k->row_of;
    for (const struct sl_conf_opt *o = sl_node_opts; o->key && k->table.n_rows < MAX_KEYS; o++) {
        size_t at = k->table.n_rows++;
        sl_conf_print(o, n->conf, k->values[at], VALUE_BYTES);
        sl_utf8_repair(k->values[at]);
        if (!k->values[at][0])
            snprintf(k->values[at], VALUE_BYTES, "-");
        char *const cells[] = {(char *)(uintptr_t)o->key, k->values[at],
                               (char *)(uintptr_t)(o->dflt && *o->dflt ? o->dflt : "-"),
                               (char *)(uintptr_t)(sl_node_conf_is_live(o->key) ? "node set" : "restart")};
        memcpy(k->cells[at], cells, sizeof cells);
        sluice__admin_row__init(&k->rows[at]);
        k->rows[at].cells = k->cells[at];
        k->rows[at].n_cells = SL_COUNTOF(cells);
        k->row_of[at] = &k->rows[at];
    }
    out->table = &k->table;
}

static void op_set(struct sl_node *n, char **args, struct say *out, struct keys *k)
{
    struct sl_why why = {{0}};
    (void)k;
    enum sl_err err = sl_node_conf_set(n->live, args[0], args[1], &why);
    if (err) {
        say(out, err, "%s.", why.text);
        return;
    }
    sl_log_set_level((enum sl_log_level)n->conf->log_level);
    sl_engine_set_pace(n->engine, n->conf->chunk_tokens, n->conf->speculation, n->conf->tpot_target_ms,
                       n->conf->chunk_stretch);
    for (size_t i = 0; i < n->n_routers; i++)
        sl_node_router_tell_info(n->routers[i]);
    SL_INFO("an administrator changed an option key=%s value=%s", args[0], args[1]);
    say(out, SL_OK, "%s is %s at %s until its next start; its config file has not changed.", args[0], args[1],
        n->conf->name);
}

static void op_reload(struct sl_node *n, char **args, struct say *out, struct keys *k)
{
    (void)args;
    (void)k;
    kill(getpid(), SIGHUP); /* node_life.c takes it in the next round */
    say(out, SL_OK, "%s reads its config file again; its journal says what came of it.", n->conf->name);
}

static void op_retest(struct sl_node *n, char **args, struct say *out, struct keys *k)
{
    (void)args;
    (void)k;
    enum sl_err err = sl_xfer_retest(n->xfer);
    if (err)
        say(out, err, "%s has too much to do; try again in a moment.", n->conf->name);
    else
        say(out, SL_OK, "%s measures its links again, each when it is idle, and tries those that are down.",
            n->conf->name);
}

static const struct op {
    const char *name;
    size_t n_args;
    bool needs_life; /* of a daemon: the node may be part of another program */
    void (*run)(struct sl_node *n, char **args, struct say *out, struct keys *k);
} ops[] = {{"config", 0, false, op_config},
           {"set", 2, true, op_set},
           {"reload", 0, true, op_reload},
           {"retest", 0, false, op_retest}};

void sl_node_admin(struct sl_node *n, struct sl_wire_in *in)
{
    const Sluice__AdminRequest *q = in->msg->admin;
    struct say out = {0};
    struct keys *k = sl_xcalloc(1, sizeof *k);
    const struct op *op = NULL;
    for (size_t i = 0; i < SL_COUNTOF(ops); i++)
        if (strcmp(ops[i].name, q->op) == 0)
            op = &ops[i];
    if (!op)
        say(&out, SL_EUNSUPPORTED, "Node %s knows no operation '%.40s'.", n->conf->name, q->op);
    else if (q->n_args != op->n_args)
        say(&out, SL_EINVAL, "Operation %s of a node takes %zu arguments, not %zu.", op->name, op->n_args,
            q->n_args);
    else if (op->needs_life && !n->live)
        say(&out, SL_EUNSUPPORTED, "Node %s cannot be changed while it runs.", n->conf->name);
    else
        op->run(n, q->args, &out, k);
    Sluice__AdminReply r = SLUICE__ADMIN_REPLY__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    r.code = out.code;
    r.text = out.text[0] ? out.text : NULL;
    r.n_tables = out.table ? 1 : 0;
    r.tables = &out.table;
    e.body_case = SLUICE__ENVELOPE__BODY_ADMIN_REPLY;
    e.admin_reply = &r;
    sl_wire_reply(in, &e);
    sl_free(k);
}
