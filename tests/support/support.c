/* tests/support/support.c - see support.h. */
#include "tests/support/support.h"

#include <errno.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/mem.h"

/* An open file that vanishes when closed is not enough: some callers need the path. */
static int temp_fd(char **path)
{
    const char *dir = getenv("TMPDIR");
    *path = sl_xasprintf("%s/sluice-test-XXXXXX", dir && *dir ? dir : "/tmp");
    int fd = mkstemp(*path);
    SL_ASSERT(fd >= 0);
    return fd;
}

static void write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t w = write(fd, p, n);
        SL_ASSERT(w > 0 || (w < 0 && errno == EINTR));
        if (w > 0) {
            p += w;
            n -= (size_t)w;
        }
    }
}

char *sl_test_temp_file(const void *bytes, size_t n)
{
    char *path;
    int fd = temp_fd(&path);
    write_all(fd, bytes, n);
    SL_ASSERT(close(fd) == 0);
    return path;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

int sl_test_remove_tree(const char *path)
{
    return nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

char *sl_test_read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rbe");
    if (!f)
        return NULL;
    char *text = NULL;
    size_t len = 0, cap = 4096;
    for (;;) {
        text = sl_xrealloc(text, cap + 1);
        size_t got = fread(text + len, 1, cap - len, f);
        len += got;
        if (got == 0)
            break;
        if (len == cap)
            cap *= 2;
    }
    SL_ASSERT(!ferror(f));
    fclose(f);
    text[len] = '\0';
    if (n)
        *n = len;
    return text;
}

char *sl_test_capture_stderr(void (*fn)(void *), void *arg)
{
    char *path;
    fflush(stderr);
    int fd = temp_fd(&path), saved = dup(STDERR_FILENO);
    SL_ASSERT(saved >= 0 && dup2(fd, STDERR_FILENO) >= 0);
    fn(arg);
    fflush(stderr);
    SL_ASSERT(dup2(saved, STDERR_FILENO) >= 0);
    close(saved);
    close(fd);
    char *text = sl_test_read_file(path, NULL);
    unlink(path);
    sl_free(path);
    return text;
}

int sl_test_dies(void (*fn)(void *), void *arg, char **text)
{
    char *path;
    fflush(NULL);
    int fd = temp_fd(&path);
    pid_t pid = fork();
    SL_ASSERT(pid >= 0);
    if (pid == 0) {
        const struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        dup2(fd, STDERR_FILENO);
        fn(arg);
        _exit(0);
    }
    int status;
    SL_ASSERT(waitpid(pid, &status, 0) == pid);
    close(fd);
    if (text)
        *text = sl_test_read_file(path, NULL);
    unlink(path);
    sl_free(path);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

unsigned long long sl_test_random(unsigned long long *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
