/* router/ctl/cmd_ask.c - commands that ask the router one question and print the answer: all that steer or
 * show the cluster. */
#include "router/ctl/ctl.h"

#include <time.h>
#include <unistd.h>

#include "common/wire/wire_sock.h"

static enum sl_ctl_exit ask_once(const struct sl_ctl_call *call, const char *hidden)
{
    Sluice__AdminRequest m = SLUICE__ADMIN_REQUEST__INIT;
    m.op = (char *)call->command->name;
    m.args = (char **)call->args;
    m.n_args = call->n_args;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT, *answer = NULL;
    e.body_case = SLUICE__ENVELOPE__BODY_ADMIN;
    e.admin = &m;
    struct sl_why why = {{0}};
    enum sl_err err = sl_wire_call_wait(call->router, &e, call->timeout_ms, &answer, &why);
    if (err) {
        fprintf(stderr, "sluicectl: no answer from a router at %s (--router or SLUICE_ROUTER): %s\n",
                call->router, why.text[0] ? why.text : sl_err_name(err));
        return SL_CTL_UNREACHABLE;
    }
    enum sl_ctl_exit code;
    if (answer->body_case == SLUICE__ENVELOPE__BODY_ADMIN_REPLY) {
        const Sluice__AdminReply *r = answer->admin_reply;
        code = r->code == SL_OK ? SL_CTL_OK : SL_CTL_REFUSED;
        if (call->format == SL_CTL_JSON)
            sl_ctl_print_json(r, stdout);
        else if (code == SL_CTL_REFUSED && r->n_tables == 0)
            fprintf(stderr, "sluicectl: %s\n", r->text ? r->text : sl_err_name((enum sl_err)r->code));
        else
            sl_ctl_print_tables(r, call->format == SL_CTL_WIDE ? NULL : hidden, !call->no_headers, stdout);
    } else {
        bool command = answer->body_case == SLUICE__ENVELOPE__BODY_COMMAND_REPLY;
        fprintf(stderr, "sluicectl: %s does not answer as a router's admin socket does%s%s.\n", call->router,
                command ? ": " : "", command && answer->command_reply->why ? answer->command_reply->why : "");
        code = SL_CTL_UNREACHABLE;
    }
    sl_wire_free(answer);
    return code;
}

enum sl_ctl_exit sl_ctl_ask(const struct sl_ctl_call *call, const char *hidden)
{
    for (;;) {
        if (call->watch_s && call->format != SL_CTL_JSON && isatty(STDOUT_FILENO))
            fputs("\033[H\033[2J", stdout); /* home, clear */
        enum sl_ctl_exit code = ask_once(call, hidden);
        fflush(stdout);
        if (!call->watch_s || code == SL_CTL_UNREACHABLE)
            return code;
        struct timespec pause = {.tv_sec = call->watch_s};
        nanosleep(&pause, NULL);
    }
}

enum sl_ctl_exit sl_ctl_show(const struct sl_ctl_call *call)
{
    return sl_ctl_ask(call, NULL);
}

enum sl_ctl_exit sl_ctl_nodes(const struct sl_ctl_call *call)
{
    return sl_ctl_ask(call, "cached_pages,step_error,cpus,chunk_tokens,version,boot,command,transfer");
}
