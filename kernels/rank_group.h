/* kernels/rank_group.h - how the ranks of a node hand each other what each computed (docs/tensor-parallel.md).
 *
 * A rank is a device and a thread that calls its ops. An all-gather copies and never adds, so that what comes out does
 * not depend on who was first, nor on what carried it.
 *
 * Makers: sl_rank_group_memory() below, for ranks that share host memory; NCCL in common/transfer/nccl_group.h. */
#ifndef SLUICE_KERNELS_RANK_GROUP_H
#define SLUICE_KERNELS_RANK_GROUP_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

struct sl_rank_group {
    uint32_t n_ranks;
    /* Called by every rank, in the same order with the same bytes; rank's own part of parts [n_ranks, bytes] is there
     * before (its device was synced), all of them at return. Waits for the others without end: that no layer is
     * computed is noticed elsewhere (common/node/node_life.h). SL_EPEER: this group is broken, for all ranks. */
    enum sl_err (*all_gather)(struct sl_rank_group *g, uint32_t rank, void *parts, size_t bytes,
                              struct sl_why *why);
    void (*close)(struct sl_rank_group *g); /* when no rank is inside */
};

/* The caller's, ended with its close(). Allocates nothing later. */
struct sl_rank_group *sl_rank_group_memory(uint32_t n_ranks);

#endif
