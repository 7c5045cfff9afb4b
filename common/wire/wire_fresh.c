/* common/wire/wire_fresh.c - a sealed request counts once: one that was heard on the wire and is sent again does not.
 *
 * Every life of a server has an id, and every client counts what it sends. The server keeps, of the last numbers
 * of each client, the connection on which each was taken. What it has not taken and is stamped for its id it
 * takes. All else is answered "not taken", stamped with the id: the client seals the same message anew and sends
 * it again, which costs who knows the secret a round trip, and who only heard the message can not do.
 * That is how a client meets a server, how both go on after a restart of the server, and what becomes of a request
 * that nng sends again because its connection was lost.
 *
 * nng also sends again what gets no answer for a while. That comes on the connection on which it was taken, where
 * its answer will come too: it is passed over, since the answer "not taken" would be taken for the other.
 *
 * A server that has met too many clients takes a new id and forgets them: nothing heard before counts then. */
#include <pthread.h>

#include "common/base/hashmap.h"
#include "common/base/mem.h"
#include "common/wire/wire_nng.h"

#define MAX_SENDERS 1024u /* nodes of a router; each call of sluicectl over the network is one more */
#define WINDOW      256u  /* numbers; a client has fewer calls in flight, and so out of order */

struct sender {
    uint64_t highest;
    uint32_t pipes[WINDOW]; /* [number % WINDOW]: where it was taken, 0 = it was not */
};

struct sl_fresh {
    pthread_mutex_t lock; /* of all below */
    uint64_t id, n_refused;
    struct sl_hashmap *senders;
};

struct sl_fresh *sl_fresh_new(void)
{
    struct sl_fresh *f = sl_xcalloc(1, sizeof *f);
    pthread_mutex_init(&f->lock, NULL);
    f->id = sl_seal_new_id();
    f->senders = sl_hashmap_new();
    return f;
}

static void forget(struct sl_fresh *f)
{
    size_t it = 0;
    void *sender;
    while (sl_hashmap_next(f->senders, &it, &sender))
        sl_free(sender);
    sl_hashmap_free(f->senders);
}

void sl_fresh_free(struct sl_fresh *f)
{
    if (!f)
        return;
    forget(f);
    pthread_mutex_destroy(&f->lock);
    sl_free(f);
}

static enum sl_fresh_verdict take_number(struct sender *s, uint64_t number, uint32_t pipe)
{
    uint32_t *taken = &s->pipes[number % WINDOW];
    if (number <= s->highest) {
        if (s->highest - number >= WINDOW)
            return SL_FRESH_REFUSED;
        if (*taken)
            return *taken == pipe ? SL_FRESH_AGAIN : SL_FRESH_REFUSED;
    }
    if (number > s->highest) {
        for (uint64_t i = 0; i < WINDOW && i < number - s->highest; i++)
            s->pipes[(number - i) % WINDOW] = 0;
        s->highest = number;
    }
    *taken = pipe;
    return SL_FRESH_TAKEN;
}

/* NULL: there are too many. */
static struct sender *find_sender(struct sl_fresh *f, uint64_t id)
{
    struct sender *s = sl_hashmap_get_u64(f->senders, id);
    if (s || sl_hashmap_len(f->senders) == MAX_SENDERS)
        return s;
    s = sl_xcalloc(1, sizeof *s);
    sl_hashmap_put_u64(f->senders, id, s);
    return s;
}

enum sl_fresh_verdict sl_fresh_take(struct sl_fresh *f, const struct sl_stamp *stamp, uint32_t pipe,
                                    uint64_t *id)
{
    enum sl_fresh_verdict verdict = SL_FRESH_REFUSED;
    pthread_mutex_lock(&f->lock);
    if (stamp->to == f->id && stamp->number != SL_NOT_TAKEN) {
        struct sender *s = find_sender(f, stamp->from);
        if (s) {
            verdict = take_number(s, stamp->number, pipe);
        } else {
            forget(f);
            f->senders = sl_hashmap_new();
            f->id = sl_seal_new_id();
        }
    }
    f->n_refused += verdict == SL_FRESH_REFUSED && stamp->to != 0;
    *id = f->id;
    pthread_mutex_unlock(&f->lock);
    return verdict;
}

uint64_t sl_fresh_refused(struct sl_fresh *f)
{
    pthread_mutex_lock(&f->lock);
    uint64_t n = f->n_refused;
    pthread_mutex_unlock(&f->lock);
    return n;
}
