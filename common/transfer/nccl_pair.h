/* common/transfer/nccl_pair.h - one NCCL communicator of two ranks and its staging: rank 0 sends, rank 1
 * receives. Not for other folders.
 *
 * NCCL sees staging only, never a page: the owner copies a page into a slot, or out of one, by a stream that
 * waits for nobody. So an abort that hangs costs staging, and no page waits for it.
 *
 * Threads: the transfer thread. No call waits for the peer. */
#ifndef SLUICE_COMMON_TRANSFER_NCCL_PAIR_H
#define SLUICE_COMMON_TRANSFER_NCCL_PAIR_H

#include <stdint.h>

#include "common/transfer/nccl_load.h"

#define SL_NCCL_SLOTS      4u         /* of a pair: 16 MiB, as much as a connection may have in flight */
#define SL_NCCL_SLOT_BYTES (4u << 20) /* a quarter of that, which is also the largest message of pages */

/* Part of the staging. Its owner may use n_ends; the rest is the pair's. */
struct sl_nccl_slot {
    sl_cuda_ptr at;
    void *event;
    uint32_t bytes;
    uint32_t n_ends; /* payloads whose last byte is in it */
};

/* A group of sends, and of receives that must be equal to it: at most one a slot. */
struct sl_nccl_group {
    uint32_t n, bytes[SL_NCCL_SLOTS];
};

struct sl_nccl_pair; /* opaque */

/* Called inside sl_nccl_pair_step(). */
struct sl_nccl_pair_events {
    /* Rank 0: this group was posted; the peer must be told, in order. False ends the pair. */
    bool (*posted)(void *arg, const struct sl_nccl_group *g);
    /* Rank 1: bytes are in the slot; the owner takes all of them with sl_nccl_pair_scatter(). False ends the
     * pair. */
    bool (*arrived)(void *arg, struct sl_nccl_slot *s);
    /* Rank 0: what was gathered into the slot has left. Rank 1: what was scattered from it is in place. */
    void (*done)(void *arg, struct sl_nccl_slot *s);
};

/* Starts the communicator; the peer does the same with the same id. patience_ms: how long it may take to
 * start, or a group to move, before the pair fails. Errors: SL_EPEER, with why. */
SL_MUST_CHECK enum sl_err sl_nccl_pair_open(const struct sl_nccl_id *id, int rank, uint32_t patience_ms,
                                            const struct sl_nccl_pair_events *events, void *arg,
                                            struct sl_nccl_pair **out, struct sl_why *why);
/* Waits for copies under way, which takes as long as copying; the communicator is aborted and freed by a
 * thread of its own. Takes NULL. */
void sl_nccl_pair_close(struct sl_nccl_pair *p);
/* Waits at most this long for communicators of this process that are being aborted. */
void sl_nccl_pair_reap(uint32_t max_ms);

/* Rank 0: a slot to fill, NULL when there is none. */
struct sl_nccl_slot *sl_nccl_pair_room(struct sl_nccl_pair *p);
uint32_t sl_nccl_slot_room(const struct sl_nccl_slot *s);
void sl_nccl_pair_gather(struct sl_nccl_pair *p, struct sl_nccl_slot *s, const void *from, uint32_t bytes);
void sl_nccl_pair_filled(struct sl_nccl_pair *p, struct sl_nccl_slot *s); /* it goes */
/* Rank 1: what the peer posted. False when no peer that keeps the rules would say so. */
bool sl_nccl_pair_expect(struct sl_nccl_pair *p, const struct sl_nccl_group *g);
void sl_nccl_pair_scatter(struct sl_nccl_pair *p, struct sl_nccl_slot *s, uint32_t at, void *to,
                          uint32_t bytes);

/* Looks at what has ended and starts what can start. *moved is set when something happened. An error is the
 * end of the pair: why says it, and it is to be closed. */
SL_MUST_CHECK enum sl_err sl_nccl_pair_step(struct sl_nccl_pair *p, bool *moved, struct sl_why *why);
/* Whether it waits for something, so that step() must be called again soon. */
bool sl_nccl_pair_waits(const struct sl_nccl_pair *p);

#endif
