/* common/base/key_line: what a line of the key file means, and that a new one is found again. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/base/key_line.h"
#include "common/base/mem.h"

#define SALT   "000102030405060708090a0b0c0d0e0f"
#define DIGEST "7fb9bf1db8abcb22b1a4f1f9b9a44ba1fe86c62cee5e1ca18e3b7c48a1efbf9c"

static void line_of_each_form_is_understood(void **state)
{
    (void)state;
    static const struct {
        const char *line, *name, *key, *limits; /* key NULL = hashed; name NULL = SL_ENOTFOUND */
    } cases[] = {
        {"", NULL, NULL, NULL},
        {"  \t\n", NULL, NULL, NULL},
        {"# a:b\n", NULL, NULL, NULL},
        {"sk-1\n", "", "sk-1", ""},
        {"  alice:sk-1 \r\n", "alice", "sk-1", ""},
        {"bob:a:b", "bob", "a:b", ""},
        {"bob:sha256", "bob", "sha256", ""},
        {"alice:sha256:" SALT ":" DIGEST "\n", "alice", NULL, ""},
        {"alice:sha256:" SALT ":" DIGEST " max_requests=2 classes=a|b \n", "alice", NULL,
         " max_requests=2 classes=a|b"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct sl_key_line l;
        struct sl_why why = {{0}};
        enum sl_err e = sl_key_line_parse(cases[i].line, &l, &why);
        assert_int_equal(e, cases[i].name ? SL_OK : SL_ENOTFOUND);
        if (e)
            continue;
        assert_int_equal(l.n_name, strlen(cases[i].name));
        assert_memory_equal(l.name, cases[i].name, l.n_name);
        assert_int_equal(l.key != NULL, cases[i].key != NULL);
        if (l.key) {
            assert_int_equal(l.n_key, strlen(cases[i].key));
            assert_memory_equal(l.key, cases[i].key, l.n_key);
        } else {
            assert_int_equal(l.n_limits, strlen(cases[i].limits));
            assert_memory_equal(l.limits, cases[i].limits, l.n_limits);
            assert_int_equal(l.salt[15], 15);
            assert_int_equal(l.digest[0], 0x7f);
        }
    }
}

static void line_that_is_none_is_refused_in_words(void **state)
{
    (void)state;
    static const struct {
        const char *line, *words;
    } cases[] = {
        {"alice:", "1 to 256 bytes"},
        {"alice:sha256:", "NAME:sha256:SALT:DIGEST"},
        {"alice:sha256:" SALT, "sluicectl keys add"},
        {"alice:sha256:" SALT ":" DIGEST "0", "NAME:sha256:SALT:DIGEST"},
        {"alice:sha256:" SALT ":" DIGEST ":x", "NAME:sha256:SALT:DIGEST"},
        {"alice:sha256:" SALT "x" DIGEST, "NAME:sha256:SALT:DIGEST"},
        {"alice:sha256:G" SALT ":" DIGEST, "32 and 64 hex digits"},
        {":sha256:" SALT ":" DIGEST, "name of a key"},
        {"a b:sha256:" SALT ":" DIGEST, "letters, digits"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct sl_key_line l;
        struct sl_why why = {{0}};
        assert_int_equal(sl_key_line_parse(cases[i].line, &l, &why), SL_ECONFIG);
        if (!strstr(why.text, cases[i].words))
            fail_msg("\"%s\": %s", cases[i].line, why.text);
    }
}

/* printf '...16 bytes...sk-1' | sha256sum */
static void digest_is_sha256_of_salt_and_key(void **state)
{
    (void)state;
    unsigned char salt[SL_KEY_SALT_BYTES], digest[SL_KEY_DIGEST_BYTES], text[2 * SL_KEY_DIGEST_BYTES + 1];
    for (unsigned i = 0; i < sizeof salt; i++)
        salt[i] = (unsigned char)i;
    sl_key_digest(salt, "sk-1", 4, digest);
    for (unsigned i = 0; i < sizeof digest; i++)
        snprintf((char *)text + 2 * i, 3, "%02x", digest[i]);
    assert_string_equal((char *)text, "c8d756bc3a6d18b709cdc8c153569ab03fadec3e17a61c1d0dd1fab8ab73adfc");
}

static void new_key_is_in_its_line_and_no_other(void **state)
{
    (void)state;
    char key[2][SL_KEY_NEW_BYTES], line[2][SL_KEY_LINE_BYTES];
    for (int i = 0; i < 2; i++)
        sl_key_line_new("alice", key[i], line[i]);
    assert_string_not_equal(key[0], key[1]);
    assert_int_equal(strlen(key[0]), SL_KEY_NEW_BYTES - 1);
    assert_null(strstr(line[0], key[0]));
    for (int i = 0; i < 2; i++) {
        struct sl_key_line l;
        unsigned char digest[SL_KEY_DIGEST_BYTES];
        assert_int_equal(sl_key_line_parse(line[i], &l, NULL), SL_OK);
        assert_null(l.key);
        for (int k = 0; k < 2; k++) {
            sl_key_digest(l.salt, key[k], strlen(key[k]), digest);
            assert_int_equal(memcmp(digest, l.digest, sizeof digest) == 0, i == k);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(line_of_each_form_is_understood),
        cmocka_unit_test(line_that_is_none_is_refused_in_words),
        cmocka_unit_test(digest_is_sha256_of_salt_and_key),
        cmocka_unit_test(new_key_is_in_its_line_and_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
