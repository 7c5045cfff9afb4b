/* router/ctl/ctl.h - sluicectl: one table of commands and one of options, from which parsing, help, manual
 * page and completion are made.
 *
 * Exit: 0 done, 1 refused, not found or not ready, 2 wrong usage, 3 the router cannot be reached. */
#ifndef SLUICE_ROUTER_CTL_CTL_H
#define SLUICE_ROUTER_CTL_CTL_H

#include <stdint.h>
#include <stdio.h>

#include "common/base/err.h"
#include "proto/sluice.pb-c.h"

enum sl_ctl_exit { SL_CTL_OK = 0, SL_CTL_REFUSED = 1, SL_CTL_USAGE = 2, SL_CTL_UNREACHABLE = 3 };

#define SL_CTL_ROUTER   "ipc:///run/sluice/router.sock"
#define SL_CTL_MAX_ARGS 8

enum sl_ctl_format { SL_CTL_TABLE, SL_CTL_WIDE, SL_CTL_JSON };

struct sl_ctl_call { /* the command line, understood */
    const char *router;
    uint32_t timeout_ms;
    enum sl_ctl_format format;
    uint32_t watch_s; /* 0 = once */
    bool help, version, no_headers;
    const struct sl_ctl_command *command; /* NULL with help or version */
    const char *args[SL_CTL_MAX_ARGS];
    size_t n_args;
};

struct sl_ctl_command {
    const char *name;
    const char *args; /* as shown in help: "NODE", "[pd|colocated|hybrid]", "" */
    size_t min_args, max_args;
    bool changes;        /* it changes the cluster: not for --watch */
    const char *summary; /* one line */
    const char *help;    /* what it shows, how to read it, examples */
    enum sl_ctl_exit (*run)(const struct sl_ctl_call *call);
};
extern const struct sl_ctl_command sl_ctl_commands[]; /* ends with a NULL name */

struct sl_ctl_option {
    const char *name;  /* "--router" */
    char letter;       /* 'o', or 0 */
    const char *value; /* "URL", NULL = a switch */
    const char *help;
};
extern const struct sl_ctl_option sl_ctl_options[]; /* ends with a NULL name */

/* Fills *out from argv and the environment (SLUICE_ROUTER). SL_EINVAL: why says what is wrong. */
SL_MUST_CHECK enum sl_err sl_ctl_parse(int argc, char **argv, struct sl_ctl_call *out, struct sl_why *why);

/* Help of all, or of one command. */
void sl_ctl_help(FILE *out);
void sl_ctl_command_help(const struct sl_ctl_command *c, FILE *out);

/* Asks the router and prints its answer; what most commands do. hidden: columns left out unless wide or JSON,
 * comma-separated. */
enum sl_ctl_exit sl_ctl_ask(const struct sl_ctl_call *call, const char *hidden);

/* The answer as text: the sentence, then aligned tables; or as JSON. */
void sl_ctl_print_tables(const Sluice__AdminReply *reply, const char *hidden, bool headers, FILE *out);
void sl_ctl_print_json(const Sluice__AdminReply *reply, FILE *out);

/* cmd_*.c */
enum sl_ctl_exit sl_ctl_show(const struct sl_ctl_call *call);
enum sl_ctl_exit sl_ctl_nodes(const struct sl_ctl_call *call);
enum sl_ctl_exit sl_ctl_completion(const struct sl_ctl_call *call);
enum sl_ctl_exit sl_ctl_manual(const struct sl_ctl_call *call);

#endif
