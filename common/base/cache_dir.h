/* common/base/cache_dir.h - the folder for what can be computed again: packed weights, digests of model
 * files, profiles of the cost model.
 *
 * Everything in it may be deleted at any time, and nothing in it is trusted: readers check digests and keys.
 * Files appear whole (temporary name, then rename), so any number of threads and processes may share the
 * folder. */
#ifndef SLUICE_COMMON_BASE_CACHE_DIR_H
#define SLUICE_COMMON_BASE_CACHE_DIR_H

#include <stdint.h>
#include "common/base/err.h"

#define SL_CACHE_DIR_NONE "none" /* the word that turns the cache off */

/* The folder that is meant by the configured value; the caller frees it (sl_free). NULL = no cache. "none" is
 * no cache, NULL or "" is the first that the environment has of
 *   $CACHE_DIRECTORY            (systemd's CacheDirectory=; the first of several)
 *   $XDG_CACHE_HOME/sluice/node
 *   $HOME/.cache/sluice/node */
char *sl_cache_dir(const char *configured);

/* Makes the folder and those above it, for this user only (0700). SL_EIO with a sentence. */
SL_MUST_CHECK enum sl_err sl_cache_dir_make(const char *dir, struct sl_why *why);

/* A small record of n bytes under a name, guarded by a digest. get is false unless exactly what put wrote is
 * there. */
SL_MUST_CHECK bool sl_cache_get(const char *dir, const char *name, void *bytes, size_t n);
SL_MUST_CHECK enum sl_err sl_cache_put(const char *dir, const char *name, const void *bytes, size_t n,
                                       struct sl_why *why);

/* A file on its way into the folder. */
struct sl_cache_temp {
    int fd; /* write here */
    char *path;
};
/* Makes the folder too. SL_EIO with a sentence; then t needs no end. */
SL_MUST_CHECK enum sl_err sl_cache_temp_open(const char *dir, struct sl_cache_temp *t, struct sl_why *why);
/* Gives the file its name, over what had it; or removes it when keep is false. Closes it in any case. */
SL_MUST_CHECK enum sl_err sl_cache_temp_end(struct sl_cache_temp *t, const char *dir, const char *name,
                                            bool keep, struct sl_why *why);

/* Removes temporary files of processes that died, and the longest unused files until all together have at
 * most max_bytes. Use is told by sl_cache_used(). Returns how many were removed. Files that do not end with
 * one of the suffixes (NULL behind the last) are left alone. */
size_t sl_cache_trim(const char *dir, const char *const *suffixes, uint64_t max_bytes);
/* The file open at fd was used now. */
void sl_cache_used(int fd);

#endif
