/* router/ctl/cmd_timeline.c - a request's time line as a table, or in Chrome's trace format, which ui.perfetto.dev
 * and chrome://tracing load: a process per lane, a thread per part of it, a complete event per span. */
#include "router/ctl/ctl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/wire/wire_sock.h"

#define MAX_BYTES (16u << 20) /* of the file: browsers' trace viewers slow down past it */
#define MAX_MS    1e12        /* 30 years */
#define MAX_NAMES 64u         /* lanes and parts */

struct names { /* numbered from 1 as they come */
    const char *of[MAX_NAMES];
    unsigned n;
};

static unsigned number_of(struct names *t, const char *name, bool *is_new)
{
    *is_new = false;
    for (unsigned i = 0; i < t->n; i++)
        if (strcmp(t->of[i], name) == 0)
            return i + 1;
    if (t->n == MAX_NAMES)
        return MAX_NAMES;
    *is_new = true;
    t->of[t->n++] = name;
    return t->n;
}

struct chrome {
    struct sl_buf text;
    struct names lanes, parts;
    bool first;
    bool part_told[MAX_NAMES + 1][MAX_NAMES + 1];
};

static void event(struct chrome *c, const char *ph, unsigned pid, unsigned tid, const char *name)
{
    sl_buf_printf(&c->text, "%s{\"ph\":\"%s\",\"pid\":%u,\"tid\":%u,\"name\":", c->first ? "" : ",\n", ph,
                  pid, tid);
    sl_ctl_json_string(&c->text, name);
    c->first = false;
}

static void name_it(struct chrome *c, const char *what, unsigned pid, unsigned tid, const char *name)
{
    event(c, "M", pid, tid, what);
    sl_buf_puts(&c->text, ",\"args\":{\"name\":");
    sl_ctl_json_string(&c->text, name);
    sl_buf_puts(&c->text, "}}");
}

/* ms < 0: a moment. */
static void span(struct chrome *c, const char *lane, const char *part, const char *name, double at_ms,
                 double ms, const char *detail)
{
    bool new_lane, new_part;
    unsigned pid = number_of(&c->lanes, lane, &new_lane), tid = number_of(&c->parts, part, &new_part);
    if (new_lane)
        name_it(c, "process_name", pid, 0, lane);
    if (!c->part_told[pid][tid])
        name_it(c, "thread_name", pid, tid, part);
    c->part_told[pid][tid] = true;
    event(c, ms < 0 ? "i" : "X", pid, tid, name);
    sl_buf_puts(&c->text, ",\"cat\":");
    sl_ctl_json_string(&c->text, part);
    sl_buf_printf(&c->text, ",\"ts\":%.0f", at_ms * 1e3);
    if (ms < 0)
        sl_buf_puts(&c->text, ",\"s\":\"t\"");
    else
        sl_buf_printf(&c->text, ",\"dur\":%.0f", ms * 1e3);
    sl_buf_puts(&c->text, ",\"args\":{\"detail\":");
    sl_ctl_json_string(&c->text, detail);
    sl_buf_puts(&c->text, "}}");
}

/* -1 for what is no number of milliseconds: JSON knows no NaN and no infinity. */
static double cell(const Sluice__AdminTable *t, size_t row, const char *column)
{
    const char *text = sl_ctl_cell(t, row, column);
    double ms = strcmp(text, "-") == 0 ? -1 : strtod(text, NULL);
    return fabs(ms) <= MAX_MS ? ms : -1;
}

static void steps(struct chrome *c, const char *lane, const Sluice__AdminTable *tokens)
{
    for (size_t i = 1; tokens && i < tokens->n_rows; i++) {
        double gap = cell(tokens, i, "gap_ms");
        char detail[64];
        snprintf(detail, sizeof detail, "token %.20s", sl_ctl_cell(tokens, i, "token"));
        span(c, lane, "decode", "step", cell(tokens, i, "token_at_ms") - gap, gap, detail);
    }
}

void sl_ctl_print_chrome(const Sluice__AdminReply *reply, FILE *out)
{
    const Sluice__AdminTable *t = sl_ctl_table(reply, "trace");
    struct chrome *c = sl_xcalloc(1, sizeof *c);
    c->first = true;
    sl_buf_init(&c->text, MAX_BYTES);
    sl_buf_puts(&c->text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    for (size_t i = 0; t && i < t->n_rows; i++) {
        const char *lane = sl_ctl_cell(t, i, "lane"), *what = sl_ctl_cell(t, i, "what");
        if (strcmp(what, "decode") == 0)
            steps(c, lane, sl_ctl_table(reply, "tokens"));
        else
            span(c, lane, sl_ctl_cell(t, i, "part"), what, cell(t, i, "at_ms"), cell(t, i, "ms"),
                 sl_ctl_cell(t, i, "detail"));
    }
    sl_buf_puts(&c->text, "\n]}\n");
    fwrite(c->text.data, 1, c->text.len, out);
    sl_buf_fini(&c->text);
    sl_free(c);
}

enum sl_ctl_exit sl_ctl_trace(const struct sl_ctl_call *call)
{
    if (!call->chrome)
        return sl_ctl_ask(call);
    Sluice__Envelope *answer;
    struct sl_why why = {{0}};
    enum sl_ctl_exit code = sl_ctl_question(call, "trace", call->args, call->n_args, &answer, &why);
    if (code != SL_CTL_OK) {
        sl_ctl_complain(why.text);
        return code;
    }
    if (answer->admin_reply->code == SL_OK)
        sl_ctl_print_chrome(answer->admin_reply, stdout);
    else
        code = sl_ctl_print(call, answer->admin_reply, stdout);
    sl_wire_free(answer);
    return code;
}
