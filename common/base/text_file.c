/* common/base/text_file.c - see text_file.h. */
#include "common/base/text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"

#define KIB ((size_t)1024)
#define MIB (KIB * KIB)

static enum sl_err refuse(struct sl_why *why, const char *what, const char *path, const char *wrong)
{
    return sl_why_set(why, SL_ECONFIG, "%s %.200s cannot be read: %s", what, path, wrong);
}

/* At most max bytes, and one more where there are more; -1: errno. */
static ssize_t read_up_to(int fd, char *text, size_t max)
{
    size_t n = 0;
    for (;;) {
        ssize_t got = read(fd, text + n, max + 1 - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        n += (size_t)got;
        if (got == 0 || n > max)
            return (ssize_t)n;
    }
}

enum sl_err sl_text_file_read(const char *what, const char *path, size_t max, char **out, size_t *n,
                              struct sl_why *why)
{
    struct stat st;
    enum sl_err err = SL_OK;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* of a FIFO too that nobody writes */
    if (fd < 0)
        return refuse(why, what, path, strerror(errno));
    char *text = NULL;
    ssize_t got = 0;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        err = refuse(why, what, path, "it is not a regular file");
    } else {
        text = sl_xalloc(max + 1);
        got = read_up_to(fd, text, max);
        if (got < 0) {
            err = refuse(why, what, path, strerror(errno));
        } else if ((size_t)got > max) {
            char wrong[64];
            bool mib = max % MIB == 0;
            snprintf(wrong, sizeof wrong, "it is larger than %zu %s", max / (mib ? MIB : KIB),
                     mib ? "MiB" : "KiB");
            err = refuse(why, what, path, wrong);
        } else if (memchr(text, '\0', (size_t)got)) {
            err = refuse(why, what, path, "it is not a text file");
        }
    }
    close(fd);
    if (err) {
        if (text && got > 0)
            explicit_bzero(text, (size_t)got);
        sl_free(text);
        return err;
    }
    text[got] = '\0';
    *out = text;
    *n = (size_t)got;
    return SL_OK;
}
