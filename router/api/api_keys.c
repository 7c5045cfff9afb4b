/* router/api/api_keys.c - keys are compared by their digests, all of each, and with every key of the file: time
 * tells neither how much of a key was right nor which one.
 *
 * Keys that stand in the file as they are share one salt of this process, so that they cost one hash together;
 * each hashed one costs its own, well under a microsecond.
 *
 * A reload puts a new set in front of the old one, which stays until the end: a request may be looking at it,
 * or have one of its keys. Reloads are a person's doing and sets are small. */
#include "router/api/api_keys.h"

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rand.h"
#include "common/base/secret.h"
#include "common/base/text_file.h"

#define MAX_FILE_BYTES ((size_t)2 * SL_KEYS_MAX * SL_KEY_LINE_BYTES) /* and comments */

struct key {
    struct sl_api_key api;
    unsigned char salt[SL_KEY_SALT_BYTES], digest[SL_KEY_DIGEST_BYTES];
    char *id;
};

struct key_set {
    struct key_set *older;
    size_t n;
    struct key *keys;
};

struct named_account {
    struct named_account *next;
    char *name;
    struct sl_key_account account;
};

struct sl_api_keys {
    _Atomic(struct key_set *) now;
    struct named_account *accounts; /* the reloading thread's; none is ever taken away */
    unsigned char salt[SL_KEY_SALT_BYTES];
};

static struct sl_key_account *account_of(struct sl_api_keys *k, const char *name)
{
    struct named_account *a = k->accounts;
    while (a && strcmp(a->name, name) != 0)
        a = a->next;
    if (!a) {
        a = sl_xcalloc(1, sizeof *a);
        a->name = sl_xstrdup(name);
        sl_key_account_init(&a->account);
        a->next = k->accounts;
        k->accounts = a;
    }
    return &a->account;
}

static enum sl_err add_key(struct sl_api_keys *k, struct key_set *set, const struct sl_key_line *line,
                           struct sl_why *why)
{
    struct sl_key_limits limits = {0};
    enum sl_err err = line->key ? SL_OK : sl_key_limits_parse(line->limits, line->n_limits, &limits, why);
    if (err)
        return err;
    set->keys = sl_xrealloc_array(set->keys, set->n + 1, sizeof *set->keys);
    struct key *key = &set->keys[set->n++];
    *key = (struct key){.api.limits = limits};
    if (line->key) {
        memcpy(key->salt, k->salt, sizeof key->salt);
        sl_key_digest(k->salt, line->key, line->n_key, key->digest);
        key->api.limits.admin = true; /* as all keys once were */
    } else {
        memcpy(key->salt, line->salt, sizeof key->salt);
        memcpy(key->digest, line->digest, sizeof key->digest);
    }
    if (line->n_name) {
        key->id = sl_xstrndup(line->name, line->n_name);
        key->api.account = account_of(k, key->id);
        key->api.name = key->id;
    } else {
        uint64_t start;
        memcpy(&start, key->digest, sizeof start);
        key->id = sl_xasprintf("key %016llx", (unsigned long long)start);
        key->api.name = "";
    }
    key->api.id = key->id;
    return SL_OK;
}

/* Cuts text at its line ends. */
static enum sl_err read_lines(struct sl_api_keys *k, char *text, const char *path, struct key_set *set,
                              struct sl_why *why)
{
    size_t n_plain = 0;
    unsigned no = 1;
    for (char *at = text, *next; *at; at = next, no++) {
        struct sl_key_line line;
        struct sl_why what = {{0}};
        size_t n = strcspn(at, "\n");
        next = at + n + (at[n] == '\n');
        at[n] = '\0';
        if (n >= SL_KEY_LINE_BYTES)
            return sl_why_set(why, SL_ECONFIG, "%s:%u: the line is longer than %d bytes", path, no,
                              SL_KEY_LINE_BYTES);
        enum sl_err err = sl_key_line_parse(at, &line, &what);
        if (err == SL_ENOTFOUND)
            continue;
        if (!err && set->n == SL_KEYS_MAX)
            err = sl_why_set(&what, SL_ECONFIG, "more than %d keys", SL_KEYS_MAX);
        if (!err)
            err = add_key(k, set, &line, &what);
        if (err)
            return sl_why_set(why, SL_ECONFIG, "%s:%u: %s", path, no, what.text);
        n_plain += line.key != NULL;
    }
    if (set->n == 0)
        return sl_why_set(why, SL_ECONFIG,
                          "%s: there is no key in it; leave api_key_file out to serve without keys", path);
    if (n_plain)
        SL_WARN("API keys stand in their file as they are; give out new ones with sluicectl keys add, which "
                "writes only their hashes file=%s keys=%zu",
                path, n_plain);
    return SL_OK;
}

static void set_free(struct key_set *set)
{
    for (size_t i = 0; i < set->n; i++) {
        sl_key_limits_fini(&set->keys[i].api.limits);
        sl_free(set->keys[i].id);
    }
    sl_free(set->keys);
    sl_free(set);
}

enum sl_err sl_api_keys_reload(struct sl_api_keys *k, const char *path, struct sl_why *why)
{
    char *text;
    size_t n;
    enum sl_err err = sl_text_file_read("the API key file", path, MAX_FILE_BYTES, &text, &n, why);
    if (err)
        return err;
    struct key_set *set = sl_xcalloc(1, sizeof *set);
    err = read_lines(k, text, path, set, why);
    explicit_bzero(text, n);
    sl_free(text);
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
    sl_random_bytes(k->salt, sizeof k->salt);
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
    for (struct named_account *a = k->accounts, *next; a; a = next) {
        next = a->next;
        sl_key_account_fini(&a->account);
        sl_free(a->name);
        sl_free(a);
    }
    sl_free(k);
}

const struct sl_api_key *sl_api_keys_find(const struct sl_api_keys *k, const char *presented)
{
    size_t n = strlen(presented);
    const struct sl_api_key *found = NULL;
    const unsigned char *salt = NULL;
    unsigned char digest[SL_KEY_DIGEST_BYTES];
    if (n == 0 || n > SL_KEY_MAX_BYTES)
        return NULL;
    const struct key_set *set = atomic_load(&k->now);
    for (size_t i = 0; i < set->n; i++) {
        const struct key *key = &set->keys[i];
        if (!salt || memcmp(salt, key->salt, SL_KEY_SALT_BYTES) != 0) { /* salts are no secret */
            salt = key->salt;
            sl_key_digest(salt, presented, n, digest);
        }
        if (sl_secret_equal(digest, key->digest, sizeof digest))
            found = &key->api;
    }
    return found;
}
