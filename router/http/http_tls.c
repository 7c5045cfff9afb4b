/* router/http/http_tls.c - see http_tls.h. A pair that was replaced stays until the end: a connection may be
 * using it, and reloads are a person's doing. */
#include "router/http/http_tls.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>

#include <microhttpd.h>

#include "common/base/mem.h"
#include "common/base/text_file.h"
#include "router/http/http_tls_library.h"

#define MAX_CHAIN     16u
#define MAX_PEM_BYTES ((size_t)256 << 10) /* a chain of certificates has a few KiB */

struct pair {
    struct pair *older;
    gnutls_pcert_st chain[MAX_CHAIN];
    unsigned n_chain;
    gnutls_privkey_t key;
};

static _Atomic(struct pair *) now;

static void pair_free(struct pair *p)
{
    for (unsigned i = 0; i < p->n_chain; i++)
        gnutls_pcert_deinit(&p->chain[i]);
    if (p->key)
        gnutls_privkey_deinit(p->key);
    sl_free(p);
}

static enum sl_err read_pem(const char *what, const char *path, gnutls_datum_t *out, struct sl_why *why)
{
    char *text;
    size_t n;
    enum sl_err err = sl_text_file_read(what, path, MAX_PEM_BYTES, &text, &n, why);
    if (!err)
        *out = (gnutls_datum_t){.data = (unsigned char *)text, .size = (unsigned)n};
    return err;
}

static enum sl_err read_chain(const char *path, struct pair *p, struct sl_why *why)
{
    gnutls_datum_t text;
    enum sl_err err = read_pem("tls_cert_file", path, &text, why);
    if (err)
        return err;
    unsigned n = MAX_CHAIN;
    int rc = gnutls_pcert_list_import_x509_raw(p->chain, &n, &text, GNUTLS_X509_FMT_PEM, 0);
    sl_free(text.data);
    if (rc < 0 || n == 0)
        return sl_why_set(why, SL_ECONFIG, "tls_cert_file %.200s is no certificate in PEM: %s", path,
                          gnutls_strerror(rc));
    p->n_chain = n;
    return SL_OK;
}

static enum sl_err read_key(const char *path, struct pair *p, struct sl_why *why)
{
    struct stat st;
    gnutls_datum_t text;
    if (stat(path, &st) == 0 && (st.st_mode & 07) != 0)
        return sl_why_set(why, SL_ECONFIG,
                          "tls_key_file %.200s has mode %03o, so everyone can read it; chmod 640 it", path,
                          (unsigned)(st.st_mode & 0777));
    enum sl_err err = read_pem("tls_key_file", path, &text, why);
    if (err)
        return err;
    int rc = gnutls_privkey_init(&p->key);
    if (rc >= 0)
        rc = gnutls_privkey_import_x509_raw(p->key, &text, GNUTLS_X509_FMT_PEM, NULL, 0);
    explicit_bzero(text.data, text.size);
    sl_free(text.data);
    return rc < 0 ? sl_why_set(why, SL_ECONFIG, "tls_key_file %.200s is no private key in PEM: %s", path,
                               gnutls_strerror(rc))
                  : SL_OK;
}

static bool belong_together(const struct pair *p)
{
    unsigned char cert_id[64], key_id[64];
    size_t n_cert = sizeof cert_id, n_key = sizeof key_id;
    gnutls_pubkey_t of_key;
    if (gnutls_pubkey_init(&of_key) < 0)
        return false;
    bool same = gnutls_pubkey_import_privkey(of_key, p->key, 0, 0) >= 0 &&
                gnutls_pubkey_get_key_id(of_key, 0, key_id, &n_key) >= 0 &&
                gnutls_pubkey_get_key_id(p->chain[0].pubkey, 0, cert_id, &n_cert) >= 0 && n_key == n_cert &&
                memcmp(cert_id, key_id, n_key) == 0;
    gnutls_pubkey_deinit(of_key);
    return same;
}

enum sl_err sl_http_tls_load(const char *cert_file, const char *key_file, struct sl_why *why)
{
    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES ||
        MHD_is_feature_supported(MHD_FEATURE_HTTPS_CERT_CALLBACK) != MHD_YES)
        return sl_why_set(
            why, SL_ECONFIG,
            "tls_cert_file is set and this machine's libmicrohttpd was built without TLS; install "
            "one that has it, as Debian's, or put a proxy that speaks TLS in front");
    struct pair *p = sl_xcalloc(1, sizeof *p);
    enum sl_err err = read_chain(cert_file, p, why);
    if (!err)
        err = read_key(key_file, p, why);
    if (!err && !belong_together(p))
        err = sl_why_set(why, SL_ECONFIG, "tls_key_file %.200s is not the key of the certificate in %.200s",
                         key_file, cert_file);
    if (err) {
        pair_free(p);
        return err;
    }
    p->older = atomic_load(&now);
    atomic_store(&now, p);
    return SL_OK;
}

bool sl_http_tls_loaded(void)
{
    return atomic_load(&now) != NULL;
}

void sl_http_tls_free(void)
{
    for (struct pair *p = atomic_exchange(&now, NULL), *older; p; p = older) {
        older = p->older;
        pair_free(p);
    }
}

int sl_http_tls_retrieve(gnutls_session_t session, const gnutls_datum_t *issuers, int n_issuers,
                         const gnutls_pk_algorithm_t *algorithms, int n_algorithms, gnutls_pcert_st **chain,
                         unsigned *n_chain, gnutls_privkey_t *key)
{
    struct pair *p = atomic_load(&now);
    (void)session;
    (void)issuers;
    (void)n_issuers;
    (void)algorithms;
    (void)n_algorithms;
    if (!p)
        return -1;
    *chain = p->chain;
    *n_chain = p->n_chain;
    *key = p->key;
    return 0;
}
