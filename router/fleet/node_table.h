/* router/fleet/node_table.h - the nodes this router knows: who they are, whether they live, what they
 * reported, and what this router has placed there since.
 *
 * Identity is (name, boot id). A node that registers with another boot id was restarted: what ran on the old
 * one is gone. Should the old one still be there, it is another node of the same name: it is refused while the
 * newer one lives, or the two would end each other's requests for ever. A node silent for dead_ms is dead; it
 * stays in the table, marked, until it registers again or FORGET_MS passed, so that `sluicectl nodes` can show
 * it.
 *
 * All nodes of a router must be able to stand in for each other: same model, page geometry and (when exact)
 * numerics. The first node alive sets the values; one that differs is refused with a sentence that names
 * both.
 *
 * Threads: flow thread only. Time comes from the caller. */
#ifndef SLUICE_ROUTER_FLEET_NODE_TABLE_H
#define SLUICE_ROUTER_FLEET_NODE_TABLE_H

#include "common/base/list.h"
#include "proto/sluice.pb-c.h"
#include "router/place/place.h"
#include "router/place/prefix_index.h"

#define SL_NODE_NAME   65
#define SL_NODE_URL    256
#define SL_NODE_LINKS  64 /* peers a prefill node reports; the others count as not measured */
#define SL_NODE_FORMER 8  /* boot ids kept: that many nodes started with one name by mistake are told so */

struct sl_node_link; /* node_link.h */

enum sl_node_state { SL_NODE_UP, SL_NODE_DRAINING, SL_NODE_STALLED, SL_NODE_DEAD };
const char *sl_node_state_name(enum sl_node_state s); /* "up" "draining" "stalled" "dead" */

struct sl_node_peer { /* a link as its prefill node reported it */
    char peer[SL_NODE_NAME], transport[32], state[16], why[160];
    char told[16]; /* the state that was last made an event */
    uint64_t peer_boot_id, pages_sent, bytes_sent, rejects;
    double bytes_per_s, latency_us; /* 0 = not measured */
};

struct sl_node_load {
    uint32_t free_pages, total_pages, running, waiting, decode_rows, leases, cached_pages;
    uint64_t queued_prompt_tokens, decode_context_tokens, steps, progress;
    uint64_t prompt_tokens, decode_tokens; /* computed since its start */
    double tpot_wish_ms;                   /* the tightest of what decodes; 0 = none */
    uint32_t rows_without_wish;
    bool has_progress;
};

/* Work this router placed on a node and has not yet seen in its reports; see sl_node_charge(). */
struct sl_node_ledger {
    uint32_t rows, pages;
    uint64_t prompt_tokens, context_tokens;
};

struct sl_node {
    uint32_t index; /* of sl_node_table_at() */
    char name[SL_NODE_NAME];
    uint64_t boot_id;
    enum sl_node_state state;
    bool drain_asked;    /* by an admin, through this router */
    bool drain_reported; /* by the node */
    bool prefers_prefill, may_prefill, may_decode;
    char command_url[SL_NODE_URL], transfer_address[SL_NODE_URL], cpus[64], backend[32], version[32];
    struct {
        char name[128];
        uint8_t digest[16];
        uint32_t context_length, n_vocab, n_layers, n_kv_heads, head_dim, kv_dtype, page_tokens,
            tensor_parallel;
        uint64_t page_bytes, numerics_id;
    } model;
    uint32_t kv_pages, threads, max_batch_tokens;
    int32_t chunk_tokens;
    double tpot_target_ms, chunk_stretch; /* of its steps; 0 = none, as the plan's default */
    struct sl_cost_model cost;
    struct sl_node_load load;
    struct sl_node_peer peers[SL_NODE_LINKS];
    uint32_t n_peers;
    struct sl_prefix_set prefixes;

    uint64_t former[SL_NODE_FORMER]; /* boot ids before this one, newest first; 0 = none */
    uint64_t registered_ms, heard_ms, progressed_ms;
    bool stalled, stall_told;
    uint64_t heartbeats;            /* of this boot */
    struct sl_node_ledger sent;     /* commands not answered yet */
    struct sl_node_ledger accepted; /* answered since the last heartbeat */
    struct sl_list prompts;         /* charges of this life whose prompts are not done */
    uint64_t placed;                /* legs placed here, for sluicectl */
    bool told;                      /* told_state was made an event */
    enum sl_node_state told_state;
    uint64_t event_seq;            /* of the last batch of this boot; they count from 1 */
    uint64_t steps_seen;           /* number of its last step told; steps of this boot count from 1 */
    bool steps_asked, tells_steps; /* an answer is under way; false of tells_steps: too old for that */
    struct sl_node_link *link;     /* owned by the flow; NULL when dead */
};

struct sl_node_conf {
    uint32_t dead_ms, stall_ms;
    const uint8_t *model_digest; /* 16 bytes, copied; NULL = the first node's */
    uint32_t n_vocab;            /* of the router's tokenizer; 0 = not checked */
    bool exact;
};

/* Of a model file, as its nodes tell it: 32 hexadecimal digits. */
#define SL_NODE_DIGEST 33
void sl_node_digest_text(const uint8_t digest[16], char out[SL_NODE_DIGEST]);
bool sl_node_digest_parse(const char *text, uint8_t out[16]);

struct sl_node_table; /* opaque */
struct sl_node_table *sl_node_table_new(const struct sl_node_conf *conf);
void sl_node_table_free(struct sl_node_table *t);

/* What a registration did. */
enum sl_node_joined { SL_NODE_NEW, SL_NODE_SAME, SL_NODE_RESTARTED };
/* SL_OK: *out is the node, *joined says how; with SL_NODE_RESTARTED *old_boot_id is the dead one's: its
 * requests are the caller's to recover, and out->link is still the old link, the caller's to replace.
 * SL_EMISMATCH, SL_EINVAL, SL_EAGAIN (table full): why names what was found and what was expected. */
SL_MUST_CHECK enum sl_err sl_node_table_register(struct sl_node_table *t, const Sluice__NodeInfo *info,
                                                 uint64_t now_ms, struct sl_node **out,
                                                 enum sl_node_joined *joined, uint64_t *old_boot_id,
                                                 struct sl_why *why);
/* Takes in a report. NULL: not known under this boot id, it must register again. */
struct sl_node *sl_node_table_heartbeat(struct sl_node_table *t, const Sluice__Heartbeat *hb,
                                        uint64_t now_ms);
/* For ms until now_ms this router heard nobody, because it did not run itself: that silence is not theirs. */
void sl_node_table_forgive(struct sl_node_table *t, uint64_t ms, uint64_t now_ms);
/* Marks nodes that fell silent or stopped progressing. Returns a node that died in this call, or NULL; call
 * until NULL. */
struct sl_node *sl_node_table_expire(struct sl_node_table *t, uint64_t now_ms);
/* Also for the caller that learnt of a death otherwise. */
void sl_node_table_mark_dead(struct sl_node *n);

struct sl_node *sl_node_table_find(const struct sl_node_table *t, const char *name); /* NULL when unknown */
struct sl_node *sl_node_table_find_boot(const struct sl_node_table *t, const char *name, uint64_t boot_id);
/* When sl_node_table_expire() will find the next one, as it is now; UINT64_MAX without nodes. */
uint64_t sl_node_table_next_loss(const struct sl_node_table *t);
uint32_t sl_node_table_len(const struct sl_node_table *t);
struct sl_node *sl_node_table_at(const struct sl_node_table *t,
                                 uint32_t i); /* i < len; order of first registration */

void sl_node_set_drain(struct sl_node *n, bool on);
/* True once for each time that the node stalls, draining or not. */
bool sl_node_newly_stalled(struct sl_node *n);

/* The ledger. A leg is charged when its command is sent, moves when the node says yes, and is forgotten at
 * the next heartbeat, which then counts it; so bursts spread although the reports are a second old. */
enum sl_charge_state { SL_CHARGE_NONE, SL_CHARGE_SENT, SL_CHARGE_ACCEPTED };
struct sl_charge { /* lives in the leg, which stays where it is */
    enum sl_charge_state state;
    uint64_t boot_id, heartbeat;
    struct sl_node_ledger amount;
    struct sl_list link; /* in node->prompts, or unlinked */
    int32_t priority;
    uint64_t prompt_tokens, placed_ms;
    bool decodes; /* its prompt is done, and that was said */
};
/* priority: as the node will be told. */
void sl_node_charge(struct sl_node *n, struct sl_charge *c, const struct sl_node_ledger *amount,
                    int32_t priority, uint64_t now_ms);
void sl_node_charge_accepted(struct sl_node *n, struct sl_charge *c);
/* The leg ended, or its prompt is done (then keep_rows is true and only the prompt's part goes; said again, as with
 * every token, it changes nothing). n may be NULL. */
void sl_node_charge_drop(struct sl_node *n, struct sl_charge *c, bool keep_rows);

/* True when a set of nodes can serve in at least one mode; else why says what is missing. */
bool sl_node_table_ready(const struct sl_node_table *t, struct sl_why *why);

/* Who asks: nodes run the more urgent prompt first and let a short one overtake long ones (slack.h), so what
 * this router placed before and will run behind it is no queue for it. */
struct sl_node_asker {
    int32_t priority;
    uint32_t n_tokens;     /* of its prompt */
    const uint64_t *chain; /* hashes of its full pages */
    uint32_t n_chain;
};

/* The state for placement: nodes in table order, links between them. who may be NULL: all that is queued
 * counts. The arrays are the caller's; names stay the table's. */
struct sl_node_view {
    struct sl_place_node nodes[SL_PLACE_MAX_NODES];
    struct sl_place_link links[SL_PLACE_MAX_LINKS];
    struct sl_place_state state;
};
void sl_node_table_view(const struct sl_node_table *t, uint64_t now_ms, const struct sl_node_asker *who,
                        struct sl_node_view *out);

#endif
