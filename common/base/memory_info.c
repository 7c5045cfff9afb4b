/* common/base/memory_info.c - reads /proc and the control group files.
 *
 * A group's usage counts the page cache of files as well, of which the kernel takes back what nobody used of
 * late (inactive_file) before it refuses memory: that part counts as free. */
#include "common/base/memory_info.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"

#define GROUP_PATH_MAX 1024

static FILE *open_at(const char *root, const char *path)
{
    char *full = sl_xasprintf("%s%s", root, path);
    FILE *f = fopen(full, "re");
    sl_free(full);
    return f;
}

/* The number behind "key " in a file of such lines; key NULL = the file is the number. False when there is
 * none, as where a limit is "max". */
static bool read_number(const char *root, const char *path, const char *key, uint64_t *out)
{
    FILE *f = open_at(root, path);
    char line[256];
    bool found = false;
    size_t n = key ? strlen(key) : 0;
    while (f && !found && fgets(line, sizeof line, f)) {
        if (!key || (strncmp(line, key, n) == 0 && (line[n] == ' ' || line[n] == ':')))
            found = sscanf(line + n + (key != NULL), "%" SCNu64, out) == 1;
    }
    if (f)
        fclose(f);
    return found;
}

static uint64_t group_number(const char *root, const char *group, const char *file, const char *key,
                             bool *found)
{
    char *path = sl_xasprintf("/sys/fs/cgroup%s/%s", group, file);
    uint64_t n = 0;
    *found = read_number(root, path, key, &n);
    sl_free(path);
    return n;
}

/* What the limit of one group leaves; UINT64_MAX without a limit. */
static uint64_t left_in_group(const char *root, const char *group)
{
    bool limited, counted, has_cache;
    uint64_t max = group_number(root, group, "memory.max", NULL, &limited);
    uint64_t used = group_number(root, group, "memory.current", NULL, &counted);
    uint64_t cache = group_number(root, group, "memory.stat", "inactive_file", &has_cache);
    if (!limited || !counted)
        return UINT64_MAX;
    used -= cache < used ? cache : used;
    return used < max ? max - used : 0;
}

static uint64_t left_in_groups(const char *root)
{
    FILE *f = open_at(root, "/proc/self/cgroup");
    char line[GROUP_PATH_MAX] = "", *group = NULL;
    while (f && !group && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::/", 4) == 0)
            group = line + 3;
    }
    if (f)
        fclose(f);
    uint64_t least = UINT64_MAX;
    while (group) { /* the group and all above it */
        uint64_t left = left_in_group(root, group);
        least = left < least ? left : least;
        char *slash = strrchr(group, '/');
        if (!slash || !*group)
            break;
        *slash = '\0';
    }
    return least;
}

uint64_t sl_memory_available_at(const char *root)
{
    uint64_t kib = 0, groups = left_in_groups(root);
    if (!read_number(root, "/proc/meminfo", "MemAvailable", &kib))
        return groups == UINT64_MAX ? 0 : groups;
    return kib << 10 < groups ? kib << 10 : groups;
}

uint64_t sl_memory_available(void)
{
    return sl_memory_available_at("");
}

uint64_t sl_memory_resident(void)
{
    FILE *f = open_at("", "/proc/self/statm");
    uint64_t size, pages = 0;
    if (!f)
        return 0;
    if (fscanf(f, "%" SCNu64 " %" SCNu64, &size, &pages) != 2)
        pages = 0;
    fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}
