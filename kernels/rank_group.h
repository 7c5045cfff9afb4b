/* kernels/rank_group.h - how the ranks of a node hand each other what each computed (docs/tensor-parallel.md).
 *
 * A rank is a device and a thread that calls its ops. An all-gather copies and never adds, so that what comes out does
 * not depend on who was first, nor on what carried it.
 *
 * Makers: sl_rank_group_memory() below, for ranks that share host memory; NCCL in common/transfer/nccl_group.h. */
#ifndef SLUICE_KERNELS_RANK_GROUP_H
#define SLUICE_KERNELS_RANK_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

struct sl_rank_group {
    uint32_t n_ranks;
    /* all_gather queues on the rank's stream: what was queued there before gives its part, and what follows finds all
     * parts. Else its device was synced before the call, and all parts are there at return. */
    bool in_order;
    /* Called by every rank, in the same order with the same bytes, of parts [n_ranks, bytes] of which it has its own.
     * stream: sl_backend_ops.native_stream, of use in order. The wait for the others has no end: that no layer is
     * computed is noticed elsewhere (common/node/node_life.h). An error: this group is broken, for all ranks. */
    enum sl_err (*all_gather)(struct sl_rank_group *g, uint32_t rank, void *stream, void *parts, size_t bytes,
                              struct sl_why *why);
    void (*close)(struct sl_rank_group *g); /* when no rank is inside */
};

/* Opens a group whose rank r has device first_device + r. */
typedef enum sl_err sl_rank_group_open_fn(uint32_t first_device, uint32_t n_ranks, struct sl_rank_group **out,
                                          struct sl_why *why);

/* The caller's, ended with its close(). Allocates nothing later. */
struct sl_rank_group *sl_rank_group_memory(uint32_t n_ranks);

#endif
