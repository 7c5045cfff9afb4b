/* common/base/cache_dir: who decides where the cache is, records that are whole or absent, and what a trim
 * takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cache_dir.h"
#include "common/base/mem.h"
#include "tests/support/support.h"

static void expect(const char *configured, const char *want)
{
    char *dir = sl_cache_dir(configured);
    if (want)
        assert_string_equal(dir, want);
    else
        assert_null(dir);
    sl_free(dir);
}

static void environment_decides_in_the_order_of_the_header(void **state)
{
    (void)state;
    setenv("CACHE_DIRECTORY", "/var/cache/sluice:/var/cache/other", 1);
    setenv("XDG_CACHE_HOME", "/xdg", 1);
    setenv("HOME", "/home/u", 1);
    expect("/somewhere", "/somewhere");
    expect("none", NULL);
    expect("", "/var/cache/sluice");
    expect(NULL, "/var/cache/sluice");
    unsetenv("CACHE_DIRECTORY");
    expect("", "/xdg/sluice/node");
    setenv("XDG_CACHE_HOME", "relative", 1);
    expect("", "/home/u/.cache/sluice/node");
    unsetenv("HOME");
    expect("", NULL);
}

static char root[] = "/tmp/sluice-cache-XXXXXX";

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    return sl_test_remove_tree(root);
}

static void folders_are_made_for_this_user_and_files_are_refused(void **state)
{
    (void)state;
    char path[128];
    struct sl_why why = {{0}};
    struct stat st;
    snprintf(path, sizeof path, "%s/a/b", root);
    assert_int_equal(sl_cache_dir_make(path, &why), SL_OK);
    assert_int_equal(sl_cache_dir_make(path, &why), SL_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    rmdir(path);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(sl_cache_dir_make(path, &why), SL_EIO);
    assert_non_null(strstr(why.text, path));
}

static void record_comes_back_whole_or_not_at_all(void **state)
{
    (void)state;
    char path[128], got[8] = "before";
    struct sl_why why = {{0}};
    snprintf(path, sizeof path, "%s/x.record", root);
    assert_false(sl_cache_get(root, "x.record", got, 5));
    assert_int_equal(sl_cache_put(root, "x.record", "hello", 5, &why), SL_OK);
    assert_true(sl_cache_get(root, "x.record", got, 5));
    assert_memory_equal(got, "hello", 5);
    assert_int_equal(sl_cache_put(root, "x.record", "salut", 5, &why), SL_OK);
    assert_true(sl_cache_get(root, "x.record", got, 5));
    assert_memory_equal(got, "salut", 5);
    assert_false(sl_cache_get(root, "x.record", got, 4));
    assert_false(sl_cache_get(root, "x.record", got, 6));
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    fseek(f, 9, SEEK_SET);
    fputc('!', f);
    fclose(f);
    assert_false(sl_cache_get(root, "x.record", got, 5));
    assert_memory_equal(got, "salut", 5);
}

static void write_file(const char *name, size_t bytes, long used_s)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (size_t i = 0; i < bytes; i++)
        fputc('x', f);
    fclose(f);
    struct timespec times[2] = {{.tv_sec = used_s}, {.tv_sec = used_s}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static bool there(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return access(path, F_OK) == 0;
}

static void trim_takes_the_longest_unused_and_nothing_of_others(void **state)
{
    (void)state;
    static const char *const suffixes[] = {".one", ".two", NULL};
    write_file("a.one", 100, 1000);
    write_file("b.two", 100, 3000);
    write_file("c.one", 100, 2000);
    write_file("precious.txt", 1000, 1);
    assert_int_equal(sl_cache_trim(root, suffixes, 300), 0);
    assert_int_equal(sl_cache_trim(root, suffixes, 299), 1);
    assert_false(there("a.one"));
    char path[128];
    snprintf(path, sizeof path, "%s/c.one", root);
    int fd = open(path, O_RDONLY);
    sl_cache_used(fd);
    close(fd);
    assert_int_equal(sl_cache_trim(root, suffixes, 100), 1);
    assert_true(there("c.one") && there("precious.txt") && !there("b.two"));
    assert_int_equal(sl_cache_trim("/nonexistent", suffixes, 0), 0);
}

static void trim_takes_temporary_files_only_of_the_dead(void **state)
{
    (void)state;
    static const char *const none[] = {NULL};
    struct sl_cache_temp t;
    struct sl_why why = {{0}};
    struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    write_file(".tmp-dead", 10, 1000);
    assert_int_equal(sl_cache_temp_open(root, &t, &why), SL_OK);
    assert_int_equal(futimens(t.fd, old), 0);
    assert_int_equal(sl_cache_trim(root, none, 0), 1);
    assert_false(there(".tmp-dead"));
    assert_int_equal(sl_cache_temp_end(&t, root, "alive", true, &why), SL_OK);
    assert_true(there("alive"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(environment_decides_in_the_order_of_the_header),
        cmocka_unit_test(folders_are_made_for_this_user_and_files_are_refused),
        cmocka_unit_test(record_comes_back_whole_or_not_at_all),
        cmocka_unit_test(trim_takes_the_longest_unused_and_nothing_of_others),
        cmocka_unit_test(trim_takes_temporary_files_only_of_the_dead),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
