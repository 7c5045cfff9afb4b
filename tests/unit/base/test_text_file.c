/* Only regular files of a decent size are read, and nothing else keeps who asks. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/base/text_file.h"

enum { MOST = 2048 };

static char folder[] = "/tmp/sluice-text-XXXXXX";
static char path[64];

static void put(const void *bytes, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void text_is_whole_and_ends(void **state)
{
    static char bytes[MOST];
    static const size_t sizes[] = {0, 1, MOST - 1, MOST};
    (void)state;
    memset(bytes, 'x', sizeof bytes);
    for (size_t i = 0; i < SL_COUNTOF(sizes); i++) {
        struct sl_why why = {{0}};
        char *text;
        size_t n;
        put(bytes, sizes[i]);
        assert_int_equal(sl_text_file_read("the file", path, MOST, &text, &n, &why), SL_OK);
        assert_int_equal(n, sizes[i]);
        assert_int_equal(strlen(text), n);
        sl_free(text);
    }
}

static void refused(const char *file, const char *words)
{
    struct sl_why why = {{0}};
    char *text;
    size_t n;
    assert_int_equal(sl_text_file_read("the file", file, MOST, &text, &n, &why), SL_ECONFIG);
    if (!strstr(why.text, "the file /") || !strstr(why.text, words))
        fail_msg("\"%s\" does not say \"%s\"", why.text, words);
}

static void what_is_no_small_text_file_is_refused_at_once(void **state)
{
    static char bytes[MOST + 1];
    (void)state;
    memset(bytes, 'x', sizeof bytes);
    put(bytes, sizeof bytes);
    refused(path, "larger than 2 KiB");
    assert_int_equal(truncate(path, (off_t)1 << 40), 0); /* a hole */
    refused(path, "larger than 2 KiB");
    put("a\0b", 3);
    refused(path, "not a text file");
    unlink(path);
    refused(path, "No such file");
    refused("/tmp", "not a regular file");
    refused("/dev/zero", "not a regular file");
    assert_int_equal(mkfifo(path, 0600), 0);
    refused(path, "not a regular file"); /* nobody writes to it */
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_whole_and_ends),
        cmocka_unit_test(what_is_no_small_text_file_is_refused_at_once),
    };
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/file", folder);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
