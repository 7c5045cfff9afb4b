/* router/ctl/cmd_manual.c - the manual page, made from the tables. */
#include "router/ctl/ctl.h"

#include "common/base/manual.h"

enum sl_ctl_exit sl_ctl_manual(const struct sl_ctl_call *call)
{
    static const char *const see_also[] = {"sluice-bench 1", "sluice-router 8", NULL};
    FILE *out = stdout;
    (void)call;
    sl_manual_head(out, "sluicectl", "1", SLUICE_DATE, "look at a Sluice cluster and steer it");
    sl_manual_section(out, "SYNOPSIS");
    fputs(".Nm\n.Op Ar option ...\n.Ar command\n.Op Ar argument\n", out);
    sl_manual_section(out, "DESCRIPTION");
    sl_manual_text(out, "Asks the router of a cluster over its admin address and prints the answer.\n");
    sl_manual_list_begin(out);
    for (const struct sl_ctl_option *o = sl_ctl_options; o->name; o++) {
        char name[32];
        snprintf(name, sizeof name, o->letter ? "%s , %c" : "%s", o->name, o->letter);
        sl_manual_item(out, "Fl", name, o->value);
        sl_manual_text(out, o->help);
        if (o->of) {
            char only[64];
            snprintf(only, sizeof only, "Only of the command %s.\n", o->of);
            sl_manual_text(out, only);
        }
    }
    sl_manual_list_end(out);
    sl_manual_section(out, "COMMANDS");
    sl_manual_list_begin(out);
    for (const struct sl_ctl_command *c = sl_ctl_commands; c->name; c++) {
        sl_manual_item(out, "Ic", c->name, *c->args ? c->args : NULL);
        sl_manual_text(out, c->summary);
        sl_manual_lines(out, c->help);
    }
    sl_manual_list_end(out);
    sl_manual_section(out, "EXIT STATUS");
    sl_manual_text(out, "0 done, 1 refused, not found or not ready, 2 wrong usage, 3 the router cannot be "
                        "reached.\n");
    sl_manual_see_also(out, see_also);
    return SL_CTL_OK;
}
