/* router/place/fair_share.c - see fair_share.h. Linear scans: as many requests wait as a router may have
 * open, a thousand, and one is let go at a time. */
#include "router/place/fair_share.h"

#include <math.h>

#include "common/sched/slack.h"

#define GUESS_MS  1000.0  /* so much of seeing outweighs the prediction */
#define MEMORY_MS 20000.0 /* of the measured rate: longer than the time between two reports of a node */

static bool waits(const struct sl_account *a, const struct sl_held *held, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (held[i].account == a)
            return true;
    return false;
}

void sl_share_enter(struct sl_share *s, struct sl_account *a, const struct sl_held *held, uint32_t n,
                    uint64_t now_us)
{
    if (n == 0) {
        s->epoch++;
        s->last_us = now_us;
    }
    if (a->epoch != s->epoch) {
        a->epoch = s->epoch;
        a->used = s->now;
    } else if (!waits(a, held, n)) {
        a->used = fmax(a->used, s->now);
    }
}

static bool is_short(const struct sl_held *h, double below)
{
    return below <= 0 || h->work < below;
}

static int64_t level(const struct sl_held *h, uint64_t now_us)
{
    return sl_slack_level(&(struct sl_slack){.priority = h->priority, .arrived_us = h->since_us}, now_us);
}

/* The priority whose turn it is: the most urgent after ageing, and of equals the one that aged. */
static bool next_priority(const struct sl_held *held, uint32_t n, double below, uint64_t now_us, int32_t *out)
{
    int64_t best = 0;
    bool found = false;
    for (uint32_t i = 0; i < n; i++) {
        if (!is_short(&held[i], below))
            continue;
        int64_t l = level(&held[i], now_us);
        if (!found || l < best || (l == best && held[i].priority > *out)) {
            found = true;
            best = l;
            *out = held[i].priority;
        }
    }
    return found;
}

uint32_t sl_share_next(const struct sl_held *held, uint32_t n, double below, uint64_t now_us)
{
    uint32_t best = SL_SHARE_NONE;
    int32_t priority;
    if (!next_priority(held, n, below, now_us, &priority))
        return SL_SHARE_NONE;
    for (uint32_t i = 0; i < n; i++) {
        const struct sl_held *h = &held[i], *b = best == SL_SHARE_NONE ? NULL : &held[best];
        if (h->priority != priority || !is_short(h, below))
            continue;
        if (!b || h->account->used < b->account->used ||
            (h->account->used <= b->account->used && h->arrived_us < b->arrived_us))
            best = i;
    }
    return best;
}

void sl_share_served(struct sl_share *s, struct sl_held *held, uint32_t n, uint32_t i, uint64_t now_us)
{
    for (uint32_t k = 0; k < n; k++)
        if (held[k].priority == held[i].priority)
            held[k].since_us = now_us;
    s->now = fmax(s->now, held[i].account->used);
    s->drained += held[i].work;
    s->drained_ms += (double)(now_us - s->last_us) / 1e3;
    s->last_us = now_us;
    if (s->drained_ms > MEMORY_MS) {
        s->drained /= 2;
        s->drained_ms /= 2;
    }
}

void sl_share_charge(struct sl_account *a, double work)
{
    a->used += work / a->weight;
}

double sl_share_ahead(const struct sl_held *held, uint32_t n, const struct sl_held *mine)
{
    double ahead = 0;
    for (uint32_t i = 0; i < n; i++)
        held[i].account->waits = held[i].account->urgent = 0;
    mine->account->waits = mine->account->urgent = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct sl_account *a = held[i].account;
        if (held[i].priority < mine->priority) {
            a->urgent += held[i].work;
            ahead += held[i].work;
        } else if (held[i].priority == mine->priority) {
            a->waits += held[i].work;
        }
    }
    const struct sl_account *own = mine->account;
    double turn = own->used + (own->urgent + own->waits) / own->weight;
    for (uint32_t i = 0; i < n; i++) {
        struct sl_account *a = held[i].account;
        double gets = a == own ? a->waits : (turn - a->used) * a->weight - a->urgent;
        ahead += fmin(fmax(gets, 0), a->waits);
        a->waits = 0; /* each account once */
    }
    return ahead;
}

double sl_share_wait_ms(const struct sl_share *s, double ahead, double guess_per_ms)
{
    double per_ms = (s->drained + GUESS_MS * guess_per_ms) / (s->drained_ms + GUESS_MS);
    return per_ms > 0 ? ahead / per_ms : 0;
}
