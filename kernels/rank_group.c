/* kernels/rank_group.c - an all-gather through the memory of one process: each rank shows where its parts are, all
 * meet, each copies what it lacks, all meet again before anyone may write its part anew. */
#include "kernels/rank_group.h"

#include <string.h>

#include "common/base/mem.h"
#include "common/base/spin_wait.h"

struct shown {
    const char *parts;
    size_t bytes;
};

struct memory_group {
    struct sl_rank_group group;
    _Atomic uint32_t arrived; /* of this meeting */
    _Atomic uint32_t meeting; /* goes up when the last rank has come: what the others wait on */
    _Atomic uint32_t sleepers;
    struct shown shown[]; /* [n_ranks] */
};

static void meet(struct memory_group *g)
{
    uint32_t meeting = atomic_load(&g->meeting); /* it cannot end before this rank came */
    if (atomic_fetch_add(&g->arrived, 1) + 1 == g->group.n_ranks) {
        atomic_store(&g->arrived, 0);
        atomic_fetch_add(&g->meeting, 1);
        if (atomic_load(&g->sleepers))
            sl_word_wake(&g->meeting);
        return;
    }
    if (sl_word_spin(&g->meeting, meeting))
        return;
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->meeting) == meeting)
        sl_word_sleep(&g->meeting, meeting);
    atomic_fetch_sub(&g->sleepers, 1);
}

static enum sl_err all_gather(struct sl_rank_group *group, uint32_t rank, void *stream, void *parts,
                              size_t bytes, struct sl_why *why)
{
    struct memory_group *g = (struct memory_group *)group;
    (void)why, (void)stream;
    g->shown[rank] = (struct shown){parts, bytes};
    meet(g);
    for (uint32_t r = 0; r < group->n_ranks; r++) {
        SL_ASSERT(g->shown[r].bytes == bytes);
        if (r != rank)
            memcpy((char *)parts + r * bytes, g->shown[r].parts + r * bytes, bytes);
    }
    meet(g);
    return SL_OK;
}

static void group_close(struct sl_rank_group *group)
{
    sl_free(group);
}

struct sl_rank_group *sl_rank_group_memory(uint32_t n_ranks)
{
    struct memory_group *g = sl_xcalloc(1, sizeof *g + n_ranks * sizeof g->shown[0]);
    g->group = (struct sl_rank_group){n_ranks, false, all_gather, group_close};
    return &g->group;
}
