/* router/api/api_keys.c - all keys are padded to one length with their own length in front, so that every
 * comparison reads the same bytes however early it differs, and all keys are always compared: time tells
 * neither how much of a key was right nor which one.
 *
 * A reload puts a new set in front of the old one, which stays until the end: a request may be looking at it,
 * or have the name of one of its keys. Reloads are a person's doing and sets are small. */
#include "router/api/api_keys.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"

#define LINE_BYTES 1024

struct padded {
    uint8_t bytes[SL_KEY_MAX_BYTES + 2];
};

struct key {
    struct padded padded;
    char *name;
};

struct key_set {
    struct key_set *older;
    size_t n;
    struct key *keys;
};

struct sl_api_keys {
    _Atomic(struct key_set *) now;
};

static void pad(const char *s, size_t n, struct padded *out)
{
    memset(out, 0, sizeof *out);
    out->bytes[0] = (uint8_t)n;
    out->bytes[1] = (uint8_t)(n >> 8);
    memcpy(out->bytes + 2, s, n);
}

static uint8_t difference(const struct padded *a, const struct padded *b)
{
    const volatile uint8_t *pa = a->bytes, *pb = b->bytes; /* volatile: no early exit made by the compiler */
    uint8_t d = 0;
    for (size_t i = 0; i < sizeof a->bytes; i++)
        d |= pa[i] ^ pb[i];
    return d;
}

static void trim(char **s, size_t *n)
{
    while (*n && strchr(" \t\r\n", (*s)[*n - 1]))
        --*n;
    while (*n && strchr(" \t", **s))
        ++*s, --*n;
}

static enum sl_err read_lines(FILE *f, const char *path, struct key_set *k, struct sl_why *why)
{
    char line[LINE_BYTES];
    for (unsigned no = 1; fgets(line, sizeof line, f); no++) {
        char *s = line;
        size_t n = strlen(line);
        if (n == sizeof line - 1 && line[n - 1] != '\n')
            return sl_why_set(why, SL_ECONFIG, "%s:%u: the line is longer than a key can be (%d bytes)", path,
                              no, SL_KEY_MAX_BYTES);
        trim(&s, &n);
        if (n == 0 || s[0] == '#')
            continue;
        const char *colon = memchr(s, ':', n);
        const char *key = colon ? colon + 1 : s;
        size_t n_key = n - (size_t)(key - s);
        if (n_key == 0 || n_key > SL_KEY_MAX_BYTES)
            return sl_why_set(why, SL_ECONFIG, "%s:%u: a key must have 1 to %d bytes", path, no,
                              SL_KEY_MAX_BYTES);
        if (k->n == SL_KEYS_MAX)
            return sl_why_set(why, SL_ECONFIG, "%s:%u: more than %d keys", path, no, SL_KEYS_MAX);
        k->keys = sl_xrealloc_array(k->keys, k->n + 1, sizeof *k->keys);
        pad(key, n_key, &k->keys[k->n].padded);
        k->keys[k->n++].name = sl_xstrndup(s, colon ? (size_t)(colon - s) : 0);
    }
    if (ferror(f))
        return sl_why_set(why, SL_ECONFIG, "%s: cannot be read: %s", path, strerror(errno));
    if (k->n == 0)
        return sl_why_set(why, SL_ECONFIG,
                          "%s: there is no key in it; leave api_key_file out to serve without keys", path);
    return SL_OK;
}

static void set_free(struct key_set *set)
{
    for (size_t i = 0; i < set->n; i++)
        sl_free(set->keys[i].name);
    sl_free(set->keys);
    sl_free(set);
}

enum sl_err sl_api_keys_reload(struct sl_api_keys *k, const char *path, struct sl_why *why)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return sl_why_set(why, SL_ECONFIG, "the API key file %s cannot be opened: %s", path, strerror(errno));
    struct key_set *set = sl_xcalloc(1, sizeof *set);
    enum sl_err err = read_lines(f, path, set, why);
    fclose(f);
    if (err) {
        set_free(set);
        return err;
    }
    set->older = atomic_load(&k->now);
    atomic_store(&k->now, set);
    return SL_OK;
}

enum sl_err sl_api_keys_load(const char *path, struct sl_api_keys **out, struct sl_why *why)
{
    struct sl_api_keys *k = sl_xcalloc(1, sizeof *k);
    enum sl_err err = sl_api_keys_reload(k, path, why);
    if (err)
        sl_api_keys_free(k);
    else
        *out = k;
    return err;
}

void sl_api_keys_free(struct sl_api_keys *k)
{
    if (!k)
        return;
    for (struct key_set *set = atomic_load(&k->now), *older; set; set = older) {
        older = set->older;
        set_free(set);
    }
    sl_free(k);
}

const char *sl_api_keys_find(const struct sl_api_keys *k, const char *presented)
{
    struct padded p;
    size_t n = strlen(presented);
    const char *found = NULL;
    if (n == 0 || n > SL_KEY_MAX_BYTES)
        return NULL;
    pad(presented, n, &p);
    const struct key_set *set = atomic_load(&k->now);
    for (size_t i = 0; i < set->n; i++)
        if (difference(&p, &set->keys[i].padded) == 0)
            found = set->keys[i].name;
    return found;
}
