/* common/model/share.h - what of a model a rank has under tensor parallelism (docs/tensor-parallel.md).
 *
 * Whatever is shared - heads, rows and columns of matrices, the vocabulary - is cut into n_ranks stretches in the
 * order of ranks. Pure. */
#ifndef SLUICE_COMMON_MODEL_SHARE_H
#define SLUICE_COMMON_MODEL_SHARE_H

#include "common/model/model_conf.h"

#define SL_MAX_RANKS 64u /* no node has more devices, few models have more KV heads */

struct sl_share {
    uint32_t rank, n_ranks; /* n_ranks 1: all of it */
};

/* The stretch of n things: where it begins, and how many they are. Equal for all ranks when n_ranks divides n, and at
 * most one apart otherwise. */
static inline uint64_t sl_share_first(const struct sl_share *s, uint64_t n)
{
    return n * s->rank / s->n_ranks;
}

static inline uint64_t sl_share_size(const struct sl_share *s, uint64_t n)
{
    return n * (s->rank + 1) / s->n_ranks - sl_share_first(s, n);
}

/* Of the rank that has most. */
static inline uint64_t sl_share_most(const struct sl_share *s, uint64_t n)
{
    return (n + s->n_ranks - 1) / s->n_ranks;
}

/* What a rank's device is opened with: an equal part of the threads and CPUs in all, which are the node's, and the
 * device that many behind its first. */
struct sl_dev_conf sl_share_dev(const struct sl_share *s, const struct sl_dev_conf *all);

/* Whether the model can be cut into n_ranks: KV heads and feed-forward evenly, columns at blocks of their types.
 * SL_EUNSUPPORTED, with both numbers. */
SL_MUST_CHECK enum sl_err sl_share_check(const struct sl_model_file *f, const struct sl_model_conf *c,
                                         uint32_t n_ranks, struct sl_why *why);

/* Whether there are n_ranks devices from first on; tables without numbered devices have any. SL_ECONFIG, with the
 * numbers. */
SL_MUST_CHECK enum sl_err sl_share_check_devices(const struct sl_backend_ops *ops, uint32_t first,
                                                 uint32_t n_ranks, struct sl_why *why);

#endif
