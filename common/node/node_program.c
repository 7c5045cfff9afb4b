/* common/node/node_program.c - the daemons differ in the duty they prefer, and so in a few words. */
#include "common/node/node_program.h"

#include "common/node/node_conf.h"

static const char *const reloads[] = {"drain_ms", "log_level", NULL};

/* The head of the example config file of a duty. */
#define CONFIG_ABOUT(duty)                                                                                   \
    "/etc/sluice/" duty "-0.conf: sluice-" duty "@0.service reads it. Copy it to " duty                      \
    "-1.conf for a second node of this machine, sluice-" duty "@1.service, and so on.\n\n"                   \
    "One key has no default and must be set: model. On several machines set also name, routers (the "        \
    "router's register_url), listen and transfer_listen (an address that the other machines reach), and "    \
    "cpus (the cores of this node). To see whether all is right: sluice-" duty                               \
    " --config FILE --check-config\n"

#define FIRST_RUN(duty) "\n\n    sluice-" duty " --routers tcp://127.0.0.1:7100 --model model.gguf\n"

struct sl_program sl_node_program(const char *name, Sluice__Role prefers)
{
    bool prefill = prefers == SLUICE__ROLE__ROLE_PREFILL;
    return (struct sl_program){
        .name = name,
        .version = SL_VERSION,
        .date = SL_DATE,
        .summary = prefill ? "node of a Sluice cluster that prefers to compute prompts"
                           : "node of a Sluice cluster that prefers to decode",
        .about = prefill
                     ? "Computes prompts and streams their KV pages to a decode node, and decodes as well "
                       "where its roles permit. It registers at the routers that its configuration "
                       "names." FIRST_RUN("prefill")
                     : "Decodes, and computes prompts in chunks between the steps where its roles permit. "
                       "It registers at the routers that its configuration names." FIRST_RUN("decode"),
        .signals =
            "SIGTERM and SIGINT end a node that is still loading at once. Later they drain: nothing new is "
            "taken, what runs gets drain_ms, and what is left "
            "then is given back to the routers, which place it elsewhere: no stream is lost. The second "
            "one ends at once.\n\n"
            "SIGHUP reads the config file again. CONFIGURATION says which keys take effect; for any "
            "other that differs the log names the key that needs a restart. A file that is wrong "
            "changes nothing.\n\n"
            "The watchdog of systemd is fed only while the engine computes layers, or has nothing to "
            "do.\n",
        .config_file = prefill ? "/etc/sluice/prefill-0.conf" : "/etc/sluice/decode-0.conf",
        .config_about = prefill ? CONFIG_ABOUT("prefill") : CONFIG_ABOUT("decode"),
        .section = "node",
        .see_also = prefill ? "sluice-decode 8" : "sluice-prefill 8",
        .opts = sl_node_opts,
        .reloads = reloads,
        .must_set = "model",
        .must_value = "/var/lib/sluice/models/model.gguf",
    };
}
