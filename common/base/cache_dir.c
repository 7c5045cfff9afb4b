/* common/base/cache_dir.c - where the cache is, small records, files that appear whole, and who must go.
 *
 * A writer holds a lock (flock) on its temporary file for as long as it lives, so a temporary file that can
 * be locked belongs to nobody any more. "Unused" is the time of modification, set anew at each use: access
 * times are often not kept. Deleting what another process reads is harmless, its descriptor keeps the file.
 */
#include "common/base/cache_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/fd_read.h"
#include "common/base/mem.h"

#define TEMP_PREFIX       ".tmp-"
#define TEMP_YOUNG_S      60   /* its writer may not have locked it yet */
#define MAX_FILES         4096 /* looked at in one trim: far more than a folder of gigabytes each holds */
#define RECORD_MAX_BYTES  (1u << 20)
#define RECORD_CHECK_SEED UINT64_C(0x736c7265636f7264)

static const char *env(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] == '/' ? value : NULL; /* both standards want absolute paths */
}

char *sl_cache_dir(const char *configured)
{
    const char *base;
    if (configured && *configured)
        return strcmp(configured, SL_CACHE_DIR_NONE) == 0 ? NULL : sl_xstrdup(configured);
    if ((base = env("CACHE_DIRECTORY")) != NULL)
        return sl_xstrndup(base, strcspn(base, ":"));
    if ((base = env("XDG_CACHE_HOME")) != NULL)
        return sl_xasprintf("%s/sluice/node", base);
    if ((base = env("HOME")) != NULL)
        return sl_xasprintf("%s/.cache/sluice/node", base);
    return NULL;
}

enum sl_err sl_cache_dir_make(const char *dir, struct sl_why *why)
{
    char *path = sl_xstrdup(dir);
    enum sl_err e = SL_OK;
    struct stat st;
    bool last = false;
    for (size_t at = 1; e == SL_OK && !last; at++) {
        at += strcspn(path + at, "/");
        last = path[at] == '\0';
        path[at] = '\0';
        if (mkdir(path, 0700) != 0 && stat(path, &st) != 0)
            e = sl_why_set(why, SL_EIO, "the cache folder %s cannot be made: %s", path, strerror(errno));
        else if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
            e = sl_why_set(why, SL_EIO, "the cache folder was to be %s, but %s is no folder", dir, path);
        if (!last)
            path[at] = '/';
    }
    sl_free(path);
    return e;
}

/* ---- files that appear whole ---- */

enum sl_err sl_cache_temp_open(const char *dir, struct sl_cache_temp *t, struct sl_why *why)
{
    enum sl_err e = sl_cache_dir_make(dir, why);
    if (e != SL_OK)
        return e;
    t->path = sl_xasprintf("%s/" TEMP_PREFIX "XXXXXX", dir);
    t->fd = mkostemp(t->path, O_CLOEXEC);
    if (t->fd < 0) {
        e = sl_why_set(why, SL_EIO, "no file can be made in the cache folder %s: %s", dir, strerror(errno));
        sl_free(t->path);
        return e;
    }
    (void)flock(t->fd, LOCK_EX | LOCK_NB); /* where locks are unknown, age alone protects it */
    return SL_OK;
}

enum sl_err sl_cache_temp_end(struct sl_cache_temp *t, const char *dir, const char *name, bool keep,
                              struct sl_why *why)
{
    enum sl_err e = SL_OK;
    char *path = sl_xasprintf("%s/%s", dir, name);
    if (!keep || rename(t->path, path) != 0) {
        if (keep)
            e = sl_why_set(why, SL_EIO, "%s cannot get its name: %s", path, strerror(errno));
        unlink(t->path);
    }
    close(t->fd);
    sl_free(t->path);
    sl_free(path);
    return e;
}

/* ---- small records ---- */

bool sl_cache_get(const char *dir, const char *name, void *bytes, size_t n)
{
    SL_ASSERT(n <= RECORD_MAX_BYTES);
    char *path = sl_xasprintf("%s/%s", dir, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    sl_free(path);
    if (fd < 0)
        return false;
    uint64_t check;
    uint8_t *got = sl_xalloc(n + 1), more;
    bool ok = sl_fd_read_all(fd, &check, sizeof check) && sl_fd_read_all(fd, got, n) &&
              !sl_fd_read_all(fd, &more, 1) && check == sl_digest64(got, n, RECORD_CHECK_SEED);
    if (ok) {
        memcpy(bytes, got, n);
        sl_cache_used(fd);
    }
    sl_free(got);
    close(fd);
    return ok;
}

enum sl_err sl_cache_put(const char *dir, const char *name, const void *bytes, size_t n, struct sl_why *why)
{
    SL_ASSERT(n <= RECORD_MAX_BYTES);
    struct sl_cache_temp t;
    enum sl_err e = sl_cache_temp_open(dir, &t, why);
    if (e != SL_OK)
        return e;
    uint8_t *all = sl_xalloc(sizeof(uint64_t) + n);
    uint64_t check = sl_digest64(bytes, n, RECORD_CHECK_SEED);
    memcpy(all, &check, sizeof check);
    memcpy(all + sizeof check, bytes, n);
    bool written = write(t.fd, all, sizeof check + n) == (ssize_t)(sizeof check + n);
    sl_free(all);
    if (!written)
        e = sl_why_set(why, SL_EIO, "a record cannot be written to the cache folder %s: %s", dir,
                       strerror(errno));
    enum sl_err end = sl_cache_temp_end(&t, dir, name, written, why);
    return e != SL_OK ? e : end;
}

/* ---- who must go ---- */

void sl_cache_used(int fd)
{
    (void)futimens(fd, NULL);
}

struct entry {
    char *name;
    uint64_t bytes;
    struct timespec used;
};

static int older_first(const void *a, const void *b)
{
    const struct timespec *x = &((const struct entry *)a)->used, *y = &((const struct entry *)b)->used;
    if (x->tv_sec != y->tv_sec)
        return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

static bool ends_with_one_of(const char *name, const char *const *suffixes)
{
    size_t n = strlen(name);
    for (; *suffixes; suffixes++) {
        size_t m = strlen(*suffixes);
        if (n > m && strcmp(name + n - m, *suffixes) == 0)
            return true;
    }
    return false;
}

/* True when it was removed: old, and its writer is gone. */
static bool remove_orphan(int dir_fd, const char *name, const struct stat *st)
{
    if (time(NULL) - st->st_mtime < TEMP_YOUNG_S)
        return false;
    int fd = openat(dir_fd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return false;
    bool orphan = flock(fd, LOCK_EX | LOCK_NB) == 0 && unlinkat(dir_fd, name, 0) == 0;
    close(fd);
    return orphan;
}

size_t sl_cache_trim(const char *dir, const char *const *suffixes, uint64_t max_bytes)
{
    DIR *d = opendir(dir);
    if (!d)
        return 0;
    struct entry *entries = sl_xcalloc(MAX_FILES, sizeof *entries);
    size_t n = 0, removed = 0;
    uint64_t total = 0;
    for (struct dirent *at; n < MAX_FILES && (at = readdir(d)) != NULL;) {
        struct stat st;
        if (fstatat(dirfd(d), at->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            continue;
        if (strncmp(at->d_name, TEMP_PREFIX, strlen(TEMP_PREFIX)) == 0) {
            removed += remove_orphan(dirfd(d), at->d_name, &st);
        } else if (ends_with_one_of(at->d_name, suffixes)) {
            entries[n++] = (struct entry){sl_xstrdup(at->d_name), (uint64_t)st.st_size, st.st_mtim};
            total += (uint64_t)st.st_size;
        }
    }
    qsort(entries, n, sizeof *entries, older_first);
    for (size_t i = 0; i < n; i++) {
        if (total > max_bytes && unlinkat(dirfd(d), entries[i].name, 0) == 0) {
            total -= entries[i].bytes;
            removed++;
        }
        sl_free(entries[i].name);
    }
    sl_free(entries);
    closedir(d);
    return removed;
}
