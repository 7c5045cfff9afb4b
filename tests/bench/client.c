/* tests/bench/client.c - see client.h.
 *
 * A streamed answer is parsed as it arrives, so that a token's time is when its frame was complete here. TTFT
 * therefore includes everything a client feels. Frames are told apart by the empty line; "[DONE]" ends. */
#include "tests/bench/client.h"

#include <curl/curl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"

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

static void start(CURLM *multi, struct sl_job *j, const char *base_url, const char *api_key)
{
    CURL *c = curl_easy_init();
    char *url = sl_xasprintf("%s%s", base_url, j->path);
    struct curl_slist *h = curl_slist_append(NULL, "Content-Type: application/json");
    if (api_key) {
        char *auth = sl_xasprintf("Authorization: Bearer %s", api_key);
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
    curl_multi_add_handle(multi, c);
}

static void finish(CURLM *multi, struct sl_job *j, const char *error)
{
    curl_easy_getinfo(j->easy, CURLINFO_RESPONSE_CODE, &j->status);
    curl_multi_remove_handle(multi, j->easy);
    curl_easy_cleanup(j->easy);
    curl_slist_free_all(j->header_list);
    j->easy = NULL;
    j->finished = true;
    j->done_s = now_s();
    if (j->status != 0 && j->status != 200 && j->raw.len > 0)
        take_chunk(j, j->raw.data, j->raw.len, j->done_s);
    if (error && !j->error[0])
        snprintf(j->error, sizeof j->error, "%s", error);
    if (!j->error[0] && j->status != 200)
        snprintf(j->error, sizeof j->error, "HTTP status %ld", j->status);
    if (!j->error[0] && !j->done_seen)
        snprintf(j->error, sizeof j->error, "the stream ended without [DONE]");
}

enum sl_err sl_client_run(const char *base_url, const char *api_key, struct sl_job *jobs, size_t n,
                          double timeout_s, const char *progress)
{
    CURLM *multi = curl_multi_init();
    bool tty = isatty(STDERR_FILENO);
    curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, 256L);
    run_start_s = 0;
    run_start_s = now_s();
    size_t n_started = 0, n_finished = 0;
    bool over = false;
    double next_line = 1.0;
    while (n_finished < n && !over && now_s() < timeout_s) {
        double wait_s = 1.0;
        for (size_t i = 0; i < n; i++) {
            struct sl_job *j = &jobs[i];
            if (!j->started && j->at_s <= now_s()) {
                start(multi, j, base_url, api_key);
                n_started++;
            } else if (!j->started) {
                wait_s = fmin(wait_s, j->at_s - now_s());
            } else if (!j->finished && j->stop_after_s > 0 && now_s() - j->sent_s > j->stop_after_s) {
                finish(multi, j, "left on purpose");
                n_finished++;
            } else if (!j->finished && j->stop_after_s > 0) {
                wait_s = fmin(wait_s, j->stop_after_s - (now_s() - j->sent_s));
            }
        }
        int running, left;
        curl_multi_perform(multi, &running);
        CURLMsg *m;
        while ((m = curl_multi_info_read(multi, &left)) != NULL) {
            struct sl_job *j;
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &j);
            finish(multi, j, m->data.result == CURLE_OK ? NULL : curl_easy_strerror(m->data.result));
            n_finished++;
            over |= j->ends_run;
        }
        if (progress && tty && now_s() >= next_line) {
            fprintf(stderr, "\r%s: %zu of %zu sent, %zu done, %.0f s ", progress, n_started, n, n_finished,
                    now_s());
            next_line += 1.0;
        }
        if (n_finished < n)
            curl_multi_poll(multi, NULL, 0, (int)fmax(1, fmin(wait_s, 0.25) * 1e3), NULL);
    }
    if (progress && tty)
        fprintf(stderr, "\r%*s\r", 76, "");
    else if (progress)
        fprintf(stderr, "%s: %zu requests, %.0f s\n", progress, n_finished, now_s());
    bool answered = n == 0;
    for (size_t i = 0; i < n; i++) {
        if (jobs[i].started && !jobs[i].finished)
            finish(multi, &jobs[i], over ? "left on purpose" : "no end within the bench's time limit");
        else if (!jobs[i].started)
            snprintf(jobs[i].error, sizeof jobs[i].error, "not sent within the bench's time limit");
        answered |= jobs[i].status != 0;
    }
    curl_multi_cleanup(multi);
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
