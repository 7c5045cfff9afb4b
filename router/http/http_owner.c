/* router/http/http_owner.c - who asks, when no key says so: whether a client may do what the router's admin socket
 * lets do.
 *
 * The kernel knows whose the other end of a connection on this machine is (sock_diag(7)); root and the user of this
 * process could do the same without us. So a reverse proxy on this machine is nobody, whatever headers it sets,
 * and so is any other user. One that runs as root or as us gives itself away by its headers, or by the name that
 * its clients called it by; the latter stands against pages of a browser on this machine too, whose own name was
 * made to point here. */
#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "router/http/http_call.h"

#define HOST_BYTES 128 /* of a Host that is an address or localhost; a longer one is neither */

struct end {
    uint16_t port; /* as it travels, as all here */
    uint32_t address[4];
};

static bool end_of(const struct sockaddr_storage *a, struct end *out)
{
    memset(out, 0, sizeof *out);
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)a;
        out->port = v4->sin_port;
        out->address[0] = v4->sin_addr.s_addr;
    } else if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const void *)a;
        out->port = v6->sin6_port;
        memcpy(out->address, &v6->sin6_addr, sizeof out->address);
    } else {
        return false;
    }
    return true;
}

/* The user that holds the socket whose own end is `own` and whose peer is `other`. False: there is none on this
 * machine, or nobody holds it any more. */
static bool user_of(int family, const struct end *own, const struct end *other, uid_t *out)
{
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 what;
    } ask = {
        .head = {.nlmsg_len = sizeof ask, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST},
        .what = {.sdiag_family = (uint8_t)family,
                 .sdiag_protocol = IPPROTO_TCP,
                 .idiag_states = UINT32_MAX,
                 .id = {.idiag_sport = own->port,
                        .idiag_dport = other->port,
                        .idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}},
    };
    struct {
        struct nlmsghdr head;
        struct inet_diag_msg found;
        char more[512]; /* attributes behind it, which nobody reads */
    } answer;
    memcpy(ask.what.id.idiag_src, own->address, sizeof own->address);
    memcpy(ask.what.id.idiag_dst, other->address, sizeof other->address);
    int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (fd < 0)
        return false;
    /* the kernel answers within the send */
    ssize_t n = send(fd, &ask, sizeof ask, 0) == (ssize_t)sizeof ask
                    ? recv(fd, &answer, sizeof answer, MSG_DONTWAIT)
                    : -1;
    close(fd);
    if (n < (ssize_t)(sizeof answer.head + sizeof answer.found) ||
        answer.head.nlmsg_type != SOCK_DIAG_BY_FAMILY)
        return false;
    /* a socket that was closed has no inode, and says root */
    if (answer.found.idiag_inode == 0)
        return false;
    *out = answer.found.idiag_uid;
    return true;
}

static bool from_proxy(const struct sl_http_call *c)
{
    static const char *const headers[] = {"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"};
    for (size_t i = 0; i < SL_COUNTOF(headers); i++)
        if (sl_http_header(c, headers[i]))
            return true;
    return false;
}

/* Whether the client called this machine by an address or as localhost, or by nothing. */
static bool called_by_address(const struct sl_http_call *c)
{
    const char *host = sl_http_header(c, "Host");
    char name[HOST_BYTES];
    unsigned char address[sizeof(struct in6_addr)];
    if (!host || !*host)
        return true;
    bool v6 = host[0] == '[';
    size_t n = v6 ? strcspn(++host, "]") : strcspn(host, ":");
    if (n >= sizeof name)
        return false;
    memcpy(name, host, n);
    name[n] = '\0';
    return strcasecmp(name, "localhost") == 0 || inet_pton(v6 ? AF_INET6 : AF_INET, name, address) == 1;
}

bool sl_http_is_owner(const struct sl_http_call *c)
{
    struct sockaddr_storage client, here;
    socklen_t n_client = sizeof client, n_here = sizeof here;
    struct end client_end, here_end;
    uid_t user;
    return !from_proxy(c) && called_by_address(c) &&
           getpeername(c->conn->fd, (struct sockaddr *)&client, &n_client) == 0 &&
           getsockname(c->conn->fd, (struct sockaddr *)&here, &n_here) == 0 && end_of(&client, &client_end) &&
           end_of(&here, &here_end) && user_of(client.ss_family, &client_end, &here_end, &user) &&
           (user == 0 || user == geteuid());
}
