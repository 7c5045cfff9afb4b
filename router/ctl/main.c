/* router/ctl/main.c - sluicectl. One thread; nng brings its own for the one call. */
#include "router/ctl/ctl.h"

int main(int argc, char **argv)
{
    struct sl_ctl_call call;
    struct sl_why why = {{0}};
    if (sl_ctl_parse(argc, argv, &call, &why)) {
        fprintf(stderr, "sluicectl: %s Try sluicectl --help.\n", why.text);
        return SL_CTL_USAGE;
    }
    if (call.version) {
        puts("sluicectl " SLUICE_VERSION);
        return SL_CTL_OK;
    }
    if (call.help) {
        if (call.command)
            sl_ctl_command_help(call.command, stdout);
        else
            sl_ctl_help(stdout);
        return SL_CTL_OK;
    }
    return call.command->run(&call);
}
