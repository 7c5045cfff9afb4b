/* router/api/gen_inbox.h - events of one answer's choices on their way from the flow thread to the http
 * thread: copied, in order, bounded.
 *
 * Over the bound nothing more is kept and taking says so: the reader is slower than the tokens come, and the
 * request is called off. Threads: put by the flow thread, take by the http thread. */
#ifndef SLUICE_ROUTER_API_GEN_INBOX_H
#define SLUICE_ROUTER_API_GEN_INBOX_H

#include <pthread.h>
#include "router/flow/gen_req.h"

struct sl_inbox_item {
    struct sl_inbox_item *next;
    uint32_t choice;
    struct sl_gen_event ev; /* its pointers lead into this block */
};

struct sl_inbox {
    pthread_mutex_t lock;
    struct sl_inbox_item *first, *last;
    size_t n_bytes, max_bytes;
    bool overflowed;
};

void sl_inbox_init(struct sl_inbox *b, size_t max_bytes);
void sl_inbox_fini(struct sl_inbox *b);
void sl_inbox_put(struct sl_inbox *b, uint32_t choice, const struct sl_gen_event *ev);
/* Everything put so far, oldest first (NULL when nothing is); each freed with sl_free. */
struct sl_inbox_item *sl_inbox_take(struct sl_inbox *b, bool *overflowed);

#endif
