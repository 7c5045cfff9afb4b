/* router/http/http_tls.h - the certificate with which the API speaks HTTPS. The library asks for it at every
 * handshake, so that a new one counts from the next connection on.
 *
 * There is one per process: the library's question brings no argument along. Load: main's thread. */
#ifndef SLUICE_ROUTER_HTTP_HTTP_TLS_H
#define SLUICE_ROUTER_HTTP_HTTP_TLS_H

#include "common/base/err.h"

/* Reads a certificate (PEM, with what lies between it and the root behind it) and its key, and makes them the
 * ones to use. SL_ECONFIG with a sentence: the library knows no TLS, a file that cannot be read or is none, a
 * key that others may read or that is another certificate's; the ones before stay in use then. */
SL_MUST_CHECK enum sl_err sl_http_tls_load(const char *cert_file, const char *key_file, struct sl_why *why);
bool sl_http_tls_loaded(void);
void sl_http_tls_free(void); /* after the server is closed */

#endif
