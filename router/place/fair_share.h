/* router/place/fair_share.h - when there is more work than nodes take: who waits at the router, whose request
 * goes next, and how long a newcomer will wait.
 *
 * Requests wait at the router, not at nodes, when nodes have hold_ms of work to run before them: a choice
 * made late can still be just. Classes go first: the lowest priority number is served before the others, but
 * one level of it is worth no more than ten seconds without service (slack.h). Within a priority every API
 * key has an account of the work done for it, divided by its weight, and the key with the smallest account is
 * next (virtual token counters, Sheng et al., OSDI 2024): keys that ask for more than their share get equal
 * shares by weight, whatever they ask for, and a key that asks for less waits for nobody's backlog. Within a
 * key they go as they came.
 *
 * Work is counted in tokens, a generated one as much as SL_SHARE_OUTPUT of the prompt. An account whose
 * requests did not wait is lifted to the one served last: nobody saves up a share.
 *
 * Everything here is a pure function of its arguments. */
#ifndef SLUICE_ROUTER_PLACE_FAIR_SHARE_H
#define SLUICE_ROUTER_PLACE_FAIR_SHARE_H

#include <stdbool.h>
#include <stdint.h>
#include "common/base/err.h"

#define SL_SHARE_OUTPUT 2.0 /* what APIs charge more for a token that is made than for one that is read */
#define SL_SHARE_NONE   UINT32_MAX

/* Work let go while some waited, and the time that took: sums that forget. */
struct sl_drain {
    double work, ms;
    uint64_t last_us;
};

struct sl_account {
    double weight;  /* > 0; a key of weight 2 gets twice the share of one of weight 1 */
    double used;    /* work done for it, divided by weight */
    uint64_t epoch; /* of `used`: what was done before the last time that somebody had to wait is forgotten */
    double waits, urgent; /* scratch of sl_share_wait_ms() */
    struct sl_drain drain;
};

struct sl_share_entry {
    void *who; /* the caller's */
    struct sl_account *account;
    int32_t priority; /* lower is earlier */
    uint64_t arrived_us;
    uint64_t since_us; /* when its priority was last served, or arrived_us */
    double work;       /* tokens of its prompt */
    double overtaken;  /* work that went while this one was skipped */
    bool skipped;
    bool seen; /* skipped at this event or a former one, since all were seen */
};

/* Zero-initialised = nobody ever waited. */
struct sl_share {
    double now; /* the `used` of the last account served */
    uint64_t epoch;
    struct sl_drain drain;
};

/* Before a request of the account is put into held[n]. */
void sl_share_enter(struct sl_share *s, struct sl_account *a, const struct sl_share_entry *held, uint32_t n,
                    uint64_t now_us);
/* The one that goes next, or SL_SHARE_NONE. When nodes have no room for it, sl_share_skip() and ask again:
 * who waits behind a long prompt's turn may be short enough not to wait. What overtakes a request adds up to
 * less than its own work, so that short ones do not starve a long one. */
uint32_t sl_share_next(const struct sl_share_entry *held, uint32_t n, uint64_t now_us);
void sl_share_skip(struct sl_share_entry *h);
/* held[i] is let go. The caller takes it out and charges its prompt to the account. */
void sl_share_served(struct sl_share *s, struct sl_share_entry *held, uint32_t n, uint32_t i,
                     uint64_t now_us);
/* There is room again: what was skipped is looked at again. */
void sl_share_anew(struct sl_share_entry *held, uint32_t n);
/* Where not all are looked at each time there is room: what was seen is skipped, so that the others are looked at
 * too; all_seen: a new round begins. */
void sl_share_stand_back(struct sl_share_entry *held, uint32_t n);
void sl_share_all_seen(struct sl_share_entry *held, uint32_t n);
/* Work done, in tokens of prompt: also of requests that never had to wait. */
void sl_share_charge(struct sl_account *a, double work);
/* How long `mine`, which entered and is not in held yet, will wait. What goes before it is, of more urgent
 * classes, all that waits; of its own what the other keys get until its own key has got what it asked for
 * before. Who comes later and goes before it all the same shows in how fast its key was served lately.
 * guess_per_ms: tokens a millisecond of all nodes, by prediction; what was seen counts more and more. */
double sl_share_wait_ms(const struct sl_share *s, const struct sl_share_entry *held, uint32_t n,
                        const struct sl_share_entry *mine, double guess_per_ms);

#endif
