/* common/transfer/nccl_group.h - the all-gather of a node's ranks over NCCL, whose parts lie on devices.
 *
 * One process, one communicator, a device for each rank. The all-gather is queued on the stream that a rank computes
 * on (in_order), and ncclAllGather only copies, so that its bytes are those of the group through memory. */
#ifndef SLUICE_COMMON_TRANSFER_NCCL_GROUP_H
#define SLUICE_COMMON_TRANSFER_NCCL_GROUP_H

#include "kernels/rank_group.h"

/* Rank r has device first_device + r. Waits until NCCL has joined the ranks, two minutes at most, as does an all-gather
 * until NCCL has queued it; any thread. *out is the caller's, closed by its own close(). SL_ECONFIG: those of
 * sl_nccl_load(), or a device that cannot be used. SL_EPEER: what NCCL or CUDA said. SL_EDEVICE: NCCL was not through in
 * that time. After these two what NCCL has begun stays with the process. */
SL_MUST_CHECK enum sl_err sl_nccl_group_open(uint32_t first_device, uint32_t n_ranks,
                                             struct sl_rank_group **out, struct sl_why *why);
/* How long NCCL is waited for: until it has joined the ranks, has queued an all-gather, and has let go of them at the
 * close; what it holds longer stays with the process. */
struct sl_nccl_limits {
    uint32_t join_ms, queue_ms, close_ms;
};
/* The same with other limits. */
SL_MUST_CHECK enum sl_err sl_nccl_group_open_within(const struct sl_nccl_limits *limits,
                                                    uint32_t first_device, uint32_t n_ranks,
                                                    struct sl_rank_group **out, struct sl_why *why);

#endif
