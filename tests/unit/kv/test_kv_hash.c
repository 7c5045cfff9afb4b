/* common/kv/kv_hash: what changes a name, and that names are the same on every machine. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/kv/kv_hash.h"

static const struct sl_digest128 model = {.lo = 1, .hi = 2};

static void salt_null_and_empty_are_the_shared_cache(void **state)
{
    (void)state;
    assert_true(sl_kv_salt_hash(NULL) == sl_kv_salt_hash(""));
    assert_true(sl_kv_salt_hash("a") != sl_kv_salt_hash(NULL));
    assert_true(sl_kv_salt_hash("a") != sl_kv_salt_hash("b"));
}

static void chain_hash_of_other_inputs_differs(void **state)
{
    (void)state;
    int32_t tokens[4] = {1, 2, 3, 4}, other[4] = {1, 2, 3, 5};
    struct sl_digest128 model_b = {.lo = 1, .hi = 3};
    uint64_t h = sl_kv_chain_hash(&model, 0, SL_KV_CHAIN_ROOT, tokens, 4);
    assert_true(h == sl_kv_chain_hash(&model, 0, SL_KV_CHAIN_ROOT, tokens, 4));
    assert_true(h != sl_kv_chain_hash(&model, 0, SL_KV_CHAIN_ROOT, other, 4));
    assert_true(h != sl_kv_chain_hash(&model, 0, SL_KV_CHAIN_ROOT, tokens, 3));
    assert_true(h != sl_kv_chain_hash(&model, 0, h, tokens, 4));
    assert_true(h != sl_kv_chain_hash(&model, 1, SL_KV_CHAIN_ROOT, tokens, 4));
    assert_true(h != sl_kv_chain_hash(&model_b, 0, SL_KV_CHAIN_ROOT, tokens, 4));
}

static void chain_hash_is_a_fixed_value(void **state)
{
    (void)state;
    int32_t tokens[4] = {1, 2, 3, 4};
    uint64_t h = sl_kv_chain_hash(&model, sl_kv_salt_hash("tenant"), 42, tokens, 4);
    assert_true(h == UINT64_C(0xca18dc67c728d1c1)); /* routers and nodes of other builds use it */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(salt_null_and_empty_are_the_shared_cache),
        cmocka_unit_test(chain_hash_of_other_inputs_differs),
        cmocka_unit_test(chain_hash_is_a_fixed_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
