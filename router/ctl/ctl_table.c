/* router/ctl/ctl_table.c - what sluicectl can do: the only list of commands and options. */
#include "router/ctl/ctl.h"

const struct sl_ctl_option sl_ctl_options[] = {
    {"--router", 'r', "URL",
     "the router's admin address (environment: SLUICE_ROUTER; default " SL_CTL_ROUTER ")"},
    {"--output", 'o', "table|wide|json",
     "table for people (default), wide with all columns, json for scripts"},
    {"--timeout", 't', "SECONDS", "wait this long for the answer (default 5)"},
    {"--watch", 'w', "SECONDS", "ask again every so many seconds until interrupted"},
    {"--no-headers", 0, NULL, "tables without the line of column names"},
    {"--help", 'h', NULL, "this text; after a command: what it shows and how to read it"},
    {"--version", 0, NULL, "print the version"},
    {0},
};

const struct sl_ctl_command sl_ctl_commands[] = {
    {"status", "", 0, 0, false, "is the cluster ready, in which mode, how full",
     "One line says whether requests can be served and why not; the table has the numbers behind it.\n"
     "Exit code 1 when the cluster is not ready, so scripts can wait for it:\n\n"
     "    until sluicectl status > /dev/null; do sleep 1; done\n",
     sl_ctl_show},
    {"nodes", "[NODE]", 0, 1, false, "the nodes: state, duty, load, pages; or one of them from inside",
     "STATE   up, draining (finishes what runs), stalled (no layer computed for node_stall_ms with work at "
     "hand), "
     "dead\n"
     "PREFERS the duty the node is for; PERMITS what it may do: in mode colocated every node that may decode "
     "takes whole requests\n"
     "ROWS    sequences decoding now; QUEUED_TOKENS prompt tokens still to compute; PAGES_FREE of its KV "
     "pool\n\n"
     "    sluicectl nodes decode-0     the parts of requests it has, and its counters\n"
     "    sluicectl nodes -o wide      addresses, boot ids, versions too\n"
     "    sluicectl nodes -w 1         once a second\n",
     sl_ctl_nodes},
    {"mode", "[pd|colocated|hybrid]", 0, 1, true, "show or switch how requests are placed",
     "pd         the prompt on a prefill node, decoding on a decode node; KV pages travel between them\n"
     "colocated  one node does all, the prompt in chunks between the steps of others\n"
     "hybrid     decided for each request by predicted cost: pd, colocated, or split inside the prompt\n\n"
     "Requests that run are not touched. A client may choose for one request by the header X-Sluice-Mode.\n\n"
     "    sluicectl mode              show\n"
     "    sluicectl mode hybrid       switch\n",
     sl_ctl_show},
    {"drain", "NODE", 1, 1, true, "place nothing new on a node; what runs there finishes",
     "The node goes on with its requests until they end; `sluicectl nodes` shows 0 running and 0 transfers "
     "when it is safe to stop it.\n\n"
     "    sluicectl drain decode-0 && sluicectl nodes -w 1\n",
     sl_ctl_show},
    {"undrain", "NODE", 1, 1, true, "let a drained node take work again", "    sluicectl undrain decode-0\n",
     sl_ctl_show},
    {"links", "", 0, 0, false, "page links between nodes: state, measured speed, traffic",
     "A link is tested when a prefill node first meets a decode node; its speed feeds placement.\n"
     "STATE up, testing, degraded (pages arrived damaged twice: used only when nothing else is there), down, "
     "refused (WHY says which\n"
     "values differ)\n",
     sl_ctl_show},
    {"requests", "[N]", 0, 1, false, "requests that are open, and the last N that ended (20)",
     "STATE placed (no token yet), streaming, waiting (all nodes full), ending; or how it ended\n"
     "P, S, D the placement: P computes the first S tokens of the prompt, D the rest and decodes\n\n"
     "    sluicectl requests 0        only open ones\n",
     sl_ctl_show},
    {"cancel", "ID", 1, 1, true, "end a request; its pages are freed on all nodes",
     "The client gets an error. IDs are in `sluicectl requests`.\n\n    sluicectl cancel "
     "chatcmpl-0123456789abcdef-1f\n",
     sl_ctl_show},
    {"explain", "ID|last", 1, 1, false, "why a request was placed as it was, and what really happened",
     "A sentence, then three tables: record (facts by key: chunks and pages at both nodes, times by the "
     "router's clock, handover),\n"
     "placements (more than one after a fault) and candidates (predicted milliseconds, cheapest first).\n"
     "ID is the request's id or the client's X-Request-Id; the last 4096 requests are kept.\n\n"
     "    sluicectl explain last\n"
     "    sluicectl explain last -o json | jq -r '.tables[] | select(.title == \"record\") | .rows[] | "
     "@tsv'\n",
     sl_ctl_show},
    {"completion", "bash", 1, 1, false, "print a completion script for the shell",
     "    source <(sluicectl completion bash)\n", sl_ctl_completion},
    {"manual", "", 0, 0, false, "print the manual page as mdoc source", "    sluicectl manual | man -l -\n",
     sl_ctl_manual},
    {0},
};
