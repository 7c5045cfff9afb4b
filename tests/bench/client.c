/* tests/bench/client.c - see client.h.
 *
 * A streamed answer is parsed as it arrives, so that a token's time is when its frame was complete here. TTFT
 * therefore includes everything a client feels. Frames are told apart by the empty line; "[DONE]" ends.
 *
 * Work per round follows what happened, not how many requests there are: curl says which sockets to watch, and
 * jobs stand in the order of their times. With hundreds of streams a client that looks at all of them is slower
 * than the server it measures. */
#include "tests/bench/client.h"

#include <curl/curl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"

#define EVENTS_PER_ROUND 256

/* One sl_client_run(). */
struct run {
    const char *base_url, *api_key;
    CURLM *multi;
    int epoll_fd;
    double curl_due_s;     /* when curl wants to be called without an event */
    struct sl_job **order; /* by planned time */
    size_t n, n_started, n_finished;
    bool some_leave, over;
};

static double run_start_s;

static double now_s(void)
{
    return (double)sl_now_ns() * 1e-9 - run_start_s;
}

void sl_job_header(struct sl_job *j, const char *name, const char *value)
{
    j->headers = sl_xrealloc_array(j->headers, j->n_headers + 1, sizeof *j->headers);
    j->headers[j->n_headers++] = sl_xasprintf("%s: %s", name, value);
}

void sl_job_fini(struct sl_job *j)
{
    for (size_t i = 0; i < j->n_headers; i++)
        sl_free(j->headers[i]);
    sl_free(j->headers);
    sl_free(j->body);
    sl_free(j->own_path);
    sl_free(j->token_s);
    sl_free(j->token_id);
    sl_free(j->digest);
    sl_buf_fini(&j->text);
    sl_buf_fini(&j->raw);
    *j = (struct sl_job){0};
}

void sl_job_add_token(struct sl_job *j, double at_s, int32_t id, uint64_t digest)
{
    if (j->n_tokens == j->cap_tokens) {
        j->cap_tokens = j->cap_tokens ? 2 * j->cap_tokens : 64;
        j->token_s = sl_xrealloc_array(j->token_s, j->cap_tokens, sizeof *j->token_s);
        j->token_id = sl_xrealloc_array(j->token_id, j->cap_tokens, sizeof *j->token_id);
        j->digest = sl_xrealloc_array(j->digest, j->cap_tokens, sizeof *j->digest);
    }
    j->token_s[j->n_tokens] = at_s;
    j->token_id[j->n_tokens] = id;
    j->digest[j->n_tokens++] = digest;
}

static void take_error(struct sl_job *j, json_t *error)
{
    const char *message = json_string_value(json_object_get(error, "message"));
    snprintf(j->error, sizeof j->error, "%s", message ? message : "error without a message");
}

/* One data frame of the stream (or, with the same members, the whole answer of an unstreamed request). */
static void take_chunk(struct sl_job *j, const char *data, size_t len, double at)
{
    json_error_t why;
    json_t *doc = json_loadb(data, len, JSON_ALLOW_NUL, &why); /* a token may be a NUL byte */
    if (!doc) {
        snprintf(j->error, sizeof j->error, "an answer that is no JSON: %s", why.text);
        return;
    }
    json_t *error = json_object_get(doc, "error");
    if (json_is_object(error))
        take_error(j, error);
    json_t *usage = json_object_get(doc, "usage");
    if (json_is_object(usage)) {
        j->prompt_tokens = (uint32_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
        j->cached_tokens = (uint32_t)json_integer_value(
            json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
    }
    json_t *choice = json_array_get(json_object_get(doc, "choices"), 0);
    const char *text = json_string_value(json_object_get(choice, "text"));
    if (!text)
        text = json_string_value(json_object_get(json_object_get(choice, "delta"), "content"));
    if (text)
        sl_buf_puts(&j->text, text);
    json_t *finish = json_object_get(choice, "finish_reason");
    if (json_is_string(finish))
        snprintf(j->finish, sizeof j->finish, "%s", json_string_value(finish));
    json_t *ids = json_object_get(choice, "token_ids");
    const char *digest = json_string_value(json_object_get(json_object_get(doc, "sluice"), "digest"));
    if (json_array_size(ids) > 0)
        for (size_t i = 0; i < json_array_size(ids); i++)
            sl_job_add_token(j, at, (int32_t)json_integer_value(json_array_get(ids, i)),
                             digest ? strtoull(digest, NULL, 16) : 0);
    else if (!ids && text && *text && !json_is_string(finish))
        sl_job_add_token(j, at, -1, 0); /* a server without token ids: one chunk is one token */
    json_decref(doc);
}

static void take_stream(struct sl_job *j)
{
    for (;;) {
        char *end = j->raw.data ? memmem(j->raw.data, j->raw.len, "\n\n", 2) : NULL;
        if (!end)
            return;
        size_t len = (size_t)(end - j->raw.data);
        if (len >= 6 && memcmp(j->raw.data, "data: ", 6) == 0) {
            if (len >= 12 && memcmp(j->raw.data + 6, "[DONE]", 6) == 0)
                j->done_seen = true;
            else
                take_chunk(j, j->raw.data + 6, len - 6, now_s());
        }
        sl_buf_consume(&j->raw, len + 2);
    }
}

static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
    struct sl_job *j = arg;
    if (!sl_buf_append(&j->raw, p, size * n))
        return 0;
    long status = 0;
    curl_easy_getinfo(j->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status == 200)
        take_stream(j);
    return size * n;
}

static size_t on_header(char *p, size_t size, size_t n, void *arg)
{
    struct sl_job *j = arg;
    static const char name[] = "x-request-id: ";
    size_t len = size * n;
    if (len > sizeof name && strncasecmp(p, name, sizeof name - 1) == 0) {
        size_t m = len - (sizeof name - 1);
        while (m > 0 && (p[sizeof name - 1 + m - 1] == '\r' || p[sizeof name - 1 + m - 1] == '\n'))
            m--;
        snprintf(j->request_id, sizeof j->request_id, "%.*s", (int)m, p + sizeof name - 1);
    }
    return len;
}

static void start(struct run *r, struct sl_job *j)
{
    CURL *c = curl_easy_init();
    char *url = sl_xasprintf("%s%s", r->base_url, j->path);
    struct curl_slist *h = curl_slist_append(NULL, "Content-Type: application/json");
    if (r->api_key) {
        char *auth = sl_xasprintf("Authorization: Bearer %s", r->api_key);
        h = curl_slist_append(h, auth);
        sl_free(auth);
    }
    for (size_t i = 0; i < j->n_headers; i++)
        h = curl_slist_append(h, j->headers[i]);
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_POSTFIELDS, j->body);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, h);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, j);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, j);
    curl_easy_setopt(c, CURLOPT_PRIVATE, j);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
    sl_free(url);
    j->easy = c;
    j->header_list = h;
    j->started = true;
    j->sent_s = now_s();
    sl_buf_init(&j->text, SL_CLIENT_MAX_ANSWER);
    sl_buf_init(&j->raw, SL_CLIENT_MAX_ANSWER);
    curl_multi_add_handle(r->multi, c);
}

static void finish(struct run *r, struct sl_job *j, const char *error)
{
    curl_easy_getinfo(j->easy, CURLINFO_RESPONSE_CODE, &j->status);
    curl_multi_remove_handle(r->multi, j->easy);
    curl_easy_cleanup(j->easy);
    curl_slist_free_all(j->header_list);
    j->easy = NULL;
    j->finished = true;
    j->done_s = now_s();
    r->n_finished++;
    r->over |= j->ends_run;
    if (j->status != 0 && j->status != 200 && j->raw.len > 0)
        take_chunk(j, j->raw.data, j->raw.len, j->done_s);
    if (error && !j->error[0])
        snprintf(j->error, sizeof j->error, "%s", error);
    if (!j->error[0] && j->status != 200)
        snprintf(j->error, sizeof j->error, "HTTP status %ld", j->status);
    if (!j->error[0] && !j->done_seen)
        snprintf(j->error, sizeof j->error, "the stream ended without [DONE]");
}

/* ---- the run: curl's sockets and its one timer in an epoll loop ---- */

static void collect(struct run *r)
{
    CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(r->multi, &left)) != NULL) {
        struct sl_job *j;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &j);
        finish(r, j, m->data.result == CURLE_OK ? NULL : curl_easy_strerror(m->data.result));
    }
}

static int watch_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *known)
{
    struct run *r = arg;
    struct epoll_event ev = {.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) |
                                       (what & CURL_POLL_OUT ? EPOLLOUT : 0u),
                             .data.fd = fd};
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(r->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    curl_multi_assign(r->multi, fd, r); /* known from the second time on */
    return epoll_ctl(r->epoll_fd, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &ev);
}

static int watch_time(CURLM *multi, long after_ms, void *arg)
{
    struct run *r = arg;
    (void)multi;
    r->curl_due_s = after_ms < 0 ? INFINITY : now_s() + (double)after_ms * 1e-3;
    return 0;
}

static int by_time(const void *a, const void *b)
{
    const struct sl_job *x = *(struct sl_job *const *)a, *y = *(struct sl_job *const *)b;
    if (x->at_s != y->at_s)
        return x->at_s < y->at_s ? -1 : 1;
    return x < y ? -1 : x > y;
}

static void start_due(struct run *r)
{
    while (r->n_started < r->n && r->order[r->n_started]->at_s <= now_s())
        start(r, r->order[r->n_started++]);
}

/* When the next client leaves; those whose time has come do so now. */
static double leave_due(struct run *r, double now)
{
    double next = INFINITY;
    for (size_t i = 0; i < r->n_started && r->some_leave; i++) {
        struct sl_job *j = r->order[i];
        if (j->finished || j->stop_after_s <= 0)
            continue;
        if (now - j->sent_s > j->stop_after_s)
            finish(r, j, "left on purpose");
        else
            next = fmin(next, j->sent_s + j->stop_after_s);
    }
    return next;
}

/* Waits for sockets, at most until then, and lets curl deal with them. */
static void round_until(struct run *r, double until_s)
{
    struct epoll_event events[EVENTS_PER_ROUND];
    int running;
    double wait_s = fmax(0, until_s - now_s());
    struct timespec wait = {.tv_sec = (time_t)wait_s, .tv_nsec = (long)(fmod(wait_s, 1) * 1e9)};
    int n = epoll_pwait2(r->epoll_fd, events, EVENTS_PER_ROUND, &wait, NULL);
    for (int i = 0; i < n; i++) {
        uint32_t e = events[i].events;
        int what = (e & EPOLLIN ? CURL_CSELECT_IN : 0) | (e & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                   (e & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
        curl_multi_socket_action(r->multi, events[i].data.fd, what, &running);
    }
    if (now_s() >= r->curl_due_s) {
        r->curl_due_s = INFINITY; /* before the call, which may set it anew */
        curl_multi_socket_action(r->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
    collect(r);
}

static void open_run(struct run *r, struct sl_job *jobs, size_t n)
{
    r->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    SL_ASSERT(r->epoll_fd >= 0);
    r->multi = curl_multi_init();
    r->curl_due_s = INFINITY;
    r->n = n;
    r->order = sl_xcalloc(n ? n : 1, sizeof(struct sl_job *));
    for (size_t i = 0; i < n; i++) {
        r->order[i] = &jobs[i];
        r->some_leave |= jobs[i].stop_after_s > 0;
    }
    qsort(r->order, n, sizeof(struct sl_job *), by_time);
    curl_multi_setopt(r->multi, CURLMOPT_MAXCONNECTS, 256L);
    curl_multi_setopt(r->multi, CURLMOPT_SOCKETFUNCTION, watch_socket);
    curl_multi_setopt(r->multi, CURLMOPT_SOCKETDATA, r);
    curl_multi_setopt(r->multi, CURLMOPT_TIMERFUNCTION, watch_time);
    curl_multi_setopt(r->multi, CURLMOPT_TIMERDATA, r);
}

static void close_run(struct run *r)
{
    curl_multi_cleanup(r->multi);
    close(r->epoll_fd);
    sl_free(r->order);
}

enum sl_err sl_client_run(const char *base_url, const char *api_key, struct sl_job *jobs, size_t n,
                          double timeout_s, const char *progress)
{
    struct run r = {.base_url = base_url, .api_key = api_key};
    bool tty = isatty(STDERR_FILENO);
    double next_line = 1.0;
    open_run(&r, jobs, n);
    run_start_s = 0;
    run_start_s = now_s();
    while (r.n_finished < n && !r.over && now_s() < timeout_s) {
        start_due(&r);
        double until = fmin(fmin(timeout_s, now_s() + 1), r.curl_due_s);
        if (r.n_started < n)
            until = fmin(until, r.order[r.n_started]->at_s);
        round_until(&r, fmin(until, leave_due(&r, now_s())));
        if (progress && tty && now_s() >= next_line) {
            fprintf(stderr, "\r%s: %zu of %zu sent, %zu done, %.0f s ", progress, r.n_started, n,
                    r.n_finished, now_s());
            next_line += 1.0;
        }
    }
    if (progress && tty)
        fprintf(stderr, "\r%*s\r", 76, "");
    else if (progress)
        fprintf(stderr, "%s: %zu requests, %.0f s\n", progress, r.n_finished, now_s());
    bool answered = n == 0, over = r.over;
    for (size_t i = 0; i < n; i++) {
        if (jobs[i].started && !jobs[i].finished)
            finish(&r, &jobs[i], over ? "left on purpose" : "no end within the bench's time limit");
        else if (!jobs[i].started)
            snprintf(jobs[i].error, sizeof jobs[i].error, "not sent within the bench's time limit");
        answered |= jobs[i].status != 0;
    }
    close_run(&r);
    return answered ? SL_OK : SL_EPEER;
}

static size_t on_fetch(char *p, size_t size, size_t n, void *arg)
{
    return sl_buf_append(arg, p, size * n) ? size * n : 0;
}

long sl_client_fetch(const char *base_url, const char *api_key, const char *path, const char *body,
                     struct sl_buf *out)
{
    CURL *c = curl_easy_init();
    char *url = sl_xasprintf("%s%s", base_url, path);
    struct curl_slist *h = curl_slist_append(NULL, "Content-Type: application/json");
    if (api_key) {
        char *auth = sl_xasprintf("Authorization: Bearer %s", api_key);
        h = curl_slist_append(h, auth);
        sl_free(auth);
    }
    curl_easy_setopt(c, CURLOPT_URL, url);
    if (body)
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, h);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_fetch);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, out);
    curl_easy_setopt(c, CURLOPT_TIMEOUT, 30L);
    curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
    long status = 0;
    if (curl_easy_perform(c) == CURLE_OK)
        curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
    curl_slist_free_all(h);
    curl_easy_cleanup(c);
    sl_free(url);
    return status;
}
