/* common/base/program.c - one table of options, four texts. */
#include "common/base/program.h"

#include <string.h>

#include "common/base/log.h"
#include "common/base/manual.h"

#define EXAMPLE_COLUMNS 100 /* a config file's lines may have 198 bytes; people's windows have fewer */
#define FOR_TESTS       "fault_"

struct word {
    const char *text, *help;
};

static const struct word words[] = {
    {"--check-config", "read the configuration, check it, say what is wrong, and end with status 0 or 78"},
    {"--example-config", "print a config file with every key, its default and what it means"},
    {"--help", "print all options"},
    {"--manual", "print this page as mdoc source"},
    {"--version", "print the version"},
};

static bool reloads(const struct sl_program *p, const char *key)
{
    for (const char *const *k = p->reloads; *k; k++)
        if (strcmp(*k, key) == 0)
            return true;
    return false;
}

static bool for_tests(const struct sl_conf_opt *o)
{
    return strncmp(o->key, FOR_TESTS, strlen(FOR_TESTS)) == 0;
}

static const char *when_it_counts(const struct sl_program *p, const struct sl_conf_opt *o)
{
    return reloads(p, o->key) ? "read anew at a reload" : "a change needs a restart";
}

/* Comment lines of at most EXAMPLE_COLUMNS, broken at blanks. */
static void comment(FILE *out, const char *text)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        if (n > EXAMPLE_COLUMNS - 2) {
            n = EXAMPLE_COLUMNS - 2;
            while (n && text[n] != ' ')
                n--;
            if (n == 0)
                n = strcspn(text, " \n");
        }
        fprintf(out, "#%s%.*s\n", n ? " " : "", (int)n, text);
        text += n + (text[n] != '\0');
    }
}

static void example(const struct sl_program *p, FILE *out)
{
    comment(out, p->config_about);
    fprintf(out, "\n[%s]\n", p->section);
    for (const struct sl_conf_opt *o = p->opts; o->key; o++) {
        char expected[SL_CONF_EXPECTED_MAX], what[2 * SL_CONF_EXPECTED_MAX];
        if (for_tests(o))
            continue;
        bool must = strcmp(o->key, p->must_set) == 0;
        sl_conf_expected(o, expected, sizeof expected);
        snprintf(what, sizeof what, "(%s; %s)", expected, when_it_counts(p, o));
        comment(out, o->help);
        comment(out, what);
        fprintf(out, "%s%s =%s%s\n%s", must ? "" : "#", o->key, must || o->dflt ? " " : "",
                must      ? p->must_value
                : o->dflt ? o->dflt
                          : "",
                o[1].key ? "\n" : "");
    }
}

static void help(const struct sl_program *p, FILE *out)
{
    fprintf(out, "%s - %s\n\nusage: %s [--config FILE] [--key=value ...]\n\n%s\n", p->name, p->summary,
            p->name, p->about);
    for (size_t i = 0; i < SL_COUNTOF(words); i++)
        fprintf(out, "  %s\n      %s\n", words[i].text, words[i].help);
    sl_conf_help(p->opts, out);
}

static void manual_keys(const struct sl_program *p, FILE *out)
{
    sl_manual_section(out, "CONFIGURATION");
    sl_manual_text(
        out, "Each key stands in the config file as key = value, or on the command line as "
             "--key=value, with - for _; the command line wins. A key that is not known, a value out of "
             "range or a line that does not parse ends the daemon with status 78 and one sentence that "
             "names file and line.\n");
    sl_manual_list_begin(out);
    for (const struct sl_conf_opt *o = p->opts; o->key; o++) {
        char expected[SL_CONF_EXPECTED_MAX], facts[2 * SL_CONF_EXPECTED_MAX];
        if (for_tests(o))
            continue;
        sl_conf_expected(o, expected, sizeof expected);
        sl_manual_item(out, "Ic", o->key, NULL);
        sl_manual_text(out, o->help);
        snprintf(facts, sizeof facts, "Expected: %s; default: %s; %s.\n", expected,
                 o->dflt && *o->dflt ? o->dflt : "none", when_it_counts(p, o));
        fputs(".br\n", out);
        sl_manual_text(out, facts);
    }
    sl_manual_list_end(out);
}

static void manual(const struct sl_program *p, FILE *out)
{
    const char *const see_also[] = {"sluice-bench 1", "sluicectl 1", "systemd.service 5", p->see_also, NULL};
    sl_manual_head(out, p->name, "8", p->date, p->summary);
    sl_manual_section(out, "SYNOPSIS");
    fprintf(out, ".Nm\n.Op Fl -config Ar FILE\n.Op Fl -key Ns = Ns Ar value ...\n");
    sl_manual_section(out, "DESCRIPTION");
    sl_manual_text(out, p->about);
    sl_manual_list_begin(out);
    sl_manual_item(out, "Fl", "--config", "FILE");
    sl_manual_text(out, "read options from FILE");
    for (size_t i = 0; i < SL_COUNTOF(words); i++) {
        sl_manual_item(out, "Fl", words[i].text, NULL);
        sl_manual_text(out, words[i].help);
    }
    sl_manual_list_end(out);
    manual_keys(p, out);
    sl_manual_section(out, "SIGNALS");
    sl_manual_text(out, p->signals);
    sl_manual_section(out, "FILES");
    sl_manual_list_begin(out);
    sl_manual_item(out, "Pa", p->config_file, NULL);
    sl_manual_text(out, "The config file of the systemd unit.");
    sl_manual_list_end(out);
    sl_manual_section(out, "EXIT STATUS");
    sl_manual_text(
        out, "0 after a stop that was asked for, 78 when the configuration or the model is wrong (systemd "
             "does not start it again), 1 otherwise.");
    sl_manual_see_also(out, see_also);
}

bool sl_program_answers(const struct sl_program *p, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            help(p, stdout);
        else if (strcmp(argv[i], "--version") == 0)
            printf("%s %s\n", p->name, p->version);
        else if (strcmp(argv[i], "--example-config") == 0)
            example(p, stdout);
        else if (strcmp(argv[i], "--manual") == 0)
            manual(p, stdout);
        else
            continue;
        return true;
    }
    return false;
}

void sl_program_tell_changes(const struct sl_program *p, const void *before, const void *now)
{
    for (const struct sl_conf_opt *o = p->opts; o->key; o++) {
        if (sl_conf_same(o, before, now))
            continue;
        if (reloads(p, o->key))
            SL_INFO("the reload changed an option key=%s", o->key);
        else
            SL_WARN("the config file has another value for an option that only a restart changes key=%s",
                    o->key);
    }
}
