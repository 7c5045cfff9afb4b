/* router/http/http_listen.c - our own listening socket instead of the library's: port 0 for tests, IPv6, a
 * backlog of our choice, and one sentence when it fails. */
#include "router/http/http_listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "router/http/http_server.h"

#define BACKLOG 4096 /* the kernel cuts it at somaxconn */

static bool parse_port(const char *text, uint16_t *port)
{
    size_t n = strlen(text);
    if (n == 0 || n > 5 || strspn(text, "0123456789") != n)
        return false;
    long v = strtol(text, NULL, 10);
    if (v > 65535)
        return false;
    *port = (uint16_t)v;
    return true;
}

enum sl_err sl_http_listen_parse(const char *text, struct sockaddr_storage *addr, socklen_t *len,
                                 struct sl_why *why)
{
    const char *colon = strrchr(text, ':');
    const char *port_text = colon ? colon + 1 : text;
    static const char loopback[] = "127.0.0.1";
    char host[64];
    memcpy(host, loopback, sizeof loopback);
    uint16_t port;
    size_t n_host = colon ? (size_t)(colon - text) : 0;
    if (n_host >= sizeof host || !parse_port(port_text, &port))
        goto bad;
    if (n_host) {
        memcpy(host, text, n_host);
        host[n_host] = '\0';
    }
    if (strcmp(host, "localhost") == 0)
        memcpy(host, loopback, sizeof loopback);
    memset(addr, 0, sizeof *addr);
    if (host[0] == '[' && host[n_host - 1] == ']') {
        struct sockaddr_in6 *a6 = (struct sockaddr_in6 *)(void *)addr;
        host[n_host - 1] = '\0';
        if (inet_pton(AF_INET6, host + 1, &a6->sin6_addr) != 1)
            goto bad;
        a6->sin6_family = AF_INET6;
        a6->sin6_port = htons(port);
        *len = sizeof *a6;
        return SL_OK;
    }
    struct sockaddr_in *a4 = (struct sockaddr_in *)(void *)addr;
    if (inet_pton(AF_INET, host, &a4->sin_addr) != 1)
        goto bad;
    a4->sin_family = AF_INET;
    a4->sin_port = htons(port);
    *len = sizeof *a4;
    return SL_OK;
bad:
    return sl_why_set(why, SL_ECONFIG,
                      "listen address \"%.100s\" does not parse; expected ADDRESS:PORT with a numeric "
                      "address, such as 127.0.0.1:8000, "
                      "0.0.0.0:8000 or [::1]:8000",
                      text);
}

enum sl_err sl_http_listen_is_public(const char *listen, bool *is_public, struct sl_why *why)
{
    struct sockaddr_storage addr;
    socklen_t len;
    enum sl_err err = sl_http_listen_parse(listen, &addr, &len, why);
    if (err)
        return err;
    if (addr.ss_family == AF_INET6)
        *is_public = !IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)(void *)&addr)->sin6_addr);
    else
        *is_public = ntohl(((struct sockaddr_in *)(void *)&addr)->sin_addr.s_addr) >> 24 != 127;
    return SL_OK;
}

enum sl_err sl_http_listen_open(const char *text, int *fd, uint16_t *port, struct sl_why *why)
{
    struct sockaddr_storage addr;
    socklen_t len;
    enum sl_err err = sl_http_listen_parse(text, &addr, &len, why);
    if (err)
        return err;
    const int on = 1;
    int s = socket(addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s < 0)
        return sl_why_set(why, SL_EIO, "cannot make a socket for %s: %s", text, strerror(errno));
    if (setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(s, (struct sockaddr *)&addr, len) != 0 || listen(s, BACKLOG) != 0 ||
        getsockname(s, (struct sockaddr *)&addr, &len) != 0) {
        int e = errno;
        close(s);
        return sl_why_set(why, SL_EIO, "cannot listen on %s: %s; choose another address with listen =", text,
                          strerror(e));
    }
    *port = ntohs(addr.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&addr)->sin6_port
                                             : ((struct sockaddr_in *)(void *)&addr)->sin_port);
    *fd = s;
    return SL_OK;
}
