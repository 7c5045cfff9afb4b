/* tests/bench/cmd_agent.c - sends a part of another bench's load from this machine.
 *
 * It serves one bench at a time and drives the one server it was started for: a bench that names another URL
 * is refused, and so is a request to any path beside /v1/. The key of that server is given here and never
 * travels. Whoever can reach the port can therefore put load on that server, and nothing else: listen on an
 * address of the test's own network. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/bench/agent_wire.h"
#include "tests/bench/bench.h"

#define MAX_JOBS  (1u << 20) /* of one load */
#define SILENCE_S 3600.0     /* of a bench, between two of its questions: it may run other things */

struct options {
    char *listen, *url, *api_key;
};

#define AT(m) offsetof(struct options, m)
static const struct sl_conf_opt option_table[] = {
    {"listen", SL_CONF_STRING, AT(listen), "127.0.0.1:7070", "address and port for the bench; port 0 = any",
     0, 0, NULL},
    {"url", SL_CONF_STRING, AT(url), "http://127.0.0.1:8000", "the only server that it sends requests to", 0,
     0, NULL},
    {"api_key", SL_CONF_STRING, AT(api_key), NULL, "bearer key of that server", 0, 0, NULL},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

struct load {
    struct sl_job *jobs;
    size_t n;
    double timeout_s;
};

static void load_fini(struct load *l)
{
    for (size_t i = 0; i < l->n; i++)
        sl_job_fini(&l->jobs[i]);
    sl_free(l->jobs);
    *l = (struct load){0};
}

static enum sl_err answer_ok(int fd)
{
    return sl_agent_send(fd, json_pack("{s:b}", "ok", 1));
}

/* text is taken. */
static enum sl_err refuse(int fd, char *text)
{
    (void)!sl_agent_send(fd, json_pack("{s:s}", "refused", text));
    sl_free(text);
    return SL_EDENIED;
}

static enum sl_err on_hello(const struct options *o, int fd, const json_t *doc)
{
    const char *hello = json_string_value(json_object_get(doc, "hello")),
               *url = json_string_value(json_object_get(doc, "url"));
    if (!hello || strcmp(hello, SL_AGENT_PROTOCOL) != 0)
        return refuse(
            fd, sl_xasprintf("it speaks \"%s\"; start the same version on both sides", SL_AGENT_PROTOCOL));
    if (!url || strcmp(url, o->url) != 0)
        return refuse(fd, sl_xasprintf("it was started for %s and sends to nothing else", o->url));
    return answer_ok(fd);
}

static enum sl_err on_load(int fd, const json_t *doc, struct load *l)
{
    json_int_t n = json_integer_value(json_object_get(doc, "load"));
    load_fini(l);
    if (n < 0 || n > MAX_JOBS)
        return SL_EPROTO;
    l->timeout_s = json_number_value(json_object_get(doc, "timeout_s"));
    l->jobs = sl_xcalloc((size_t)n + 1, sizeof *l->jobs);
    while (l->n < (size_t)n) {
        json_t *job;
        enum sl_err e = sl_agent_receive(fd, &job);
        if (e)
            return e;
        bool ok = sl_agent_unpack_job(job, &l->jobs[l->n]);
        json_decref(job);
        if (!ok)
            return SL_EPROTO;
        l->n++;
    }
    return answer_ok(fd);
}

static void sleep_until(uint64_t at_ns)
{
    uint64_t now = sl_now_ns();
    if (at_ns <= now)
        return;
    struct timespec t = {.tv_sec = (time_t)((at_ns - now) / 1000000000),
                         .tv_nsec = (long)((at_ns - now) % 1000000000)};
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

static enum sl_err on_go(const struct options *o, int fd, const json_t *doc, struct load *l)
{
    fprintf(stderr, "%zu requests to send\n", l->n);
    sleep_until((uint64_t)json_integer_value(json_object_get(doc, "go_ns")));
    /* Nobody answered: every result says so. */
    (void)!sl_client_run(o->url, o->api_key, l->jobs, l->n, l->timeout_s, "load");
    enum sl_err e = SL_OK;
    for (size_t i = 0; i < l->n && !e; i++)
        e = sl_agent_send(fd, sl_agent_pack_result(&l->jobs[i]));
    load_fini(l);
    return e;
}

/* One bench, until it goes or breaks the rules. */
static enum sl_err serve(const struct options *o, int fd)
{
    struct load l = {0};
    bool greeted = false;
    enum sl_err e = SL_OK;
    while (e == SL_OK) {
        json_t *doc;
        if ((e = sl_agent_receive(fd, &doc)))
            break;
        if (!greeted)
            e = on_hello(o, fd, doc);
        else if (json_object_get(doc, "ping"))
            e = sl_agent_send(fd, json_pack("{s:I}", "now_ns", (json_int_t)sl_now_ns()));
        else if (json_object_get(doc, "load"))
            e = on_load(fd, doc, &l);
        else if (json_object_get(doc, "go_ns"))
            e = on_go(o, fd, doc, &l);
        else
            e = SL_EPROTO;
        greeted = e == SL_OK;
        json_decref(doc);
    }
    load_fini(&l);
    return e;
}

static int run(const void *options, struct sl_why *why)
{
    const struct options *o = options;
    int listen_fd, fd;
    unsigned port;
    if (sl_agent_listen(o->listen, &listen_fd, &port, why))
        return SL_BENCH_USAGE;
    fprintf(stderr, "listening on %s, port %u, for %s\n", o->listen, port, o->url);
    while ((fd = sl_agent_accept(listen_fd, SILENCE_S)) >= 0) {
        enum sl_err e = serve(o, fd);
        fprintf(stderr, "a bench is gone: %s\n", e == SL_EPEER ? "it hung up" : sl_err_name(e));
        close(fd);
    }
    sl_why_set(why, SL_EIO, "cannot accept connections: %s", strerror(errno));
    close(listen_fd);
    return SL_BENCH_FAILED;
}

const struct sl_bench_command sl_bench_agent = {
    .name = "agent",
    .usage = "--listen HOST:PORT --url URL",
    .help = "sends a part of the load of a compare or replay that runs elsewhere (--agents)",
    .options = option_table,
    .options_bytes = sizeof(struct options),
    .run = run,
};
