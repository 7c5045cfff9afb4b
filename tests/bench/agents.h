/* tests/bench/agents.h - where a load comes from: this process, or several agents on other machines that
 * share it.
 *
 * Each agent sends every n-th request, at times that count from one moment for all of them. Delays are
 * measured by the agent that sent the request, so no clock but its own is in them; what two clocks have to do
 * with is the common start, and times of different agents in one line (throughput). The offset between the
 * bench's clock and an agent's is taken from the exchange with the shortest round trip, half of which bounds
 * its error. */
#ifndef SLUICE_TESTS_BENCH_AGENTS_H
#define SLUICE_TESTS_BENCH_AGENTS_H

#include <jansson.h>

#include "common/base/conf.h"
#include "tests/bench/client.h"

struct sl_agents;

/* Connects to every address of list; with an empty list the load comes from this process. Refused when an
 * agent does not drive url. SL_EPEER, SL_EINVAL, SL_EDENIED. */
SL_MUST_CHECK enum sl_err sl_agents_open(const struct sl_conf_list *list, const char *url,
                                         const char *api_key, struct sl_agents **out, struct sl_why *why);
void sl_agents_close(struct sl_agents *a); /* takes NULL */

/* As sl_client_run(), over all agents. The requests of an agent that is lost get an error that names it;
 * SL_EPEER when one was lost, with a sentence, or when nobody could reach the server. */
SL_MUST_CHECK enum sl_err sl_agents_run(struct sl_agents *a, struct sl_job *jobs, size_t n, double timeout_s,
                                        const char *progress, struct sl_why *why);

/* Prints a line for each agent: requests sent, clock offset and its error, drift. */
void sl_agents_print(const struct sl_agents *a);
/* [{"agent", "requests", "offset_us", "offset_error_us", "drift_us", "lost"}] */
json_t *sl_agents_report(const struct sl_agents *a);

#endif
