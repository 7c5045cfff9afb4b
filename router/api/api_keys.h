/* router/api/api_keys.h - the keys clients may present, from a file with one a line (common/base/key_line.h),
 * and what each may use (key_limits.h). Only digests are kept. The name shows in logs instead of the key. Any
 * thread. */
#ifndef SLUICE_ROUTER_API_API_KEYS_H
#define SLUICE_ROUTER_API_API_KEYS_H

#include "common/base/key_line.h"
#include "router/api/key_limits.h"

#define SL_KEYS_MAX 1024

struct sl_api_keys; /* opaque */

struct sl_api_key {
    const char *name; /* "" when it has none */
    const char *id;   /* its name, or what stands for one: keys of one name are one user */
    struct sl_key_limits limits;
    struct sl_key_account *account; /* of all keys of this name, over reloads too; NULL without a name */
};

/* SL_ECONFIG: unreadable, a line that is none, no key in it. why names file and line. Keys that stand in it as
 * they are are told in the log. */
SL_MUST_CHECK enum sl_err sl_api_keys_load(const char *path, struct sl_api_keys **out, struct sl_why *why);
/* Replaces the keys by those now in the file; on error (as of load) they stay as they were. One thread at a
 * time. */
SL_MUST_CHECK enum sl_err sl_api_keys_reload(struct sl_api_keys *k, const char *path, struct sl_why *why);
void sl_api_keys_free(struct sl_api_keys *k); /* takes NULL */
/* The key presented, or NULL when it is not one of ours. Takes the same time for every key of the same length.
 * What it returns stays valid after a reload too, until sl_api_keys_free(). */
const struct sl_api_key *sl_api_keys_find(const struct sl_api_keys *k, const char *presented);

#endif
