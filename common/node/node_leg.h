/* common/node/node_leg.h - one duty's part in one attempt of one request, from the command to its one
 * terminal message.
 *
 *     command -> new -> accept -> [ duty: engine and transfer events ] -> sl_leg_end -> released -> finished
 * -> forgotten
 *
 * Rules. A leg ends once: the first sl_leg_end() makes the DoneEvent, later ones do nothing. Its sequence is
 * closed when the leg has ended and no transfer is open, never before: pages of an open transfer are not
 * reused. A finished leg stays for a while, bounded in number and time, as the answer to duplicates and to
 * Resync.
 *
 * Engine thread only. */
#ifndef SLUICE_COMMON_NODE_NODE_LEG_H
#define SLUICE_COMMON_NODE_NODE_LEG_H

#include "common/node/node.h"

#define SL_LEG_CHUNKS          64u /* of a leg's report; the last one sums up the rest */
#define SL_LEGS_MAX_FINISHED   1024u
#define SL_LEGS_MAX_BYTES      ((size_t)64 << 20) /* of their tokens and log probabilities */
#define SL_LEGS_KEEP_MS        60000u
#define SL_LEGS_MAX_TOMBSTONES 4096u

enum sl_leg_xfer { SL_LEG_XFER_NONE, SL_LEG_XFER_OPEN, SL_LEG_XFER_OVER };

struct sl_leg_token {
    int32_t token;
    float logprob; /* NaN = not known here */
    uint64_t logits_digest;
    uint32_t first_top, n_top; /* in the leg's arrays */
};

struct sl_leg {
    struct sl_node *node;
    const struct sl_duty_ops *duty;
    struct sl_xfer_key key; /* request id and attempt, for the transfer too */
    uint64_t router_boot_id;
    struct sl_xfer_peer peer; /* of the transfer, when split > 0 */
    uint32_t n_tokens, n_prompt, split;
    int32_t n_logprobs;
    bool want_digest, constrained;
    uint64_t deadline_us, came_us;

    struct sl_seq *seq; /* NULL once closed */
    enum sl_leg_xfer xfer;
    bool cancel_owed; /* cancel_xfer() said SL_EAGAIN */
    const char *state;

    struct sl_leg_token *tokens; /* sampled here or received; tokens[i] has index first_index + i */
    uint32_t n_token_log, token_cap, first_index;
    int32_t *top_tokens;
    float *top_logprobs;
    uint32_t n_top, top_cap;

    bool ended;
    Sluice__DoneReason reason;
    enum sl_err code;
    char why[160];
    Sluice__LegReport report; /* its chunks are these: */
    uint32_t chunk_tokens[SL_LEG_CHUNKS], chunk_end_us[SL_LEG_CHUNKS], chunk_us[SL_LEG_CHUNKS];
    uint32_t chunked_tokens; /* all of the chunks' tokens */
    bool admitted_once;

    struct sl_timer *deadline;
    struct sl_leg *older; /* lower attempts of the same request and duty */
    struct sl_list link;  /* in active or finished */
    uint64_t ended_ms;
};

void sl_legs_init(struct sl_node *n);
void sl_legs_fini(struct sl_node *n); /* after every leg has ended and the transfers are closed */

/* Handles a command that asks for a leg. SL_OK also for a duplicate. */
SL_MUST_CHECK enum sl_err sl_leg_place(struct sl_node *n, const struct sl_duty_ops *duty,
                                       const struct sl_order *o, struct sl_why *why);
/* Ends this attempt and all lower ones, both duties, and refuses it for tombstone_ms. */
void sl_leg_cancel(struct sl_node *n, const char *request_id, uint32_t attempt, uint32_t tombstone_ms,
                   const char *why);
/* Newest first; NULL when the node does not know it. */
struct sl_leg *sl_leg_find(const struct sl_node *n, Sluice__Role role, const char *request_id,
                           uint32_t attempt);

/* ---- for the duties ---- */
/* Takes down a new state; tell = the router hears of it (LegEvent). state is static. */
void sl_leg_state(struct sl_leg *l, const char *state, bool tell);
/* Keeps a token; its index must follow the last one. tell = the router gets a TokenEvent. */
void sl_leg_token(struct sl_leg *l, uint32_t index, const struct sl_sampled *t, bool tell);
/* Microseconds since the command came. */
uint32_t sl_leg_age_us(const struct sl_leg *l);
/* Takes the facts of the first admission down. */
void sl_leg_admitted(struct sl_leg *l);
/* The terminal message. why may be NULL. */
void sl_leg_end(struct sl_leg *l, Sluice__DoneReason reason, enum sl_err code, const char *why);

/* ---- for the node ---- */
void sl_leg_on_engine(struct sl_node *n, const struct sl_engine_event *ev);
void sl_leg_on_xfer(struct sl_node *n, const struct sl_xfer_event *ev);
/* Forgets what has been finished long enough. Between rounds only: events of the round point at legs. */
void sl_legs_reap(struct sl_node *n, uint64_t now_ms);
/* Ends every leg of a router (boot id), or of all when every is set. */
void sl_legs_end(struct sl_node *n, uint64_t router_boot_id, bool every, Sluice__DoneReason reason,
                 enum sl_err code, const char *why);
#endif
