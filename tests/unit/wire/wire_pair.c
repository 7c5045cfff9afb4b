#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/wire/wire_pair.h"

void own_url(char url[64])
{
    snprintf(url, 64, "ipc:///tmp/sluice-test-%d.sock", (int)getpid());
}

Sluice__Envelope make_cancel(Sluice__Cancel *c, uint32_t attempt)
{
    sluice__cancel__init(c);
    c->request_id = (char *)"r";
    c->attempt = attempt;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_CANCEL;
    e.cancel = c;
    return e;
}

void reply_code(struct sl_wire_in *in, uint32_t code)
{
    Sluice__CommandReply r = SLUICE__COMMAND_REPLY__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    r.code = code;
    e.body_case = SLUICE__ENVELOPE__BODY_COMMAND_REPLY;
    e.command_reply = &r;
    sl_wire_reply(in, &e);
}

struct sl_wire_in *take(struct sl_queue *q)
{
    assert_true(sl_queue_wait(q, LONG_MS));
    return sl_queue_pop(q);
}

void pair_open_at(struct pair *p, const char *url, size_t max_requests, uint32_t n_contexts,
                  uint32_t max_waiting)
{
    struct sl_why why = {{0}};
    p->requests = sl_queue_new(max_requests);
    p->answers = sl_queue_new(1024);
    assert_int_equal(sl_wire_server_open(url, NULL, 16, p->requests, 5, &p->server, &why), SL_OK);
    assert_int_equal(sl_wire_client_open(sl_wire_server_url(p->server), NULL, n_contexts, max_waiting,
                                         p->answers, &p->client, &why),
                     SL_OK);
}

void pair_open(struct pair *p, size_t max_requests, uint32_t n_contexts, uint32_t max_waiting)
{
    pair_open_at(p, ANY, max_requests, n_contexts, max_waiting);
}

void drain(struct sl_queue *q)
{
    for (struct sl_wire_in *in; (in = sl_queue_pop(q));)
        sl_wire_in_free(in);
}

void pair_close(struct pair *p)
{
    sl_wire_client_close(p->client);
    sl_wire_server_close(p->server);
    drain(p->requests);
    drain(p->answers);
    sl_queue_free(p->requests);
    sl_queue_free(p->answers);
}
