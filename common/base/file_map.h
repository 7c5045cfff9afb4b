/* common/base/file_map.h - a regular file mapped for reading, whole.
 *
 * Read-only after open: any thread. A file that is truncated while it is mapped ends the process by SIGBUS:
 * replace model files by rename, never in place. */
#ifndef SLUICE_COMMON_BASE_FILE_MAP_H
#define SLUICE_COMMON_BASE_FILE_MAP_H

#include <stdint.h>
#include "common/base/err.h"

/* Tells one state of a file from every other: a change of its bytes changes a time. */
struct sl_file_id {
    uint64_t device, inode, bytes;
    int64_t modified_ns, changed_ns;
};

struct sl_file_map {
    const uint8_t *base; /* NULL = not open */
    size_t size;         /* never 0 when open */
    struct sl_file_id id;
};

/* SL_EIO: no such file, not readable, not a regular file; SL_EPARSE: empty. *out is untouched then. */
SL_MUST_CHECK enum sl_err sl_file_map_open(const char *path, struct sl_file_map *out, struct sl_why *why);
void sl_file_map_close(struct sl_file_map *m); /* takes a zeroed one */

/* Of the newer of the file's two times. */
int64_t sl_file_id_newest_ns(const struct sl_file_id *id);

/* The n bytes at p are not needed for now and shall not count as this process's memory. They may still be
 * read, again from the file. Bytes outside of the map are left alone. */
void sl_file_map_release(const struct sl_file_map *m, const void *p, size_t n);

#endif
