/* router/ctl/ctl_parse.c - the command line by the tables of ctl_table.c. Options may stand before and after
 * the command. */
#include "router/ctl/ctl.h"

#include <stdlib.h>
#include <string.h>

static const struct sl_ctl_command *find_command(const char *first, const char *second)
{
    size_t n = strlen(first);
    for (const struct sl_ctl_command *c = sl_ctl_commands; c->name; c++)
        if (strncmp(c->name, first, n) == 0 &&
            (second ? c->name[n] == ' ' && strcmp(c->name + n + 1, second) == 0 : c->name[n] == '\0'))
            return c;
    return NULL;
}

/* Takes the command off the front of the arguments. */
static enum sl_err take_command(struct sl_ctl_call *out, struct sl_why *why)
{
    const char *first = out->args[0], *second = out->n_args > 1 ? out->args[1] : NULL;
    size_t words = 2;
    out->command = second ? find_command(first, second) : NULL;
    if (!out->command) {
        out->command = find_command(first, NULL);
        words = 1;
    }
    if (!out->command) {
        char known[160] = "";
        size_t n = strlen(first), at = 0;
        for (const struct sl_ctl_command *c = sl_ctl_commands; c->name && at < sizeof known; c++)
            if (strncmp(c->name, first, n) == 0 && c->name[n] == ' ')
                at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", c->name);
        return known[0] ? sl_why_set(why, SL_EINVAL, "There is no command '%.40s%s%.40s'; there are %s.",
                                     first, second ? " " : "", second ? second : "", known)
                        : sl_why_set(why, SL_EINVAL, "There is no command '%.60s'.", first);
    }
    out->n_args -= words;
    memmove(out->args, out->args + words, out->n_args * sizeof *out->args);
    return SL_OK;
}

/* The option a word is, and its value when that is in the same word ("--timeout=3", "-t3"). */
static const struct sl_ctl_option *find_option(const char *word, const char **value)
{
    *value = NULL;
    for (const struct sl_ctl_option *o = sl_ctl_options; o->name; o++) {
        size_t n = strlen(o->name);
        if (word[1] == '-' && strncmp(word, o->name, n) == 0 && (word[n] == '\0' || word[n] == '=')) {
            *value = word[n] ? word + n + 1 : NULL;
            return o;
        }
        if (word[1] != '-' && o->letter && word[1] == o->letter) {
            *value = word[2] ? word + 2 : NULL;
            return o;
        }
    }
    return NULL;
}

static enum sl_err number(const char *name, const char *text, double max, double *out, struct sl_why *why)
{
    char *end;
    *out = strtod(text, &end);
    if (end == text || *end || !(*out > 0) || *out > max)
        return sl_why_set(why, SL_EINVAL, "%s takes seconds above 0 and up to %.0f, not '%.40s'.", name, max,
                          text);
    return SL_OK;
}

static enum sl_err format(const char *value, enum sl_ctl_format *out, struct sl_why *why)
{
    for (int i = 0; sl_ctl_formats[i]; i++)
        if (strcmp(value, sl_ctl_formats[i]) == 0) {
            *out = (enum sl_ctl_format)i;
            return SL_OK;
        }
    return sl_why_set(why, SL_EINVAL, "--output takes table, wide, json or yaml, not '%.40s'.", value);
}

static enum sl_err apply(const struct sl_ctl_option *o, const char *value, struct sl_ctl_call *out,
                         struct sl_why *why)
{
    double seconds;
    enum sl_err err = SL_OK;
    switch (o->id) {
    case SL_CTL_OPT_ROUTER:
        out->router = value;
        break;
    case SL_CTL_OPT_OUTPUT:
        err = format(value, &out->format, why);
        break;
    case SL_CTL_OPT_TIMEOUT:
        err = number(o->name, value, 3600, &seconds, why);
        out->timeout_ms = err ? 0 : (uint32_t)(seconds * 1e3 + 0.5);
        break;
    case SL_CTL_OPT_WATCH:
        err = number(o->name, value, 86400, &seconds, why);
        out->watch_s = err ? 0 : seconds < 1 ? 1 : (uint32_t)seconds;
        break;
    case SL_CTL_OPT_NO_HEADERS:
        out->no_headers = true;
        break;
    case SL_CTL_OPT_FOLLOW:
        out->follow = true;
        break;
    case SL_CTL_OPT_CHROME:
        out->chrome = true;
        break;
    case SL_CTL_OPT_HELP:
        out->help = true;
        break;
    case SL_CTL_OPT_VERSION:
        out->version = true;
        break;
    }
    return err;
}

static enum sl_err check(const struct sl_ctl_call *c, struct sl_why *why)
{
    if (c->help || c->version)
        return SL_OK;
    if (!c->command)
        return sl_why_set(why, SL_EINVAL, "No command is given.");
    const struct sl_ctl_command *k = c->command;
    if (c->n_args < k->min_args || c->n_args > k->max_args)
        return sl_why_set(why, SL_EINVAL, "Usage: sluicectl %s%s%s - %zu argument%s given.", k->name,
                          *k->args ? " " : "", k->args, c->n_args, c->n_args == 1 ? " was" : "s were");
    if (c->watch_s && k->changes && c->n_args)
        return sl_why_set(why, SL_EINVAL, "--watch is for commands that only look; %s changes something.",
                          k->name);
    return SL_OK;
}

enum sl_err sl_ctl_parse(int argc, char **argv, struct sl_ctl_call *out, struct sl_why *why)
{
    const char *env = getenv("SLUICE_ROUTER");
    *out = (struct sl_ctl_call){.router = env && *env ? env : SL_CTL_ROUTER, .timeout_ms = 5000};
    const struct sl_ctl_option *only = NULL; /* an option of one command */
    bool options = true;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *value;
        if (options && strcmp(word, "--") == 0) {
            options = false;
        } else if (options && word[0] == '-' && word[1]) {
            const struct sl_ctl_option *o = find_option(word, &value);
            if (!o)
                return sl_why_set(why, SL_EINVAL, "There is no option '%.60s'.", word);
            if (o->value && !value && !(value = argv[++i]))
                return sl_why_set(why, SL_EINVAL, "%s needs a value: %s.", o->name, o->value);
            if (!o->value && value)
                return sl_why_set(why, SL_EINVAL, "%s takes no value.", o->name);
            enum sl_err err = apply(o, value, out, why);
            if (err)
                return err;
            only = o->of ? o : only;
        } else if (out->n_args == 0 && !out->help && strcmp(word, "help") == 0) {
            out->help = true;
        } else if (out->n_args == SL_CTL_MAX_ARGS) {
            return sl_why_set(why, SL_EINVAL, "Too many arguments.");
        } else {
            out->args[out->n_args++] = word;
        }
    }
    enum sl_err err = out->n_args ? take_command(out, why) : SL_OK;
    if (!err && only && out->command && strcmp(only->of, out->command->name) != 0)
        err = sl_why_set(why, SL_EINVAL, "%s is an option of the command %s.", only->name, only->of);
    return err ? err : check(out, why);
}

void sl_ctl_help(FILE *out)
{
    fprintf(out, "sluicectl - look at a Sluice cluster and steer it\n\nUsage: sluicectl [OPTION...] COMMAND "
                 "[ARG]\n\nCommands\n");
    for (const struct sl_ctl_command *c = sl_ctl_commands; c->name; c++) {
        char head[64];
        snprintf(head, sizeof head, "%s %s", c->name, c->args);
        fprintf(out, "  %-32s %s\n", head, c->summary);
    }
    fprintf(out, "\nOptions\n");
    for (const struct sl_ctl_option *o = sl_ctl_options; o->name; o++) {
        char head[64], letter[8] = "    ";
        if (o->letter)
            snprintf(letter, sizeof letter, "-%c, ", o->letter);
        snprintf(head, sizeof head, "%s%s%s%s", letter, o->name, o->value ? " " : "",
                 o->value ? o->value : "");
        fprintf(out, "  %-32s %s\n", head, o->help);
    }
    fprintf(out, "\nExamples\n"
                 "  sluicectl status                     is it ready?\n"
                 "  sluicectl nodes -w 1                 watch the load\n"
                 "  sluicectl mode pd                    prefill and decode on separate nodes from now on\n"
                 "  sluicectl explain last               why the last request ran where it ran, and how long "
                 "each part took\n"
                 "  sluicectl links -o json              for scripts\n"
                 "\nExit codes: 0 done, 1 refused, not found or not ready, 2 wrong usage, 3 the router "
                 "cannot be reached.\n"
                 "`sluicectl COMMAND --help` tells how to read a command's answer.\n");
}

void sl_ctl_command_help(const struct sl_ctl_command *c, FILE *out)
{
    fprintf(out, "sluicectl %s%s%s - %s\n\n%s", c->name, *c->args ? " " : "", c->args, c->summary, c->help);
}
