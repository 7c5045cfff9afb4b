/* The whole front over loopback, with a flow that plays. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "router/api/api.h"
#include "tests/support/support.h"
#include "tests/unit/router/api/fake_flow.h"
#include "tests/unit/router/api/tiny_vocab.h"
#include "tests/unit/router/http_client.h"

static struct sl_tokenizer *tok;
static struct sl_template *template;

struct rig {
    struct sl_metrics *metrics;
    struct sl_api *api;
    struct sl_http_server *http;
    struct sl_api_keys *keys;
    uint16_t port;
};

static void open_rig(struct rig *rig, const char *keys)
{
    static const char *const names[] = {"m", "alias"};
    static char *origins[] = {(char *)"https://page.example"};
    static const struct sl_conf_list cors = {origins, 1};
    struct sl_why why = {0};
    memset(rig, 0, sizeof *rig);
    rig->metrics = sl_metrics_new();
    if (keys) {
        char *path = sl_test_temp_file(keys, strlen(keys));
        assert_int_equal(sl_api_keys_load(path, &rig->keys, &why), SL_OK);
        unlink(path);
        sl_free(path);
    }
    const struct sl_api_conf conf = {.flow = fake_flow_new(),
                                     .tokenizer = tok,
                                     .template = template,
                                     .template_source = tiny_template,
                                     .names = names,
                                     .n_names = 2,
                                     .root = "tiny",
                                     .context_length = 512,
                                     .keys = rig->keys,
                                     .cors_origins = &cors,
                                     .max_unread_bytes = 1 << 20,
                                     .default_deadline_ms = 10000,
                                     .metrics = rig->metrics};
    rig->api = sl_api_open(&conf);
    const struct sl_http_conf http = {.listen = "127.0.0.1:0",
                                      .max_connections = 100,
                                      .n_workers = 2,
                                      .max_waiting = 100,
                                      .max_body_bytes = 1 << 20,
                                      .max_unread_bytes = 1 << 20,
                                      .receive_timeout_s = 30,
                                      .idle_timeout_s = 60,
                                      .check = sl_api_check,
                                      .handle = sl_api_handle,
                                      .arg = rig->api,
                                      .metrics = rig->metrics};
    if (sl_http_server_open(&http, &rig->http, &why) != SL_OK)
        fail_msg("%s", why.text);
    rig->port = sl_http_server_port(rig->http);
}

static void close_rig(struct rig *rig)
{
    sl_api_close_flow(rig->api);
    assert_true(sl_http_server_wait_idle(rig->http, 5000));
    sl_http_server_close(rig->http);
    sl_api_close(rig->api);
    sl_metrics_free(rig->metrics);
    sl_api_keys_free(rig->keys);
}

/* One request; its status; the body parsed when it is JSON. */
static int ask(struct rig *rig, const char *method, const char *path, const char *headers, const char *body,
               json_t **json)
{
    struct http_reply r;
    http_once(rig->port, method, path, headers, body, &r);
    int status = r.status;
    assert_true(r.complete);
    assert_non_null(http_reply_header(&r, "X-Request-Id"));
    if (json)
        *json = json_loads(r.body, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    http_reply_fini(&r);
    return status;
}

static const char *error_member(json_t *j, const char *name)
{
    const char *s = json_string_value(json_object_get(json_object_get(j, "error"), name));
    return s ? s : "";
}

static void completion_is_answered_whole(void **state)
{
    struct rig rig;
    json_t *j;
    (void)state;
    open_rig(&rig, NULL);
    assert_int_equal(ask(&rig, "POST", "/v1/completions", "",
                         "{\"model\":\"alias\",\"prompt\":\"hey\",\"max_tokens\":3}", &j),
                     200);
    json_t *choice = json_array_get(json_object_get(j, "choices"), 0), *usage = json_object_get(j, "usage");
    assert_string_equal(json_string_value(json_object_get(choice, "text")), "abc");
    assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")), "length");
    assert_string_equal(json_string_value(json_object_get(j, "model")), "alias");
    assert_int_equal(json_integer_value(json_object_get(usage, "prompt_tokens")), 3);
    assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), 3);
    json_decref(j);
    assert_int_equal(
        ask(&rig, "POST", "/completions", "", "{\"prompt\":\"hey\",\"max_tokens\":0,\"echo\":true}", &j),
        200);
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(json_object_get(j, "choices"), 0), "text")), "hey");
    json_decref(j);
    close_rig(&rig);
}

static void each_prompt_gets_n_choices(void **state)
{
    struct rig rig;
    struct http_reply r;
    json_t *j;
    (void)state;
    open_rig(&rig, NULL);
    assert_int_equal(ask(&rig, "POST", "/v1/completions", "",
                         "{\"prompt\":[\"hey\",\"you!\"],\"n\":3,\"max_tokens\":2}", &j),
                     200);
    json_t *choices = json_object_get(j, "choices"), *usage = json_object_get(j, "usage"), *choice;
    size_t i;
    assert_int_equal(json_array_size(choices), 6);
    json_array_foreach (choices, i, choice) {
        assert_int_equal(json_integer_value(json_object_get(choice, "index")), i);
        assert_string_equal(json_string_value(json_object_get(choice, "text")), "ab");
    }
    assert_int_equal(json_integer_value(json_object_get(usage, "prompt_tokens")), 7);
    assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), 12);
    json_decref(j);
    http_once(rig.port, "POST", "/v1/completions", "",
              "{\"prompt\":\"hey\",\"n\":3,\"max_tokens\":2,\"stream\":true}", &r);
    assert_true(r.complete);
    for (i = 0; i < 3; i++) {
        char end[64];
        snprintf(end, sizeof end,
                 "\"index\":%zu,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"length\"", i);
        assert_non_null(strstr(r.body, end));
    }
    assert_string_equal(strstr(r.body, "data: [DONE]"), "data: [DONE]\n\n");
    http_reply_fini(&r);
    close_rig(&rig);
}

/* One fails before its first token, all hang, none is taken: the others go too. */
static void choices_end_together(void **state)
{
    struct rig rig;
    struct http_client c;
    json_t *j;
    (void)state;
    open_rig(&rig, NULL);
    assert_int_equal(
        ask(&rig, "POST", "/v1/completions", "", "{\"prompt\":\"hey\",\"n\":4,\"cache_salt\":\"fail\"}", &j),
        500);
    json_decref(j);
    assert_int_equal(
        ask(&rig, "POST", "/v1/completions", "", "{\"prompt\":\"hey\",\"n\":4,\"cache_salt\":\"busy\"}", &j),
        429);
    json_decref(j);
    http_connect(&c, rig.port);
    http_request(&c, "POST", "/v1/completions", "", "{\"prompt\":\"hey\",\"n\":4,\"cache_salt\":\"hang\"}");
    while (atomic_load(&fake_open) != 4)
        sched_yield();
    http_close(&c);
    while (atomic_load(&fake_open))
        sched_yield();
    close_rig(&rig);
}

static void stream_text_equals_the_whole_answer_one_frame_a_token(void **state)
{
    struct rig rig;
    struct http_reply r;
    (void)state;
    open_rig(&rig, NULL);
    http_once(rig.port, "POST", "/v1/chat/completions", "X-Sluice-Digest: 1\r\n",
              "{\"stream\":true,\"return_token_ids\":true,\"max_tokens\":30,\"messages\":[{\"role\":\"user\","
              "\"content\":\"q\"}]}",
              &r);
    assert_int_equal(r.status, 200);
    assert_true(r.complete);
    assert_int_equal(strncmp(http_reply_header(&r, "Content-Type"), "text/event-stream", 17), 0);
    int frames = 0, tokens = 0, finishes = 0, digests = 0;
    char text[64] = "";
    char *at = r.body, *end;
    while ((end = strstr(at, "\n\n"))) {
        *end = '\0';
        assert_int_equal(strncmp(at, "data: ", 6), 0);
        frames++;
        if (strcmp(at, "data: [DONE]") != 0) {
            json_t *j = json_loads(at + 6, JSON_REJECT_DUPLICATES, NULL);
            json_t *choice = json_array_get(json_object_get(j, "choices"), 0);
            const char *piece =
                json_string_value(json_object_get(json_object_get(choice, "delta"), "content"));
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s", piece ? piece : "");
            tokens += (int)json_array_size(json_object_get(choice, "token_ids"));
            finishes += json_is_string(json_object_get(choice, "finish_reason"));
            digests += json_object_get(j, "sluice") != NULL;
            json_decref(j);
        }
        at = end + 2;
    }
    assert_string_equal(text, "abcdefghijklmnopqrstuvwxyzabcd");
    assert_int_equal(frames, 1 + 30 + 1 + 1); /* role, tokens, finish, [DONE] */
    assert_int_equal(tokens, 30);
    assert_int_equal(digests, 30);
    assert_int_equal(finishes, 1);
    http_reply_fini(&r);
    close_rig(&rig);
}

/* Limits, refusals, failures and cancelling are those of a chat: the same key, the same flow. */
static void response_fares_as_a_chat_does(void **state)
{
    static const char path[] = "/v1/responses";
    struct rig rig;
    struct http_reply r;
    struct http_client c;
    json_t *j;
    char key[SL_KEY_NEW_BYTES], line[SL_KEY_LINE_BYTES], text[2 * SL_KEY_LINE_BYTES], header[128];
    (void)state;
    sl_key_line_new("user", key, line);
    snprintf(text, sizeof text, "%s requests_per_minute=4\n", line);
    snprintf(header, sizeof header, "Authorization: Bearer %s\r\n", key);
    open_rig(&rig, text);
    assert_int_equal(ask(&rig, "POST", path, "", "{\"input\":\"q\"}", NULL), 401);
    assert_int_equal(ask(&rig, "POST", path, header, "{\"input\":\"q\",\"cache_salt\":\"busy\"}", NULL), 429);
    assert_int_equal(ask(&rig, "POST", path, header, "{\"input\":\"q\",\"max_output_tokens\":3}", &j), 200);
    json_t *part =
        json_array_get(json_object_get(json_array_get(json_object_get(j, "output"), 0), "content"), 0);
    assert_string_equal(json_string_value(json_object_get(part, "text")), "abc");
    assert_int_equal(strncmp(json_string_value(json_object_get(j, "id")), "resp_b007-", 10), 0);
    json_decref(j);
    http_once(rig.port, "POST", path, header, "{\"input\":\"q\",\"stream\":true,\"cache_salt\":\"fail\"}",
              &r);
    assert_int_equal(r.status, 500);
    http_reply_fini(&r);
    http_once(rig.port, "POST", path, header, "{\"input\":\"q\",\"stream\":true,\"cache_salt\":\"break\"}",
              &r);
    assert_int_equal(r.status, 200);
    assert_true(r.complete);
    assert_non_null(
        strstr(r.body, "\"message\":\"No decode node is left.\"}\n\nevent: response.failed\ndata: "));
    assert_null(strstr(r.body, "[DONE]"));
    http_reply_fini(&r);
    http_connect(&c, rig.port);
    http_request(&c, "POST", path, header, "{\"input\":\"q\",\"cache_salt\":\"hang\"}");
    while (atomic_load(&fake_open) == 0)
        sched_yield();
    http_close(&c);
    while (atomic_load(&fake_open))
        sched_yield();
    assert_int_equal(atomic_load(&fake_canceled), 1);
    assert_int_equal(ask(&rig, "POST", path, header, "{\"input\":\"q\"}", &j), 429); /* the fifth */
    assert_non_null(strstr(error_member(j, "message"), "4 requests a minute"));
    json_decref(j);
    close_rig(&rig);
}

static void bad_requests_have_an_error_object_streaming_or_not(void **state)
{
    static const struct {
        const char *method, *path, *headers, *body;
        int status;
        const char *param;
    } cases[] = {
        {"POST", "/v1/completions", "", "{", 400, ""},
        {"POST", "/v1/completions", "", "[]", 400, ""},
        {"POST", "/v1/completions", "", "{\"prompt\":\"x\",\"logprobs\":21}", 400, "logprobs"},
        {"POST", "/v1/completions", "", "{\"prompt\":\"x\",\"logprobs\":21,\"stream\":true}", 400,
         "logprobs"},
        {"POST", "/v1/completions", "", "{\"prompt\":\"x\",\"max_tokens\":600,\"stream\":true}", 400,
         "max_tokens"},
        {"POST", "/v1/completions", "", "{\"model\":\"nope\",\"prompt\":\"x\"}", 404, "model"},
        {"POST", "/v1/completions", "X-Sluice-Mode: fast\r\n", "{\"prompt\":\"x\"}", 400, "X-Sluice-Mode"},
        {"POST", "/v1/chat/completions", "", "{\"messages\":[{\"role\":\"user\",\"content\":5}]}", 400,
         "messages[0].content"},
        {"POST", "/v1/responses", "", "{\"input\":[7]}", 400, "input[0]"},
        {"POST", "/v1/responses", "", "{\"input\":\"x\",\"max_output_tokens\":0}", 400, "max_output_tokens"},
        {"POST", "/v1/responses", "", "{\"input\":\"x\",\"max_output_tokens\":600,\"stream\":true}", 400,
         "max_output_tokens"},
        {"POST", "/v1/responses", "", "{\"input\":\"x\",\"model\":\"nope\"}", 404, "model"},
        {"POST", "/v1/responses", "",
         "{\"input\":\"x\",\"max_output_tokens\":1,\"previous_response_id\":\"r\"}", 400,
         "previous_response_id"},
        {"POST", "/v1/responses", "X-Sluice-Mode: fast\r\n", "{\"input\":\"x\"}", 400, "X-Sluice-Mode"},
        {"GET", "/v1/responses", "", NULL, 405, ""},
        {"GET", "/v1/responses/resp_1", "", NULL, 404, ""},
        {"POST", "/v1/embeddings", "", "{}", 404, ""},
        {"GET", "/nothing", "", NULL, 404, ""},
        {"POST", "/", "", NULL, 405, ""},
        {"GET", "/v1/completions", "", NULL, 405, ""},
        {"DELETE", "/v1/models", "", NULL, 405, ""},
        {"POST", "/v1/completions", "", NULL, 415, ""},
        {"GET", "/v1/models/nope", "", NULL, 404, "model"},
        {"GET", "/sluice/v1/nothing", "", NULL, 404, ""},
        {"POST", "/sluice/v1/mode", "", NULL, 404, ""},
        {"POST", "/sluice/v1/mode/pd", "Origin: https://page.example\r\n", NULL, 403, ""},
        {"GET", "/sluice/v1/explain/gone", "", NULL, 404, ""},
    };
    struct rig rig;
    (void)state;
    open_rig(&rig, NULL);
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        json_t *j = NULL;
        int status = ask(&rig, cases[i].method, cases[i].path, cases[i].headers, cases[i].body, &j);
        if (status != cases[i].status || !error_member(j, "message")[0] || !error_member(j, "type")[0] ||
            strcmp(error_member(j, "param"), cases[i].param) != 0)
            fail_msg("case %zu: %d param=%s message=%s", i, status, error_member(j, "param"),
                     error_member(j, "message"));
        assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "error"), "code")), status);
        json_decref(j);
    }
    json_t *j;
    assert_int_equal(ask(&rig, "POST", "/v1/completions", "", "{\"prompt\":\"x\",\"max_tokens\":600}", &j),
                     400);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "error"), "n_ctx")), 512);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "error"), "n_prompt_tokens")), 1);
    json_decref(j);
    close_rig(&rig);
}

static void failures_before_the_first_token_have_a_status(void **state)
{
    static const char *const streams[] = {"false", "true"};
    struct rig rig;
    struct http_reply r;
    (void)state;
    open_rig(&rig, NULL);
    for (int i = 0; i < 2; i++) {
        char body[128];
        snprintf(body, sizeof body, "{\"prompt\":\"x\",\"stream\":%s,\"cache_salt\":\"busy\"}", streams[i]);
        http_once(rig.port, "POST", "/v1/completions", "", body, &r);
        assert_int_equal(r.status, 429);
        assert_string_equal(http_reply_header(&r, "Retry-After"), "1");
        http_reply_fini(&r);
        snprintf(body, sizeof body, "{\"prompt\":\"x\",\"stream\":%s,\"cache_salt\":\"fail\"}", streams[i]);
        http_once(rig.port, "POST", "/v1/completions", "", body, &r);
        assert_int_equal(r.status, 500);
        assert_null(http_reply_header(&r, "x-should-retry"));
        http_reply_fini(&r);
    }
    close_rig(&rig);
}

static void failure_after_tokens_is_a_frame_or_forbids_a_retry(void **state)
{
    struct rig rig;
    struct http_reply r;
    (void)state;
    open_rig(&rig, NULL);
    http_once(rig.port, "POST", "/v1/completions", "",
              "{\"prompt\":\"x\",\"stream\":true,\"cache_salt\":\"break\"}", &r);
    assert_int_equal(r.status, 200);
    assert_true(r.complete);
    const char *error = strstr(r.body, "data: {\"error\":{\"message\":\"No decode node is left.\"");
    assert_non_null(error);
    assert_string_equal(strstr(error, "\n\n"), "\n\ndata: [DONE]\n\n");
    http_reply_fini(&r);
    http_once(rig.port, "POST", "/v1/completions", "", "{\"prompt\":\"x\",\"cache_salt\":\"break\"}", &r);
    assert_int_equal(r.status, 500);
    assert_string_equal(http_reply_header(&r, "x-should-retry"), "false");
    http_reply_fini(&r);
    close_rig(&rig);
}

static void client_that_leaves_cancels(void **state)
{
    static const char *const bodies[] = {"{\"prompt\":\"x\",\"cache_salt\":\"hang\"}",
                                         "{\"prompt\":\"x\",\"stream\":true,\"cache_salt\":\"hang\"}"};
    struct rig rig;
    (void)state;
    open_rig(&rig, NULL);
    for (int i = 0; i < 2; i++) {
        struct http_client c;
        http_connect(&c, rig.port);
        http_request(&c, "POST", "/v1/completions", "", bodies[i]);
        while (atomic_load(&fake_open) == 0)
            sched_yield();
        http_close(&c);
        while (atomic_load(&fake_canceled) != i + 1 || atomic_load(&fake_open) != 0)
            sched_yield();
    }
    json_t *j;
    assert_int_equal(ask(&rig, "GET", "/load", "", NULL, &j), 200);
    json_decref(j);
    close_rig(&rig);
}

static void slow_reader_is_cut_and_counted(void **state)
{
    struct rig rig;
    struct http_client c;
    struct http_reply r;
    (void)state;
    open_rig(&rig, NULL);
    http_connect(&c, rig.port);
    http_request(&c, "POST", "/v1/completions", "",
                 "{\"prompt\":\"x\",\"stream\":true,\"cache_salt\":\"flood\"}");
    while (atomic_load(&fake_canceled) != 1)
        sched_yield();
    http_read(&c, &r);
    assert_false(r.complete);
    http_reply_fini(&r);
    http_close(&c);
    http_once(rig.port, "GET", "/metrics", "", NULL, &r);
    assert_non_null(strstr(r.body, "\nsluice_http_slow_readers_cut_total 1\n"));
    http_reply_fini(&r);
    close_rig(&rig);
}

static void keys_guard_all_but_the_public_paths(void **state)
{
    static const struct {
        const char *method, *path, *headers;
        int status;
    } cases[] = {
        {"GET", "/v1/models", "", 401},
        {"GET", "/v1/models", "Authorization: Bearer wrong\r\n", 401},
        {"GET", "/v1/models", "Authorization: sk-1\r\n", 401},
        {"GET", "/v1/models", "Authorization: Bearer sk-1\r\n", 200},
        {"GET", "/models", "X-Api-Key: sk-1\r\n", 200},
        {"GET", "/metrics", "", 401},
        {"GET", "/nothing", "", 401},
        {"GET", "/sluice/v1/status", "", 401},
        {"GET", "/health", "", 200},
        {"GET", "/v1/health", "", 200},
        {"GET", "/ping", "", 200},
        {"GET", "/version", "", 200},
        {"OPTIONS", "/v1/chat/completions", "", 204},
    };
    struct rig rig;
    (void)state;
    open_rig(&rig, "me:sk-1\n");
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        json_t *j;
        int status = ask(&rig, cases[i].method, cases[i].path, cases[i].headers, NULL, &j);
        if (status != cases[i].status)
            fail_msg("case %zu: %d", i, status);
        json_decref(j);
    }
    close_rig(&rig);
}

static void pages_of_allowed_origins_only_get_cors_headers(void **state)
{
    struct rig rig;
    struct http_reply r;
    (void)state;
    open_rig(&rig, NULL);
    http_once(rig.port, "OPTIONS", "/v1/chat/completions",
              "Origin: https://page.example\r\nAccess-Control-Request-Headers: "
              "x-a\r\nAccess-Control-Request-Method: POST\r\n",
              NULL, &r);
    assert_int_equal(r.status, 204);
    assert_string_equal(http_reply_header(&r, "Access-Control-Allow-Origin"), "https://page.example");
    assert_string_equal(http_reply_header(&r, "Access-Control-Allow-Headers"), "x-a");
    http_reply_fini(&r);
    http_once(rig.port, "GET", "/v1/models", "Origin: https://other.example\r\n", NULL, &r);
    assert_null(http_reply_header(&r, "Access-Control-Allow-Origin"));
    http_reply_fini(&r);
    close_rig(&rig);
}

static void page_asks_for_no_key_and_its_data_do(void **state)
{
    static const struct {
        const char *path, *headers;
        int status;
        const char *type;
    } cases[] = {
        {"/", "", 301, NULL},
        {"/ui", "", 301, NULL},
        {"/ui/", "", 200, "text/html; charset=utf-8"},
        {"/ui/index.html", "", 200, "text/html; charset=utf-8"},
        {"/ui/ui.css", "", 200, "text/css; charset=utf-8"},
        {"/ui/ui.js", "", 200, "text/javascript; charset=utf-8"},
        {"/ui/../main.c", "", 404, "application/json"},
        {"/ui/", "Origin: https://page.example\r\n", 403, "application/json"},
        {"/ui/ui.js", "Origin: https://localhost\r\n", 200, "text/javascript; charset=utf-8"},
        {"/ui/ui.js", "Origin: null\r\n", 403, "application/json"},
        {"/ui/state", "", 401, "application/json"},
        {"/ui/steps/0", "", 401, "application/json"},
        {"/ui/state", "Authorization: Bearer sk-1\r\n", 200, "application/json"},
        {"/ui/steps/7", "Authorization: Bearer sk-1\r\n", 200, "application/json"},
        {"/ui/steps", "Authorization: Bearer sk-1\r\n", 400, "application/json"},
        {"/ui/steps/-1", "Authorization: Bearer sk-1\r\n", 400, "application/json"},
        {"/ui/steps/99999999999999999999", "Authorization: Bearer sk-1\r\n", 400, "application/json"},
        {"/ui/state", "Authorization: Bearer sk-1\r\nOrigin: https://page.example\r\n", 403,
         "application/json"},
    };
    struct rig rig;
    struct http_reply r;
    (void)state;
    open_rig(&rig, "me:sk-1\n");
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        http_once(rig.port, "GET", cases[i].path, cases[i].headers, NULL, &r);
        const char *type = http_reply_header(&r, "Content-Type");
        if (r.status != cases[i].status || (cases[i].type && (!type || strcmp(type, cases[i].type) != 0)))
            fail_msg("case %zu: %d %s", i, r.status, type ? type : "");
        const char *policy = http_reply_header(&r, "Content-Security-Policy");
        assert_true(!cases[i].type || strncmp(cases[i].type, "text/", 5) != 0 ||
                    (policy && strstr(policy, "default-src 'none'") && !strstr(policy, "unsafe")));
        assert_null(http_reply_header(&r, "Access-Control-Allow-Origin"));
        http_reply_fini(&r);
    }
    close_rig(&rig);
}

static void information_has_the_members_tools_read(void **state)
{
    struct rig rig;
    json_t *j;
    (void)state;
    open_rig(&rig, NULL);
    assert_int_equal(ask(&rig, "GET", "/v1/models", "", NULL, &j), 200);
    json_t *m = json_array_get(json_object_get(j, "data"), 0);
    assert_string_equal(json_string_value(json_object_get(m, "id")), "m");
    assert_string_equal(json_string_value(json_object_get(m, "root")), "tiny");
    assert_int_equal(json_integer_value(json_object_get(m, "max_model_len")), 512);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(m, "meta"), "n_vocab")),
                     TINY_N_VOCAB);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(m, "meta"), "page_tokens")), 16);
    json_decref(j);
    assert_int_equal(ask(&rig, "GET", "/v1/models/alias", "", NULL, &j), 200);
    assert_string_equal(json_string_value(json_object_get(j, "id")), "alias");
    json_decref(j);
    atomic_store(&fake_ready, false);
    assert_int_equal(ask(&rig, "GET", "/health", "", NULL, &j), 503);
    assert_string_equal(error_member(j, "message"), "No decode node has registered.");
    json_decref(j);
    assert_int_equal(ask(&rig, "GET", "/sluice/v1/links", "", NULL, &j), 200);
    assert_string_equal(json_string_value(json_object_get(json_array_get(j, 0), "title")), "links");
    json_decref(j);
    assert_int_equal(ask(&rig, "POST", "/sluice/v1/mode/pd", "", NULL, &j), 200);
    assert_string_equal(json_string_value(json_object_get(j, "text")), "pd");
    json_decref(j);
    close_rig(&rig);
}

static void tokenize_speaks_both_dialects_and_goes_round(void **state)
{
    struct rig rig;
    json_t *j;
    (void)state;
    open_rig(&rig, NULL);
    assert_int_equal(
        ask(&rig, "POST", "/tokenize", "", "{\"prompt\":\"a\xe5\xaa\xbd\",\"return_token_strs\":true}", &j),
        200);
    assert_int_equal(json_integer_value(json_object_get(j, "count")), 4);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(j, "tokens"), 1)), 0xe5);
    assert_string_equal(json_string_value(json_array_get(json_object_get(j, "token_strs"), 0)), "a");
    json_decref(j);
    assert_int_equal(
        ask(&rig, "POST", "/tokenize", "", "{\"content\":\"a\xe5\xaa\xbd\",\"with_pieces\":true}", &j), 200);
    json_t *second = json_array_get(json_object_get(j, "tokens"), 1);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(second, "piece"), 0)), 0xe5);
    json_decref(j);
    assert_int_equal(ask(&rig, "POST", "/detokenize", "", "{\"tokens\":[97,229,170,189,257]}", &j), 200);
    assert_string_equal(json_string_value(json_object_get(j, "prompt")), "a\xe5\xaa\xbd<|im_end|>");
    assert_string_equal(json_string_value(json_object_get(j, "content")), "a\xe5\xaa\xbd<|im_end|>");
    json_decref(j);
    assert_int_equal(ask(&rig, "POST", "/detokenize", "", "{\"tokens\":[999]}", &j), 400);
    json_decref(j);
    assert_int_equal(ask(&rig, "POST", "/apply-template", "",
                         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", &j),
                     200);
    assert_string_equal(json_string_value(json_object_get(j, "prompt")),
                        "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n");
    json_decref(j);
    assert_int_equal(
        ask(&rig, "POST", "/tokenize", "", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", &j),
        200);
    assert_int_equal(json_integer_value(json_object_get(j, "count")), 20);
    json_decref(j);
    close_rig(&rig);
}

static void ids_are_the_clients_or_ours(void **state)
{
    struct rig rig;
    struct http_reply r;
    (void)state;
    open_rig(&rig, NULL);
    http_once(rig.port, "POST", "/v1/completions", "", "{\"prompt\":\"x\",\"max_tokens\":1}", &r);
    assert_int_equal(strncmp(http_reply_header(&r, "X-Request-Id"), "cmpl-b007-", 10), 0);
    http_reply_fini(&r);
    http_once(rig.port, "POST", "/v1/completions", "X-Request-Id: mine-1\r\n",
              "{\"prompt\":\"x\",\"max_tokens\":1}", &r);
    assert_string_equal(http_reply_header(&r, "X-Request-Id"), "mine-1");
    assert_int_equal(strncmp(http_reply_header(&r, "X-Sluice-Request-Id"), "cmpl-b007-", 10), 0);
    http_reply_fini(&r);
    close_rig(&rig);
}

static void draining_refuses_new_requests_and_closing_ends_the_old_in_words(void **state)
{
    struct rig rig;
    struct http_client old;
    struct http_reply r;
    uint32_t n_open;
    json_t *j;
    (void)state;
    open_rig(&rig, NULL);
    http_connect(&old, rig.port);
    http_request(&old, "POST", "/v1/completions", "", "{\"prompt\":\"x\",\"cache_salt\":\"hang\"}");
    while (atomic_load(&fake_open) == 0)
        sched_yield();
    sl_api_drain(rig.api, &n_open);
    assert_int_equal(n_open, 1);
    assert_int_equal(ask(&rig, "GET", "/health", "", NULL, &j), 503);
    json_decref(j);
    assert_int_equal(ask(&rig, "POST", "/v1/completions", "", "{\"prompt\":\"x\"}", &j), 503);
    json_decref(j);
    sl_api_close_flow(rig.api);
    http_read(&old, &r);
    assert_int_equal(r.status, 503);
    http_reply_fini(&r);
    http_close(&old);
    assert_int_equal(ask(&rig, "POST", "/v1/completions", "", "{\"prompt\":\"x\"}", &j), 503);
    json_decref(j);
    assert_int_equal(ask(&rig, "GET", "/health", "", NULL, &j), 503);
    json_decref(j);
    assert_int_equal(ask(&rig, "GET", "/sluice/v1/status", "", NULL, &j), 503);
    json_decref(j);
    close_rig(&rig);
}

static int open_all(void **state)
{
    struct sl_why why = {0};
    (void)state;
    tok = tiny_tokenizer();
    return sl_template_compile(tiny_template, strlen(tiny_template), &template, &why) == SL_OK ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    sl_template_free(template);
    sl_tokenizer_close(tok);
    return 0;
}

/* What another user of this machine hears: a proxy, say, that adds no header. */
static int status_for_nobody(uint16_t port)
{
    enum { SAME = -1, NOBODY = 65534 };
    struct http_reply r;
    /* the call of the kernel, unlike the library's, is of this thread alone */
    assert_int_equal(syscall(SYS_setresuid, SAME, NOBODY, SAME), 0);
    http_once(port, "GET", "/metrics", "", NULL, &r);
    assert_int_equal(syscall(SYS_setresuid, SAME, 0, SAME), 0);
    int status = r.status;
    http_reply_fini(&r);
    return status;
}

static void operators_paths_are_not_for_other_users_of_this_machine(void **state)
{
    (void)state;
    struct rig rig;
    if (geteuid() != 0)
        skip();
    open_rig(&rig, NULL);
    assert_int_equal(status_for_nobody(rig.port), 403);
    assert_int_equal(ask(&rig, "GET", "/metrics", "", NULL, NULL), 200);
    close_rig(&rig);
}

/* By a name: a proxy that keeps its clients' word for it, or a page in a browser here whose name points here. */
static void operators_paths_are_not_for_who_calls_this_machine_by_a_name(void **state)
{
    (void)state;
    static const struct {
        const char *host;
        int status;
    } cases[] = {
        {"localhost", 200},  {"LocalHost:8000", 200}, {"127.0.0.1:8000", 200},         {"10.0.0.1", 200},
        {"[::1]:8000", 200}, {"page.example", 403},   {"localhost.page.example", 403}, {"127.1", 403},
        {"::1", 403},        {"[page]", 403}};
    struct rig rig;
    open_rig(&rig, NULL);
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct http_client c;
        struct http_reply r;
        char text[128];
        int n = snprintf(text, sizeof text, "GET /metrics HTTP/1.1\r\nHost: %s\r\n\r\n", cases[i].host);
        http_connect(&c, rig.port);
        http_send(&c, text, (size_t)n);
        http_read(&c, &r);
        assert_int_equal(r.status, cases[i].status);
        http_reply_fini(&r);
        http_close(&c);
    }
    close_rig(&rig);
}

/* A proxy on this machine speaks for others. */
static void operators_paths_are_for_the_owner_or_an_operators_key(void **state)
{
    (void)state;
    static const char *const paths[] = {"/metrics", "/load", "/v1/load", "/sluice/v1/status"};
    static const char *const proxied[] = {"X-Forwarded-For: 10.0.0.9\r\n", "Forwarded: for=10.0.0.9\r\n",
                                          "X-Real-IP: 10.0.0.9\r\n", "Via: 1.1 proxy\r\n"};
    char keys[2][SL_KEY_NEW_BYTES], lines[2][SL_KEY_LINE_BYTES], text[3 * SL_KEY_LINE_BYTES], header[128];
    for (int i = 0; i < 2; i++)
        sl_key_line_new(i ? "op" : "user", keys[i], lines[i]);
    snprintf(text, sizeof text, "%s requests_per_minute=1\n%s admin=yes\n", lines[0], lines[1]);
    struct rig rig;
    open_rig(&rig, NULL);
    for (size_t i = 0; i < SL_COUNTOF(paths); i++) {
        assert_int_equal(ask(&rig, "GET", paths[i], "", NULL, NULL), 200);
        for (size_t k = 0; k < SL_COUNTOF(proxied); k++)
            assert_int_equal(ask(&rig, "GET", paths[i], proxied[k], NULL, NULL), 403);
    }
    assert_int_equal(ask(&rig, "GET", "/v1/models", proxied[0], NULL, NULL), 200);
    close_rig(&rig);
    open_rig(&rig, text);
    for (size_t i = 0; i < SL_COUNTOF(paths); i++)
        for (int k = 0; k < 2; k++) {
            snprintf(header, sizeof header, "Authorization: Bearer %s\r\n", keys[k]);
            assert_int_equal(ask(&rig, "GET", paths[i], header, NULL, NULL), k ? 200 : 403);
        }
    close_rig(&rig);
}

static void key_over_its_limit_is_429_with_a_time(void **state)
{
    (void)state;
    static const char body[] = "{\"model\":\"m\",\"prompt\":\"hey\",\"max_tokens\":3}",
                      busy[] = "{\"model\":\"m\",\"prompt\":\"hey\",\"cache_salt\":\"busy\"}";
    char key[SL_KEY_NEW_BYTES], line[SL_KEY_LINE_BYTES], text[2 * SL_KEY_LINE_BYTES], header[128];
    sl_key_line_new("user", key, line);
    snprintf(text, sizeof text, "%s requests_per_minute=1\n", line);
    snprintf(header, sizeof header, "Authorization: Bearer %s\r\n", key);
    struct rig rig;
    open_rig(&rig, text);
    struct http_reply r;
    for (unsigned i = 0; i < 2; i++) { /* what the router refuses counts for nothing */
        http_once(rig.port, "POST", "/v1/completions", header, busy, &r);
        assert_int_equal(r.status, 429);
        assert_non_null(strstr(r.body, "Too many requests."));
        http_reply_fini(&r);
    }
    assert_int_equal(ask(&rig, "POST", "/v1/completions", header, body, NULL), 200);
    http_once(rig.port, "POST", "/v1/completions", header, body, &r);
    assert_int_equal(r.status, 429);
    long wait_s = strtol(http_reply_header(&r, "Retry-After"), NULL, 10);
    assert_true(wait_s >= 1 && wait_s <= 60);
    assert_non_null(strstr(r.body, "1 requests a minute"));
    http_reply_fini(&r);
    assert_int_equal(ask(&rig, "GET", "/v1/models", header, NULL, NULL),
                     200); /* generations alone are counted */
    close_rig(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completion_is_answered_whole),
        cmocka_unit_test(each_prompt_gets_n_choices),
        cmocka_unit_test(choices_end_together),
        cmocka_unit_test(stream_text_equals_the_whole_answer_one_frame_a_token),
        cmocka_unit_test(response_fares_as_a_chat_does),
        cmocka_unit_test(bad_requests_have_an_error_object_streaming_or_not),
        cmocka_unit_test(failures_before_the_first_token_have_a_status),
        cmocka_unit_test(failure_after_tokens_is_a_frame_or_forbids_a_retry),
        cmocka_unit_test(client_that_leaves_cancels),
        cmocka_unit_test(slow_reader_is_cut_and_counted),
        cmocka_unit_test(keys_guard_all_but_the_public_paths),
        cmocka_unit_test(pages_of_allowed_origins_only_get_cors_headers),
        cmocka_unit_test(page_asks_for_no_key_and_its_data_do),
        cmocka_unit_test(information_has_the_members_tools_read),
        cmocka_unit_test(tokenize_speaks_both_dialects_and_goes_round),
        cmocka_unit_test(ids_are_the_clients_or_ours),
        cmocka_unit_test(operators_paths_are_for_the_owner_or_an_operators_key),
        cmocka_unit_test(operators_paths_are_not_for_other_users_of_this_machine),
        cmocka_unit_test(operators_paths_are_not_for_who_calls_this_machine_by_a_name),
        cmocka_unit_test(key_over_its_limit_is_429_with_a_time),
        cmocka_unit_test(draining_refuses_new_requests_and_closing_ends_the_old_in_words),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
