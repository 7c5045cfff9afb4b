/* router/api/gen_inbox.c - one block per event: the struct, then the arrays of numbers, then the texts. */
#include "router/api/gen_inbox.h"

#include <stdalign.h>
#include <string.h>

#include "common/base/mem.h"

void sl_inbox_init(struct sl_inbox *b, size_t max_bytes)
{
    memset(b, 0, sizeof *b);
    b->max_bytes = max_bytes;
    SL_ASSERT(pthread_mutex_init(&b->lock, NULL) == 0);
}

static void free_all(struct sl_inbox_item *at)
{
    while (at) {
        struct sl_inbox_item *next = at->next;
        sl_free(at);
        at = next;
    }
}

void sl_inbox_fini(struct sl_inbox *b)
{
    free_all(b->first);
    pthread_mutex_destroy(&b->lock);
}

static size_t text_bytes(const char *s)
{
    return s ? strlen(s) + 1 : 0;
}

static const char *put_text(char **at, const char *s)
{
    size_t n = text_bytes(s);
    if (!n)
        return NULL;
    char *to = memcpy(*at, s, n);
    *at += n;
    return to;
}

static void *put_array(char **at, const void *from, size_t bytes)
{
    if (!bytes)
        return NULL;
    void *to = memcpy(*at, from, bytes);
    *at += bytes;
    return to;
}

static struct sl_inbox_item *copy_event(const struct sl_gen_event *ev, size_t *n_bytes)
{
    const Sluice__TokenEvent *raw = ev->kind == SL_GEN_TOKEN ? ev->raw : NULL;
    size_t n_text = ev->kind == SL_GEN_TOKEN ? ev->text_len : 0;
    size_t ids = raw ? raw->n_top_tokens * sizeof *raw->top_tokens : 0;
    size_t probs = raw ? raw->n_top_logprobs * sizeof *raw->top_logprobs : 0;
    *n_bytes = sizeof(struct sl_inbox_item) + (raw ? sizeof *raw : 0) + ids + probs + n_text + 1 +
               text_bytes(ev->finish_reason) + text_bytes(ev->stop_reason) + text_bytes(ev->why);
    struct sl_inbox_item *item = sl_xalloc(*n_bytes);
    char *at = (char *)(item + 1);
    item->next = NULL;
    item->ev = *ev;
    item->ev.raw = NULL;
    if (raw) {
        _Static_assert(alignof(struct sl_inbox_item) >= alignof(Sluice__TokenEvent),
                       "raw stands right behind the item");
        Sluice__TokenEvent *t = (Sluice__TokenEvent *)(void *)at;
        *t = *raw;
        t->base.n_unknown_fields = 0;
        t->base.unknown_fields = NULL;
        t->request_id = NULL; /* the item says whose it is */
        at += sizeof *t;
        t->top_tokens = put_array(&at, raw->top_tokens, ids);
        t->top_logprobs = put_array(&at, raw->top_logprobs, probs);
        item->ev.raw = t;
    }
    item->ev.text = at;
    if (n_text)
        memcpy(at, ev->text, n_text);
    at[n_text] = '\0';
    at += n_text + 1;
    item->ev.text_len = n_text;
    item->ev.finish_reason = put_text(&at, ev->finish_reason);
    item->ev.stop_reason = put_text(&at, ev->stop_reason);
    item->ev.why = put_text(&at, ev->why);
    return item;
}

void sl_inbox_put(struct sl_inbox *b, uint32_t choice, const struct sl_gen_event *ev)
{
    size_t n;
    struct sl_inbox_item *item = copy_event(ev, &n);
    item->choice = choice;
    pthread_mutex_lock(&b->lock);
    if (b->n_bytes + n > b->max_bytes)
        b->overflowed = true;
    if (!b->overflowed) {
        if (b->last)
            b->last->next = item;
        else
            b->first = item;
        b->last = item;
        b->n_bytes += n;
        item = NULL;
    }
    pthread_mutex_unlock(&b->lock);
    sl_free(item);
}

struct sl_inbox_item *sl_inbox_take(struct sl_inbox *b, bool *overflowed)
{
    pthread_mutex_lock(&b->lock);
    struct sl_inbox_item *first = b->first;
    b->first = b->last = NULL;
    b->n_bytes = 0;
    *overflowed = b->overflowed;
    pthread_mutex_unlock(&b->lock);
    return first;
}
