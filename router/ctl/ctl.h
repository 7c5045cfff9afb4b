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

enum sl_ctl_format { SL_CTL_TABLE, SL_CTL_WIDE, SL_CTL_JSON, SL_CTL_YAML };
extern const char *const sl_ctl_formats[]; /* by enum, ends with NULL */

struct sl_buf;

struct sl_ctl_call { /* the command line, understood */
    const char *router;
    uint32_t timeout_ms;
    enum sl_ctl_format format;
    uint32_t watch_s; /* 0 = once */
    bool help, version, no_headers, follow, chrome;
    const struct sl_ctl_command *command; /* NULL with help or version */
    const char *args[SL_CTL_MAX_ARGS];
    size_t n_args;
};

struct sl_ctl_command {
    const char *name; /* one word or two: "nodes", "node drain" */
    const char *args; /* as shown in help: "NODE", "[pd|colocated|hybrid]", "" */
    size_t min_args, max_args;
    bool changes;       /* with arguments it changes the cluster: not for --watch */
    const char *op;     /* what the router is asked; NULL = the command needs none, or more than one */
    const char *hidden; /* columns shown only by wide, JSON and YAML, comma-separated; NULL = none */
    const char
        *words; /* what the first argument may be, for completion: words, "@nodes", "@requests"; NULL */
    const char *summary; /* one line */
    const char *help;    /* what it shows, how to read it, examples */
    enum sl_ctl_exit (*run)(const struct sl_ctl_call *call);
};
extern const struct sl_ctl_command sl_ctl_commands[]; /* ends with a NULL name */

enum sl_ctl_option_id {
    SL_CTL_OPT_ROUTER,
    SL_CTL_OPT_OUTPUT,
    SL_CTL_OPT_TIMEOUT,
    SL_CTL_OPT_WATCH,
    SL_CTL_OPT_NO_HEADERS,
    SL_CTL_OPT_FOLLOW,
    SL_CTL_OPT_CHROME,
    SL_CTL_OPT_HELP,
    SL_CTL_OPT_VERSION
};
struct sl_ctl_option {
    const char *name; /* "--router" */
    char letter;      /* 'o', or 0 */
    enum sl_ctl_option_id id;
    const char *value; /* "URL", NULL = a switch */
    const char *of;    /* the one command it is for, NULL = all */
    const char *words; /* what the value may be, for completion; NULL */
    const char *help;
};
extern const struct sl_ctl_option sl_ctl_options[]; /* ends with a NULL name */

/* Fills *out from argv and the environment (SLUICE_ROUTER). SL_EINVAL: why says what is wrong. */
SL_MUST_CHECK enum sl_err sl_ctl_parse(int argc, char **argv, struct sl_ctl_call *out, struct sl_why *why);

/* Help of all, or of one command. */
void sl_ctl_help(FILE *out);
void sl_ctl_command_help(const struct sl_ctl_command *c, FILE *out);

/* ---- cmd_ask.c ---- */
/* One question. SL_CTL_OK: *out is the answer (whatever its code), freed with sl_wire_free(); else why says
 * what is wrong. */
enum sl_ctl_exit sl_ctl_question(const struct sl_ctl_call *call, const char *op, const char *const *args,
                                 size_t n_args, Sluice__Envelope **out, struct sl_why *why);
void sl_ctl_complain(const char *text); /* on stderr, fit for a terminal */
void sl_ctl_sleep(uint32_t seconds);
/* Prints an answer in the form that was asked for, and returns the exit status it means. */
enum sl_ctl_exit sl_ctl_print(const struct sl_ctl_call *call, const Sluice__AdminReply *reply, FILE *out);

/* ---- ctl_print.c, ctl_data.c: an answer as text (the sentence, then aligned tables), JSON or YAML ---- */
void sl_ctl_print_tables(const Sluice__AdminReply *reply, const char *hidden, bool headers, FILE *out);
void sl_ctl_print_json(const Sluice__AdminReply *reply, FILE *out);
void sl_ctl_print_yaml(const Sluice__AdminReply *reply, FILE *out);
/* s with its quotes; nothing in it moves a terminal. */
void sl_ctl_json_string(struct sl_buf *b, const char *s);
/* The answer of trace in Chrome's format. */
void sl_ctl_print_chrome(const Sluice__AdminReply *reply, FILE *out);
/* NULL when there is none. */
const Sluice__AdminTable *sl_ctl_table(const Sluice__AdminReply *reply, const char *title);
/* "-" when there is no such column or cell. */
const char *sl_ctl_cell(const Sluice__AdminTable *t, size_t row, const char *column);

/* ---- ctl_text.c ---- */
/* Names and texts come from nodes and clients, and a terminal obeys what it is sent. Reads one character of s
 * (which is not at its end): its bytes, and whether it may go to a terminal as it is: not control characters,
 * characters that change the direction or are not seen, or bytes that are not UTF-8. */
size_t sl_ctl_character(const char *s, uint32_t *code, bool *shown);
/* s with '?' for what is not shown, cut to at most max_columns characters and size bytes; returns its
 * columns. */
size_t sl_ctl_clean(const char *s, size_t max_columns, char *out, size_t size);

/* cmd_*.c */
enum sl_ctl_exit sl_ctl_ask(const struct sl_ctl_call *call);
enum sl_ctl_exit sl_ctl_events(const struct sl_ctl_call *call);
enum sl_ctl_exit sl_ctl_leases(const struct sl_ctl_call *call);
enum sl_ctl_exit sl_ctl_pages(const struct sl_ctl_call *call);
enum sl_ctl_exit sl_ctl_roles(const struct sl_ctl_call *call);
enum sl_ctl_exit sl_ctl_retest(const struct sl_ctl_call *call);
enum sl_ctl_exit sl_ctl_trace(const struct sl_ctl_call *call);
enum sl_ctl_exit sl_ctl_top(const struct sl_ctl_call *call);
enum sl_ctl_exit sl_ctl_keys_add(const struct sl_ctl_call *call);
enum sl_ctl_exit sl_ctl_keys_list(const struct sl_ctl_call *call);
enum sl_ctl_exit sl_ctl_keys_check(const struct sl_ctl_call *call);
enum sl_ctl_exit sl_ctl_completion(const struct sl_ctl_call *call);
enum sl_ctl_exit sl_ctl_manual(const struct sl_ctl_call *call);

#endif
