/* common/base/fd_read.h - all of a read, however many calls it takes. */
#ifndef SLUICE_COMMON_BASE_FD_READ_H
#define SLUICE_COMMON_BASE_FD_READ_H

#include <stdbool.h>
#include <stddef.h>

/* Exactly n bytes from a file or socket that blocks. False: it ended before, or failed (errno); a time limit of the
 * socket counts as that. */
bool sl_fd_read_all(int fd, void *to, size_t n);

#endif
