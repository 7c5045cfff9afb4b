/* tests/unit/wire/wire_pair.h - a client, a server on loopback, their queues, and small messages. */
#ifndef SLUICE_TESTS_UNIT_WIRE_WIRE_PAIR_H
#define SLUICE_TESTS_UNIT_WIRE_WIRE_PAIR_H

#include "common/wire/wire_sock.h"

#define ANY     "tcp://127.0.0.1:0"
#define LONG_MS 120000

struct pair {
    struct sl_queue *requests, *answers;
    struct sl_wire_server *server;
    struct sl_wire_client *client;
};

void pair_open_at(struct pair *p, const char *url, size_t max_requests, uint32_t n_contexts,
                  uint32_t max_waiting);
void pair_open(struct pair *p, size_t max_requests, uint32_t n_contexts, uint32_t max_waiting); /* at ANY */
void pair_close(struct pair *p);

void own_url(char url[64]); /* an address that nobody else takes, also while it is closed */
Sluice__Envelope make_cancel(Sluice__Cancel *c, uint32_t attempt);
void reply_code(struct sl_wire_in *in, uint32_t code);
struct sl_wire_in *take(struct sl_queue *q); /* waits */
void drain(struct sl_queue *q);

#endif
