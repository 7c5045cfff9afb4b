/* common/model/ranks.c - see ranks.h.
 *
 * A run is a number that goes up; a rank that sees it does its part and takes itself off `left`. What is run is plain
 * and written before the number. */
#include "common/model/ranks.h"

#include <stdio.h>

#include "common/base/mem.h"
#include "common/base/spin_wait.h"
#include "common/base/thread.h"

struct rank {
    struct sl_ranks *ranks;
    uint32_t rank;
    struct sl_thread thread;
};

struct sl_ranks {
    _Atomic uint32_t run, left;
    bool stop;
    void (*fn)(void *arg, uint32_t rank);
    void *arg;
    uint32_t n_ranks;
    struct rank of[]; /* [n_ranks], the first is nobody's */
};

static void wait_while(_Atomic uint32_t *at, uint32_t value)
{
    while (!sl_word_spin(at, value))
        sl_word_sleep(at, value);
}

static void rank_main(void *arg)
{
    struct rank *rank = arg;
    struct sl_ranks *r = rank->ranks;
    for (uint32_t seen = 0;; seen++) {
        wait_while(&r->run, seen);
        if (r->stop)
            return;
        r->fn(r->arg, rank->rank);
        if (atomic_fetch_sub(&r->left, 1) == 1)
            sl_word_wake(&r->left);
    }
}

static void begin_run(struct sl_ranks *r)
{
    atomic_fetch_add(&r->run, 1);
    sl_word_wake(&r->run);
}

void sl_ranks_run(struct sl_ranks *r, void (*fn)(void *arg, uint32_t rank), void *arg)
{
    uint32_t left;
    r->fn = fn;
    r->arg = arg;
    atomic_store(&r->left, r->n_ranks - 1);
    begin_run(r);
    fn(arg, 0);
    while ((left = atomic_load(&r->left)) != 0)
        wait_while(&r->left, left);
}

enum sl_err sl_ranks_start(uint32_t n_ranks, struct sl_ranks **out)
{
    struct sl_ranks *r = sl_xcalloc(1, sizeof *r + n_ranks * sizeof r->of[0]);
    r->n_ranks = n_ranks;
    for (uint32_t i = 1; i < n_ranks; i++) {
        char name[24];
        snprintf(name, sizeof name, "sl-rank-%u", i);
        r->of[i].ranks = r;
        r->of[i].rank = i;
        enum sl_err e = sl_thread_start(&r->of[i].thread, name, rank_main, &r->of[i]);
        if (e != SL_OK) {
            sl_ranks_stop(r);
            return e;
        }
    }
    *out = r;
    return SL_OK;
}

void sl_ranks_stop(struct sl_ranks *r)
{
    if (r == NULL)
        return;
    r->stop = true;
    begin_run(r);
    for (uint32_t i = 1; i < r->n_ranks; i++)
        sl_thread_join(&r->of[i].thread);
    sl_free(r);
}
