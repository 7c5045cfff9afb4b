/* tests/bench/agent_wire.c - see agent_wire.h. */
#include "tests/bench/agent_wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "common/base/fd_read.h"
#include "common/base/mem.h"

/* A machine that lost its power says nothing more: found by the kernel within 5 + 3 x 2 seconds. */
#define KEEPALIVE_IDLE_S  5
#define KEEPALIVE_EVERY_S 2
#define KEEPALIVE_TRIES   3
#define HOST_BYTES        256
#define PATH_PREFIX       "/v1/" /* of what an agent sends to its server */

/* ---- connections ---- */

static bool split_address(const char *address, char host[HOST_BYTES], const char **port)
{
    const char *colon = strrchr(address, ':'), *from = address, *end = colon;
    if (!colon || !colon[1] || colon == address)
        return false;
    if (*from == '[' && end[-1] == ']')
        from++, end--;
    if (end <= from || end - from >= HOST_BYTES)
        return false;
    snprintf(host, HOST_BYTES, "%.*s", (int)(end - from), from);
    *port = colon + 1;
    return true;
}

static enum sl_err resolve(const char *address, int flags, struct addrinfo **out, struct sl_why *why)
{
    char host[HOST_BYTES];
    const char *port;
    if (!split_address(address, host, &port))
        return sl_why_set(why, SL_EINVAL, "\"%s\" is no address; expected HOST:PORT", address);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    int rc = getaddrinfo(host, port, &hints, out);
    return rc ? sl_why_set(why, SL_EINVAL, "the address \"%s\" is not known: %s", address, gai_strerror(rc))
              : SL_OK;
}

static void set_up(int fd, double timeout_s)
{
    struct timeval t = {.tv_sec = (time_t)timeout_s};
    const int on = 1, idle = KEEPALIVE_IDLE_S, every = KEEPALIVE_EVERY_S, tries = KEEPALIVE_TRIES;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* a ping measures the way, not Nagle */
}

enum sl_err sl_agent_connect(const char *address, double timeout_s, int *fd, struct sl_why *why)
{
    struct addrinfo *list;
    enum sl_err e = resolve(address, 0, &list, why);
    if (e)
        return e;
    *fd = -1;
    for (struct addrinfo *a = list; a && *fd < 0; a = a->ai_next) {
        int s = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (s < 0)
            continue;
        set_up(s, timeout_s);
        if (connect(s, a->ai_addr, a->ai_addrlen) == 0)
            *fd = s;
        else
            close(s);
    }
    freeaddrinfo(list);
    return *fd < 0 ? sl_why_set(why, SL_EPEER,
                                "no agent answers at %s (%s); start one there: sluice-bench agent --listen",
                                address, strerror(errno))
                   : SL_OK;
}

static unsigned bound_port(int fd)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &len) != 0)
        return 0;
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&a)->sin6_port
                                         : ((struct sockaddr_in *)(void *)&a)->sin_port);
}

enum sl_err sl_agent_listen(const char *address, int *fd, unsigned *port, struct sl_why *why)
{
    struct addrinfo *a;
    enum sl_err e = resolve(address, AI_PASSIVE, &a, why);
    if (e)
        return e;
    const int on = 1;
    int s = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    bool ok = s >= 0 && setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
              bind(s, a->ai_addr, a->ai_addrlen) == 0 && listen(s, 1) == 0;
    freeaddrinfo(a);
    if (!ok) {
        e = sl_why_set(why, SL_EIO, "cannot listen on %s: %s", address, strerror(errno));
        if (s >= 0)
            close(s);
        return e;
    }
    *fd = s;
    *port = bound_port(s);
    return SL_OK;
}

int sl_agent_accept(int listen_fd, double timeout_s)
{
    int fd;
    do
        fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
    if (fd >= 0)
        set_up(fd, timeout_s);
    return fd;
}

/* ---- frames ---- */

static bool write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t w = send(fd, p, n, MSG_NOSIGNAL);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return false;
        p += w;
        n -= (size_t)w;
    }
    return true;
}

enum sl_err sl_agent_send(int fd, json_t *doc)
{
    char *text = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    SL_ASSERT(text);
    size_t n = strlen(text);
    uint32_t length = htonl((uint32_t)n);
    bool ok = n <= SL_AGENT_MAX_FRAME && write_all(fd, (const char *)&length, sizeof length) &&
              write_all(fd, text, n);
    json_free_t json_free;
    json_get_alloc_funcs(NULL, &json_free);
    json_free(text);
    return ok ? SL_OK : SL_EPEER;
}

enum sl_err sl_agent_receive(int fd, json_t **doc)
{
    uint32_t length;
    if (!sl_fd_read_all(fd, (char *)&length, sizeof length))
        return SL_EPEER;
    size_t n = ntohl(length);
    char *text = n <= SL_AGENT_MAX_FRAME ? sl_try_alloc(n + 1) : NULL;
    if (!text)
        return SL_EPROTO;
    enum sl_err e = sl_fd_read_all(fd, text, n) ? SL_OK : SL_EPEER;
    if (e == SL_OK) {
        *doc = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
        if (!json_is_object(*doc)) { /* a macro, which reads its argument twice */
            json_decref(*doc);
            e = SL_EPROTO;
        }
    }
    sl_free(text);
    return e;
}

/* ---- jobs ---- */

/* Answers hold other people's bytes: what is no UTF-8 is told as such. */
static json_t *words(const char *text)
{
    json_t *s = json_string(text);
    return s ? s : json_string("(text that is no UTF-8)");
}

json_t *sl_agent_pack_job(const struct sl_job *j)
{
    json_t *headers = json_array();
    for (size_t i = 0; i < j->n_headers; i++)
        json_array_append_new(headers, words(j->headers[i]));
    return json_pack("{s:f, s:s, s:s, s:o, s:f}", "at_s", j->at_s, "path", j->path, "body", j->body,
                     "headers", headers, "stop_after_s", j->stop_after_s);
}

static bool is_header(const char *h)
{
    return h && strchr(h, ':') && !strpbrk(h, "\r\n");
}

bool sl_agent_unpack_job(const json_t *doc, struct sl_job *j)
{
    const char *path = json_string_value(json_object_get(doc, "path")),
               *body = json_string_value(json_object_get(doc, "body"));
    json_t *at = json_object_get(doc, "at_s"), *headers = json_object_get(doc, "headers"), *h;
    size_t i;
    bool ok = path && body && json_is_number(at) && json_is_array(headers) &&
              strncmp(path, PATH_PREFIX, strlen(PATH_PREFIX)) == 0;
    json_array_foreach (headers, i, h)
        ok &= is_header(json_string_value(h));
    if (!ok)
        return false;
    *j = (struct sl_job){.at_s = json_number_value(at),
                         .own_path = sl_xstrdup(path),
                         .body = sl_xstrdup(body),
                         .stop_after_s = json_number_value(json_object_get(doc, "stop_after_s"))};
    j->path = j->own_path;
    j->headers = sl_xcalloc(json_array_size(headers), sizeof *j->headers);
    json_array_foreach (headers, i, h)
        j->headers[j->n_headers++] = sl_xstrdup(json_string_value(h));
    return true;
}

json_t *sl_agent_pack_result(const struct sl_job *j)
{
    json_t *at = json_array(), *ids = json_array(), *digests = json_array();
    for (size_t i = 0; i < j->n_tokens; i++) {
        json_array_append_new(at, json_real(j->token_s[i]));
        json_array_append_new(ids, json_integer(j->token_id[i]));
        json_array_append_new(digests, json_integer((json_int_t)j->digest[i]));
    }
    return json_pack("{s:f, s:f, s:I, s:o, s:o, s:o, s:s, s:o, s:o, s:I, s:I, s:I}", "sent_s", j->sent_s,
                     "done_s", j->done_s, "status", (json_int_t)j->status, "token_s", at, "token_id", ids,
                     "digest", digests, "finish", j->finish, "request_id", words(j->request_id), "error",
                     words(j->error), "prompt_tokens", (json_int_t)j->prompt_tokens, "cached_tokens",
                     (json_int_t)j->cached_tokens, "completion_tokens", (json_int_t)j->completion_tokens);
}

bool sl_agent_unpack_result(const json_t *doc, struct sl_job *j)
{
    json_t *at, *ids, *digests;
    const char *finish, *request_id, *error;
    json_int_t status, prompt, cached, completion;
    double sent_s, done_s;
    if (json_unpack((json_t *)doc, "{s:F, s:F, s:I, s:o, s:o, s:o, s:s, s:s, s:s, s:I, s:I, s:I}", "sent_s",
                    &sent_s, "done_s", &done_s, "status", &status, "token_s", &at, "token_id", &ids, "digest",
                    &digests, "finish", &finish, "request_id", &request_id, "error", &error, "prompt_tokens",
                    &prompt, "cached_tokens", &cached, "completion_tokens", &completion) != 0)
        return false;
    size_t n = json_array_size(at);
    if (json_array_size(ids) != n || json_array_size(digests) != n)
        return false;
    j->sent_s = sent_s;
    j->done_s = done_s;
    j->status = (long)status;
    j->prompt_tokens = (uint32_t)prompt;
    j->cached_tokens = (uint32_t)cached;
    j->completion_tokens = (uint32_t)completion;
    j->ready_s = j->at_s;
    snprintf(j->finish, sizeof j->finish, "%s", finish);
    snprintf(j->request_id, sizeof j->request_id, "%s", request_id);
    snprintf(j->error, sizeof j->error, "%s", error);
    for (size_t i = 0; i < n; i++)
        sl_job_add_token(j, json_number_value(json_array_get(at, i)),
                         (int32_t)json_integer_value(json_array_get(ids, i)),
                         (uint64_t)json_integer_value(json_array_get(digests, i)));
    return true;
}
