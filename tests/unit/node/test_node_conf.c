/* The options of a node: what is refused, and with which words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/node/node_conf.h"
#include "tests/support/support.h"

static enum sl_err load(struct sl_node_conf *c, struct sl_why *why, const char *a, const char *b)
{
    char *argv[] = {(char *)"test", (char *)(uintptr_t)a, (char *)(uintptr_t)b};
    memset(why, 0, sizeof *why);
    return sl_node_conf_load(b ? 3 : a ? 2 : 1, argv, SLUICE__ROLE__ROLE_PREFILL, c, why);
}

static void defaults_are_a_node_of_both_duties(void **state)
{
    (void)state;
    struct sl_node_conf c;
    struct sl_why why;
    assert_int_equal(load(&c, &why, "--model=/dev/null", NULL), SL_OK);
    assert_string_equal(c.name, "prefill");
    assert_true(c.may_prefill && c.may_decode && c.exact && c.digests);
    assert_int_equal(c.chunk_tokens, -1);
    assert_int_equal(c.speculation, -1);
    assert_int_equal(c.kv_dtype, SL_BF16);
    assert_int_equal(c.threads, 1);
    assert_int_equal(c.routers.n, 1);
    assert_int_equal(c.fault_flip_bit, 0);
    assert_non_null(c.cache_path);
    sl_node_conf_fini(&c);
}

static void type_of_kv_follows_its_word(void **state)
{
    (void)state;
    static const struct {
        const char *arg;
        enum sl_dtype type;
    } cases[] = {{"--kv-dtype=f16", SL_F16},
                 {"--kv-dtype=bf16", SL_BF16},
                 {"--kv-dtype=f32", SL_F32},
                 {"--kv-dtype=q8", SL_Q8},
                 {"--kv-dtype=fp8", SL_FP8}};
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct sl_node_conf c;
        struct sl_why why;
        assert_int_equal(load(&c, &why, "--model=/dev/null", cases[i].arg), SL_OK);
        assert_int_equal(c.kv_dtype, cases[i].type);
        sl_node_conf_fini(&c);
    }
}

static void what_changes_while_the_node_runs_is_checked_as_the_file_is(void **state)
{
    (void)state;
    struct sl_node_conf c;
    struct sl_why why;
    assert_int_equal(load(&c, &why, "--model=/dev/null", "--roles=decode"), SL_OK);
    assert_int_equal(sl_node_conf_set(&c, "chunk_tokens", "64", &why), SL_OK);
    assert_int_equal(c.chunk_tokens, 64);
    assert_int_equal(sl_node_conf_set(&c, "roles", "prefill,decode", &why), SL_OK);
    assert_true(c.may_prefill && c.may_decode);
    static const struct {
        const char *key, *value, *word;
        enum sl_err err;
    } bad[] = {
        {"chunk_tokens", "many", "expected auto", SL_ECONFIG}, {"chunk_stretch", "0.5", "from 1", SL_ECONFIG},
        {"roles", "decode,cook", "cook", SL_ECONFIG},          {"roles", "", "empty", SL_ECONFIG},
        {"log_level", "loud", "one of", SL_ECONFIG},           {"model", "/x", "these can", SL_EUNSUPPORTED},
        {"chunk_token", "1", "these can", SL_EUNSUPPORTED}};
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        assert_int_equal(sl_node_conf_set(&c, bad[i].key, bad[i].value, &why), bad[i].err);
        if (!strstr(why.text, bad[i].word))
            fail_msg("%s: %s", bad[i].key, why.text);
    }
    assert_int_equal(c.chunk_tokens, 64);
    assert_true(c.may_prefill && c.may_decode && c.roles.n == 2);
    char many[100 * 7 + 7] = "decode"; /* longer than most buffers, and given back whole */
    for (unsigned i = 0; i < 100; i++)
        memcpy(many + strlen(many), ",decode", 8);
    assert_int_equal(sl_node_conf_set(&c, "roles", many, &why), SL_OK);
    assert_int_equal(sl_node_conf_set(&c, "roles", "cook", &why), SL_ECONFIG);
    assert_true(c.may_decode && !c.may_prefill && c.roles.n == 101);
    assert_int_equal(sl_node_conf_set(&c, "roles", "prefill,decode", &why), SL_OK);
    char text[64];
    for (const struct sl_conf_opt *o = sl_node_opts; o->key; o++)
        if (strcmp(o->key, "roles") == 0)
            sl_conf_print(o, &c, text, sizeof text);
    assert_string_equal(text, "prefill,decode");
    sl_node_conf_fini(&c);
}

static void values_that_do_not_fit_are_refused_by_name(void **state)
{
    (void)state;
    const char *const cases[][2] = {
        {"--name=a b", "name"},
        {"--chunk-tokens=-3", "chunk_tokens"},
        {"--chunk-tokens=", "chunk_tokens"},
        {"--speculation=32", "speculation"},
        {"--speculation=some", "speculation"},
        {"--speculation=", "speculation"},
        {"--roles=cook", "roles"},
        {"--roles=", "roles"},
        {"--cpus=0-", "cpus"},
        {"--model=/nonexistent", "/nonexistent"},
        {"--model=", "model"},
        {"--peer-dead-ms=100", "peer_dead_ms"},
        {"--kv-dtype=q4", "kv_dtype"},
        {"--page-tokens=0", "page_tokens"},
        {"--pace=abacus", "pace"},
        {"--nonsense=1", "nonsense"},
        {"--routers=", "routers"},
        {"--routers=10.0.0.1:7100", "routers"},
        {"--listen=tcp4://127.0.0.1:0", "listen"},
        {"--cluster-secret-file=/nonexistent", "cluster_secret_file /nonexistent cannot be read"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct sl_node_conf c;
        struct sl_why why;
        assert_int_equal(load(&c, &why, "--model=/dev/null", cases[i][0]), SL_ECONFIG);
        assert_non_null(strstr(why.text, cases[i][1]));
        sl_node_conf_fini(&c);
    }
    struct sl_node_conf c;
    struct sl_why why;
    assert_int_equal(load(&c, &why, NULL, NULL), SL_ECONFIG);
    assert_non_null(strstr(why.text, "model"));
    sl_node_conf_fini(&c);
}

static void more_memory_than_the_machine_has_is_refused_at_start_only(void **state)
{
    (void)state;
    struct sl_node_conf c;
    struct sl_why why = {{0}};
    assert_int_equal(load(&c, &why, "--model=/dev/null", "--kv-memory=100000G"), SL_OK);
    assert_int_equal(sl_node_conf_fits(&c, &why), SL_ECONFIG);
    assert_non_null(strstr(why.text, "kv_memory"));
    sl_node_conf_fini(&c);
}

static void threads_follow_cpus(void **state)
{
    (void)state;
    struct sl_node_conf c;
    struct sl_why why;
    char *argv[] = {(char *)"test", (char *)"--model=/dev/null", (char *)"--cpus=0,2-3",
                    (char *)"--threads=0"};
    assert_int_equal(sl_node_conf_load(4, argv, SLUICE__ROLE__ROLE_DECODE, &c, &why), SL_OK);
    assert_int_equal(c.threads, 3);
    assert_int_equal(c.cpu_list[2], 3);
    assert_string_equal(c.name, "decode");
    sl_node_conf_fini(&c);
    argv[3] = (char *)"--threads=4";
    assert_int_equal(sl_node_conf_load(4, argv, SLUICE__ROLE__ROLE_DECODE, &c, &why), SL_ECONFIG);
    sl_node_conf_fini(&c);
}

static bool is_option(const char *key, size_t n)
{
    for (const struct sl_conf_opt *o = sl_node_opts; o->key; o++) {
        if (strlen(o->key) == n && memcmp(o->key, key, n) == 0)
            return true;
    }
    return false;
}

static void committed_example_files_load_and_name_only_options_that_exist(void **state)
{
    (void)state;
    const char *const files[] = {SL_TEST_DATA "/../deploy/conf/prefill.conf",
                                 SL_TEST_DATA "/../deploy/conf/decode.conf"};
    for (size_t i = 0; i < SL_COUNTOF(files); i++) {
        char *argv[] = {(char *)"test", (char *)"--config", (char *)(uintptr_t)files[i],
                        (char *)"--model=/dev/null"};
        struct sl_node_conf c;
        struct sl_why why = {{0}};
        if (sl_node_conf_load(4, argv, SLUICE__ROLE__ROLE_DECODE, &c, &why) != SL_OK)
            fail_msg("%s: %s", files[i], why.text);
        sl_node_conf_fini(&c);
        char *text = sl_test_read_file(files[i], NULL);
        unsigned n_options = 0;
        for (const char *p = text; (p = strstr(p, "\n#")); p += 2) {
            size_t n = strspn(p + 2, "abcdefghijklmnopqrstuvwxyz_");
            if (strncmp(p + 2 + n, " =", 2) != 0)
                continue; /* prose */
            if (!is_option(p + 2, n))
                fail_msg("%s has %.40s", files[i], p + 2);
            n_options++;
        }
        assert_true(n_options > 20);
        sl_free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_a_node_of_both_duties),
        cmocka_unit_test(type_of_kv_follows_its_word),
        cmocka_unit_test(what_changes_while_the_node_runs_is_checked_as_the_file_is),
        cmocka_unit_test(values_that_do_not_fit_are_refused_by_name),
        cmocka_unit_test(more_memory_than_the_machine_has_is_refused_at_start_only),
        cmocka_unit_test(threads_follow_cpus),
        cmocka_unit_test(committed_example_files_load_and_name_only_options_that_exist),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
