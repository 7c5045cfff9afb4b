/* common/node/node_life.c - from the command line to the exit status.
 *
 * The watchdog is fed by the engine's progress: while a step is in flight, the layer counter must have moved
 * since the last look. A long step is progress, a wedged device is not; an idle node only has to come round.
 * Nor does the stop wait for a wedged device: the process ends with its threads still in it.
 */
#include "common/node/node_life.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/notify.h"
#include "common/base/start_signals.h"
#include "common/node/node_leg.h"
#include "common/node/node_program.h"

/* What drain_ms leaves, and no less than this, is for the routers to take the last events; with drain_ms and STUCK_MS
 * it is within TimeoutStopSec of deploy/systemd. */
#define LAST_WORDS_MS 5000u
/* looks per watchdog period: one layer may take longer than one of them */
#define WATCHDOG_LOOKS 4

/* A stop gives the step in flight so long to compute a layer: longer than one of the largest model takes, and with the
 * default drain_ms within TimeoutStopSec of deploy/systemd. */
#define STUCK_MS 20000u
#define STUCK_TOLD_MS                                                                                        \
    1000u /* of it, before a person is told what is waited for; all of it after a second signal */

struct life {
    struct sl_node *node;
    const struct sl_program *program;
    struct sl_node_conf *conf; /* drain_ms is this thread's to change at a reload, the rest nobody's */
    int argc;
    char **argv;
    int signal_fd;
    bool stopping, hurried;
    struct sl_timer *watchdog, *end;
    uint32_t watchdog_ms;
    uint64_t progress, drained_ms; /* the latter: when drain_ms is over, once it stops */
};

/* Everything of this node, UCX's and nng's threads too, stays on its CPUs: a fair comparison counts them. */
static enum sl_err pin_process(const struct sl_node_conf *c, struct sl_why *why)
{
    if (!c->n_cpus)
        return SL_OK;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (size_t i = 0; i < c->n_cpus; i++) {
        if (c->cpu_list[i] < CPU_SETSIZE)
            CPU_SET((size_t)c->cpu_list[i], &set);
    }
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        return sl_why_set(why, SL_ECONFIG,
                          "cpus is \"%.80s\" and this process may not use them; see taskset -p %d", c->cpus,
                          (int)getpid());
    return SL_OK;
}

static void on_end(void *arg)
{
    struct life *f = arg;
    sl_node_stop(f->node);
}

/* When nothing is left but that the routers take the last events: without them a stream would stand still until its
 * router takes the node for dead. */
static void after_round(void *arg)
{
    struct life *f = arg;
    if (!f->stopping || !sl_node_idle(f->node))
        return;
    if (!f->node->last_words_ms) {
        uint64_t now = sl_now_ms();
        sl_timer_set(f->end, f->drained_ms > now + LAST_WORDS_MS ? f->drained_ms - now : LAST_WORDS_MS);
    }
    if (sl_node_last_words(f->node))
        sl_node_stop(f->node);
}

/* What a running node can take over, it does; the rest is told. A file that is wrong changes nothing. */
static void reload(struct life *f)
{
    struct sl_node_conf now;
    struct sl_why why = {{0}};
    sl_notify("RELOADING=1");
    if (sl_node_conf_load(f->argc, f->argv, f->conf->prefers, &now, &why) != SL_OK) {
        SL_ERROR("the reload changed nothing: %s", why.text);
    } else {
        sl_program_tell_changes(f->program, f->conf, &now);
        f->conf->drain_ms = now.drain_ms;
        f->conf->log_level = now.log_level;
        sl_log_set_level((enum sl_log_level)now.log_level);
    }
    sl_node_conf_fini(&now);
    sl_notify("READY=1");
}

static void on_signal(void *arg, uint32_t events)
{
    struct life *f = arg;
    struct signalfd_siginfo info;
    (void)events;
    while (read(f->signal_fd, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGHUP) {
            if (!f->stopping)
                reload(f);
            continue;
        }
        sl_node_end_hold(f->node);
        if (info.ssi_signo == SIGUSR1)
            continue;
        if (f->stopping) {
            SL_WARN("second signal, stopping at once legs=%u", f->node->legs.n_active);
            f->hurried = true;
            sl_node_stop(f->node);
            return;
        }
        f->stopping = f->node->leaving = true;
        sl_notify("STOPPING=1\nSTATUS=draining, %u requests", f->node->legs.n_active);
        uint32_t ms = f->conf->drain_ms;
        f->drained_ms = sl_now_ms() + ms;
        sl_node_drain(f->node, true, ms ? ms : 1);
    }
}

static void on_watchdog(void *arg)
{
    struct life *f = arg;
    uint64_t now = sl_engine_progress(f->node->engine);
    if (!sl_engine_in_flight(f->node->engine) || now != f->progress)
        sl_notify("WATCHDOG=1");
    else
        SL_ERROR("the step in flight makes no progress layers=%llu", (unsigned long long)now);
    f->progress = now;
    sl_timer_set(f->watchdog, f->watchdog_ms / WATCHDOG_LOOKS);
}

/* After the last round: the device has ended its step. A step of a device that hangs never ends; neither an operator
 * nor a service manager shall have to guess that. */
static bool step_ends(const struct life *f)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    int stop_fd = signalfd(-1, &set, SFD_CLOEXEC); /* -1: then no signal cuts the wait short */
    bool ends = sl_engine_settles(f->node->engine, STUCK_TOLD_MS, stop_fd);
    if (!ends && !f->hurried) {
        SL_WARN("the step in flight computes no layer; the node waits %u s more for it, unless another "
                "signal comes",
                (STUCK_MS - STUCK_TOLD_MS) / 1000);
        ends = sl_engine_settles(f->node->engine, STUCK_MS - STUCK_TOLD_MS, stop_fd);
    }
    if (!ends)
        SL_ERROR("the step in flight did not end, its device hangs; the node ends without it layers=%llu",
                 (unsigned long long)sl_engine_progress(f->node->engine));
    if (stop_fd >= 0)
        close(stop_fd);
    return ends;
}

static int exit_status(enum sl_err err)
{
    switch (sl_err_class(err)) {
    case SL_CLASS_OK:
        return 0;
    case SL_CLASS_BAD_INPUT:
        return SL_EXIT_CONFIG;
    default:
        return 1;
    }
}

/* f has program, conf and the command line. */
static int run(struct life *f, const struct sl_duty_ops *const *duties)
{
    struct sl_why why = {{0}};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* before any thread starts */
    enum sl_err err = sl_node_conf_fits(f->conf, &why);
    if (err == SL_OK)
        err = pin_process(f->conf, &why);
    struct sl_start_signals early;
    if (err == SL_OK)
        err = sl_start_signals_begin(&early, &why);
    if (err == SL_OK) {
        err = sl_node_open(f->conf, duties, &f->node, &why);
        sl_start_signals_end(&early);
    }
    if (err != SL_OK) {
        SL_ERROR("%s", why.text[0] ? why.text : sl_err_name(err));
        return exit_status(err);
    }
    f->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    SL_ASSERT(f->signal_fd >= 0 && sl_loop_add(f->node->loop, f->signal_fd, EPOLLIN, on_signal, f) == SL_OK);
    f->node->live = f->conf;
    f->node->after_round = after_round;
    f->node->after_round_arg = f;
    f->end = sl_timer_new(f->node->loop, on_end, f);
    f->watchdog = sl_timer_new(f->node->loop, on_watchdog, f);
    f->watchdog_ms = sl_notify_watchdog_ms();
    if (f->watchdog_ms)
        sl_timer_set(f->watchdog, f->watchdog_ms / WATCHDOG_LOOKS);
    if (!f->conf->has_secret &&
        !(sl_address_is_local(f->conf->listen) && sl_address_is_local(f->conf->transfer_listen)))
        SL_WARN("other machines reach this node and no cluster secret is asked for; set cluster_secret_file");
    sl_notify("READY=1\nSTATUS=serving");

    sl_node_run(f->node);

    if (!step_ends(f))
        _exit(1);
    int status = 0;
    if (sl_node_idle(f->node) && sl_engine_check_pages(f->node->engine, &why) != SL_OK) {
        SL_ERROR("pages were lost: %s", why.text);
        status = 1;
    }
    SL_INFO("node stops legs=%u transfers=%u", f->node->legs.n_active, sl_xfer_open_sessions(f->node->xfer));
    sl_timer_free(f->end);
    sl_timer_free(f->watchdog);
    sl_loop_remove(f->node->loop, f->signal_fd);
    close(f->signal_fd);
    sl_node_close(f->node);
    return status;
}

int sl_node_main(int argc, char **argv, const char *name, Sluice__Role prefers,
                 const struct sl_duty_ops *const *duties)
{
    struct sl_program program = sl_node_program(name, prefers);
    if (sl_program_answers(&program, argc, argv))
        return 0;
    sl_start_signals_keep_reload();
    sl_mem_bound_heaps();
    signal(SIGPIPE, SIG_IGN); /* who reads the log may go */
    struct sl_node_conf conf;
    struct life life = {.program = &program, .conf = &conf, .argc = argc, .argv = argv, .signal_fd = -1};
    struct sl_why why = {{0}};
    int status = 0;
    enum sl_err err = sl_node_conf_load(argc, argv, prefers, &conf, &why);
    if (err != SL_OK) {
        SL_ERROR("%s", why.text);
        status = SL_EXIT_CONFIG;
    } else if (!sl_conf_check_arg(argc, argv)) {
        sl_log_set_level((enum sl_log_level)conf.log_level);
        status = run(&life, duties);
    }
    sl_node_conf_fini(&conf);
    return status;
}
