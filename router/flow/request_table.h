/* router/flow/request_table.h - the journal: every open request with all that is needed to place it again,
 * and what its client has been sent.
 *
 * Threads: flow thread only. */
#ifndef SLUICE_ROUTER_FLOW_REQUEST_TABLE_H
#define SLUICE_ROUTER_FLOW_REQUEST_TABLE_H

#include "common/base/list.h"
#include "common/base/loop.h"
#include "router/fleet/node_table.h"
#include "router/flow/gen_req.h"
#include "router/flow/text_out.h"
#include "router/place/decision.h"

/* Tokens of one request that wait for a gap to close; later ones are asked for again. */
#define SL_HELD_MAX 1024
/* Nodes that one request may ask before it waits or is refused: then the cluster is full. */
#define SL_EXCLUDED_MAX 16

/* The same words in logs, metrics and sluicectl. request_flow.c draws them. */
enum sl_req_state { SL_REQ_PLACED, SL_REQ_STREAMING, SL_REQ_WAITING, SL_REQ_ENDING };
const char *sl_req_state_name(enum sl_req_state s);

enum sl_leg_state {
    SL_LEG_NONE,     /* this attempt has no such leg */
    SL_LEG_SENT,     /* command under way */
    SL_LEG_ACCEPTED, /* the node said yes, or an event of it came */
    SL_LEG_DONE      /* its terminal message came, or its node is gone */
};

struct sl_leg {
    enum sl_leg_state state;
    char node[SL_NODE_NAME];
    uint64_t boot_id;
    char peer_address[SL_NODE_URL]; /* its transfer address, for the other leg */
    struct sl_charge charge;
    uint64_t granted_us; /* duty P: the decode node took its pages from here on; 0 = not yet */
};

struct sl_held; /* a token that came early */

/* How on_event is reached; shared with the thread that may cancel. See flow_door.h. */
struct sl_door_entry;

struct sl_request {
    struct sl_list link;  /* of the table */
    struct sl_flow *flow; /* for the timer's callback */
    struct sl_gen_req *req;
    struct sl_door_entry *door;
    struct sl_text_out *text;
    struct sl_decision *record;
    struct sl_timer *timer;

    enum sl_req_state state;
    uint32_t attempt; /* of the current placement, from 1 */
    struct sl_leg p, d;
    uint32_t split;    /* s of the current placement */
    uint32_t n_placed; /* tokens received when it was placed: this attempt's first token has this index */
    struct {
        char node[SL_NODE_NAME];
        uint64_t boot_id;
    } excluded[SL_EXCLUDED_MAX];
    uint32_t n_excluded;
    enum sl_err before; /* the error that made it be placed again */
    uint32_t n_faults;  /* placements lost to something else than full nodes */
    uint32_t n_waits;
    bool relegated; /* its wishes could not be met: served behind the others */
    bool held_back; /* SL_REQ_WAITING for its turn: hold.c */
    bool charged;   /* its prompt is in the account */
    struct sl_account *account;
    uint32_t retry_ms; /* when a client that is refused may try again; 0 = by the nodes' queues */
    char because[160];

    uint64_t *chain; /* hashes of the prompt's full pages, for page_tokens chain_page_tokens */
    uint32_t n_chain, chain_page_tokens;

    int32_t *received; /* tokens, in order */
    uint32_t *gap_us;  /* time between token i - 1 and i; [0] is 0 */
    uint32_t n_received, cap_received;
    uint64_t last_token_us, last_heard_us;
    size_t n_chars_sent; /* bytes of text */
    struct sl_list held; /* by index, ascending */
    uint32_t n_held;

    bool
        resync_owed; /* events may be missing until a Resync is answered, whether it could be asked yet or not */
    bool resync_open, resync_again;
    uint32_t n_resyncs_failed; /* since the last answer */
    bool ended_by_node;        /* the decode leg's end came, tokens before it are missing yet */
    bool ended_by_length;

    /* SL_REQ_ENDING */
    const char *finish_reason, *stop_reason;
    int32_t stop_token;

    /* sl_now_us() clock; 0 = not set */
    uint64_t deadline_us, gap_since_us, retry_at_us, settle_at_us;
};

struct sl_request_table; /* opaque */
struct sl_request_table *sl_request_table_new(void);
void sl_request_table_free(struct sl_request_table *t); /* must be empty */
/* Takes req. The caller sets what is above door ... timer. NULL when the id is there already. */
struct sl_request *sl_request_table_add(struct sl_request_table *t, struct sl_gen_req *req);
/* Removes and frees it with its arena, text, timer. Charges and the door are the caller's to settle first. */
void sl_request_table_remove(struct sl_request_table *t, struct sl_request *r);
struct sl_request *sl_request_table_find(const struct sl_request_table *t, const char *id);
size_t sl_request_table_len(const struct sl_request_table *t);
/* Oldest first: prev NULL starts, NULL ends. */
struct sl_request *sl_request_table_next(const struct sl_request_table *t, const struct sl_request *prev);

/* Journal of tokens. */
void sl_request_receive(struct sl_request *r, int32_t token, uint64_t now_us);
/* Keeps a copy of an early token. False when it was dropped (duplicate, or SL_HELD_MAX are kept). */
bool sl_request_hold(struct sl_request *r, const Sluice__TokenEvent *ev);
/* The held token with this index, valid until sl_held_free(), or NULL. Drops older ones. */
struct sl_held *sl_request_take_held(struct sl_request *r, uint32_t index);
const Sluice__TokenEvent *sl_held_event(const struct sl_held *h);
void sl_held_free(struct sl_held *h);
void sl_request_drop_held(struct sl_request *r);
/* Median and maximum of the times between tokens after the second, in milliseconds; -1 when there is none. */
void sl_request_gaps(const struct sl_request *r, double *median_ms, double *max_ms);

bool sl_request_is_excluded(const struct sl_request *r, const char *node, uint64_t boot_id);
void sl_request_exclude(struct sl_request *r, const char *node, uint64_t boot_id);

#endif
