/* router/place/fair_share.c - see fair_share.h. Linear scans: as many requests wait as a router may have
 * open, a thousand, and one is let go at a time. */
#include "router/place/fair_share.h"

#include <math.h>

#include "common/sched/slack.h"

#define GUESS_MS  1000.0  /* so much of seeing outweighs the prediction */
#define MEMORY_MS 20000.0 /* of the measured rate: longer than the time between two reports of a node */

static bool waits(const struct sl_account *a, const struct sl_share_entry *held, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (held[i].account == a)
            return true;
    return false;
}

void sl_share_enter(struct sl_share *s, struct sl_account *a, const struct sl_share_entry *held, uint32_t n,
                    uint64_t now_us)
{
    if (n == 0) {
        s->epoch++;
        s->drain.last_us = now_us;
    }
    if (waits(a, held, n))
        return;
    a->drain.last_us = now_us;
    a->used = a->epoch == s->epoch ? fmax(a->used, s->now) : s->now;
    a->epoch = s->epoch;
}

/* What is skipped lets nothing pass that would make it wait for more than its own work. */
static double most_work(const struct sl_share_entry *held, uint32_t n)
{
    double most = HUGE_VAL;
    for (uint32_t i = 0; i < n; i++)
        if (held[i].skipped)
            most = fmin(most, held[i].work - held[i].overtaken);
    return most;
}

static bool may_go(const struct sl_share_entry *h, double most)
{
    return !h->skipped && h->work < most;
}

static int64_t level(const struct sl_share_entry *h, uint64_t now_us)
{
    return sl_slack_level(&(struct sl_slack){.priority = h->priority, .arrived_us = h->since_us}, now_us);
}

/* The priority whose turn it is: the most urgent after ageing, and of equals the one that aged. */
static bool next_priority(const struct sl_share_entry *held, uint32_t n, double most, uint64_t now_us,
                          int32_t *out)
{
    int64_t best = 0;
    bool found = false;
    for (uint32_t i = 0; i < n; i++) {
        if (!may_go(&held[i], most))
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

uint32_t sl_share_next(const struct sl_share_entry *held, uint32_t n, uint64_t now_us)
{
    const double most = most_work(held, n);
    uint32_t best = SL_SHARE_NONE;
    int32_t priority = 0;
    if (!next_priority(held, n, most, now_us, &priority))
        return SL_SHARE_NONE;
    for (uint32_t i = 0; i < n; i++) {
        const struct sl_share_entry *h = &held[i], *b = best == SL_SHARE_NONE ? NULL : &held[best];
        if (h->priority != priority || !may_go(h, most))
            continue;
        if (!b || h->account->used < b->account->used ||
            (h->account->used <= b->account->used && h->arrived_us < b->arrived_us))
            best = i;
    }
    return best;
}

static void drain_add(struct sl_drain *d, double work, uint64_t now_us)
{
    d->work += work;
    d->ms += (double)(now_us - d->last_us) / 1e3;
    d->last_us = now_us;
    if (d->ms > MEMORY_MS) {
        d->work /= 2;
        d->ms /= 2;
    }
}

/* guess: as long as little was seen. */
static double drain_per_ms(const struct sl_drain *d, double guess)
{
    return (d->work + GUESS_MS * guess) / (d->ms + GUESS_MS);
}

void sl_share_served(struct sl_share *s, struct sl_share_entry *held, uint32_t n, uint32_t i, uint64_t now_us)
{
    for (uint32_t k = 0; k < n; k++)
        if (held[k].priority == held[i].priority)
            held[k].since_us = now_us;
    for (uint32_t k = 0; k < n; k++)
        held[k].overtaken += held[k].skipped ? held[i].work : 0;
    s->now = fmax(s->now, held[i].account->used);
    drain_add(&s->drain, held[i].work, now_us);
    drain_add(&held[i].account->drain, held[i].work, now_us);
}

void sl_share_skip(struct sl_share_entry *h)
{
    h->skipped = h->seen = true;
}

void sl_share_stand_back(struct sl_share_entry *held, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        held[i].skipped |= held[i].seen;
}

void sl_share_all_seen(struct sl_share_entry *held, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        held[i].seen = false;
}

void sl_share_anew(struct sl_share_entry *held, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        held[i].skipped = false;
}

void sl_share_charge(struct sl_account *a, double work)
{
    a->used += work / a->weight;
}

double sl_share_wait_ms(const struct sl_share *s, const struct sl_share_entry *held, uint32_t n,
                        const struct sl_share_entry *mine, double guess_per_ms)
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
    double before = own->urgent + own->waits, turn = own->used + before / own->weight;
    for (uint32_t i = 0; i < n; i++) {
        struct sl_account *a = held[i].account;
        double gets = a == own ? a->waits : (turn - a->used) * a->weight - a->urgent;
        ahead += fmin(fmax(gets, 0), a->waits);
        a->waits = 0; /* each account once */
    }
    double all_per_ms = drain_per_ms(&s->drain, guess_per_ms);
    double own_per_ms = drain_per_ms(&own->drain, all_per_ms);
    if (all_per_ms <= 0 || own_per_ms <= 0)
        return 0;
    return fmax(ahead / all_per_ms, before / own_per_ms);
}
