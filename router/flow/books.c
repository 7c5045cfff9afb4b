/* router/flow/books.c - what the router remembers beyond single requests: the account of each API key, and
 * how long the outputs of each class are. Names come from the router's configuration and key file, so the
 * books are small. */
#include "router/flow/flow_core.h"

#include <string.h>

/* The entry of that name, zeroed when it is new. */
static void *entry(struct sl_hashmap *book, const char *name, size_t bytes)
{
    size_t n = name ? strlen(name) : 0;
    void *e = sl_hashmap_get(book, name ? name : "", n);
    if (!e) {
        e = sl_xcalloc(1, bytes);
        sl_hashmap_put(book, name ? name : "", n, e);
    }
    return e;
}

struct sl_account *sl_flow_account(struct sl_flow *f, const struct sl_gen_req *req)
{
    struct sl_account *a = entry(f->accounts, req->key_name, sizeof *a);
    a->weight = req->key_weight > 0 ? req->key_weight : 1;
    return a;
}

struct sl_output_mean *sl_flow_outputs(struct sl_flow *f, const struct sl_gen_req *req)
{
    return entry(f->outputs, req->slo_class, sizeof(struct sl_output_mean));
}

void sl_flow_free_books(struct sl_flow *f)
{
    struct sl_hashmap *const books[] = {f->accounts, f->outputs};
    for (size_t i = 0; i < SL_COUNTOF(books); i++) {
        size_t it = 0;
        void *e;
        while (books[i] && sl_hashmap_next(books[i], &it, &e))
            sl_free(e);
        sl_hashmap_free(books[i]);
    }
}
