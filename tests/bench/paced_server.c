/* sluice-paced-server - an OpenAI-compatible server whose times are known: the first token of every answer
 * after --ttft-ms, the others every --pace-ms, each "word". What a bench must measure against it is written on
 * its command line, so it is what benches are tested with and compared on.
 *
 * One thread, epoll. All streams have one delay and one pace, so two queues in order of arrival are also in
 * order of time. Prints its port once it listens. */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/conf.h"
#include "common/base/list.h"
#include "common/base/mem.h"

#define MAX_REQUEST_BYTES (64u << 20)
#define MAX_UNSENT_BYTES  (16u << 20) /* of a client that does not read */
#define MAX_TOKENS        16u         /* of an answer whose request does not say */
#define EVENTS            64

struct options {
    uint32_t port, fail_every;
    double ttft_ms, pace_ms;
};

#define AT(m) offsetof(struct options, m)
static const struct sl_conf_opt option_table[] = {
    {"port", SL_CONF_U32, AT(port), "0", "TCP port on 127.0.0.1; 0 = the kernel's choice", 0, 65535, NULL},
    {"ttft_ms", SL_CONF_F64, AT(ttft_ms), "20", "milliseconds to the first token", 0, 1e6, NULL},
    {"pace_ms", SL_CONF_F64, AT(pace_ms), "10", "milliseconds between tokens", 0, 1e6, NULL},
    {"fail_every", SL_CONF_U32, AT(fail_every), "0", "answer 500 to every n-th request; 0 = to none", 0, 1e6,
     NULL},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

struct connection {
    struct sl_list link; /* in server.first or .next while it streams */
    int fd;
    bool streams, chat, usage, stops, waits_to_write;
    uint32_t n_prompt, most, sent;
    uint64_t due_ns, id;
    struct sl_buf in, out;
};

struct server {
    const struct options *o;
    int epoll_fd;
    uint64_t n_requests;
    struct sl_list first, next; /* streams that wait for their first token; for another */
};

static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
    (void)sig;
    stop = 1;
}

static void drop(struct server *s, struct connection *c)
{
    if (c->streams)
        sl_list_remove(&c->link);
    epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    close(c->fd);
    sl_buf_fini(&c->in);
    sl_buf_fini(&c->out);
    sl_free(c);
}

/* False: the connection is gone. */
static bool send_out(struct server *s, struct connection *c)
{
    while (c->out.len) {
        ssize_t n = send(c->fd, c->out.data, c->out.len, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (n <= 0 || sl_buf_failed(&c->out)) {
            drop(s, c);
            return false;
        }
        sl_buf_consume(&c->out, (size_t)n);
    }
    if (c->waits_to_write != (c->out.len > 0)) {
        c->waits_to_write = c->out.len > 0;
        struct epoll_event e = {.data.ptr = c, .events = EPOLLIN | (c->waits_to_write ? EPOLLOUT : 0u)};
        epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
    }
    return true;
}

static void answer(struct connection *c, const char *status, const char *json)
{
    sl_buf_printf(&c->out, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                  status, strlen(json), json);
}

/* A frame of the stream as a chunk of HTTP. */
static void frame(struct connection *c, const char *json)
{
    sl_buf_printf(&c->out, "%zx\r\ndata: %s\n\n\r\n", strlen(json) + 8, json);
}

static void choice_frame(struct connection *c, const char *text, bool end)
{
    char json[400], inner[80];
    bool role = c->chat && c->sent == 1 && !end;
    snprintf(inner, sizeof inner, "%s\"content\":\"%s\"", role ? "\"role\":\"assistant\"," : "", text);
    if (c->chat)
        snprintf(json, sizeof json,
                 "{\"id\":\"chatcmpl-%" PRIu64 "\",\"object\":\"chat.completion.chunk\",\"created\":1,"
                 "\"model\":\"paced\",\"choices\":[{\"index\":0,\"delta\":{%s},\"finish_reason\":%s}]}",
                 c->id, end ? "" : inner, end ? "\"length\"" : "null");
    else
        snprintf(json, sizeof json,
                 "{\"id\":\"cmpl-%" PRIu64 "\",\"object\":\"text_completion\",\"created\":1,"
                 "\"model\":\"paced\",\"choices\":[{\"index\":0,\"text\":\"%s\",\"finish_reason\":%s}]}",
                 c->id, text, end ? "\"length\"" : "null");
    frame(c, json);
}

static void end_stream(struct connection *c)
{
    char json[300];
    choice_frame(c, "", true);
    if (c->usage) {
        snprintf(json, sizeof json,
                 "{\"id\":\"%" PRIu64 "\",\"object\":\"%s\",\"created\":1,\"model\":\"paced\",\"choices\":[],"
                 "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u}}",
                 c->id, c->chat ? "chat.completion.chunk" : "text_completion", c->n_prompt, c->sent,
                 c->n_prompt + c->sent);
        frame(c, json);
    }
    frame(c, "[DONE]");
    sl_buf_puts(&c->out, "0\r\n\r\n");
}

/* As a server would count: ids, or words of text. */
static uint32_t count_prompt(const json_t *body)
{
    const json_t *p = json_object_get(body, "prompt"), *messages = json_object_get(body, "messages");
    if (json_is_array(p))
        return (uint32_t)json_array_size(p);
    char *text =
        p ? sl_xstrdup(json_string_value(p) ? json_string_value(p) : "") : json_dumps(messages, JSON_COMPACT);
    uint32_t n = text && *text;
    for (const char *t = text; t && *t; t++)
        n += *t == ' ';
    sl_free(text);
    return n;
}

static void whole_answer(struct connection *c)
{
    char json[400];
    snprintf(json, sizeof json,
             "{\"id\":\"%" PRIu64
             "\",\"object\":\"%s\",\"created\":1,\"model\":\"paced\",\"choices\":[{\"index\""
             ":0,%s,\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":1,"
             "\"total_tokens\":%u}}",
             c->id, c->chat ? "chat.completion" : "text_completion",
             c->chat ? "\"message\":{\"role\":\"assistant\",\"content\":\" word\"}" : "\"text\":\" word\"",
             c->n_prompt, c->n_prompt + 1);
    answer(c, "200 OK", json);
}

static void begin_answer(struct server *s, struct connection *c, const char *path, const char *text, size_t n)
{
    json_t *body = json_loadb(text, n, 0, NULL);
    const json_t *most = json_object_get(body, "max_completion_tokens");
    if (!most)
        most = json_object_get(body, "max_tokens");
    s->n_requests++;
    c->id = s->n_requests;
    c->chat = strstr(path, "chat") != NULL;
    c->most = json_integer_value(most) > 0 ? (uint32_t)json_integer_value(most) : MAX_TOKENS;
    c->sent = 0;
    c->n_prompt = count_prompt(body);
    c->usage = json_is_true(json_object_get(json_object_get(body, "stream_options"), "include_usage"));
    if (!body) {
        answer(c, "400 Bad Request", "{\"error\":{\"message\":\"the body is no JSON\",\"code\":400}}");
    } else if (s->o->fail_every && s->n_requests % s->o->fail_every == 0) {
        answer(c, "500 Internal Server Error", "{\"error\":{\"message\":\"failed as asked\",\"code\":500}}");
    } else if (!json_is_true(json_object_get(body, "stream"))) {
        whole_answer(c);
    } else {
        sl_buf_puts(&c->out, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                             "Transfer-Encoding: chunked\r\n\r\n");
        c->streams = true;
        c->due_ns = sl_now_ns() + (uint64_t)(s->o->ttft_ms * 1e6);
        sl_list_add_tail(&s->first, &c->link);
    }
    json_decref(body);
}

static size_t content_length(const char *head, const char *end)
{
    static const char name[] = "content-length:";
    for (const char *line = head; line < end; line = memchr(line, '\n', (size_t)(end - line)) + 1)
        if (strncasecmp(line, name, sizeof name - 1) == 0)
            return (size_t)strtoull(line + sizeof name - 1, NULL, 10);
    return 0;
}

/* Answers the next request of what has come, if it is whole. False: none is. */
static bool take_request(struct server *s, struct connection *c)
{
    char *end = c->in.len && !c->streams ? memmem(c->in.data, c->in.len, "\r\n\r\n", 4) : NULL;
    if (!end)
        return false;
    size_t head = (size_t)(end - c->in.data) + 4, body = content_length(c->in.data, end + 2);
    if (c->in.len - head < body)
        return false;
    char path[200] = "", method[8] = "";
    sscanf(c->in.data, "%7s %199s", method, path);
    if (strcmp(method, "POST") == 0 && strstr(path, "completions"))
        begin_answer(s, c, path, c->in.data + head, body);
    else if (strcmp(path, "/v1/models") == 0)
        answer(c, "200 OK",
               "{\"object\":\"list\",\"data\":[{\"id\":\"paced\",\"object\":\"model\",\"created\":1,"
               "\"owned_by\":\"sluice\",\"root\":\"paced\",\"max_model_len\":131072}]}");
    else if (strcmp(path, "/health") == 0)
        answer(c, "200 OK", "{}");
    else
        answer(c, "404 Not Found", "{\"error\":{\"message\":\"no such path\",\"code\":404}}");
    sl_buf_consume(&c->in, head + body);
    return true;
}

static void on_readable(struct server *s, struct connection *c)
{
    char bytes[65536];
    ssize_t n;
    while ((n = recv(c->fd, bytes, sizeof bytes, 0)) > 0)
        if (!sl_buf_append(&c->in, bytes, (size_t)n))
            break;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR) || sl_buf_failed(&c->in)) {
        drop(s, c);
        return;
    }
    while (take_request(s, c))
        ;
    (void)send_out(s, c);
}

/* Sends the tokens of a queue that are due. */
static void send_due(struct server *s, struct sl_list *queue, uint64_t now_ns)
{
    while (!sl_list_empty(queue)) {
        struct connection *c = SL_CONTAINER_OF(queue->next, struct connection, link);
        if (c->due_ns > now_ns)
            return;
        sl_list_remove(&c->link);
        c->sent++;
        choice_frame(c, " word", false);
        c->streams = c->sent < c->most;
        if (c->streams) {
            c->due_ns += (uint64_t)(s->o->pace_ms * 1e6);
            sl_list_add_tail(&s->next, &c->link);
        } else {
            end_stream(c);
        }
        if (send_out(s, c) && !c->streams)
            while (take_request(s, c)) /* came while it streamed */
                ;
    }
}

static uint64_t next_due_ns(const struct sl_list *queue)
{
    return sl_list_empty(queue) ? UINT64_MAX : SL_CONTAINER_OF(queue->next, struct connection, link)->due_ns;
}

static void accept_all(struct server *s, int listener)
{
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct connection *c = sl_xcalloc(1, sizeof *c);
        c->fd = fd;
        sl_buf_init(&c->in, MAX_REQUEST_BYTES);
        sl_buf_init(&c->out, MAX_UNSENT_BYTES);
        struct epoll_event e = {.data.ptr = c, .events = EPOLLIN};
        epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &e);
    }
}

static void serve(struct server *s, int listener)
{
    struct epoll_event events[EVENTS], e = {.events = EPOLLIN};
    epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, listener, &e);
    while (!stop) {
        uint64_t a = next_due_ns(&s->first), b = next_due_ns(&s->next), due = a < b ? a : b,
                 now = sl_now_ns();
        uint64_t wait_ns = due == UINT64_MAX ? UINT64_C(1000000000) : due > now ? due - now : 0;
        struct timespec t = {(time_t)(wait_ns / 1000000000), (long)(wait_ns % 1000000000)};
        int n = epoll_pwait2(s->epoll_fd, events, EVENTS, &t, NULL);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c)
                accept_all(s, listener);
            else if (!(events[i].events & EPOLLOUT) || send_out(s, c))
                on_readable(s, c);
        }
        now = sl_now_ns();
        send_due(s, &s->first, now);
        send_due(s, &s->next, now);
    }
}

int main(int argc, char **argv)
{
    struct options o = {0};
    struct sl_why why = {0};
    if (sl_conf_load(option_table, NULL, argc, argv, &o, &why)) {
        fprintf(stderr, "sluice-paced-server: %s\n", why.text);
        return 2;
    }
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)o.port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t len = sizeof a;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, len) || listen(fd, SOMAXCONN) ||
        getsockname(fd, (struct sockaddr *)&a, &len)) {
        fprintf(stderr, "sluice-paced-server: cannot listen on port %u: %s\n", o.port, strerror(errno));
        return 1;
    }
    printf("port %u\n", ntohs(a.sin_port));
    fflush(stdout);
    struct server s = {.o = &o, .epoll_fd = epoll_create1(EPOLL_CLOEXEC)};
    sl_list_init(&s.first);
    sl_list_init(&s.next);
    serve(&s, fd);
    return 0;
}
