/* tests/bench/client.c - see client.h.
 *
 * A streamed answer is parsed as it arrives (job_answer.c), so that a token's time is when its frame was complete
 * here. TTFT therefore includes everything a client feels.
 *
 * epoll tells which sockets have something, curl's multi_socket interface is told of those alone, and what is
 * due is sent between any two of them: neither the number of streams nor a burst of tokens makes a request
 * late. epoll_pwait2() waits in nanoseconds; epoll_wait()'s milliseconds would be the send lag. */
#include "tests/bench/client.h"

#include <curl/curl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"

#define EVENTS 32 /* sockets taken from epoll at a time */
#define MAX_IDLE_CONNECTIONS                                                                                 \
    4096L /* kept open for the next request: more than streams that one client drives */

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

static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
    struct sl_job *j = arg;
    if (!sl_buf_append(&j->raw, p, size * n))
        return 0;
    long status = 0;
    curl_easy_getinfo(j->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status == 200)
        sl_job_take_stream(j, now_s());
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

/* One run: its sockets, its timer, who is under way. */
struct run {
    const struct sl_client_conf *conf;
    struct sl_job *jobs;
    size_t n;
    CURLM *multi;
    int epoll_fd;
    double curl_at_s; /* when curl wants to be called; INFINITY = not before a socket has something */
    uint32_t *order;  /* [n] jobs by at_s */
    size_t n_started, n_finished;
    uint32_t *leaving; /* [n_leaving] jobs that go away before their end */
    size_t n_leaving;
    double slot_s; /* when a place became free of max_running that had all been taken */
    CURL **idle;   /* [n_idle] handles to use again */
    size_t n_idle;
    bool over;
};

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *known)
{
    struct run *r = arg;
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(r->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    struct epoll_event e = {.data.fd = fd};
    e.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
    if (epoll_ctl(r->epoll_fd, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &e) != 0)
        epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, fd, &e); /* closed behind curl's back and opened again */
    curl_multi_assign(r->multi, fd, r);
    return 0;
}

static int on_timer(CURLM *multi, long timeout_ms, void *arg)
{
    struct run *r = arg;
    (void)multi;
    r->curl_at_s = timeout_ms < 0 ? INFINITY : now_s() + (double)timeout_ms * 1e-3;
    return 0;
}

static void start(struct run *r, struct sl_job *j)
{
    /* without an idle handle no connection is idle, and curl need not look through all of them for one */
    bool fresh = !r->n_idle;
    CURL *c = fresh ? curl_easy_init() : r->idle[--r->n_idle];
    char *url = sl_xasprintf("%s%s", r->conf->base_url, j->path);
    struct curl_slist *h = curl_slist_append(NULL, "Content-Type: application/json");
    h = curl_slist_append(h, "Expect:"); /* long prompts are not announced first */
    if (r->conf->api_key) {
        char *auth = sl_xasprintf("Authorization: Bearer %s", r->conf->api_key);
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
    curl_easy_setopt(c, CURLOPT_FRESH_CONNECT, fresh ? 1L : 0L);
    curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(c, CURLOPT_SSL_VERIFYPEER, r->conf->insecure ? 0L : 1L);
    curl_easy_setopt(c, CURLOPT_SSL_VERIFYHOST, r->conf->insecure ? 0L : 2L);
    sl_free(url);
    j->easy = c;
    j->header_list = h;
    j->started = true;
    sl_buf_init(&j->text, SL_CLIENT_MAX_ANSWER);
    sl_buf_init(&j->raw, SL_CLIENT_MAX_ANSWER);
    j->ready_s = fmax(j->at_s, r->slot_s);
    j->sent_s = now_s();
    int running;
    curl_multi_add_handle(r->multi, c);
    curl_multi_socket_action(r->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    if (j->stop_after_s > 0)
        r->leaving[r->n_leaving++] = (uint32_t)(j - r->jobs);
    r->n_started++;
}

static void finish(struct run *r, struct sl_job *j, const char *error)
{
    curl_easy_getinfo(j->easy, CURLINFO_RESPONSE_CODE, &j->status);
    curl_multi_remove_handle(r->multi, j->easy);
    curl_easy_reset(j->easy);
    r->idle[r->n_idle++] = j->easy;
    curl_slist_free_all(j->header_list);
    j->easy = NULL;
    j->finished = true;
    j->done_s = now_s();
    if (r->conf->max_running && r->n_started - r->n_finished == r->conf->max_running)
        r->slot_s = j->done_s;
    r->n_finished++;
    r->over |= j->ends_run;
    if (j->status != 0 && j->status != 200 && j->raw.len > 0)
        sl_job_take_answer(j, j->raw.data, j->raw.len, j->done_s);
    if (j->n_tokens && j->token_id[0] < 0 && j->completion_tokens && j->n_tokens > j->completion_tokens)
        j->n_tokens = j->completion_tokens; /* the last chunks were text that had been held back */
    if (error && !j->error[0])
        snprintf(j->error, sizeof j->error, "%s", error);
    if (!j->error[0] && j->status != 200)
        snprintf(j->error, sizeof j->error, "HTTP status %ld", j->status);
    if (!j->error[0] && !j->done_seen)
        snprintf(j->error, sizeof j->error, "the stream ended without [DONE]");
}

static bool may_start(const struct run *r)
{
    return r->n_started < r->n &&
           (!r->conf->max_running || r->n_started - r->n_finished < r->conf->max_running);
}

static void start_due(struct run *r)
{
    while (may_start(r) && r->jobs[r->order[r->n_started]].at_s <= now_s())
        start(r, &r->jobs[r->order[r->n_started]]);
}

/* Ends those whose time is over; returns when the next one's is. */
static double leave_due(struct run *r)
{
    double next_s = INFINITY;
    for (size_t i = 0; i < r->n_leaving;) {
        struct sl_job *j = &r->jobs[r->leaving[i]];
        double at = j->sent_s + j->stop_after_s;
        if (!j->finished && at > now_s()) {
            next_s = fmin(next_s, at);
            i++;
            continue;
        }
        if (!j->finished)
            finish(r, j, "left on purpose");
        r->leaving[i] = r->leaving[--r->n_leaving];
    }
    return next_s;
}

static void reap(struct run *r)
{
    CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(r->multi, &left)) != NULL) {
        struct sl_job *j;
        CURLcode result = m->data.result; /* m is gone with its handle */
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &j);
        finish(r, j, result == CURLE_OK ? NULL : curl_easy_strerror(result));
    }
}

static void wait_and_take(struct run *r, double until_s)
{
    struct epoll_event events[EVENTS];
    double wait_s = fmax(0, fmin(until_s, r->curl_at_s) - now_s());
    struct timespec t = {.tv_sec = (time_t)wait_s, .tv_nsec = (long)((wait_s - floor(wait_s)) * 1e9)};
    int running, n = epoll_pwait2(r->epoll_fd, events, EVENTS, &t, NULL);
    for (int i = 0; i < n; i++) {
        unsigned e = events[i].events;
        int what = (e & EPOLLIN ? CURL_CSELECT_IN : 0) | (e & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                   (e & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
        curl_multi_socket_action(r->multi, events[i].data.fd, what, &running);
        start_due(r);
    }
    if (r->curl_at_s <= now_s()) {
        r->curl_at_s = INFINITY;
        curl_multi_socket_action(r->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
}

static int by_time(const void *a, const void *b, void *jobs)
{
    uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    double x = ((struct sl_job *)jobs)[i].at_s, y = ((struct sl_job *)jobs)[k].at_s;
    return x != y ? (x > y) - (x < y) : (i > k) - (i < k);
}

static void run_jobs(struct run *r)
{
    bool tty = r->conf->progress && isatty(STDERR_FILENO);
    double timeout_s = r->conf->timeout_s, next_line_s = 1;
    while (r->n_finished < r->n && !r->over && now_s() < timeout_s) {
        start_due(r);
        double next_s = leave_due(r);
        if (may_start(r))
            next_s = fmin(next_s, r->jobs[r->order[r->n_started]].at_s);
        if (tty && now_s() >= next_line_s) {
            fprintf(stderr, "\r%s: %zu of %zu sent, %zu done, %.0f s ", r->conf->progress, r->n_started, r->n,
                    r->n_finished, now_s());
            next_line_s += 1;
        }
        wait_and_take(r, fmin(fmin(next_s, timeout_s), tty ? next_line_s : now_s() + 1));
        reap(r);
    }
    if (tty)
        fprintf(stderr, "\r%*s\r", 76, "");
    else if (r->conf->progress)
        fprintf(stderr, "%s: %zu requests, %.0f s\n", r->conf->progress, r->n_finished, now_s());
}

enum sl_err sl_client_run_conf(const struct sl_client_conf *conf, struct sl_job *jobs, size_t n)
{
    struct run r = {.conf = conf, .jobs = jobs, .n = n, .curl_at_s = INFINITY};
    r.order = sl_xcalloc(n + 1, sizeof *r.order);
    r.leaving = sl_xcalloc(n + 1, sizeof *r.leaving);
    r.idle = sl_xcalloc(n + 1, sizeof(CURL *));
    for (size_t i = 0; i < n; i++)
        r.order[i] = (uint32_t)i;
    qsort_r(r.order, n, sizeof *r.order, by_time, jobs);
    r.multi = curl_multi_init();
    r.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    curl_multi_setopt(r.multi, CURLMOPT_MAXCONNECTS, MAX_IDLE_CONNECTIONS);
    curl_multi_setopt(r.multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(r.multi, CURLMOPT_SOCKETDATA, &r);
    curl_multi_setopt(r.multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(r.multi, CURLMOPT_TIMERDATA, &r);
    run_start_s = 0;
    run_start_s = now_s();
    run_jobs(&r);
    bool answered = n == 0;
    for (size_t i = 0; i < n; i++) {
        if (jobs[i].started && !jobs[i].finished)
            finish(&r, &jobs[i], r.over ? "left on purpose" : "no end within the bench's time limit");
        else if (!jobs[i].started)
            snprintf(jobs[i].error, sizeof jobs[i].error, "not sent within the bench's time limit");
        answered |= jobs[i].status != 0;
    }
    for (size_t i = 0; i < r.n_idle; i++)
        curl_easy_cleanup(r.idle[i]);
    curl_multi_cleanup(r.multi);
    close(r.epoll_fd);
    sl_free(r.order);
    sl_free(r.leaving);
    sl_free(r.idle);
    return answered ? SL_OK : SL_EPEER;
}

enum sl_err sl_client_run(const char *base_url, const char *api_key, struct sl_job *jobs, size_t n,
                          double timeout_s, const char *progress)
{
    const struct sl_client_conf conf = {
        .base_url = base_url, .api_key = api_key, .timeout_s = timeout_s, .progress = progress};
    return sl_client_run_conf(&conf, jobs, n);
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
