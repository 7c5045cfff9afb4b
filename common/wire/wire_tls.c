/* common/wire/wire_tls.c - tls+tcp:// on the control plane: both sides show a certificate.
 *
 * nng's TLS (mbed TLS 2.28 in Debian 12) compares DNS names of a certificate and no addresses, so what is dialled
 * needs a name. Whoever is dialled sees only that the other side has a certificate of the same authority; that
 * is what may be known of a node before it has registered. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/wire/wire_nng.h"

#define MAX_PEM_BYTES ((size_t)256 << 10) /* a chain of certificates has a few KiB */

static const char scheme[] = "tls+tcp://";

static bool has_tls(const struct sl_wire_guard *g)
{
    return g && g->tls_ca_file && *g->tls_ca_file;
}

/* PEM, with its NUL. */
static int read_text(const char *path, char **out)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return NNG_ENOENT;
    char *text = sl_xcalloc(1, MAX_PEM_BYTES + 1);
    size_t n = fread(text, 1, MAX_PEM_BYTES, f);
    bool whole = !ferror(f) && fgetc(f) == EOF;
    fclose(f);
    if (!whole || n == 0) {
        explicit_bzero(text, n);
        sl_free(text);
        return NNG_EINVAL;
    }
    *out = text;
    return 0;
}

static enum sl_err tls_error(struct sl_why *why, const char *what, const char *file, int rv)
{
    return sl_why_set(why, SL_ECONFIG, "%s %.200s is of no use: %s", what, file, nng_strerror(rv));
}

/* nng_tls_config_cert_key_file() wants both in one file. */
static int own_certificate(nng_tls_config *c, const struct sl_wire_guard *g)
{
    char *cert = NULL, *key = NULL;
    int rv = read_text(g->tls_cert_file, &cert);
    if (rv == 0)
        rv = read_text(g->tls_key_file, &key);
    if (rv == 0)
        rv = nng_tls_config_own_cert(c, cert, key, NULL);
    if (key)
        explicit_bzero(key, strlen(key));
    sl_free(key);
    sl_free(cert);
    return rv;
}

static enum sl_err make(const struct sl_wire_guard *g, bool listens, const char *host, nng_tls_config **out,
                        struct sl_why *why)
{
    nng_tls_config *c;
    int rv = nng_tls_config_alloc(&c, listens ? NNG_TLS_MODE_SERVER : NNG_TLS_MODE_CLIENT);
    if (rv != 0)
        return sl_why_set(
            why, SL_ECONFIG,
            "control_tls_ca_file is set and this machine's libnng has no TLS (%s); install one that "
            "has it, as Debian's, or put the control network into WireGuard",
            nng_strerror(rv));
    enum sl_err err = SL_OK;
    if ((rv = nng_tls_config_ca_file(c, g->tls_ca_file)) != 0)
        err = tls_error(why, "control_tls_ca_file", g->tls_ca_file, rv);
    else if ((rv = own_certificate(c, g)) != 0)
        err = tls_error(why, "control_tls_cert_file or control_tls_key_file", g->tls_cert_file, rv);
    else if ((rv = nng_tls_config_auth_mode(c, NNG_TLS_AUTH_MODE_REQUIRED)) != 0 ||
             (host && (rv = nng_tls_config_server_name(c, host)) != 0))
        err = sl_why_set(why, SL_ECONFIG, "TLS cannot be set up: %s", nng_strerror(rv));
    if (err != SL_OK) {
        nng_tls_config_free(c);
        return err;
    }
    *out = c;
    return SL_OK;
}

enum sl_err sl_wire_guard_check(const struct sl_wire_guard *g, struct sl_why *why)
{
    const char *const files[] = {g->tls_ca_file, g->tls_cert_file, g->tls_key_file};
    static const char *const keys[] = {"control_tls_ca_file", "control_tls_cert_file",
                                       "control_tls_key_file"};
    size_t n = 0;
    const char *missing = NULL;
    for (size_t i = 0; i < SL_COUNTOF(files); i++) {
        bool set = files[i] && *files[i];
        n += set;
        struct stat st;
        if (set && (access(files[i], R_OK) != 0 || stat(files[i], &st) != 0))
            return sl_why_set(why, SL_ECONFIG, "%s %.200s cannot be read", keys[i], files[i]);
        if (set && !S_ISREG(st.st_mode)) /* a FIFO would keep whoever opens it */
            return sl_why_set(why, SL_ECONFIG, "%s %.200s is not a regular file", keys[i], files[i]);
        if (!set)
            missing = keys[i];
    }
    if (n == 0)
        return SL_OK;
    if (missing)
        return sl_why_set(why, SL_ECONFIG,
                          "%s is not set; TLS on the control plane needs all three control_tls keys",
                          missing);
    nng_tls_config *c;
    enum sl_err err = make(g, true, NULL, &c, why);
    if (err == SL_OK)
        nng_tls_config_free(c);
    return err;
}

enum sl_err sl_nng_tls(const struct sl_wire_guard *g, const char *url, bool listens, nng_tls_config **out,
                       struct sl_why *why)
{
    *out = NULL;
    if (strncmp(url, scheme, sizeof scheme - 1) != 0) {
        if (has_tls(g) && strncmp(url, "tcp", 3) == 0)
            return sl_why_set(why, SL_ECONFIG,
                              "the address %.200s is without TLS and control_tls_ca_file is set; write it as "
                              "tls+tcp://HOST:PORT",
                              url);
        return SL_OK;
    }
    if (!has_tls(g))
        return sl_why_set(
            why, SL_ECONFIG,
            "the address %.200s asks for TLS; set control_tls_ca_file, control_tls_cert_file and "
            "control_tls_key_file",
            url);
    const char *host = url + sizeof scheme - 1, *colon = strrchr(host, ':');
    char *name = sl_xstrndup(host, colon ? (size_t)(colon - host) : strlen(host));
    enum sl_err err = make(g, listens, listens ? NULL : name, out, why);
    sl_free(name);
    return err;
}
