/* router/admin/step_log.h - the last steps and page transfers of all nodes on the router's clock, for the time
 * line of /ui.
 *
 * Nodes tell when a step ended as time since their start. What a message took to come here is not known, so a
 * node's start on this clock is the earliest that its messages allow; it may drift later slowly, as clocks do.
 *
 * Bounded: SL_STEP_LOG steps and SL_TRANSFER_LOG transfers of at most SL_STEP_LANES names; older ones are
 * overwritten. Threads: the flow thread writes, any thread reads (a lock, held for a copy). */
#ifndef SLUICE_ROUTER_ADMIN_STEP_LOG_H
#define SLUICE_ROUTER_ADMIN_STEP_LOG_H

#include "common/base/buf.h"
#include "proto/sluice.pb-c.h"

#define SL_STEP_LOG      32768u /* steps: half a minute of ten nodes at 100 steps a second */
#define SL_TRANSFER_LOG  2048u  /* transfers: half a minute of 60 requests a second in mode pd */
#define SL_STEP_LANES    1024u  /* as many nodes as a router may have */
#define SL_STEP_READ_MAX 8192u  /* steps in one answer */

struct sl_step_log; /* opaque */
struct sl_step_log *sl_step_log_new(uint64_t now_us);
void sl_step_log_free(struct sl_step_log *l);

/* What a node told, received now. Returns the number of its last step: what to ask for steps after; `after` when
 * nothing new came. */
uint64_t sl_step_log_take(struct sl_step_log *l, const char *node, uint64_t boot_id,
                          const Sluice__StepLog *told, uint64_t after, uint64_t now_us);
struct sl_step_transfer {
    const char *from, *to, *request;
    uint64_t start_us, end_us; /* granted and committed, sl_now_us() */
    uint32_t pages;
};
void sl_step_log_transfer(struct sl_step_log *l, const struct sl_step_transfer *t);

/* Appends what came after number `after` as JSON, oldest first:
 *   {"now_us","next","lost","more","lanes":[{"node","prompt_tokens","decode_tokens","uptime_us","told_us"}],
 *    "steps":[[lane,start_us,took_us,predicted_us,decode_rows,draft_rows,prompt_tokens,prompts]],
 *    "transfers":[[from,to,start_us,end_us,pages,"request"]]}
 * Times count from sl_step_log_new(). next is the `after` of the next call; lost: some were overwritten between;
 * more: ask again at once. Sums of a lane are the node's since its start. */
void sl_step_log_json(struct sl_step_log *l, uint64_t after, uint64_t now_us, struct sl_buf *out);

#endif
