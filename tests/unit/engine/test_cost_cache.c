/* common/engine: the cost model of a former start is taken as it is; one that says too much time, or is
 * broken, is measured anew. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/engine/engine_impl.h"
#include "tests/unit/engine/engine_rig.h"

static char dir[] = "/tmp/sl-cost-XXXXXX";

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    DIR *d = opendir(dir);
    for (struct dirent *f; d && (f = readdir(d));) {
        char *path = sl_xasprintf("%s/%s", dir, f->d_name);
        unlink(path);
        sl_free(path);
    }
    closedir(d);
    return rmdir(dir);
}

static struct sl_cost_key key_of(const struct sl_engine *e, const struct sl_engine_conf *c)
{
    return (struct sl_cost_key){.model = sl_engine_model(e)->digest,
                                .backend = sl_engine_backend(e),
                                .n_threads = c->n_threads,
                                .tensor_parallel = 1,
                                .max_rows = e->max_rows,
                                .kv_dtype = c->kv_dtype};
}

static void open_takes_what_a_former_start_kept(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    c.skip_profile = false;
    c.cache_dir = dir;
    struct fixture f = open_engine(&c);
    const struct sl_cost_key key = key_of(f.e, &c);
    close_engine(&f);
    struct sl_cost_model kept;
    assert_true(sl_cost_cache_get(dir, &key, &kept));
    static const double factors[] = {1e-3, 1e6}; /* of the times: the machine is slower now, or faster */
    for (size_t i = 0; i < SL_COUNTOF(factors); i++) {
        struct sl_cost_model m = kept;
        for (uint32_t k = 0; k < m.n_points; k++)
            m.ms[k] *= factors[i];
        sl_cost_cache_put(dir, &key, &m);
        f = open_engine(&c);
        assert_int_equal(sl_engine_cost(f.e)->ms[0] == m.ms[0], factors[i] < 1);
        close_engine(&f);
    }
}

static void get_of_another_machine_or_a_broken_record_is_none(void **state)
{
    (void)state;
    const struct sl_cost_key key = {.backend = "portable", .n_threads = 1, .max_rows = 64};
    struct sl_cost_model m, got;
    sl_cost_init_linear(&m, 5, 1);
    sl_cost_cache_put(dir, &key, &m);
    assert_true(sl_cost_cache_get(dir, &key, &got));
    assert_true(got.n_points == 2 && got.ms[1] == m.ms[1]);
    struct sl_cost_key other = key;
    other.n_threads = 2;
    assert_false(sl_cost_cache_get(dir, &other, &got));
    other = key;
    other.backend = "avx512";
    assert_false(sl_cost_cache_get(dir, &other, &got));
    other = key;
    other.no_graphs = true;
    assert_false(sl_cost_cache_get(dir, &other, &got));
    assert_false(sl_cost_cache_get(NULL, &key, &got));
}

static void times_that_no_device_has_are_not_kept(void **state)
{
    (void)state;
    const struct sl_cost_key key = {.backend = "portable", .n_threads = 3, .max_rows = 64};
    struct sl_cost_model good, got;
    sl_cost_init_linear(&good, 5, 1);
    struct sl_cost_model bad[] = {good, good, good, good, good, good};
    bad[0].ms[0] = -1;
    bad[1].ms[0] = 0;
    bad[2].ms[0] = 1e-4; /* printed as 0.000: one row for nothing, 1024 for a second */
    bad[3].ms[1] = NAN;
    bad[4].head_ms_per_row = -1;
    bad[5].n_points = SL_COST_POINTS + 1;
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        sl_cost_cache_put(dir, &key, &bad[i]);
        assert_false(sl_cost_cache_get(dir, &key, &got));
    }
    sl_cost_cache_put(dir, &key, &good);
    sl_cost_cache_put(dir, &key, &bad[2]); /* does not take the place of a good one */
    assert_true(sl_cost_cache_get(dir, &key, &got));
    assert_true(got.ms[0] == good.ms[0]);
}

static void put_into_no_folder_is_only_told(void **state)
{
    (void)state;
    const struct sl_cost_key key = {.backend = "portable", .n_threads = 1};
    struct sl_cost_model m;
    sl_cost_init_linear(&m, 5, 1);
    sl_cost_cache_put("/dev/null/none", &key, &m);
    assert_false(sl_cost_cache_get("/dev/null/none", &key, &m));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_takes_what_a_former_start_kept),
        cmocka_unit_test(get_of_another_machine_or_a_broken_record_is_none),
        cmocka_unit_test(times_that_no_device_has_are_not_kept),
        cmocka_unit_test(put_into_no_folder_is_only_told),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
