/* router/http/http_tls_library.h - what libmicrohttpd asks at a handshake, in GnuTLS's words. For http_server.c
 * only. */
#ifndef SLUICE_ROUTER_HTTP_HTTP_TLS_LIBRARY_H
#define SLUICE_ROUTER_HTTP_HTTP_TLS_LIBRARY_H

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>

int sl_http_tls_retrieve(gnutls_session_t session, const gnutls_datum_t *issuers, int n_issuers,
                         const gnutls_pk_algorithm_t *algorithms, int n_algorithms, gnutls_pcert_st **chain,
                         unsigned *n_chain, gnutls_privkey_t *key);

#endif
