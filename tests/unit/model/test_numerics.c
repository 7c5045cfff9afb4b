/* The numerics id: the same for everything that may not change bits, another for what does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "tests/unit/model/model_rig.h"

static char *path;

static uint64_t id_of(const char *backend, uint32_t n_threads, uint32_t page_tokens, uint32_t max_rows,
                      enum sl_dtype kv_dtype)
{
    struct rig r;
    struct rig_conf c = {.path = path,
                         .backend = backend,
                         .n_threads = n_threads,
                         .page_tokens = page_tokens,
                         .max_rows = max_rows,
                         .n_pages = 4,
                         .kv_dtype = kv_dtype};
    rig_open(&r, &c);
    uint64_t id = sl_model_numerics_id(r.model);
    assert_true(sl_model_numerics_id(r.model) == id);
    rig_close(&r);
    return id;
}

static void id_with_other_threads_rows_and_pages_is_the_same(void **state)
{
    (void)state;
    static const char *const backends[] = {"reference", "portable", "avx2", "avx512"};
    for (size_t i = 0; i < SL_COUNTOF(backends); i++) {
        if (!rig_backend_available(backends[i]))
            continue;
        uint64_t id = id_of(backends[i], 1, 16, 64, SL_F16);
        assert_true(id_of(backends[i], 2, 16, 64, SL_F16) == id);
        assert_true(id_of(backends[i], 3, 32, 64, SL_F16) == id);
        assert_true(id_of(backends[i], 1, 16, 1, SL_F16) == id);
        assert_true(id_of(backends[i], 2, 16, 3, SL_F16) == id);
        assert_true(id_of(backends[i], 1, 16, 64, SL_BF16) != id);
        assert_true(id_of(backends[i], 1, 16, 64, SL_F32) != id);
        assert_true(id_of(backends[i], 1, 16, 64, SL_Q8) != id);
        assert_true(id_of(backends[i], 1, 16, 64, SL_FP8) != id_of(backends[i], 1, 16, 64, SL_BF16));
    }
}

static void id_of_another_arithmetic_differs(void **state)
{
    (void)state;
    uint64_t reference = id_of("reference", 1, 16, 64, SL_F16),
             portable = id_of("portable", 1, 16, 64, SL_F16);
    assert_true(reference != portable);
    if (rig_backend_available("avx2"))
        assert_true(id_of("avx2", 1, 16, 64, SL_F16) == portable);
    if (rig_backend_available("avx512"))
        assert_true(id_of("avx512", 1, 16, 64, SL_F16) == portable);
}

int main(void)
{
    struct sl_make_model m;
    if (!sl_make_model_preset("tiny", &m))
        return 1;
    path = rig_model_file(&m);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(id_with_other_threads_rows_and_pages_is_the_same),
        cmocka_unit_test(id_of_another_arithmetic_differs),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    sl_free(path);
    return failed;
}
