/* common/base/text_file.h - the whole of a small file that a person names, read into memory. */
#ifndef SLUICE_COMMON_BASE_TEXT_FILE_H
#define SLUICE_COMMON_BASE_TEXT_FILE_H

#include <stddef.h>
#include "common/base/err.h"

/* On SL_OK *out is the file's text with a NUL behind it, the caller's to sl_free(), and *n its bytes. SL_ECONFIG: no such
 * file, not readable, more than max bytes, a NUL in it, or no regular file: a FIFO would keep a daemon that reloads, and
 * a device may never end. The sentence calls the file `what path`. */
SL_MUST_CHECK enum sl_err sl_text_file_read(const char *what, const char *path, size_t max, char **out,
                                            size_t *n, struct sl_why *why);

#endif
