/* common/model/pack_cache.h - packed matrices on disk, so that a later start reads them instead of packing.
 *
 * One file holds all matrices of a model as one backend packs them. It is found by its key, and believed only
 * when the key, the sizes and the digest of every matrix are right: else the caller packs again. Files appear
 * whole and are bounded in sum (common/base/cache_dir.h), so nodes may share the folder. */
#ifndef SLUICE_COMMON_MODEL_PACK_CACHE_H
#define SLUICE_COMMON_MODEL_PACK_CACHE_H

#include <stdatomic.h>
#include "common/base/digest.h"
#include "kernels/backend.h"

#define SL_PACK_NAME_MAX 160u
#define SL_PACK_KEY_MAX  160u

/* Of all entries of a folder together; the longest unused go first. A few models of some 10 GB each. */
#define SL_PACK_CACHE_MAX_BYTES (UINT64_C(64) << 30)
/* What a disk must have free when an entry has been written: logs and others live there too. */
#define SL_PACK_CACHE_KEEP_FREE_BYTES (UINT64_C(1) << 30)

/* Everything that decides the bytes: model, backend and its layouts, and how the caller stacks
 * (stack_version).
 */
struct sl_pack_key {
    char text[SL_PACK_KEY_MAX];
};
void sl_pack_key_of(const struct sl_digest128 *model, const struct sl_backend_ops *ops,
                    uint32_t stack_version, struct sl_pack_key *out);

/* ---- reading ---- */

struct sl_pack_cache; /* opaque: an entry open for reading */

/* NULL when there is none; one that is damaged is told in the log and removed. */
struct sl_pack_cache *sl_pack_cache_open(const char *dir, const struct sl_pack_key *key);
void sl_pack_cache_close(struct sl_pack_cache *c); /* takes NULL */

/* Makes the matrix [n_rows, n_cols] of this name, still without its numbers. SL_ENOTFOUND when the entry has
 * none, and what weight_restore() says. */
SL_MUST_CHECK enum sl_err sl_pack_cache_take(struct sl_pack_cache *c, const char *name, uint64_t n_rows,
                                             uint64_t n_cols, const struct sl_backend_ops *ops,
                                             struct sl_dev *dev, struct sl_weight **out, struct sl_why *why);
/* Reads the numbers of all that was taken, on n_threads threads. False when any of them is not right: then
 * nothing that was taken is of use; the log says so and the entry is removed. */
SL_MUST_CHECK bool sl_pack_cache_read(struct sl_pack_cache *c, unsigned n_threads);

/* ---- writing ---- */

struct sl_pack_item {
    char name[SL_PACK_NAME_MAX];
    struct sl_weight *weight;
};

struct sl_pack_save {
    const char *dir;
    struct sl_pack_key key;
    const struct sl_backend_ops *ops;
    const struct sl_pack_item *items; /* borrowed until it is done */
    size_t n_items;
    uint64_t max_bytes, keep_free_bytes; /* SL_PACK_CACHE_* */
};

/* Writes n entries of one folder (dir and bounds are the first's) one after the other, after making room for all of
 * them: none pushes another out, and either all fit or none is begun. Gives up at *stop (may be NULL) with SL_EAGAIN.
 * SL_ETOOBIG (over a bound, with numbers), SL_EIO. */
SL_MUST_CHECK enum sl_err sl_pack_cache_save(const struct sl_pack_save *s, size_t n, const atomic_bool *stop,
                                             struct sl_why *why);

struct sl_pack_saver; /* opaque: a thread that saves, when nobody else wants the CPU */
/* dir is copied, items are borrowed until the end. What went wrong is a warning in the log. NULL when n is 0. */
struct sl_pack_saver *sl_pack_saver_start(const struct sl_pack_save *s, size_t n);
void sl_pack_saver_end(struct sl_pack_saver *s); /* stops it; takes NULL */

#endif
