#include "common/grammar/token_bytes.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

struct entry {
    const char *bytes;
    uint32_t n, id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int c = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);
    if (c == 0)
        c = (x->n > y->n) - (x->n < y->n);
    return c ? c : (x->id > y->id) - (x->id < y->id);
}

static uint32_t length_of(const struct sl_token_bytes *t, uint32_t id)
{
    return t->at[id + 1] - t->at[id];
}

struct sl_token_bytes *sl_token_bytes_new(uint32_t n_vocab, sl_token_bytes_fn *of, const void *arg)
{
    struct sl_token_bytes *t = sl_xcalloc(1, sizeof *t);
    size_t total = 0, n;
    t->n_vocab = n_vocab;
    t->at = sl_xcalloc((size_t)n_vocab + 1, sizeof *t->at);
    for (uint32_t i = 0; i < n_vocab; i++) {
        (void)of(arg, i, &n);
        total += n <= SL_TOKEN_MAX_BYTES ? n : 0;
        t->at[i + 1] = (uint32_t)total;
    }
    t->bytes = sl_xalloc(total + 1);
    struct entry *entries = sl_xcalloc(n_vocab, sizeof *entries);
    for (uint32_t i = 0; i < n_vocab; i++) {
        const char *bytes = of(arg, i, &n);
        if (length_of(t, i) == 0)
            continue;
        memcpy(t->bytes + t->at[i], bytes, n);
        entries[t->n++] = (struct entry){.bytes = t->bytes + t->at[i], .n = (uint32_t)n, .id = i};
    }
    qsort(entries, t->n, sizeof *entries, by_bytes);
    t->ids = sl_xcalloc(t->n, sizeof *t->ids);
    t->shared = sl_xcalloc(t->n, sizeof *t->shared);
    for (uint32_t i = 0; i < t->n; i++) {
        t->ids[i] = entries[i].id;
        for (uint32_t k = 0; i && k < entries[i].n && k < entries[i - 1].n; k++, t->shared[i]++)
            if (entries[i].bytes[k] != entries[i - 1].bytes[k])
                break;
    }
    sl_free(entries);
    return t;
}

void sl_token_bytes_free(struct sl_token_bytes *t)
{
    if (!t)
        return;
    sl_free(t->ids);
    sl_free(t->shared);
    sl_free(t->at);
    sl_free(t->bytes);
    sl_free(t);
}
