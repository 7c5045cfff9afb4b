/* tests/fuzz/input_file.c - a file in memory, made once and written anew for each input. */
#include "tests/fuzz/input_file.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"

const char *sl_input_file(unsigned which, const void *bytes, size_t n)
{
    static int fds[SL_INPUT_FILES];
    static char paths[SL_INPUT_FILES][32];
    SL_ASSERT(which < SL_INPUT_FILES);
    if (fds[which] <= 0) {
        fds[which] = memfd_create("fuzz", MFD_CLOEXEC);
        SL_ASSERT(fds[which] > 0 && fchmod(fds[which], 0600) == 0);
        snprintf(paths[which], sizeof paths[which], "/proc/self/fd/%d", fds[which]);
    }
    SL_ASSERT(ftruncate(fds[which], 0) == 0 && pwrite(fds[which], bytes, n, 0) == (ssize_t)n);
    return paths[which];
}
