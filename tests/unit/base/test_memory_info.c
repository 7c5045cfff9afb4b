/* common/base/memory_info: the machine's memory and the limits of control groups, whichever is less. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/cache_dir.h"
#include "common/base/mem.h"
#include "common/base/memory_info.h"
#include "tests/support/support.h"

static char root[] = "/tmp/sluice-memory-XXXXXX";

static void put(const char *path, const char *text)
{
    char *full = sl_xasprintf("%s%s", root, path), *slash = strrchr(full, '/');
    struct sl_why why;
    *slash = '\0';
    assert_int_equal(sl_cache_dir_make(full, &why), SL_OK);
    *slash = '/';
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    sl_free(full);
}

static void least_of_machine_and_groups_counts(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(root));
    assert_int_equal(sl_memory_available_at(root), 0);
    put("/proc/meminfo", "MemTotal:  9000 kB\nMemFree: 1 kB\nMemAvailable:    4000 kB\n");
    assert_int_equal(sl_memory_available_at(root), 4000 << 10);
    put("/proc/self/cgroup", "1:name=systemd:/x\n0::/a/b\n");
    assert_int_equal(sl_memory_available_at(root), 4000 << 10);
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    put("/sys/fs/cgroup/a/b/memory.current", "1000000\n");
    assert_int_equal(sl_memory_available_at(root), 4000 << 10);
    put("/sys/fs/cgroup/a/memory.max", "3000000\n"); /* the limit of a group above */
    put("/sys/fs/cgroup/a/memory.current", "1000000\n");
    assert_int_equal(sl_memory_available_at(root), 2000000);
    put("/sys/fs/cgroup/a/memory.stat", "anon 5\nfile 700000\ninactive_file 600000\n");
    assert_int_equal(sl_memory_available_at(root), 2600000);
    put("/sys/fs/cgroup/a/b/memory.max", "900000\n"); /* already over it */
    assert_int_equal(sl_memory_available_at(root), 0);
}

static void real_files_are_read(void **state)
{
    (void)state;
    assert_true(sl_memory_available() > 0);
    assert_true(sl_memory_resident() > 100000);
}

static int clean(void **state)
{
    (void)state;
    return sl_test_remove_tree(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(least_of_machine_and_groups_counts),
        cmocka_unit_test(real_files_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, clean);
}
