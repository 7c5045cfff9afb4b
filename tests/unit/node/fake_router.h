/* tests/unit/node/fake_router.h - the other side of a node: registers it, sends commands, collects what it
 * says. And node daemons as processes. One thread: everything is handled while a call waits. */
#ifndef SLUICE_TESTS_UNIT_NODE_FAKE_ROUTER_H
#define SLUICE_TESTS_UNIT_NODE_FAKE_ROUTER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/wire/wire_sock.h"

#define FAKE_WAIT_MS    300000 /* far beyond anything that works: a limit for what does not */
#define FAKE_MAX_TOKENS 4096
#define FAKE_MAX_STATES 32

struct fake_node {
    char name[64];
    uint64_t boot_id;
    char command_url[128], transfer_address[64];
    uint32_t page_tokens, kv_pages;
    uint64_t numerics_id;
    Sluice__Role prefers;
    bool draining; /* by its last heartbeat */
    uint32_t n_registered, n_heartbeats;
    uint64_t beats_for; /* boot id of the router that its last heartbeat was for: there it is registered */
    uint64_t last_seq, n_gaps, n_repeated; /* over all of the router's lives */
    struct sl_wire_client *client;
};

struct fake_leg {
    bool done;
    uint32_t n_done; /* terminal messages: must be one */
    Sluice__DoneReason reason;
    uint32_t code;
    char why[160];
    Sluice__LegReport report;
};

/* What was heard of one (request, attempt). */
struct fake_request {
    char id[64];
    uint32_t attempt;
    uint32_t first_index, n_tokens; /* tokens[i] has index first_index + i; n counts up to the first hole */
    int32_t tokens[FAKE_MAX_TOKENS];
    uint64_t digests[FAKE_MAX_TOKENS];
    float logprobs[FAKE_MAX_TOKENS];
    bool have[FAKE_MAX_TOKENS];
    uint32_t n_duplicates, n_different; /* a token told twice, and not the same */
    struct fake_leg p, d;
    const char *states[FAKE_MAX_STATES]; /* "decode committed" ... */
    uint32_t n_states;
    struct fake_request *next;
};

struct fake_router {
    uint64_t boot_id;
    struct sl_queue *queue, *answers;
    struct sl_wire_server *server;
    struct sl_wire_pull *pull;
    bool mute; /* answers nothing */
    bool refuse;
    bool takes_late;    /* says that it has taken no events */
    uint32_t n_unheard; /* registrations that came while it was mute */
    uint32_t router_dead_ms;
    struct fake_node nodes[8];
    uint32_t n_nodes;
    struct fake_request *requests;
    uint64_t next_tag;
};

void fake_router_open(struct fake_router *r);
void fake_router_close(struct fake_router *r);
const char *fake_router_url(const struct fake_router *r);
/* Handles what is there; waits at most ms for something. */
void fake_router_pump(struct fake_router *r, uint32_t ms);
struct fake_node *fake_router_node(struct fake_router *r,
                                   const char *name); /* waits until it has registered */
struct fake_request *fake_router_request(struct fake_router *r, const char *id, uint32_t attempt);

/* Waits while cond is false; fails the test after FAKE_WAIT_MS. */
#define FAKE_WAIT(r, cond)                                                                                   \
    do {                                                                                                     \
        uint64_t fake_end_ = sl_now_ms() + FAKE_WAIT_MS;                                                     \
        while (!(cond)) {                                                                                    \
            fake_router_pump(r, 20);                                                                         \
            if (sl_now_ms() > fake_end_)                                                                     \
                fail_msg("waited in vain for %s", #cond);                                                    \
        }                                                                                                    \
    } while (0)

/* A command and its answer (sl_wire_free). NULL when there was none within timeout_ms. */
Sluice__Envelope *fake_call(struct fake_router *r, struct fake_node *n, Sluice__Envelope *e,
                            uint32_t timeout_ms);
/* The code of a CommandReply. */
enum sl_err fake_command(struct fake_router *r, struct fake_node *n, Sluice__Envelope *e);

struct fake_ask {
    const char *id;
    uint32_t attempt;
    const int32_t *tokens;
    uint32_t n_tokens, n_prompt;
    uint32_t max_tokens;
    float temperature;
    uint64_t seed;
    uint32_t split;
    int32_t chunk; /* -2 = not set */
    int32_t n_logprobs;
    const char *salt;
    uint32_t deadline_ms; /* 0 = a minute */
    int32_t stop_id;      /* -1 = none, end tokens ignored */
    struct fake_node *p, *d;
};
enum sl_err fake_submit(struct fake_router *r, const struct fake_ask *a);  /* to a->d */
enum sl_err fake_prefill(struct fake_router *r, const struct fake_ask *a); /* to a->p */
enum sl_err fake_cancel(struct fake_router *r, struct fake_node *n, const char *id, uint32_t attempt,
                        uint32_t tombstone_ms);
double fake_stat(struct fake_router *r, struct fake_node *n, const char *name);
/* Waits until the node holds no sequence and no transfer, then checks that every page is free or cached. */
void fake_expect_no_leak(struct fake_router *r, struct fake_node *n);

/* ---- daemons ---- */
pid_t fake_daemon_start(const char *program, const char *const *args);
int fake_daemon_wait(pid_t pid);                               /* exit status, or -signal */
int fake_daemon_wait_served(struct fake_router *r, pid_t pid); /* the same, while its router answers it */

#endif
