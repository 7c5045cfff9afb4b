/* router/http/http_stream.c - an answer in pieces.
 *
 * The library sends the headers and the first bytes. Then it asks for more, is told that there is none and is
 * suspended; from there the socket is ours, and each frame goes out as a chunk of its own with one system
 * call. By way of the library a frame costs a wake-up of its epoll, a walk over all suspended connections and
 * two changes of its epoll set, as often as tokens come on hundreds of streams. It is resumed for the end
 * alone. A client without chunks (HTTP/1.0) gets all by way of the library.
 *
 * A chunk that the socket takes in part is finished before anything else: nothing of the library's may stand
 * inside it. Until then the loop waits for room, and who makes none for idle_timeout_s is cut, as the library
 * would. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "router/http/http_call.h"

#define STREAM_BLOCK_BYTES (16u << 10)
#define COMPACT_BYTES      (64u << 10) /* sent bytes in front of out are dropped past this */

void sl_http_stream_count(struct sl_http_call *c)
{
    size_t unread = c->finished ? 0 : sl_http_stream_unread(c);
    c->server->unread_bytes += unread - c->counted;
    c->counted = unread;
}

/* All streams together have more unread than they may: whoever has more than an even share of it is the cause. */
static bool takes_too_much(const struct sl_http_call *c, size_t more)
{
    const struct sl_http_conf *conf = &c->server->conf;
    size_t unread = sl_http_stream_unread(c) + more;
    uint64_t most = conf->max_unread_total_bytes;
    return unread > conf->max_unread_bytes || (most && c->server->unread_bytes + more > most &&
                                               unread > most / sl_http_server_open_calls(c->server));
}

static ssize_t read_stream(void *arg, uint64_t pos, char *buf, size_t max)
{
    struct sl_http_call *c = arg;
    (void)pos;
    c->server->n_steps++;
    if (c->aborted)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = c->out.len - c->out_sent;
    if (n == 0) {
        if (c->stream_ended)
            return MHD_CONTENT_READER_END_OF_STREAM;
        c->in_body = true;
        sl_http_call_suspend(c);
        return 0;
    }
    if (n > max)
        n = max;
    c->given_ms = sl_now_ms();
    memcpy(buf, c->out.data + c->out_sent, n);
    c->out_sent += n;
    sl_http_stream_count(c);
    if (c->out_sent == c->out.len) {
        sl_buf_clear(&c->out);
        c->out_sent = 0;
    } else if (c->out_sent > COMPACT_BYTES) {
        sl_buf_consume(&c->out, c->out_sent);
        c->out_sent = 0;
    }
    return (ssize_t)n;
}

static void stream_free(void *arg)
{
    sl_http_unref(arg);
}

/* ---- past the library ---- */

size_t sl_http_stream_unread(const struct sl_http_call *c)
{
    return c->out.len - c->out_sent + c->rest.len;
}

/* Bytes that the socket took, 0 when it is full; -1: the client is gone. */
static ssize_t give_socket(struct sl_http_call *c, struct iovec *parts, size_t n)
{
    const struct msghdr m = {.msg_iov = parts, .msg_iovlen = n};
    ssize_t sent = sendmsg(c->conn->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0)
        return sent;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

/* All bytes of out as one chunk; what the socket does not take of it is the rest. */
static bool send_chunk(struct sl_http_call *c)
{
    char head[24];
    size_t n = c->out.len - c->out_sent, n_head = (size_t)snprintf(head, sizeof head, "%zx\r\n", n);
    struct iovec parts[] = {{.iov_base = head, .iov_len = n_head},
                            {.iov_base = c->out.data + c->out_sent, .iov_len = n},
                            {.iov_base = "\r\n", .iov_len = 2}};
    ssize_t sent = give_socket(c, parts, SL_COUNTOF(parts));
    if (sent <= 0)
        return sent == 0;
    size_t taken = (size_t)sent;
    for (size_t i = 0; i < SL_COUNTOF(parts); i++) {
        size_t skip = taken < parts[i].iov_len ? taken : parts[i].iov_len;
        sl_buf_append(&c->rest, (char *)parts[i].iov_base + skip, parts[i].iov_len - skip);
        taken -= skip;
    }
    sl_buf_clear(&c->out);
    c->out_sent = 0;
    return true;
}

static bool send_rest(struct sl_http_call *c)
{
    struct iovec part = {.iov_base = c->rest.data, .iov_len = c->rest.len};
    ssize_t sent = give_socket(c, &part, 1);
    if (sent < 0)
        return false;
    sl_buf_consume(&c->rest, (size_t)sent);
    return true;
}

static void send_now(struct sl_http_call *c)
{
    bool stuck_before = c->stuck_since_ms != 0, here = true;
    size_t before = sl_http_stream_unread(c);
    if (c->rest.len)
        here = send_rest(c);
    if (here && !c->rest.len && c->out.len > c->out_sent)
        here = send_chunk(c);
    if (!here) {
        sl_http_call_left(c);
        return;
    }
    size_t left = sl_http_stream_unread(c);
    sl_http_stream_count(c);
    if (!left)
        c->stuck_since_ms = 0;
    else if (!stuck_before || left < before)
        c->stuck_since_ms = sl_now_ms();
    if ((left != 0) != stuck_before)
        sl_http_call_watch(c, left ? EPOLLOUT : 0);
}

bool sl_http_stream_wants_library(struct sl_http_call *c)
{
    bool ours = c->in_body && c->may_pass && !c->aborted;
    if (ours && sl_http_stream_unread(c) > 0)
        send_now(c);
    return c->aborted || (ours ? c->stream_ended && sl_http_stream_unread(c) == 0
                               : c->stream_ended || c->out.len > c->out_sent);
}

/* ---- what owners call ---- */

void sl_http_stream_begin(struct sl_http_call *c, const char *content_type)
{
    if (atomic_exchange(&c->claimed, true))
        return;
    c->streaming = true;
    c->status = 200;
    c->content_type = content_type;
    sl_http_add_header(c, "Cache-Control", "no-cache");
    sl_http_add_header(c, "X-Accel-Buffering", "no"); /* nginx would collect the tokens */
}

enum MHD_Result sl_http_stream_queue(struct sl_http_call *c)
{
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read_stream, c, stream_free);
    if (!r)
        return MHD_NO;
    sl_http_ref(c);
    sl_http_call_add_headers(c, r);
    if (c->chunks) /* the library would anyway; what is sent past it counts on that */
        MHD_add_response_header(r, "Transfer-Encoding", "chunked");
    enum MHD_Result ok = MHD_queue_response(c->mhd, c->status, r);
    MHD_destroy_response(r);
    c->given_ms = sl_now_ms();
    sl_metric_add(c->server->m_status[2], 1);
    return ok;
}

bool sl_http_stream_write(struct sl_http_call *c, const void *p, size_t n)
{
    if (c->finished || c->aborted)
        return true; /* nobody reads: closed() says so soon */
    if (takes_too_much(c, n))
        return false;
    if (c->out_sent) {
        sl_buf_consume(&c->out, c->out_sent);
        c->out_sent = 0;
    }
    if (!sl_buf_append(&c->out, p, n))
        return false;
    sl_http_stream_count(c);
    return true;
}

void sl_http_stream_end(struct sl_http_call *c)
{
    c->stream_ended = true;
}

void sl_http_cut(struct sl_http_call *c)
{
    if (c->finished)
        return;
    sl_metric_add(c->server->m_cut, 1);
    sl_http_call_abort(c);
    shutdown(c->conn->fd, SHUT_RDWR); /* the library may be waiting for the socket to take more */
}
