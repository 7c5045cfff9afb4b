/* tests/unit/router/flow/flow_rig.h - a real flow with real sockets, and nodes that the test plays by hand:
 * it takes a command, answers it, sends tokens. Every wait ends with what it waits for; RIG_WAIT_MS is only
 * there for what never comes. */
#ifndef SLUICE_TESTS_UNIT_ROUTER_FLOW_FLOW_RIG_H
#define SLUICE_TESTS_UNIT_ROUTER_FLOW_FLOW_RIG_H

#include <pthread.h>

#include "common/wire/wire_sock.h"
#include "router/flow/request_flow.h"

#define RIG_WAIT_MS     300000
#define RIG_MAX_TOKENS  512
#define RIG_PAGE_TOKENS 16

/* Vocabulary: 'a'..'z' are 0..25, then ' ', the two halves of U+00E9, <eos>, "ab". flow_rig_vocab.c */
enum { RIG_SPACE = 26, RIG_E1 = 27, RIG_E2 = 28, RIG_EOS = 29, RIG_VOCAB = 31 };
struct sl_tokenizer *rig_tokenizer(void);

struct rig_node {
    struct rig *rig;
    char name[16], command_url[96];
    uint64_t boot_id, seq;
    bool prefers_prefill, no_decode, no_prefill, draining;
    uint64_t numerics_id;
    uint32_t kv_pages, free_pages;
    uint32_t decode_rows; /* > 0: it has work, and computes none of it */
    uint8_t digest;
    struct sl_queue *queue;       /* commands */
    struct sl_wire_in *early[32]; /* that came before the one waited for */
    size_t n_early;
    struct sl_wire_server *server;
    struct sl_wire_push *push;
    char why[256]; /* of a refused registration */
};

struct rig {
    struct sl_flow *flow;
    struct sl_tokenizer *tokenizer;
    struct sl_metrics *metrics;
    char register_url[96], event_url[96], admin_url[96];
    uint64_t boot_id;
    struct rig_node nodes[20];
    uint32_t n_nodes;
};

/* mode: Sluice__Mode. change may alter the configuration; NULL = as it is. */
void rig_open(struct rig *r, int mode, void (*change)(struct sl_flow_conf *conf));
void rig_close(struct rig *r);

/* A node with its command socket; join registers it (false: refused, n->why) and sends a heartbeat. */
struct rig_node *rig_node(struct rig *r, const char *name, bool prefers_prefill);
bool rig_join(struct rig_node *n);
void rig_heartbeat(struct rig_node *n);
/* The process dies and comes back under another boot id: registers anew. */
void rig_restart(struct rig_node *n);

/* The next command of this kind; answered by rig_answer() (which frees it). Commands travel side by side and
 * may overtake each other; the others are kept. */
struct sl_wire_in *rig_take(struct rig_node *n, Sluice__Envelope__BodyCase kind);
void rig_answer(struct sl_wire_in *in, enum sl_err code);
/* Takes a command and says yes; id (may be NULL) and attempt of the request are copied out. */
uint32_t rig_accept(struct rig_node *n, Sluice__Envelope__BodyCase kind, char id[64]);

/* Events: collected, then sent as one batch. */
struct rig_batch {
    struct rig_node *node;
    Sluice__EventBatch m;
    Sluice__TokenEvent *tokens[64];
    Sluice__DoneEvent *done[16];
};
void rig_batch(struct rig_batch *b, struct rig_node *n);
void rig_token(struct rig_batch *b, const char *id, uint32_t attempt, uint32_t index, int32_t token);
void rig_done(struct rig_batch *b, const char *id, uint32_t attempt, Sluice__Role duty,
              Sluice__DoneReason reason, enum sl_err code, const Sluice__LegReport *report);
void rig_send(struct rig_batch *b); /* and frees */
void rig_lose(struct rig_batch *b); /* numbered, never sent; and frees */
/* Text as tokens from `index` on, one batch. */
void rig_say(struct rig_node *n, const char *id, uint32_t attempt, uint32_t index, const char *text);
void rig_end(struct rig_node *n, const char *id, uint32_t attempt, Sluice__Role duty,
             Sluice__DoneReason reason);

/* Answers a Resync with tokens [expect_from, expect_from + strlen(text)), as a node does whose leg has ended (done: by a
 * stop) or goes on. text NULL: it has lost the request. */
void rig_answer_resync(struct rig_node *n, const char *id, uint32_t attempt, uint32_t expect_from,
                       const char *text, bool done);

/* A client. */
struct rig_client {
    struct rig *rig;
    char id[64];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t n_tokens, n_ends;
    int32_t tokens[RIG_MAX_TOKENS];
    uint32_t indexes[RIG_MAX_TOKENS];
    char text[4096];
    size_t text_len;
    bool done;
    char finish[16], stop_reason[64], why[512];
    int32_t stop_token;
    struct sl_gen_usage usage;
    enum sl_err err;
};
/* A request of n_tokens prompt tokens with defaults; rig_submit takes it. */
struct sl_gen_req *rig_request(struct rig *r, uint32_t n_tokens);
void rig_client(struct rig_client *c, struct rig *r);
enum sl_err rig_submit(struct rig_client *c, struct sl_gen_req *q);
void rig_wait_tokens(struct rig_client *c, uint32_t n);
void rig_wait_end(struct rig_client *c);
void rig_client_fini(struct rig_client *c);

/* Admin: cells by table, row key and column. Returns a copy in static storage. */
const char *rig_record(struct rig *r, const char *id, const char *key);
Sluice__AdminReply *rig_admin(struct rig *r, const char *op, const char *arg);
/* Waits until the flow has n requests open; none. */
void rig_wait_open(struct rig *r, size_t n);
void rig_wait_idle(struct rig *r);

#endif
