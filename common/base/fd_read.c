/* common/base/fd_read.c - see fd_read.h. */
#include "common/base/fd_read.h"

#include <errno.h>
#include <unistd.h>

bool sl_fd_read_all(int fd, void *to, size_t n)
{
    char *at = to;
    while (n > 0) {
        ssize_t got = read(fd, at, n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        n -= (size_t)got;
    }
    return true;
}
