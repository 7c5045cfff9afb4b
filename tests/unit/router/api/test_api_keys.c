/* Key files, keys presented, and the X-Sluice headers. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "router/api/api_keys.h"
#include "router/api/sluice_headers.h"
#include "tests/support/support.h"

static enum sl_err load(const char *text, struct sl_api_keys **k, struct sl_why *why)
{
    char *path = sl_test_temp_file(text, strlen(text));
    enum sl_err err = sl_api_keys_load(path, k, why);
    unlink(path);
    sl_free(path);
    return err;
}

static void reload_replaces_the_keys_or_nothing(void **state)
{
    (void)state;
    static const char before[] = "alice:sk-1\nsk-2\n", now[] = "alice:sk-3\n";
    struct sl_api_keys *k;
    struct sl_why why = {0};
    assert_int_equal(load(before, &k, &why), SL_OK);
    const struct sl_api_key *old = sl_api_keys_find(k, "sk-1");
    char *path = sl_test_temp_file(now, strlen(now));
    assert_int_equal(sl_api_keys_reload(k, path, &why), SL_OK);
    assert_null(sl_api_keys_find(k, "sk-1"));
    assert_string_equal(sl_api_keys_find(k, "sk-3")->name, "alice");
    assert_string_equal(old->name, "alice"); /* of the set before */
    assert_ptr_equal(sl_api_keys_find(k, "sk-3")->account, old->account);
    unlink(path);
    assert_int_equal(sl_api_keys_reload(k, path, &why), SL_ECONFIG);
    assert_non_null(strstr(why.text, path));
    assert_string_equal(sl_api_keys_find(k, "sk-3")->name, "alice");
    sl_free(path);
    sl_api_keys_free(k);
}

static void keys_are_found_by_value_and_named(void **state)
{
    struct sl_api_keys *k;
    struct sl_why why = {0};
    (void)state;
    assert_int_equal(load("# keys\n\n  alice:sk-1 \nsk-2\r\nbob:a:b\n", &k, &why), SL_OK);
    assert_string_equal(sl_api_keys_find(k, "sk-1")->name, "alice");
    assert_string_equal(sl_api_keys_find(k, "sk-2")->name, "");
    assert_string_equal(sl_api_keys_find(k, "a:b")->name, "bob");
    static const char *const wrong[] = {"", "sk-", "sk-11", "SK-1", "alice:sk-1", "alice"};
    for (size_t i = 0; i < SL_COUNTOF(wrong); i++)
        assert_null(sl_api_keys_find(k, wrong[i]));
    char too_long[400];
    memset(too_long, 'x', sizeof too_long - 1);
    too_long[sizeof too_long - 1] = '\0';
    assert_null(sl_api_keys_find(k, too_long));
    sl_api_keys_free(k);
}

static void bad_key_file_is_a_config_error_with_a_sentence(void **state)
{
    struct sl_api_keys *k;
    struct sl_why why = {0};
    char line[600];
    (void)state;
    assert_int_equal(load("# nothing\n", &k, &why), SL_ECONFIG);
    assert_non_null(strstr(why.text, "no key"));
    assert_int_equal(load("name:\n", &k, &why), SL_ECONFIG);
    assert_non_null(strstr(why.text, ":1:"));
    memset(line, 'k', sizeof line - 1);
    line[sizeof line - 1] = '\0';
    assert_int_equal(load(line, &k, &why), SL_ECONFIG);
    assert_int_equal(sl_api_keys_load("/nonexistent/keys", &k, &why), SL_ECONFIG);
}

/* Hashed and plain keys side by side; two keys of one name share one account, each with its own limits. */
static void hashed_keys_are_found_with_their_limits(void **state)
{
    (void)state;
    struct sl_api_keys *k;
    struct sl_why why = {0};
    char key[3][SL_KEY_NEW_BYTES], line[3][SL_KEY_LINE_BYTES], text[4 * SL_KEY_LINE_BYTES];
    static const char *const names[] = {"alice", "alice", "bob"};
    for (int i = 0; i < 3; i++)
        sl_key_line_new(names[i], key[i], line[i]);
    snprintf(text, sizeof text, "%s max_requests=1\nplain:sk-1\n%s\n%s\n", line[0], line[1], line[2]);
    assert_int_equal(load(text, &k, &why), SL_OK);
    const struct sl_api_key *a = sl_api_keys_find(k, key[0]), *b = sl_api_keys_find(k, key[1]);
    assert_string_equal(a->name, "alice");
    assert_int_equal(a->limits.max_requests, 1);
    assert_int_equal(b->limits.max_requests, 0);
    assert_ptr_equal(a->account, b->account);
    assert_string_equal(sl_api_keys_find(k, key[2])->name, "bob");
    assert_ptr_not_equal(sl_api_keys_find(k, key[2])->account, a->account);
    assert_string_equal(sl_api_keys_find(k, "sk-1")->name, "plain");
    key[0][5] ^= 1;
    assert_null(sl_api_keys_find(k, key[0]));
    assert_null(sl_api_keys_find(k, strchr(line[1], ':') + 1)); /* what stands in the file opens nothing */
    sl_api_keys_free(k);
    snprintf(text, sizeof text, "%s speed=1\n", line[0]);
    assert_int_equal(load(text, &k, &why), SL_ECONFIG);
    assert_non_null(strstr(why.text, ":1: there is no limit \"speed=1\""));
}

struct header {
    const char *name, *value;
};

static const char *get(const void *arg, const char *name)
{
    const struct header *h = arg;
    return strcmp(h->name, name) == 0 ? h->value : NULL;
}

static enum sl_err read_one(const char *name, const char *value, struct sl_gen_req *req)
{
    struct sl_fault fault = {0};
    const struct header h = {name, value};
    memset(req, 0, sizeof *req);
    req->arena = sl_arena_new(4096);
    req->deadline_ms = 1000;
    sl_headers_read(get, &h, req, &fault);
    sl_arena_free(req->arena);
    if (fault.err)
        assert_string_equal(fault.param, name);
    return fault.err;
}

static void headers_set_the_wishes(void **state)
{
    struct sl_gen_req q;
    (void)state;
    assert_int_equal(read_one("X-Other", "x", &q), SL_OK);
    assert_true(q.mode == SL_MODE_DEFAULT && q.split == -1 && q.chunk == -2 && q.speculation == -2 &&
                !q.want_digest && !q.no_prefix_cache && q.deadline_ms == 1000);
    assert_int_equal(read_one("X-Sluice-Mode", "colocated", &q), SL_OK);
    assert_int_equal(q.mode, SL_MODE_COLOCATED);
    assert_int_equal(read_one("X-Sluice-Split", "0", &q), SL_OK);
    assert_int_equal(q.split, 0);
    assert_int_equal(read_one("X-Sluice-Chunk", "auto", &q), SL_OK);
    assert_int_equal(q.chunk, -1);
    assert_int_equal(read_one("X-Sluice-Chunk", "0", &q), SL_OK);
    assert_int_equal(q.chunk, 0);
    assert_int_equal(read_one("X-Sluice-Chunk", "512", &q), SL_OK);
    assert_int_equal(q.chunk, 512);
    assert_int_equal(read_one("X-Sluice-Speculation", "auto", &q), SL_OK);
    assert_int_equal(q.speculation, -1);
    assert_int_equal(read_one("X-Sluice-Speculation", "off", &q), SL_OK);
    assert_int_equal(q.speculation, 0);
    assert_int_equal(read_one("X-Sluice-Speculation", "31", &q), SL_OK);
    assert_int_equal(q.speculation, 31);
    assert_int_equal(read_one("X-Sluice-Digest", "1", &q), SL_OK);
    assert_true(q.want_digest);
    assert_int_equal(read_one("X-Sluice-Digest", "0", &q), SL_OK);
    assert_false(q.want_digest);
    assert_int_equal(read_one("X-Sluice-No-Cache", "true", &q), SL_OK);
    assert_true(q.no_prefix_cache);
    assert_int_equal(read_one("X-Sluice-Deadline-Ms", "5", &q), SL_OK);
    assert_int_equal(q.deadline_ms, 5);
    assert_int_equal(read_one("X-Sluice-Ttft-Ms", "800", &q), SL_OK);
    assert_int_equal(q.ttft_ms, 800);
    assert_int_equal(read_one("X-Sluice-Tpot-Ms", "40", &q), SL_OK);
    assert_int_equal(q.tpot_ms, 40);
}

static void header_with_a_wrong_value_is_refused(void **state)
{
    static const struct header bad[] = {
        {"X-Sluice-Mode", "fast"},         {"X-Sluice-Mode", ""},
        {"X-Sluice-Split", "-1"},          {"X-Sluice-Split", "1e3"},
        {"X-Sluice-Split", "99999999999"}, {"X-Sluice-Chunk", "none"},
        {"X-Sluice-Speculation", "32"},    {"X-Sluice-Speculation", "-1"},
        {"X-Sluice-Chunk", "-2"},          {"X-Sluice-Digest", "yes"},
        {"X-Sluice-Deadline-Ms", "0"},     {"X-Sluice-Deadline-Ms", "soon"},
        {"X-Sluice-Prefill-Node", ""},
    };
    struct sl_gen_req q;
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(bad); i++)
        assert_int_equal(read_one(bad[i].name, bad[i].value, &q), SL_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashed_keys_are_found_with_their_limits),
        cmocka_unit_test(keys_are_found_by_value_and_named),
        cmocka_unit_test(reload_replaces_the_keys_or_nothing),
        cmocka_unit_test(bad_key_file_is_a_config_error_with_a_sentence),
        cmocka_unit_test(headers_set_the_wishes),
        cmocka_unit_test(header_with_a_wrong_value_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
