/* tests/bench/agents.c - see agents.h; the words are in agent_wire.h, the other side is cmd_agent.c. */
#include "tests/bench/agents.h"

#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/bench/agent_wire.h"

#define PINGS         16          /* the shortest of so many round trips tells the offset */
#define SILENCE_S     30.0        /* of an agent that owes an answer and has no load to run */
#define TO_GO_NS      200000000.0 /* from the word to the start: every agent has it by then */
#define RUN_MARGIN_MS 30000       /* beyond the load's own time limit, for the results to come */

struct agent {
    char *address;
    int fd;
    bool lost;
    uint64_t n_sent;
    /* its clock less ours; half the round trip it was taken from; from the first estimate to the last */
    double offset_ns, error_ns, first_offset_ns;
    bool synced;
};

struct sl_agents {
    char *url, *api_key;
    struct agent *agents;
    size_t n; /* 0 = this process */
};

/* ---- one agent ---- */

static enum sl_err ask(struct agent *a, json_t *question, json_t **answer)
{
    enum sl_err e = sl_agent_send(a->fd, question);
    return e ? e : sl_agent_receive(a->fd, answer);
}

/* Had the answer come back as fast as the question went, the agent's clock was read in the middle. */
static enum sl_err sync_clock(struct agent *a)
{
    double best_rtt = INFINITY;
    for (unsigned i = 0; i < PINGS; i++) {
        json_t *answer;
        uint64_t asked = sl_now_ns();
        enum sl_err e = ask(a, json_pack("{s:b}", "ping", 1), &answer);
        double rtt = (double)(sl_now_ns() - asked);
        if (e)
            return e;
        json_t *now = json_object_get(answer, "now_ns");
        double offset = (double)(json_integer_value(now) - (json_int_t)asked) - rtt / 2;
        bool known = json_is_integer(now);
        json_decref(answer);
        if (!known)
            return SL_EPROTO;
        if (rtt >= best_rtt)
            continue;
        best_rtt = rtt;
        a->offset_ns = offset;
        a->error_ns = rtt / 2;
    }
    if (!a->synced)
        a->first_offset_ns = a->offset_ns;
    a->synced = true;
    return SL_OK;
}

static enum sl_err greet(struct agent *a, const char *url, struct sl_why *why)
{
    json_t *answer;
    enum sl_err e = ask(a, json_pack("{s:s, s:s}", "hello", SL_AGENT_PROTOCOL, "url", url), &answer);
    if (e)
        return sl_why_set(why, e, "the agent at %s does not answer as one", a->address);
    const char *refused = json_string_value(json_object_get(answer, "refused"));
    if (refused)
        e = sl_why_set(why, SL_EDENIED, "the agent at %s refused: %s", a->address, refused);
    json_decref(answer);
    if (e == SL_OK && (e = sync_clock(a)))
        sl_why_set(why, e, "the agent at %s went away while its clock was read", a->address);
    return e;
}

enum sl_err sl_agents_open(const struct sl_conf_list *list, const char *url, const char *api_key,
                           struct sl_agents **out, struct sl_why *why)
{
    struct sl_agents *s = sl_xcalloc(1, sizeof *s);
    enum sl_err e = SL_OK;
    s->url = sl_xstrdup(url);
    s->api_key = api_key ? sl_xstrdup(api_key) : NULL;
    s->agents = sl_xcalloc(list->n ? list->n : 1, sizeof *s->agents);
    for (; s->n < list->n && !e; s->n++) {
        struct agent *a = &s->agents[s->n];
        a->fd = -1;
        a->address = sl_xstrdup(list->items[s->n]);
        e = sl_agent_connect(a->address, SILENCE_S, &a->fd, why);
        if (e == SL_OK)
            e = greet(a, url, why);
    }
    if (e)
        sl_agents_close(s);
    else
        *out = s;
    return e;
}

void sl_agents_close(struct sl_agents *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++) {
        if (s->agents[i].fd >= 0)
            close(s->agents[i].fd);
        sl_free(s->agents[i].address);
    }
    sl_free(s->agents);
    sl_free(s->url);
    sl_free(s->api_key);
    sl_free(s);
}

/* ---- a load ---- */

static size_t share_of(const struct sl_agents *s, size_t i, size_t n)
{
    return n / s->n + (i < n % s->n);
}

/* The agent takes its requests in and is ready to go. */
static enum sl_err hand_out(struct sl_agents *s, size_t i, const struct sl_job *jobs, size_t n,
                            double timeout_s)
{
    struct agent *a = &s->agents[i];
    json_t *answer;
    enum sl_err e = sync_clock(a);
    if (e == SL_OK)
        e = sl_agent_send(
            a->fd, json_pack("{s:I, s:f}", "load", (json_int_t)share_of(s, i, n), "timeout_s", timeout_s));
    for (size_t k = i; k < n && !e; k += s->n)
        e = sl_agent_send(a->fd, sl_agent_pack_job(&jobs[k]));
    if (e == SL_OK && (e = sl_agent_receive(a->fd, &answer)) == SL_OK) {
        e = json_is_true(json_object_get(answer, "ok")) ? SL_OK : SL_EPROTO;
        json_decref(answer);
    }
    return e;
}

/* Waits for its results until end_ms of our clock. */
static enum sl_err collect(struct sl_agents *s, size_t i, struct sl_job *jobs, size_t n, uint64_t end_ms)
{
    struct agent *a = &s->agents[i];
    for (size_t k = i; k < n; k += s->n) {
        struct pollfd p = {.fd = a->fd, .events = POLLIN};
        uint64_t now = sl_now_ms();
        json_t *result;
        if (now >= end_ms || poll(&p, 1, (int)(end_ms - now)) <= 0)
            return SL_EPEER;
        enum sl_err e = sl_agent_receive(a->fd, &result);
        if (e)
            return e;
        bool ok = sl_agent_unpack_result(result, &jobs[k]);
        json_decref(result);
        if (!ok)
            return SL_EPROTO;
        a->n_sent++;
    }
    return SL_OK;
}

static void lose(struct sl_agents *s, size_t i, struct sl_job *jobs, size_t n, struct sl_why *why)
{
    struct agent *a = &s->agents[i];
    if (!a->lost) {
        a->lost = true;
        close(a->fd);
        a->fd = -1;
        sl_why_set(why, SL_EPEER, "the agent at %s was lost", a->address);
    }
    for (size_t k = i; k < n; k += s->n)
        if (jobs[k].status == 0)
            snprintf(jobs[k].error, sizeof jobs[k].error, "its agent %.128s was lost", a->address);
}

enum sl_err sl_agents_run(struct sl_agents *s, struct sl_job *jobs, size_t n, double timeout_s,
                          const char *progress, struct sl_why *why)
{
    if (s->n == 0)
        return sl_client_run(s->url, s->api_key, jobs, n, timeout_s, progress);
    bool lost = false, answered = n == 0;
    for (size_t i = 0; i < s->n; i++)
        if (s->agents[i].lost || hand_out(s, i, jobs, n, timeout_s))
            lose(s, i, jobs, n, why);
    double go_ns = (double)sl_now_ns() + TO_GO_NS;
    for (size_t i = 0; i < s->n; i++) {
        struct agent *a = &s->agents[i];
        if (!a->lost && sl_agent_send(a->fd, json_pack("{s:I}", "go_ns", (json_int_t)(go_ns + a->offset_ns))))
            lose(s, i, jobs, n, why);
    }
    uint64_t end_ms = sl_now_ms() + (uint64_t)(timeout_s * 1e3) + RUN_MARGIN_MS;
    for (size_t i = 0; i < s->n; i++) {
        if (!s->agents[i].lost && collect(s, i, jobs, n, end_ms))
            lose(s, i, jobs, n, why);
        lost |= s->agents[i].lost;
    }
    for (size_t k = 0; k < n; k++)
        answered |= jobs[k].status != 0;
    if (progress)
        fprintf(stderr, "%s: %zu requests from %zu agents\n", progress, n, s->n);
    return lost || !answered ? SL_EPEER : SL_OK;
}

/* ---- report ---- */

static double drift_ns(const struct agent *a)
{
    return a->offset_ns - a->first_offset_ns;
}

void sl_agents_print(const struct sl_agents *s)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct agent *a = &s->agents[i];
        printf("agent %s: %" PRIu64 " requests, its clock is %+.3f ms off ours (within %.0f us), moved by "
               "%+.0f us during the run%s\n",
               a->address, a->n_sent, a->offset_ns / 1e6, a->error_ns / 1e3, drift_ns(a) / 1e3,
               a->lost ? "; LOST, its requests count as errors" : "");
    }
}

json_t *sl_agents_report(const struct sl_agents *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->n; i++) {
        const struct agent *a = &s->agents[i];
        json_array_append_new(list, json_pack("{s:s, s:I, s:f, s:f, s:f, s:b}", "agent", a->address,
                                              "requests", (json_int_t)a->n_sent, "offset_us",
                                              a->offset_ns / 1e3, "offset_error_us", a->error_ns / 1e3,
                                              "drift_us", drift_ns(a) / 1e3, "lost", (int)a->lost));
    }
    return list;
}
