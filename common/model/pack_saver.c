/* common/model/pack_saver.c - writes the packed weights while the node already serves.
 *
 * The thread has the lowest priority and reads weights only, which nobody writes any more. Whatever goes
 * wrong costs the next start some time and nothing else, so it is a warning. */
#include "common/model/pack_cache.h"

#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/thread.h"

#define LOWEST_PRIORITY 19 /* nice(2) */

struct sl_pack_saver {
    struct sl_thread thread;
    struct sl_pack_save *saves;
    size_t n_saves;
    char *dir;
    atomic_bool stop;
};

static void save(void *arg)
{
    struct sl_pack_saver *s = arg;
    struct sl_why why = {{0}};
    uint64_t start = sl_now_ms();
    (void)!nice(LOWEST_PRIORITY); /* on Linux of this thread alone */
    enum sl_err e = sl_pack_cache_save(s->saves, s->n_saves, &s->stop, &why);
    if (e == SL_OK)
        SL_INFO("packed weights saved for the next start dir=%s files=%zu ms=%llu", s->dir, s->n_saves,
                (unsigned long long)(sl_now_ms() - start));
    else if (e != SL_EAGAIN)
        SL_WARN("packed weights are not saved in %s, so the next start packs again: %s", s->dir, why.text);
}

struct sl_pack_saver *sl_pack_saver_start(const struct sl_pack_save *what, size_t n)
{
    if (n == 0)
        return NULL;
    struct sl_pack_saver *s = sl_xcalloc(1, sizeof *s);
    s->dir = sl_xstrdup(what->dir);
    s->saves = sl_xmemdup(what, n * sizeof *what);
    s->n_saves = n;
    for (size_t i = 0; i < n; i++)
        s->saves[i].dir = s->dir;
    atomic_init(&s->stop, false);
    enum sl_err e = sl_thread_start(&s->thread, "sl-save", save, s);
    if (e != SL_OK)
        SL_WARN("packed weights are not saved: no thread for it (%s)", sl_err_name(e));
    return s;
}

void sl_pack_saver_end(struct sl_pack_saver *s)
{
    if (!s)
        return;
    atomic_store(&s->stop, true);
    sl_thread_join(&s->thread);
    sl_free(s->saves);
    sl_free(s->dir);
    sl_free(s);
}
