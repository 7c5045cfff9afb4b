/* common/base/secret: which files are taken, what makes two proofs differ, which addresses are local. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/base/secret.h"

#define HEX32 "0123456789abcdef0123456789abcdef"

static char folder[] = "/tmp/sluice-secret-XXXXXX";
static char path[64];

static void put(const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void file_that_is_not_fit_is_refused_in_words(void **state)
{
    (void)state;
    static char long_text[SL_SECRET_MAX_CHARS + 200];
    memset(long_text, 'x', sizeof long_text - 1);
    const struct {
        const char *text;
        mode_t mode;
        const char *why; /* NULL = taken */
    } cases[] = {
        {HEX32 "\n", 0600, NULL},
        {HEX32 "\n", 0400, NULL},
        {HEX32 "\n", 0640, "has mode 640, so others than its owner can read it"},
        {HEX32 "\n", 0604, "chmod 600 it"},
        {"", 0600, "has 0 characters; expected 32 to 1024"},
        {"0123456789abcdef0123456789abcde \n\n", 0600, "has 31 characters"},
        {long_text, 0600, "has more than 1024 characters"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct sl_secret s;
        struct sl_why why = {{0}};
        put(cases[i].text, cases[i].mode);
        enum sl_err e = sl_secret_load(path, &s, &why);
        assert_int_equal(e, cases[i].why ? SL_ECONFIG : SL_OK);
        if (cases[i].why && !strstr(why.text, cases[i].why))
            fail_msg("\"%s\" does not say \"%s\"", why.text, cases[i].why);
    }
    struct sl_secret s;
    struct sl_why why = {{0}};
    unlink(path);
    assert_int_equal(sl_secret_load(path, &s, &why), SL_ECONFIG);
    assert_non_null(strstr(why.text, "cannot be read: No such file"));
    assert_int_equal(sl_secret_load("/tmp", &s, &why), SL_ECONFIG);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(sl_secret_load(path, &s, &why), SL_ECONFIG); /* nobody writes to it */
    assert_non_null(strstr(why.text, "is not a file"));
    unlink(path);
}

static void credential_is_found_and_its_mode_is_systemds(void **state)
{
    (void)state;
    struct sl_secret s;
    struct sl_why why = {{0}};
    put(HEX32, 0440);
    unsetenv("CREDENTIALS_DIRECTORY");
    assert_null(sl_credential("secret"));
    assert_int_equal(sl_secret_load(path, &s, &why), SL_ECONFIG);
    setenv("CREDENTIALS_DIRECTORY", folder, 1);
    assert_null(sl_credential("none"));
    char *found = sl_credential("secret");
    assert_string_equal(found, path);
    assert_int_equal(sl_secret_load(found, &s, &why), SL_OK);
    sl_free(found);
    unsetenv("CREDENTIALS_DIRECTORY");
}

static void white_space_at_the_end_makes_no_other_secret(void **state)
{
    (void)state;
    struct sl_secret a, b, c;
    put(HEX32, 0600);
    assert_int_equal(sl_secret_load(path, &a, NULL), SL_OK);
    put(HEX32 " \r\n\n", 0600);
    assert_int_equal(sl_secret_load(path, &b, NULL), SL_OK);
    put(HEX32 "x", 0600);
    assert_int_equal(sl_secret_load(path, &c, NULL), SL_OK);
    assert_true(sl_secret_equal(&a, &b, sizeof a));
    assert_false(sl_secret_equal(&a, &c, sizeof a));
}

/* Every way to ask for something else gives another proof; also to cut the same bytes elsewhere. */
static void proofs_differ_by_secret_purpose_and_parts(void **state)
{
    (void)state;
    const struct {
        unsigned char key;
        const char *purpose, *a, *b; /* b NULL: one part */
    } cases[] = {
        {1, "p", "ab", "c"}, {2, "p", "ab", "c"},   {1, "q", "ab", "c"},   {1, "p", "a", "bc"},
        {1, "p", "abc", ""}, {1, "p", "abc", NULL}, {1, "pab", "c", NULL}, {1, "p", "ab", "d"},
    };
    unsigned char proof[SL_COUNTOF(cases)][SL_PROOF_BYTES], again[SL_PROOF_BYTES];
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct sl_secret s = {{cases[i].key}};
        struct sl_proof_part parts[2] = {{cases[i].a, strlen(cases[i].a)}, {cases[i].b, 0}};
        parts[1].n = cases[i].b ? strlen(cases[i].b) : 0;
        size_t n = cases[i].b ? 2 : 1;
        sl_secret_prove(&s, cases[i].purpose, parts, n, proof[i]);
        sl_secret_prove(&s, cases[i].purpose, parts, n, again);
        assert_memory_equal(proof[i], again, sizeof again);
        for (size_t k = 0; k < i; k++)
            assert_memory_not_equal(proof[i], proof[k], SL_PROOF_BYTES);
    }
}

static void addresses_of_this_machine_are_local(void **state)
{
    (void)state;
    static const char *const local[] = {"127.0.0.1:0", "tcp://127.0.0.1:7100", "ipc:///run/x", "inproc://x",
                                        "[::1]:80",    "tcp://[::1]:80",       "localhost:80"};
    static const char *const open_to_others[] = {"10.0.0.1:0", "tcp://0.0.0.0:7100", "[::]:80",
                                                 "tcp://node.example:1", "1127.0.0.1:0"};
    for (size_t i = 0; i < SL_COUNTOF(local); i++)
        assert_true(sl_address_is_local(local[i]));
    for (size_t i = 0; i < SL_COUNTOF(open_to_others); i++)
        assert_false(sl_address_is_local(open_to_others[i]));
}

int main(void)
{
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/secret", folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(file_that_is_not_fit_is_refused_in_words),
        cmocka_unit_test(credential_is_found_and_its_mode_is_systemds),
        cmocka_unit_test(white_space_at_the_end_makes_no_other_secret),
        cmocka_unit_test(proofs_differ_by_secret_purpose_and_parts),
        cmocka_unit_test(addresses_of_this_machine_are_local),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    rmdir(folder);
    return failed;
}
