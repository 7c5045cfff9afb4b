/* router/ctl/cmd_completion.c - a bash completion script, made from the tables. */
#include "router/ctl/ctl.h"

#include <string.h>

enum sl_ctl_exit sl_ctl_completion(const struct sl_ctl_call *call)
{
    if (strcmp(call->args[0], "bash") != 0) {
        fprintf(stderr, "sluicectl: completion is written for bash, not for '%s'.\n", call->args[0]);
        return SL_CTL_REFUSED;
    }
    printf("_sluicectl() {\n    local words\n    case \"${COMP_WORDS[COMP_CWORD - 1]}\" in\n");
    printf("    mode) words='pd colocated hybrid' ;;\n    explain) words='last' ;;\n    completion) "
           "words='bash' ;;\n");
    printf("    -o | --output) words='table wide json' ;;\n");
    printf("    drain | undrain) words=$(sluicectl nodes --no-headers 2>/dev/null | cut -d' ' -f1) ;;\n");
    printf("    cancel) words=$(sluicectl requests 0 --no-headers 2>/dev/null | cut -d' ' -f1) ;;\n");
    printf("    *) words='");
    for (const struct sl_ctl_command *c = sl_ctl_commands; c->name; c++)
        printf("%s ", c->name);
    for (const struct sl_ctl_option *o = sl_ctl_options; o->name; o++)
        printf("%s%s", o->name, o[1].name ? " " : "");
    printf("' ;;\n    esac\n    COMPREPLY=($(compgen -W \"$words\" -- \"${COMP_WORDS[COMP_CWORD]}\"))\n}\n"
           "complete -F _sluicectl sluicectl\n");
    return SL_CTL_OK;
}
