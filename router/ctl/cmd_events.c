/* router/ctl/cmd_events.c - the cluster's events, once or as they come: asked for again after the last number
 * seen, so that none is shown twice and none is missed while the router keeps it. */
#include "router/ctl/ctl.h"

#include <stdlib.h>
#include <string.h>

#include "common/wire/wire_sock.h"

#define FOLLOW_S 1

/* The number of the newest event shown so far. */
static void take_last(const Sluice__AdminReply *reply, char last[24])
{
    const Sluice__AdminTable *t = sl_ctl_table(reply, "events");
    if (t && t->n_rows)
        snprintf(last, 24, "%s", sl_ctl_cell(t, t->n_rows - 1, "seq"));
}

enum sl_ctl_exit sl_ctl_events(const struct sl_ctl_call *call)
{
    if (!call->follow)
        return sl_ctl_ask(call);
    struct sl_ctl_call c = *call;
    char last[24] = "0";
    const char *after[] = {"after", last};
    for (bool first = true;; first = false) {
        Sluice__Envelope *answer;
        struct sl_why why = {{0}};
        enum sl_ctl_exit code = first ? sl_ctl_question(&c, "events", c.args, c.n_args, &answer, &why)
                                      : sl_ctl_question(&c, "events", after, 2, &answer, &why);
        if (code != SL_CTL_OK) {
            sl_ctl_complain(why.text);
            return code;
        }
        const Sluice__AdminTable *t = sl_ctl_table(answer->admin_reply, "events");
        if (!t || t->n_rows || first)
            code = sl_ctl_print(&c, answer->admin_reply, stdout);
        take_last(answer->admin_reply, last);
        sl_wire_free(answer);
        fflush(stdout);
        if (code != SL_CTL_OK)
            return code;
        c.no_headers = true;
        sl_ctl_sleep(call->watch_s ? call->watch_s : FOLLOW_S);
    }
}
