/* common/transfer/nccl_group.h - the all-gather of a node's ranks over NCCL, whose parts lie on devices.
 *
 * One process, one communicator, a device and a stream for each rank: rank r has device r. ncclAllGather only copies,
 * so that its bytes are those of the group through memory. It is waited for before all_gather() returns. */
#ifndef SLUICE_COMMON_TRANSFER_NCCL_GROUP_H
#define SLUICE_COMMON_TRANSFER_NCCL_GROUP_H

#include "kernels/rank_group.h"

/* Waits until NCCL has joined the ranks; any thread. *out is the caller's, closed by its own close(). SL_ECONFIG: those of sl_nccl_load(), or fewer devices than ranks. SL_EPEER:
 * what NCCL or CUDA said. */
SL_MUST_CHECK enum sl_err sl_nccl_group_open(uint32_t n_ranks, struct sl_rank_group **out,
                                             struct sl_why *why);

#endif
