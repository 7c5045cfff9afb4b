/* router/ctl/cmd_ask.c - asking the router, and the commands that ask one question and print the answer: most
 * that steer or show the cluster. */
#include "router/ctl/ctl.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "common/wire/wire_sock.h"

enum sl_ctl_exit sl_ctl_question(const struct sl_ctl_call *call, const char *op, const char *const *args,
                                 size_t n_args, Sluice__Envelope **out, struct sl_why *why)
{
    Sluice__AdminRequest m = SLUICE__ADMIN_REQUEST__INIT;
    m.op = (char *)(uintptr_t)op;
    m.args = (char **)(uintptr_t)args;
    m.n_args = n_args;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT, *answer = NULL;
    e.body_case = SLUICE__ENVELOPE__BODY_ADMIN;
    e.admin = &m;
    struct sl_why how = {{0}};
    struct sl_secret secret;
    struct sl_wire_guard guard = {0};
    const char *secret_file = getenv("SLUICE_CLUSTER_SECRET_FILE");
    if (secret_file && *secret_file) {
        if (sl_secret_load(secret_file, &secret, why) != SL_OK)
            return SL_CTL_USAGE;
        guard.secret = &secret;
    }
    enum sl_err err = sl_wire_call_wait(call->router, &guard, &e, call->timeout_ms, &answer, &how);
    if (err) {
        (void)sl_why_set(why, err, "no answer from a router at %.120s (--router or SLUICE_ROUTER): %.120s",
                         call->router, how.text[0] ? how.text : sl_err_name(err));
        return SL_CTL_UNREACHABLE;
    }
    if (answer->body_case == SLUICE__ENVELOPE__BODY_ADMIN_REPLY) {
        *out = answer;
        return SL_CTL_OK;
    }
    bool said = answer->body_case == SLUICE__ENVELOPE__BODY_COMMAND_REPLY && answer->command_reply->why;
    (void)sl_why_set(why, SL_EPROTO, "%.120s does not answer as a router's admin socket does%s%.120s",
                     call->router, said ? ": " : "", said ? answer->command_reply->why : "");
    sl_wire_free(answer);
    return SL_CTL_UNREACHABLE;
}

void sl_ctl_complain(const char *text)
{
    char said[1024];
    sl_ctl_clean(text, sizeof said, said, sizeof said);
    fprintf(stderr, "sluicectl: %s\n", said);
}

enum sl_ctl_exit sl_ctl_print(const struct sl_ctl_call *call, const Sluice__AdminReply *r, FILE *out)
{
    enum sl_ctl_exit code = r->code == SL_OK ? SL_CTL_OK : SL_CTL_REFUSED;
    if (call->format == SL_CTL_JSON) {
        sl_ctl_print_json(r, out);
    } else if (call->format == SL_CTL_YAML) {
        sl_ctl_print_yaml(r, out);
    } else if (code == SL_CTL_REFUSED && r->n_tables == 0) {
        sl_ctl_complain(r->text ? r->text : sl_err_name((enum sl_err)r->code));
    } else {
        sl_ctl_print_tables(r, call->format == SL_CTL_WIDE ? NULL : call->command->hidden, !call->no_headers,
                            out);
    }
    return code;
}

void sl_ctl_sleep(uint32_t seconds)
{
    struct timespec pause = {.tv_sec = seconds};
    nanosleep(&pause, NULL);
}

enum sl_ctl_exit sl_ctl_ask(const struct sl_ctl_call *call)
{
    for (;;) {
        Sluice__Envelope *answer;
        struct sl_why why = {{0}};
        enum sl_ctl_exit code =
            sl_ctl_question(call, call->command->op, call->args, call->n_args, &answer, &why);
        if (code != SL_CTL_OK) {
            sl_ctl_complain(why.text);
        } else {
            bool screen = call->format == SL_CTL_TABLE || call->format == SL_CTL_WIDE;
            if (call->watch_s && screen && isatty(STDOUT_FILENO))
                fputs("\033[H\033[2J", stdout); /* home, clear */
            code = sl_ctl_print(call, answer->admin_reply, stdout);
            sl_wire_free(answer);
        }
        fflush(stdout);
        if (!call->watch_s || code == SL_CTL_UNREACHABLE)
            return code;
        sl_ctl_sleep(call->watch_s);
    }
}
