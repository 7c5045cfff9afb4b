/* common/model/model_digest: the same on any number of threads, and a memory that is used, and not trusted.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/cache_dir.h"
#include "common/base/mem.h"
#include "common/model/model_digest.h"
#include "tests/unit/model/model_rig.h"

static struct sl_digest128 digest_of(const char *path, unsigned n_threads, const char *cache_dir)
{
    struct sl_model_file *f;
    struct sl_model_conf c;
    struct sl_why why = {{0}};
    assert_int_equal(sl_model_file_open(path, &f, &why), SL_OK);
    assert_int_equal(sl_model_conf_read(f, &c, &why), SL_OK);
    struct sl_digest128 d = sl_model_digest(f, &c, n_threads, cache_dir);
    sl_model_file_close(f);
    return d;
}

static bool same(struct sl_digest128 a, struct sl_digest128 b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

static char *tiny_file(void)
{
    struct sl_make_model m;
    assert_true(sl_make_model_preset("tiny", &m));
    return rig_model_file(&m);
}

/* The one record in the folder; false when it is empty. */
static bool record_name(const char *dir, char name[256])
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    bool found = false;
    for (struct dirent *at; (at = readdir(d)) != NULL;) {
        if (at->d_name[0] != '.') {
            assert_false(found);
            found = true;
            snprintf(name, 256, "%s", at->d_name);
        }
    }
    closedir(d);
    return found;
}

static bool is_settled(const char *path)
{
    struct stat st;
    struct timespec now;
    assert_int_equal(stat(path, &st), 0);
    clock_gettime(CLOCK_REALTIME, &now);
    return (now.tv_sec - st.st_ctim.tv_sec) * INT64_C(1000000000) + now.tv_nsec - st.st_ctim.tv_nsec >
           SL_DIGEST_SETTLED_NS;
}

static void wait_until_settled(const char *path)
{
    while (!is_settled(path))
        usleep(20000);
}

static void digest_is_the_same_on_any_number_of_threads(void **state)
{
    (void)state;
    char *path = tiny_file();
    struct sl_digest128 one = digest_of(path, 1, NULL);
    assert_true(same(one, digest_of(path, 0, NULL)));
    assert_true(same(one, digest_of(path, 3, NULL)));
    unlink(path);
    sl_free(path);
}

static void memory_is_used_for_a_settled_file_and_a_damaged_one_is_not(void **state)
{
    (void)state;
    char dir[] = "/tmp/sluice-digest-XXXXXX", name[256], *path = tiny_file();
    struct { /* as in model_digest.c */
        struct sl_digest128 files, digest;
        uint64_t version;
    } record;
    assert_non_null(mkdtemp(dir));
    struct sl_digest128 right = digest_of(path, 1, dir);
    if (record_name(dir, name) && !is_settled(path))
        fail_msg("a file as young as this was remembered");
    wait_until_settled(path);
    assert_true(same(right, digest_of(path, 1, dir)));
    assert_true(record_name(dir, name));
    assert_true(same(right, digest_of(path, 1, dir)));

    struct sl_why why = {{0}};
    assert_true(sl_cache_get(dir, name, &record, sizeof record));
    record.digest.lo ^= 1; /* shows whether it is read */
    assert_int_equal(sl_cache_put(dir, name, &record, sizeof record, &why), SL_OK);
    assert_false(same(right, digest_of(path, 1, dir)));
    record.files.hi++; /* another file's */
    assert_int_equal(sl_cache_put(dir, name, &record, sizeof record, &why), SL_OK);
    assert_true(same(right, digest_of(path, 1, dir)));

    char *at = sl_xasprintf("%s/%s", dir, name);
    assert_int_equal(truncate(at, 20), 0);
    assert_true(same(right, digest_of(path, 1, dir)));
    assert_true(sl_cache_get(dir, name, &record, sizeof record)); /* written anew */
    unlink(at);
    sl_free(at);
    rmdir(dir);
    unlink(path);
    sl_free(path);
}

static void folder_that_cannot_be_written_is_no_fault(void **state)
{
    (void)state;
    char *path = tiny_file();
    struct sl_digest128 right = digest_of(path, 1, NULL);
    wait_until_settled(path);
    assert_true(same(right, digest_of(path, 1, "/proc/no/such")));
    unlink(path);
    sl_free(path);
}

static struct sl_digest128 digest_of_made(const char *arch, uint32_t window, uint32_t pattern)
{
    struct sl_make_model m;
    assert_true(sl_make_model_preset("tiny", &m));
    m.arch = arch;
    m.sliding_window = window;
    m.window_pattern = pattern;
    char *path = rig_model_file(&m);
    struct sl_digest128 d = digest_of(path, 1, NULL);
    unlink(path);
    sl_free(path);
    return d;
}

/* The tensors are the same, what is computed with them is not. */
static void digest_follows_what_layers_see(void **state)
{
    (void)state;
    assert_true(same(digest_of_made("llama", 70, 0), digest_of_made("llama", 70, 0)));
    assert_false(same(digest_of_made("llama", 70, 0), digest_of_made("llama", 71, 0)));
    assert_false(same(digest_of_made("llama", 70, 0), digest_of_made("llama", 0, 0)));
    assert_false(same(digest_of_made("gemma3", 70, 2), digest_of_made("gemma3", 71, 2)));
    assert_false(same(digest_of_made("gemma3", 70, 2), digest_of_made("gemma3", 70, 3)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digest_is_the_same_on_any_number_of_threads),
        cmocka_unit_test(digest_follows_what_layers_see),
        cmocka_unit_test(memory_is_used_for_a_settled_file_and_a_damaged_one_is_not),
        cmocka_unit_test(folder_that_cannot_be_written_is_no_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
