/* tests/bench/texts.c - the manual page and the shell completion of sluice-bench, made from its commands. */
#include <stdio.h>

#include "common/base/manual.h"
#include "tests/bench/bench.h"

void sl_bench_manual(const struct sl_bench_command *const *commands, FILE *out)
{
    static const char *const see_also[] = {"sluicectl 1", "sluice-router 8", NULL};
    sl_manual_head(out, "sluice-bench", "1", SLUICE_DATE, "judge a Sluice cluster and its engine");
    sl_manual_section(out, "SYNOPSIS");
    fputs(".Nm\n.Ar command\n.Op Fl -key Ns = Ns Ar value ...\n", out);
    sl_manual_section(out, "DESCRIPTION");
    sl_manual_text(out, "Every command has its own options and lists them with --help.\n");
    sl_manual_section(out, "COMMANDS");
    for (; *commands; commands++) {
        fprintf(out, ".Ss %s\n", (*commands)->name);
        sl_manual_text(out, (*commands)->help);
        sl_manual_list_begin(out);
        for (const struct sl_conf_opt *o = (*commands)->options; o->key; o++) {
            char flag[64], expected[SL_CONF_EXPECTED_MAX], facts[2 * SL_CONF_EXPECTED_MAX];
            sl_conf_flag(o, flag, sizeof flag);
            sl_conf_expected(o, expected, sizeof expected);
            snprintf(facts, sizeof facts, "Expected: %s; default: %s.\n", expected,
                     o->dflt && *o->dflt ? o->dflt : "none");
            sl_manual_item(out, "Fl", flag, NULL);
            sl_manual_text(out, o->help);
            fputs(".br\n", out);
            sl_manual_text(out, facts);
        }
        sl_manual_list_end(out);
    }
    sl_manual_section(out, "EXIT STATUS");
    sl_manual_text(out, "0 good, 1 a check failed, 2 bad options, 3 the server cannot be reached.\n");
    sl_manual_see_also(out, see_also);
}

void sl_bench_completion(const struct sl_bench_command *const *commands, FILE *out)
{
    fputs("_sluice_bench() {\n    local words\n    case \"${COMP_WORDS[1]}\" in\n", out);
    for (const struct sl_bench_command *const *c = commands; *c; c++) {
        fprintf(out, "    %s) words='--help", (*c)->name);
        for (const struct sl_conf_opt *o = (*c)->options; o->key; o++) {
            char flag[64];
            sl_conf_flag(o, flag, sizeof flag);
            fprintf(out, " %s=", flag);
        }
        fputs("' ;;\n", out);
    }
    fputs("    esac\n    if [ \"$COMP_CWORD\" = 1 ]; then words='", out);
    for (const struct sl_bench_command *const *c = commands; *c; c++)
        fprintf(out, "%s ", (*c)->name);
    fputs("completion manual help'; fi\n    COMPREPLY=($(compgen -W \"$words\" -- "
          "\"${COMP_WORDS[COMP_CWORD]}\"))\n}\n"
          "complete -o nospace -o default -F _sluice_bench sluice-bench\n",
          out);
}
