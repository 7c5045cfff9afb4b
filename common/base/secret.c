/* common/base/secret.c - see secret.h. The hash and the comparison are nettle's. */
#include "common/base/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nettle/hmac.h>
#include <nettle/memops.h>

#include "common/base/mem.h"

static const char key_purpose[] = "sluice cluster secret 1";

char *sl_credential(const char *name)
{
    const char *folder = getenv("CREDENTIALS_DIRECTORY");
    char *path = folder ? sl_xasprintf("%s/%s", folder, name) : NULL;
    if (path && access(path, F_OK) != 0) {
        sl_free(path);
        path = NULL;
    }
    return path;
}

static bool is_credential(const char *path)
{
    const char *folder = getenv("CREDENTIALS_DIRECTORY");
    size_t n = folder ? strlen(folder) : 0;
    return n && strncmp(path, folder, n) == 0 && path[n] == '/';
}

static enum sl_err check_file(int fd, const char *path, struct sl_why *why)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return sl_why_set(why, SL_ECONFIG, "cluster_secret_file %.200s is not a file", path);
    /* systemd lets the service's user in by an access list, which shows as a group's right */
    if (!is_credential(path) && (st.st_mode & 077) != 0)
        return sl_why_set(why, SL_ECONFIG,
                          "cluster_secret_file %.200s has mode %03o, so others than its owner can read it; "
                          "make it the daemon's own and chmod 600 it",
                          path, (unsigned)(st.st_mode & 0777));
    return SL_OK;
}

enum sl_err sl_secret_load(const char *path, struct sl_secret *out, struct sl_why *why)
{
    char text[SL_SECRET_MAX_CHARS + 64]; /* and white space at the end */
    size_t n = 0;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* of a FIFO too that nobody writes */
    if (fd < 0)
        return sl_why_set(why, SL_ECONFIG, "cluster_secret_file %.200s cannot be read: %s", path,
                          strerror(errno));
    enum sl_err err = check_file(fd, path, why);
    ssize_t got = 1;
    while (!err && got > 0 && n < sizeof text) {
        got = read(fd, text + n, sizeof text - n);
        if (got > 0)
            n += (size_t)got;
        else if (got < 0)
            err = sl_why_set(why, SL_ECONFIG, "cluster_secret_file %.200s cannot be read: %s", path,
                             strerror(errno));
    }
    close(fd);
    while (n && strchr(" \t\r\n", text[n - 1]))
        n--;
    if (!err && (n < SL_SECRET_MIN_CHARS || n > SL_SECRET_MAX_CHARS))
        err =
            sl_why_set(why, SL_ECONFIG,
                       "cluster_secret_file %.200s has %s%zu characters; expected %u to %u, as `openssl rand "
                       "-hex 32` makes them",
                       path, n > SL_SECRET_MAX_CHARS ? "more than " : "",
                       n > SL_SECRET_MAX_CHARS ? (size_t)SL_SECRET_MAX_CHARS : n, SL_SECRET_MIN_CHARS,
                       SL_SECRET_MAX_CHARS);
    if (!err) {
        struct hmac_sha256_ctx h;
        hmac_sha256_set_key(&h, sizeof key_purpose - 1, (const uint8_t *)key_purpose);
        hmac_sha256_update(&h, n, (const uint8_t *)text);
        hmac_sha256_digest(&h, sizeof out->key, out->key);
    }
    explicit_bzero(text, sizeof text);
    return err;
}

static void add_part(struct hmac_sha256_ctx *h, const void *bytes, size_t n)
{
    uint8_t length[8];
    for (unsigned i = 0; i < sizeof length; i++)
        length[i] = (uint8_t)((uint64_t)n >> (8 * i));
    hmac_sha256_update(h, sizeof length, length);
    hmac_sha256_update(h, n, bytes);
}

void sl_secret_prove(const struct sl_secret *s, const char *purpose, const struct sl_proof_part *parts,
                     size_t n_parts, unsigned char out[SL_PROOF_BYTES])
{
    struct hmac_sha256_ctx h;
    hmac_sha256_set_key(&h, sizeof s->key, s->key);
    add_part(&h, purpose, strlen(purpose));
    for (size_t i = 0; i < n_parts; i++)
        add_part(&h, parts[i].bytes, parts[i].n);
    hmac_sha256_digest(&h, SL_PROOF_BYTES, out);
}

bool sl_secret_equal(const void *a, const void *b, size_t n)
{
    return memeql_sec(a, b, n) != 0;
}

bool sl_address_is_local(const char *address)
{
    static const char *const hosts[] = {"127.", "localhost:", "[::1]:"};
    if (strncmp(address, "ipc://", 6) == 0 || strncmp(address, "inproc://", 9) == 0)
        return true;
    const char *scheme = strstr(address, "://");
    const char *host = scheme ? scheme + 3 : address;
    for (size_t i = 0; i < SL_COUNTOF(hosts); i++)
        if (strncmp(host, hosts[i], strlen(hosts[i])) == 0)
            return true;
    return false;
}
