/* common/transfer/resolve.c - getaddrinfo() has no timeout: a name server that does not answer keeps its caller for
 * tens of seconds, and here that would be the thread that answers all peers. It cannot be called off either: the
 * thread that looks goes on, up to MAX_LOOKING of them, and what it finds too late is dropped with the last reference. */
#include "common/transfer/resolve.h"

#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/transfer/link.h"

/* Threads: a node has as many peers with names at once, or a name server that hangs. */
#define MAX_LOOKING 16u

struct sl_resolve {
    struct sl_link_address address;
    atomic_int refs;  /* the owner's, and the thread's */
    atomic_bool done; /* then the rest may be read */
    int rc;           /* of getaddrinfo() */
    struct sockaddr_storage found;
    socklen_t len;
};

static atomic_uint n_looking;

static void unref(struct sl_resolve *r)
{
    if (atomic_fetch_sub(&r->refs, 1) == 1)
        sl_free(r);
}

static void look(struct sl_resolve *r, int flags)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags},
                    *res = NULL;
    r->rc = getaddrinfo(r->address.host, r->address.port, &hints, &res);
    if (r->rc == 0) {
        memcpy(&r->found, res->ai_addr, res->ai_addrlen);
        r->len = res->ai_addrlen;
        freeaddrinfo(res);
    }
    atomic_store(&r->done, r->rc != EAI_NONAME || !(flags & AI_NUMERICHOST));
}

static void thread_main(void *arg)
{
    look(arg, 0);
    unref(arg);
    atomic_fetch_sub(&n_looking, 1);
}

static enum sl_err look_by_thread(struct sl_resolve *r, struct sl_why *why)
{
    struct sl_thread t = {0};
    if (atomic_fetch_add(&n_looking, 1) >= MAX_LOOKING) {
        atomic_fetch_sub(&n_looking, 1);
        return sl_why_set(
            why, SL_EPEER,
            "cannot resolve \"%s\": %u other names are being looked up without an answer; check the "
            "name server, or use addresses in numbers",
            r->address.host, MAX_LOOKING);
    }
    atomic_fetch_add(&r->refs, 1);
    if (sl_thread_start(&t, "sl-resolve", thread_main, r) == SL_OK) {
        pthread_detach(t.handle);
        return SL_OK;
    }
    unref(r);
    atomic_fetch_sub(&n_looking, 1);
    return sl_why_set(why, SL_EPEER, "cannot resolve \"%s\": no thread for it", r->address.host);
}

static enum sl_err resolve_new(const char *address, struct sl_resolve **out, struct sl_why *why)
{
    struct sl_resolve *r = sl_xcalloc(1, sizeof *r);
    atomic_init(&r->refs, 1);
    enum sl_err e = sl_link_address_split(address, &r->address, why);
    if (e)
        unref(r);
    else
        *out = r;
    return e;
}

enum sl_err sl_resolve_start(const char *address, struct sl_resolve **out, struct sl_why *why)
{
    struct sl_resolve *r;
    enum sl_err e = resolve_new(address, &r, why);
    if (e)
        return e;
    look(r, AI_NUMERICHOST);
    if (!atomic_load(&r->done))
        e = look_by_thread(r, why);
    if (e)
        unref(r);
    else
        *out = r;
    return e;
}

enum sl_err sl_resolve_poll(const struct sl_resolve *r, struct sockaddr_storage *sa, socklen_t *len,
                            struct sl_why *why)
{
    if (!atomic_load(&r->done))
        return SL_EAGAIN;
    if (r->rc != 0)
        return sl_why_set(why, SL_EPEER, "cannot resolve \"%s:%s\": %s", r->address.host, r->address.port,
                          gai_strerror(r->rc));
    *sa = r->found;
    *len = r->len;
    return SL_OK;
}

void sl_resolve_end(struct sl_resolve *r)
{
    if (r)
        unref(r);
}

enum sl_err sl_resolve_wait(const char *address, struct sockaddr_storage *sa, socklen_t *len,
                            struct sl_why *why)
{
    struct sl_resolve *r;
    enum sl_err e = resolve_new(address, &r, why);
    if (e)
        return e;
    look(r, 0);
    e = sl_resolve_poll(r, sa, len, why);
    unref(r);
    return e;
}
