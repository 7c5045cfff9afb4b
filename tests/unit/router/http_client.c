/* tests/unit/router/http_client.c */
#include "tests/unit/router/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "common/base/mem.h"

#define PATIENCE_S 20

void http_connect(struct http_client *c, uint16_t port)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval t = {.tv_sec = PATIENCE_S};
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    SL_ASSERT(c->fd >= 0 && connect(c->fd, (struct sockaddr *)&a, sizeof a) == 0);
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    sl_buf_init(&c->in, 256u << 20);
}

void http_close(struct http_client *c)
{
    close(c->fd);
    sl_buf_fini(&c->in);
}

void http_send(struct http_client *c, const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t sent = send(c->fd, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return; /* the reply tells */
        bytes += sent;
        n -= (size_t)sent;
    }
}

void http_request(struct http_client *c, const char *method, const char *path, const char *headers,
                  const char *body)
{
    struct sl_buf b;
    sl_buf_init(&b, 256u << 20);
    sl_buf_printf(&b, "%s %s HTTP/1.1\r\nHost: localhost\r\n", method, path);
    sl_buf_puts(&b, headers);
    if (body)
        sl_buf_printf(&b, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    sl_buf_puts(&b, "\r\n");
    if (body)
        sl_buf_puts(&b, body);
    http_send(c, b.data, b.len);
    sl_buf_fini(&b);
}

static bool more(struct http_client *c)
{
    char piece[65536];
    ssize_t n = recv(c->fd, piece, sizeof piece, 0);
    return n > 0 && sl_buf_append(&c->in, piece, (size_t)n);
}

bool http_wait_for(struct http_client *c, const char *text)
{
    while (!c->in.len || !memmem(c->in.data, c->in.len, text, strlen(text)))
        if (!more(c))
            return false;
    return true;
}

const char *http_reply_header(const struct http_reply *r, const char *name)
{
    static char value[512];
    size_t n = strlen(name);
    for (const char *line = r->head; line; line = strstr(line, "\r\n")) {
        line += line == r->head ? 0 : 2;
        if (strncasecmp(line, name, n) == 0 && line[n] == ':') {
            const char *v = line + n + 1 + strspn(line + n + 1, " ");
            snprintf(value, sizeof value, "%.*s", (int)strcspn(v, "\r"), v);
            return value;
        }
    }
    return NULL;
}

static bool read_chunks(struct http_client *c, struct sl_buf *body)
{
    for (;;) {
        char *line_end;
        while (!c->in.len || !(line_end = memmem(c->in.data, c->in.len, "\r\n", 2)))
            if (!more(c))
                return false;
        size_t n = strtoull(c->in.data, NULL, 16), head = (size_t)(line_end - c->in.data) + 2;
        while (c->in.len < head + n + 2)
            if (!more(c))
                return false;
        sl_buf_append(body, c->in.data + head, n);
        sl_buf_consume(&c->in, head + n + 2);
        if (n == 0)
            return true;
    }
}

void http_read(struct http_client *c, struct http_reply *r)
{
    struct sl_buf body;
    memset(r, 0, sizeof *r);
    do {
        if (!http_wait_for(c, "\r\n\r\n"))
            return;
        size_t n = (size_t)((char *)memmem(c->in.data, c->in.len, "\r\n\r\n", 4) - c->in.data) + 4;
        sl_free(r->head);
        r->head = sl_xstrndup(c->in.data, n);
        sl_buf_consume(&c->in, n);
        r->status = (int)strtol(r->head + 9, NULL, 10);
    } while (r->status == 100);
    sl_buf_init(&body, 256u << 20);
    const char *length = http_reply_header(r, "Content-Length");
    if (length) {
        size_t n = strtoull(length, NULL, 10);
        r->complete = true;
        while (c->in.len < n && r->complete)
            r->complete = more(c);
        if (r->complete) {
            sl_buf_append(&body, n ? c->in.data : "", n);
            sl_buf_consume(&c->in, n);
        }
    } else if (http_reply_header(r, "Transfer-Encoding")) {
        r->complete = read_chunks(c, &body);
    } else {
        r->complete = r->status == 204 || r->status == 304;
    }
    r->n_body = body.len;
    r->body = sl_buf_steal(&body);
}

void http_reply_fini(struct http_reply *r)
{
    sl_free(r->head);
    sl_free(r->body);
}

void http_once(uint16_t port, const char *method, const char *path, const char *headers, const char *body,
               struct http_reply *r)
{
    struct http_client c;
    http_connect(&c, port);
    http_request(&c, method, path, headers, body);
    http_read(&c, r);
    http_close(&c);
}
