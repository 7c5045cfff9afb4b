/* router/http/http_listen.h - the listening socket: address text to socket, loopback unless a host is
 * written. */
#ifndef SLUICE_ROUTER_HTTP_HTTP_LISTEN_H
#define SLUICE_ROUTER_HTTP_HTTP_LISTEN_H

#include <netinet/in.h>
#include <sys/socket.h>
#include "common/base/err.h"

/* "127.0.0.1:8000", "[::1]:8000", "localhost:8000"; ":8000" and "8000" are loopback, "0.0.0.0:8000" and
 * "[::]:8000" everything. Names other than localhost are not looked up. SL_ECONFIG. */
SL_MUST_CHECK enum sl_err sl_http_listen_parse(const char *text, struct sockaddr_storage *addr,
                                               socklen_t *len, struct sl_why *why);
/* Bound, listening, non-blocking; *port is the one really bound. The caller closes *fd. */
SL_MUST_CHECK enum sl_err sl_http_listen_open(const char *text, int *fd, uint16_t *port, struct sl_why *why);

#endif
