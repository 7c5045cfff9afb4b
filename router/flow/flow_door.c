/* router/flow/flow_door.c - one recursive mutex around a map: recursive because on_event may find its client
 * gone and cancel. */
#include "router/flow/flow_door.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hashmap.h"
#include "common/base/list.h"

struct sl_door {
    pthread_mutex_t lock;
    bool shut;
    struct sl_hashmap *by_id;
    struct sl_list canceled;
};

struct sl_door_entry {
    struct sl_list canceled;
    char id[64];
    sl_gen_event_fn *on_event; /* NULL: the client left */
    void *arg;
};

struct sl_door *sl_door_new(void)
{
    struct sl_door *d = sl_xcalloc(1, sizeof *d);
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    SL_ASSERT(pthread_mutex_init(&d->lock, &attr) == 0);
    pthread_mutexattr_destroy(&attr);
    d->by_id = sl_hashmap_new();
    sl_list_init(&d->canceled);
    return d;
}

void sl_door_free(struct sl_door *d)
{
    if (!d)
        return;
    SL_ASSERT(sl_hashmap_len(d->by_id) == 0);
    sl_hashmap_free(d->by_id);
    pthread_mutex_destroy(&d->lock);
    sl_free(d);
}

enum sl_err sl_door_enter(struct sl_door *d, const char *id, sl_gen_event_fn *on_event, void *arg,
                          struct sl_queue *q, void *item, struct sl_door_entry **out)
{
    struct sl_door_entry *e = sl_xcalloc(1, sizeof *e);
    snprintf(e->id, sizeof e->id, "%s", id);
    e->on_event = on_event;
    e->arg = arg;
    sl_list_init(&e->canceled);
    pthread_mutex_lock(&d->lock);
    enum sl_err err = d->shut                                          ? SL_EDRAINING
                      : sl_hashmap_get(d->by_id, e->id, strlen(e->id)) ? SL_EINVAL
                                                                       : SL_OK;
    *out = err ? NULL : e; /* the item is read by the flow thread as soon as it is in the queue */
    if (!err)
        err = sl_queue_push(q, item);
    if (!err)
        sl_hashmap_put(d->by_id, e->id, strlen(e->id), e);
    else
        *out = NULL;
    pthread_mutex_unlock(&d->lock);
    if (err)
        sl_free(e);
    return err;
}

void sl_door_leave(struct sl_door *d, struct sl_door_entry *e)
{
    pthread_mutex_lock(&d->lock);
    sl_hashmap_del(d->by_id, e->id, strlen(e->id));
    sl_list_remove(&e->canceled);
    pthread_mutex_unlock(&d->lock);
    sl_free(e);
}

bool sl_door_call(struct sl_door *d, struct sl_door_entry *e, const struct sl_gen_event *ev)
{
    pthread_mutex_lock(&d->lock);
    bool there = e->on_event != NULL;
    if (there)
        e->on_event(e->arg, ev);
    pthread_mutex_unlock(&d->lock);
    return there;
}

bool sl_door_is_open(struct sl_door *d, const struct sl_door_entry *e)
{
    pthread_mutex_lock(&d->lock);
    bool open = e->on_event != NULL;
    pthread_mutex_unlock(&d->lock);
    return open;
}

bool sl_door_cancel(struct sl_door *d, const char *id)
{
    pthread_mutex_lock(&d->lock);
    struct sl_door_entry *e = sl_hashmap_get(d->by_id, id, strlen(id));
    bool there = e && e->on_event;
    if (there) {
        e->on_event = NULL;
        sl_list_add_tail(&d->canceled, &e->canceled);
    }
    pthread_mutex_unlock(&d->lock);
    return there;
}

bool sl_door_next_canceled(struct sl_door *d, char id[64])
{
    pthread_mutex_lock(&d->lock);
    bool any = !sl_list_empty(&d->canceled);
    if (any) {
        struct sl_door_entry *e = SL_CONTAINER_OF(d->canceled.next, struct sl_door_entry, canceled);
        sl_list_remove(&e->canceled);
        memcpy(id, e->id, sizeof e->id);
    }
    pthread_mutex_unlock(&d->lock);
    return any;
}

void sl_door_shut(struct sl_door *d)
{
    pthread_mutex_lock(&d->lock);
    d->shut = true;
    pthread_mutex_unlock(&d->lock);
}

bool sl_door_is_shut(struct sl_door *d)
{
    pthread_mutex_lock(&d->lock);
    bool shut = d->shut;
    pthread_mutex_unlock(&d->lock);
    return shut;
}
