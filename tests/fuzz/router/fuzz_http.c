/* tests/fuzz/router/fuzz_http.c - any bytes on a client's connection, through the HTTP server to every route of the API, with
 * a flow that plays (fake_flow.h). The server still answers other clients. */
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <arpa/inet.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "router/api/api.h"
#include "tests/fuzz/input_file.h"
#include "tests/unit/router/api/fake_flow.h"
#include "tests/unit/router/api/tiny_vocab.h"

#define PATIENCE_S 30 /* of one read: far more than any answer takes */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
    struct sl_http_server *http;
    struct sl_api *api;
    struct sl_metrics *metrics;
    struct sl_api_keys *keys;
    struct sl_template *template;
    struct sl_tokenizer *tokenizer;
    uint16_t port;
} rig;

/* No thread is left at the end: a thread sanitizer looks for those. */
static void close_server(void)
{
    sl_api_close_flow(rig.api);
    SL_ASSERT(sl_http_server_wait_idle(rig.http, PATIENCE_S * 1000));
    sl_http_server_close(rig.http);
    sl_api_close(rig.api);
    sl_metrics_free(rig.metrics);
    sl_api_keys_free(rig.keys);
    sl_template_free(rig.template);
    sl_tokenizer_close(rig.tokenizer);
}

static void open_server(void)
{
    static const char *const names[] = {"m"};
    static const char keys[] = "fuzz:key\nother:sesame\n";
    static char *origins[] = {(char *)"https://page.example"};
    static const struct sl_conf_list cors = {origins, 1};
    struct sl_why why = {{0}};
    sl_log_set_level(SL_LOG_ERROR);
    SL_ASSERT(sl_api_keys_load(sl_input_file(0, keys, sizeof keys - 1), &rig.keys, &why) == SL_OK);
    SL_ASSERT(sl_template_compile(tiny_template, strlen(tiny_template), &rig.template, NULL) == SL_OK);
    rig.tokenizer = tiny_tokenizer();
    rig.metrics = sl_metrics_new();
    const struct sl_api_conf conf = {.flow = fake_flow_new(),
                                     .tokenizer = rig.tokenizer,
                                     .template = rig.template,
                                     .template_source = tiny_template,
                                     .names = names,
                                     .n_names = 1,
                                     .root = "tiny",
                                     .context_length = 64,
                                     .keys = rig.keys,
                                     .cors_origins = &cors,
                                     .max_unread_bytes = 1 << 20,
                                     .default_deadline_ms = 1000,
                                     .metrics = rig.metrics};
    rig.api = sl_api_open(&conf);
    const struct sl_http_conf server = {.listen = "127.0.0.1:0",
                                        .max_connections = 100,
                                        .n_workers = 1,
                                        .max_waiting = 100,
                                        .max_body_bytes = 1 << 16,
                                        .max_unread_bytes = 1 << 20,
                                        .receive_timeout_s = PATIENCE_S,
                                        .idle_timeout_s = PATIENCE_S,
                                        .check = sl_api_check,
                                        .handle = sl_api_handle,
                                        .arg = rig.api,
                                        .metrics = conf.metrics};
    SL_ASSERT(sl_http_server_open(&server, &rig.http, &why) == SL_OK);
    rig.port = sl_http_server_port(rig.http);
    SL_ASSERT(atexit(close_server) == 0);
}

static int connect_and_send(const void *bytes, size_t n)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(rig.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {.tv_sec = PATIENCE_S};
    struct linger at_once = {.l_onoff =
                                 1}; /* no port waits for late packets: there are more inputs than ports */
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    SL_ASSERT(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    SL_ASSERT(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        SL_ASSERT(errno == EINTR); /* by libFuzzer's alarm; the connection comes all the same */
        struct pollfd connected = {.fd = fd, .events = POLLOUT};
        while (poll(&connected, 1, PATIENCE_S * 1000) < 0)
            SL_ASSERT(errno == EINTR);
    }
    (void)!send(fd, bytes, n, MSG_NOSIGNAL); /* it may have closed already */
    return fd;
}

/* Another client's request, which the only worker takes after those that came before. */
static void ask_another(void)
{
    static const char question[] =
        "POST /tokenize HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer key\r\nConnection: close\r\n"
        "Content-Type: application/json\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"a\"}";
    static const char good[] = "HTTP/1.1 200 ";
    char answer[4096];
    size_t n = 0;
    ssize_t got;
    int fd = connect_and_send(question, sizeof question - 1);
    while (n < sizeof answer && (got = recv(fd, answer + n, sizeof answer - n, 0)) != 0 &&
           (got > 0 || errno == EINTR))
        n += got > 0 ? (size_t)got : 0;
    SL_ASSERT(n > sizeof good && memcmp(answer, good, sizeof good - 1) == 0);
    close(fd);
}

/* The client sends its bytes, reads what has come once another client has its answer, and leaves. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char answer[4096];
    if (!rig.port)
        open_server();
    int fd = connect_and_send(data, size);
    ask_another();
    while (recv(fd, answer, sizeof answer, MSG_DONTWAIT) > 0)
        ask_another();
    close(fd);
    return 0;
}
