/* tests/bench/agent_wire.h - what a bench and its agents say to each other: JSON documents in frames over one
 * TCP connection.
 *
 *     bench                                     agent
 *     {"hello", "url"}                       -> may it drive that server?
 *                                            <- {"ok"} or {"refused": sentence}
 *     {"ping"}                               -> as often as the clock estimate wants
 *                                            <- {"now_ns"}
 *     {"load": n, "timeout_s"}, then n jobs  ->
 *                                            <- {"ok"}
 *     {"go_ns"}                              -> the agent's clock; it sends its jobs from then on
 *                                            <- n results, in the order of the jobs
 *
 * A frame is its length, 4 bytes, most significant first, and the text. The two are one build of one program:
 * there is no version beside the hello's. */
#ifndef SLUICE_TESTS_BENCH_AGENT_WIRE_H
#define SLUICE_TESTS_BENCH_AGENT_WIRE_H

#include <jansson.h>

#include "tests/bench/client.h"

#define SL_AGENT_PROTOCOL "sluice-bench agent 1"
#define SL_AGENT_MAX_FRAME                                                                                   \
    (64u << 20) /* bytes of a frame: a job or a result of SL_CLIENT_MAX_ANSWER at most */

/* "host:port" or "[v6]:port", to connect to or to listen on (port 0: the system chooses; *port tells). Sends
 * and receives give up after timeout_s without progress. SL_EINVAL: no such form; SL_EPEER, SL_EIO with the
 * system's words. */
SL_MUST_CHECK enum sl_err sl_agent_connect(const char *address, double timeout_s, int *fd,
                                           struct sl_why *why);
SL_MUST_CHECK enum sl_err sl_agent_listen(const char *address, int *fd, unsigned *port, struct sl_why *why);
/* The next connection, its waits bounded by timeout_s; below 0 when accepting failed. */
int sl_agent_accept(int listen_fd, double timeout_s);

/* Takes doc. SL_EPEER when the other side is gone or silent. */
SL_MUST_CHECK enum sl_err sl_agent_send(int fd, json_t *doc);
/* *doc is the caller's. SL_EPEER, SL_EPROTO (too long, no JSON object). */
SL_MUST_CHECK enum sl_err sl_agent_receive(int fd, json_t **doc);

/* What is to be sent; what came back. A job is filled in both directions from its own half only. False: a
 * member is missing, or is not what it should be. */
json_t *sl_agent_pack_job(const struct sl_job *j);
SL_MUST_CHECK bool sl_agent_unpack_job(const json_t *doc, struct sl_job *j);
json_t *sl_agent_pack_result(const struct sl_job *j);
SL_MUST_CHECK bool sl_agent_unpack_result(const json_t *doc, struct sl_job *j);

#endif
