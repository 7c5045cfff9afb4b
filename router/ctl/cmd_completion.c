/* router/ctl/cmd_completion.c - a bash completion script, made from the tables.
 *
 * Names of nodes and requests come from others: they are never given to compgen -W, which expands its words,
 * and go into the command line quoted. */
#include "router/ctl/ctl.h"

#include <string.h>

/* The arm of a case: what may follow `after`. */
static void put_words(const char *after, const char *words)
{
    if (strcmp(words, "@nodes") == 0)
        printf("    %s) names=$(sluicectl nodes --no-headers 2>/dev/null) ;;\n", after);
    else if (strcmp(words, "@requests") == 0)
        printf("    %s) words=last names=$(sluicectl requests --no-headers 2>/dev/null) ;;\n", after);
    else
        printf("    %s) words='%s' ;;\n", after, words);
}

static void put_first_words(void)
{
    size_t n = 0;
    const char *last = "";
    for (const struct sl_ctl_command *c = sl_ctl_commands; c->name; c++) {
        size_t len = strcspn(c->name, " ");
        if (len != n || strncmp(last, c->name, len) != 0)
            printf("%.*s ", (int)len, c->name);
        last = c->name;
        n = len;
    }
}

/* Once for each first word: the words that can follow it. */
static void put_second_words(void)
{
    for (const struct sl_ctl_command *c = sl_ctl_commands; c->name; c++) {
        size_t len = strcspn(c->name, " ");
        bool seen = c->name[len] == '\0';
        for (const struct sl_ctl_command *k = sl_ctl_commands; !seen && k < c; k++)
            seen = strncmp(k->name, c->name, len + 1) == 0;
        if (seen)
            continue;
        printf("    %.*s) words='", (int)len, c->name);
        for (const struct sl_ctl_command *k = c; k->name; k++)
            if (strncmp(k->name, c->name, len + 1) == 0)
                printf("%s ", k->name + len + 1);
        printf("' ;;\n");
    }
}

enum sl_ctl_exit sl_ctl_completion(const struct sl_ctl_call *call)
{
    if (strcmp(call->args[0], "bash") != 0) {
        fprintf(stderr, "sluicectl: completion is written for bash, not for '%.40s'.\n", call->args[0]);
        return SL_CTL_REFUSED;
    }
    printf("_sluicectl() {\n    local cur=\"${COMP_WORDS[COMP_CWORD]}\" one two='' words='' names='' w rest\n"
           "    one=\"${COMP_WORDS[COMP_CWORD - 1]}\"\n"
           "    [ \"$COMP_CWORD\" -lt 2 ] || two=\"${COMP_WORDS[COMP_CWORD - 2]} $one\"\n"
           "    case \"$two\" in\n");
    for (const struct sl_ctl_command *c = sl_ctl_commands; c->name; c++)
        if (c->words && strchr(c->name, ' ')) {
            char after[48];
            snprintf(after, sizeof after, "'%s'", c->name);
            put_words(after, c->words);
        }
    printf("    *) case \"$one\" in\n");
    for (const struct sl_ctl_option *o = sl_ctl_options; o->name; o++)
        if (o->words) {
            char after[48];
            snprintf(after, sizeof after, "-%c | %s", o->letter, o->name);
            put_words(after, o->words);
        }
    put_second_words();
    for (const struct sl_ctl_command *c = sl_ctl_commands; c->name; c++)
        if (c->words && !strchr(c->name, ' '))
            put_words(c->name, c->words);
    printf("    *) words='");
    put_first_words();
    for (const struct sl_ctl_option *o = sl_ctl_options; o->name; o++)
        printf("%s%s", o->name, o[1].name ? " " : "");
    printf("' ;;\n    esac ;;\n    esac\n"
           "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
           "    while read -r w rest; do\n"
           "        [[ -z $w || $w != \"$cur\"* ]] || COMPREPLY+=(\"$(printf %%q \"$w\")\")\n"
           "    done <<<\"$names\"\n"
           "}\ncomplete -F _sluicectl sluicectl\n");
    return SL_CTL_OK;
}
