/* router/ctl/ctl_table.c - what sluicectl can do: the only list of commands and options. */
#include "router/ctl/ctl.h"

const char *const sl_ctl_formats[] = {"table", "wide", "json", "yaml", NULL};

const struct sl_ctl_option sl_ctl_options[] = {
    {"--router", 'r', SL_CTL_OPT_ROUTER, "URL", NULL, NULL,
     "the router's admin address (environment: SLUICE_ROUTER; default " SL_CTL_ROUTER
     "); over tcp SLUICE_CLUSTER_SECRET_FILE names the cluster's secret when it has one"},
    {"--output", 'o', SL_CTL_OPT_OUTPUT, "FORMAT", NULL, "table wide json yaml",
     "table for people (default), wide: all columns, json or yaml for scripts"},
    {"--timeout", 't', SL_CTL_OPT_TIMEOUT, "SECONDS", NULL, NULL,
     "wait this long for the answer (default 5)"},
    {"--watch", 'w', SL_CTL_OPT_WATCH, "SECONDS", NULL, NULL,
     "ask again every so many seconds until interrupted"},
    {"--no-headers", 0, SL_CTL_OPT_NO_HEADERS, NULL, NULL, NULL, "tables without the line of column names"},
    {"--follow", 'f', SL_CTL_OPT_FOLLOW, NULL, "events", NULL, "go on with what happens from now on"},
    {"--chrome", 0, SL_CTL_OPT_CHROME, NULL, "trace", NULL,
     "in Chrome's trace format, which ui.perfetto.dev and chrome://tracing load"},
    {"--help", 'h', SL_CTL_OPT_HELP, NULL, NULL, NULL,
     "this text; after a command: what it shows and how to read it"},
    {"--version", 0, SL_CTL_OPT_VERSION, NULL, NULL, NULL, "print the version"},
    {0},
};

#define NODE_HELP                                                                                            \
    "The parts of requests a node has, with the tokens computed and the pages held by each, and the node's " \
    "counters.\n\n    sluicectl node show decode-0\n"
#define DRAIN_HELP                                                                                           \
    "The node goes on with its requests until they end; `sluicectl nodes` shows 0 running and 0 transfers "  \
    "when it is safe to stop it.\n\n"                                                                        \
    "    sluicectl node drain decode-0 && sluicectl nodes -w 1\n"
#define UNDRAIN_HELP "    sluicectl node undrain decode-0\n"

const struct sl_ctl_command sl_ctl_commands[] = {
    {"status", "", 0, 0, false, "status", NULL, NULL, "is the cluster ready, what is wrong, and what to do",
     "One line says whether requests can be served and why not. Table problems, where there are any, says "
     "what "
     "is wrong and what to do, the worst first: error (requests fail), warning (fewer or slower than they "
     "could "
     "be), note. Table status has the numbers.\n"
     "Exit code 1 when the cluster is not ready, so scripts can wait for it:\n\n"
     "    until sluicectl status > /dev/null; do sleep 1; done\n",
     sl_ctl_ask},
    {"top", "", 0, 0, false, NULL, NULL, NULL, "the cluster live on one screen, until q is pressed",
     "Nodes with their load and tokens per second, problems, and the requests that are open, every second "
     "(-w "
     "SECONDS: less often). On something that is no terminal it prints one screen and ends.\n",
     sl_ctl_top},
    {"nodes", "[NODE]", 0, 1, false, "nodes",
     "cached_pages,step_error,tensor_parallel,cpus,chunk_tokens,prompt_tokens,decode_tokens,version,boot,"
     "command,transfer",
     "@nodes", "the nodes: state, duty, load, pages; or one of them from inside",
     "STATE   up, draining (finishes what runs), stalled (no layer computed for node_stall_ms with work at "
     "hand), "
     "dead\n"
     "PREFERS the duty the node is for; PERMITS what it may do: in mode colocated every node that may decode "
     "takes whole requests\n"
     "ROWS    sequences decoding now; QUEUED_TOKENS prompt tokens still to compute; PAGES_FREE of its KV "
     "pool\n\n"
     "    sluicectl nodes -o wide      addresses, boot ids, versions, tensor_parallel too\n"
     "    sluicectl nodes -w 1         once a second\n",
     sl_ctl_ask},
    {"node show", "NODE", 1, 1, false, "nodes", NULL, "@nodes", "one node from inside", NODE_HELP,
     sl_ctl_ask},
    {"node drain", "NODE", 1, 1, true, "drain", NULL, "@nodes",
     "place nothing new on a node; what runs there finishes", DRAIN_HELP, sl_ctl_ask},
    {"node undrain", "NODE", 1, 1, true, "undrain", NULL, "@nodes", "let a drained node take work again",
     UNDRAIN_HELP, sl_ctl_ask},
    {"node roles", "NODE prefill|decode|both", 2, 2, true, NULL, NULL, "@nodes",
     "what a node may do, until its next start",
     "Routers are told within a heartbeat; what runs there goes on. A node that may only prefill is no place "
     "for "
     "requests of mode colocated.\n\n    sluicectl node roles decode-0 both\n",
     sl_ctl_roles},
    {"node set", "NODE KEY VALUE", 3, 3, true, "set", NULL, "@nodes",
     "change an option of a node that runs, until its next start",
     "Keys: chunk_tokens, tpot_target_ms, chunk_stretch, speculation, roles, log_level, drain_ms, as in its "
     "config "
     "file, which stays as it is.\n\n    sluicectl node set decode-0 tpot_target_ms 40\n"
     "    sluicectl node set decode-0 chunk_tokens auto\n",
     sl_ctl_ask},
    {"drain", "NODE", 1, 1, true, "drain", NULL, "@nodes", "the same as node drain", DRAIN_HELP, sl_ctl_ask},
    {"undrain", "NODE", 1, 1, true, "undrain", NULL, "@nodes", "the same as node undrain", UNDRAIN_HELP,
     sl_ctl_ask},
    {"mode", "[pd|colocated|hybrid]", 0, 1, true, "mode", NULL, "pd colocated hybrid",
     "show or switch how requests are placed",
     "pd         the prompt on a prefill node, decoding on a decode node; KV pages travel between them\n"
     "colocated  one node does all, the prompt in chunks between the steps of others\n"
     "hybrid     decided for each request by predicted cost: pd, colocated, or split inside the prompt\n\n"
     "Requests that run are not touched. A client may choose for one request by the header X-Sluice-Mode.\n\n"
     "    sluicectl mode              show\n"
     "    sluicectl mode hybrid       switch\n",
     sl_ctl_ask},
    {"split", "[TOKENS|auto]", 0, 1, true, "split", NULL, "auto", "where mode hybrid splits prompts",
     "A number puts the split of every longer prompt there, rounded to whole pages, which is for "
     "comparisons; auto "
     "decides by predicted cost. A request's own X-Sluice-Split goes before it.\n\n"
     "    sluicectl split 512\n    sluicectl split auto\n",
     sl_ctl_ask},
    {"slo", "", 0, 0, false, "slo", NULL, NULL, "service classes: how many requests had what they wished for",
     "Of the requests that ended lately (at most 4096): how many wished for times, how many of these had "
     "both their "
     "time to first token and their time per token met; TTFT of all of the class.\n",
     sl_ctl_ask},
    {"links retest", "[NODE]", 0, 1, true, NULL, NULL, "@nodes",
     "measure links anew, try those that are down",
     "All that a prefill node dials, or those of one node; then `sluicectl links`. A link is measured when "
     "no pages "
     "travel on it.\n",
     sl_ctl_retest},
    {"links", "", 0, 0, false, "links", NULL, NULL,
     "page links between nodes: state, measured speed, traffic",
     "A link is tested when a prefill node first meets a decode node; its speed feeds placement.\n"
     "STATE up, testing, degraded (pages arrived damaged twice: used only when nothing else is there), down, "
     "refused. WHY says what the prefill node met with: which values differ, or how the connection broke.\n",
     sl_ctl_ask},
    {"events", "[N]", 0, 1, false, "events", "seq", NULL, "what happened to the cluster: the last N (20)",
     "Nodes that joined, were refused, drain, stall, die; links that change; readiness; switches of mode; "
     "requests "
     "that were placed again or failed. The router keeps the last 2048 since its start.\n\n"
     "    sluicectl events -f          and what happens from now on, until interrupted\n"
     "    sluicectl events 100 -o json\n",
     sl_ctl_events},
    {"requests", "[N]", 0, 1, false, "requests", NULL, NULL,
     "requests that are open, and the last N that ended (20)",
     "STATE placed (no token yet), streaming, waiting (all nodes full), ending; or how it ended\n"
     "P, S, D the placement: P computes the first S tokens of the prompt, D the rest and decodes\n\n"
     "    sluicectl requests 0        only open ones\n",
     sl_ctl_ask},
    {"cancel", "ID", 1, 1, true, "cancel", NULL, "@requests",
     "end a request; its pages are freed on all nodes",
     "The client gets an error. IDs are in `sluicectl requests`.\n\n    sluicectl cancel "
     "chatcmpl-0123456789abcdef-1f\n",
     sl_ctl_ask},
    {"explain", "ID|last", 1, 1, false, "explain", NULL, "@requests",
     "why a request was placed as it was, and what really happened",
     "A sentence, then three tables: record (facts by key: chunks and pages at both nodes, times by the "
     "router's clock, handover),\n"
     "placements (more than one after a fault) and candidates (predicted milliseconds, cheapest first).\n"
     "ID is the request's id or the client's X-Request-Id; the last 4096 requests are kept.\n\n"
     "    sluicectl explain last\n"
     "    sluicectl explain last -o json | jq -r '.tables[] | select(.title == \"record\") | .rows[] | "
     "@tsv'\n",
     sl_ctl_ask},
    {"trace", "ID|last", 1, 1, false, "trace", "token,token_at_ms,gap_ms", "@requests",
     "one request's time line over its nodes",
     "What the router and each node did with it, and when: waiting for its turn, placements, the queue of "
     "each node, "
     "prompt chunks, pages under way, decoding. -o wide, json and yaml have every token. Times of nodes are "
     "put on the "
     "router's clock as well as their messages allow; the row of a lane's queue says how far it may be "
     "off.\n\n"
     "    sluicectl trace last\n"
     "    sluicectl trace last --chrome > trace.json      for ui.perfetto.dev\n",
     sl_ctl_trace},
    {"leases", "[NODE]", 0, 1, false, NULL, NULL, "@nodes",
     "transfers of pages that are open, at both their ends",
     "A lease holds pages at the prefill node until the decode node has committed them. One that is old "
     "stands for a "
     "peer that does not answer.\n",
     sl_ctl_leases},
    {"pages", "[NODE]", 0, 1, false, NULL, NULL, "@nodes",
     "KV pages: in use, free, cached, and how often a prefix was there",
     "EVICTABLE pages are cached prefixes that give way when pages are needed; IN_USE by sequences now. "
     "HIT_PERCENT of "
     "prompt tokens that were looked up since the node's start.\n",
     sl_ctl_pages},
    {"config show", "[NODE]", 0, 1, false, "config", NULL, "@nodes",
     "options of the router, or of a node, as they are now",
     "CHANGE says how: reload (the file is read again), node set, or restart.\n", sl_ctl_ask},
    {"config reload", "[NODE]", 0, 1, true, "reload", NULL, "@nodes",
     "read the config file again, as systemctl reload does",
     "The journal says which keys took effect and which need a restart; a file that is wrong changes "
     "nothing.\n",
     sl_ctl_ask},
    {"keys add", "NAME [FILE]", 1, 2, true, NULL, NULL, NULL, "make an API key; only its hash is kept",
     "Prints a new key, which is written nowhere else, and appends NAME:sha256:SALT:DIGEST to FILE, the "
     "router's "
     "api_key_file; without FILE the line is shown. The router takes it at a reload. Behind the line may "
     "stand "
     "limits: max_requests=N open at once, requests_per_minute=N, tokens_per_minute=N, min_priority=N, "
     "classes=A|B.\n\n"
     "    sluicectl keys add alice /etc/sluice/api-keys\n"
     "    systemctl reload sluice-router\n",
     sl_ctl_keys_add},
    {"keys list", "FILE", 1, 1, false, NULL, NULL, NULL, "the keys of a file: names, whether hashed, limits",
     "Shows no key, whatever the file has.\n", sl_ctl_keys_list},
    {"keys check", "FILE", 1, 1, false, NULL, NULL, NULL, "whose key is it",
     "Reads a key from the standard input, where no list of processes shows it, and prints its name.\n",
     sl_ctl_keys_check},
    {"completion", "bash", 1, 1, false, NULL, NULL, "bash", "print a completion script for the shell",
     "    source <(sluicectl completion bash)\n", sl_ctl_completion},
    {"manual", "", 0, 0, false, NULL, NULL, NULL, "print the manual page as mdoc source",
     "    sluicectl manual | man -l -\n", sl_ctl_manual},
    {0},
};
