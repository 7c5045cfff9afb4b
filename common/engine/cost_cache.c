/* common/engine/cost_cache.c - keeps the cost model beside the packed weights.
 *
 * The name says all that the times depend on; whether they still hold (another build, a slower clock) is for
 * profile.c to look at. What cannot be written, or is no device's times, is measured again next time: no reason to
 * fail. */
#include <inttypes.h>
#include <stdio.h>

#include "common/base/cache_dir.h"
#include "common/base/log.h"
#include "common/engine/engine_impl.h"

#define RECORD_VERSION 1 /* of struct sl_cost_model and of what its values mean */
#define NAME_BYTES     160

static void name_of(const struct sl_cost_key *k, char out[NAME_BYTES])
{
    snprintf(out, NAME_BYTES, "%016" PRIx64 "%016" PRIx64 "-%s%s-t%u-tp%u-kv%d-r%u-v%d.cost", k->model.hi,
             k->model.lo, k->backend, k->no_graphs ? "-ops" : "", k->n_threads, k->tensor_parallel,
             (int)k->kv_dtype, k->max_rows, RECORD_VERSION);
}

bool sl_cost_cache_get(const char *dir, const struct sl_cost_key *key, struct sl_cost_model *out)
{
    char name[NAME_BYTES];
    struct sl_cost_model m;
    name_of(key, name);
    if (!dir || !sl_cache_get(dir, name, &m, sizeof m) || !sl_cost_is_sound(&m))
        return false;
    *out = m;
    return true;
}

void sl_cost_cache_put(const char *dir, const struct sl_cost_key *key, const struct sl_cost_model *m)
{
    char name[NAME_BYTES];
    struct sl_why why = {{0}};
    if (!sl_cost_is_sound(m)) {
        SL_WARN("the cost model is not kept, its times are impossible: ms_1=%.6f", m->ms[0]);
        return;
    }
    name_of(key, name);
    if (sl_cache_put(dir, name, m, sizeof *m, &why) != SL_OK)
        SL_WARN("the cost model is not kept: %s", why.text);
}
