/* router/api/api_keys.h - the keys clients may present, from a file: one a line, "key" or "name:key"; #
 * begins a comment line. The name shows in logs instead of the key. Any thread. */
#ifndef SLUICE_ROUTER_API_API_KEYS_H
#define SLUICE_ROUTER_API_API_KEYS_H

#include "common/base/err.h"

#define SL_KEY_MAX_BYTES 256
#define SL_KEYS_MAX      1024

struct sl_api_keys; /* opaque */

/* SL_ECONFIG: unreadable, a line too long, no key in it. why names file and line. */
SL_MUST_CHECK enum sl_err sl_api_keys_load(const char *path, struct sl_api_keys **out, struct sl_why *why);
/* Replaces the keys by those now in the file; on error (as of load) they stay as they were. One thread at a
 * time. */
SL_MUST_CHECK enum sl_err sl_api_keys_reload(struct sl_api_keys *k, const char *path, struct sl_why *why);
void sl_api_keys_free(struct sl_api_keys *k); /* takes NULL */
/* The name of the key presented ("" when it has none), or NULL when it is not one of ours. Takes the same
 * time for every key. The name stays valid after a reload too, until sl_api_keys_free(). */
const char *sl_api_keys_find(const struct sl_api_keys *k, const char *presented);

#endif
