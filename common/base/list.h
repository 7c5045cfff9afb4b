/* common/base/list.h - intrusive doubly linked list: the link lives in the element. One thread. */
#ifndef SLUICE_COMMON_BASE_LIST_H
#define SLUICE_COMMON_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct sl_list {
    struct sl_list *prev, *next;
};

#define SL_CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))
#define SL_LIST_FOREACH(pos, head)         for (struct sl_list *pos = (head)->next; pos != (head); pos = pos->next)
/* pos may be removed inside the loop */
#define SL_LIST_FOREACH_SAFE(pos, tmp, head)                                                                 \
    for (struct sl_list *pos = (head)->next, *tmp = pos->next; pos != (head); pos = tmp, tmp = pos->next)

static inline void sl_list_init(struct sl_list *l)
{
    l->prev = l->next = l;
}
static inline bool sl_list_empty(const struct sl_list *l)
{
    return l->next == l;
}
static inline void sl_list_add_tail(struct sl_list *head, struct sl_list *e)
{
    e->prev = head->prev;
    e->next = head;
    head->prev->next = e;
    head->prev = e;
}
static inline void sl_list_add_head(struct sl_list *head, struct sl_list *e)
{
    sl_list_add_tail(head->next, e);
}
/* Leaves e an empty list, so that a second removal is harmless. */
static inline void sl_list_remove(struct sl_list *e)
{
    e->prev->next = e->next;
    e->next->prev = e->prev;
    sl_list_init(e);
}

#endif
