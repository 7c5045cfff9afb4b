/* tests/unit/bench/test_agent_wire.c - what travels between a bench and its agents, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "tests/bench/agent_wire.h"

static void job_packed_and_unpacked_is_the_same(void **state)
{
    (void)state;
    struct sl_job a = {.at_s = 1.25, .path = "/v1/completions", .body = sl_xstrdup("{\"prompt\":[1,2]}")}, b;
    sl_job_header(&a, "X-Sluice-Mode", "pd");
    json_t *doc = sl_agent_pack_job(&a);
    assert_true(sl_agent_unpack_job(doc, &b));
    json_decref(doc);
    assert_true(b.at_s == a.at_s);
    assert_string_equal(b.path, a.path);
    assert_string_equal(b.body, a.body);
    assert_int_equal(b.n_headers, 1);
    assert_string_equal(b.headers[0], "X-Sluice-Mode: pd");
    sl_job_fini(&a);
    sl_job_fini(&b);
}

static void result_packed_and_unpacked_is_the_same(void **state)
{
    (void)state;
    struct sl_job a = {.sent_s = 0.5, .done_s = 2, .status = 200, .finish = "length", .prompt_tokens = 7},
                  b = {0};
    sl_job_add_token(&a, 1.5, 42, UINT64_C(0xfedcba9876543210)); /* a digest beyond a signed number */
    sl_job_add_token(&a, 1.75, -1, 0);
    snprintf(a.error, sizeof a.error, "half a character: \xc3");
    json_t *doc = sl_agent_pack_result(&a);
    assert_true(sl_agent_unpack_result(doc, &b));
    json_decref(doc);
    assert_int_equal(b.n_tokens, 2);
    assert_true(b.token_s[1] == 1.75);
    assert_int_equal(b.token_id[0], 42);
    assert_true(b.digest[0] == a.digest[0]);
    assert_string_equal(b.finish, "length");
    assert_int_equal(b.prompt_tokens, 7);
    assert_true(b.error[0] != '\0');
    sl_job_fini(&a);
    sl_job_fini(&b);
}

static void job_beyond_the_api_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"at_s\":0,\"path\":\"/metrics\",\"body\":\"{}\",\"headers\":[]}",
        "{\"at_s\":0,\"path\":\"/v1/completions\",\"body\":\"{}\",\"headers\":[\"A: b\\r\\nHost: c\"]}",
        "{\"at_s\":0,\"path\":\"/v1/completions\",\"body\":\"{}\",\"headers\":[1]}",
        "{\"at_s\":\"0\",\"path\":\"/v1/completions\",\"body\":\"{}\",\"headers\":[]}", "{}"};
    for (size_t i = 0; i < SL_COUNTOF(texts); i++) {
        struct sl_job j;
        json_t *doc = json_loads(texts[i], 0, NULL);
        assert_non_null(doc);
        assert_false(sl_agent_unpack_job(doc, &j));
        json_decref(doc);
    }
}

static void frames_wrong_or_cut_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t length;
        const char *bytes;
        enum sl_err want;
    } rows[] = {{SL_AGENT_MAX_FRAME + 1, "", SL_EPROTO},
                {UINT32_MAX, "", SL_EPROTO},
                {3, "[1]", SL_EPROTO},
                {3, "{\"a", SL_EPROTO},
                {5, "{}", SL_EPEER}};
    for (size_t i = 0; i < SL_COUNTOF(rows); i++) {
        int fd[2];
        json_t *doc;
        uint32_t length = htonl(rows[i].length);
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
        assert_int_equal(write(fd[0], &length, sizeof length), sizeof length);
        assert_int_equal(write(fd[0], rows[i].bytes, strlen(rows[i].bytes)), strlen(rows[i].bytes));
        close(fd[0]);
        assert_int_equal(sl_agent_receive(fd[1], &doc), rows[i].want);
        close(fd[1]);
    }
}

static void addresses_without_host_or_port_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "7070", ":7070", "host:", "127.0.0.1:port", "[]:1"};
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        struct sl_why why = {{0}};
        int fd;
        assert_int_equal(sl_agent_connect(bad[i], 1, &fd, &why), SL_EINVAL);
        assert_true(why.text[0] != '\0');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(job_packed_and_unpacked_is_the_same),
                                       cmocka_unit_test(result_packed_and_unpacked_is_the_same),
                                       cmocka_unit_test(job_beyond_the_api_is_refused),
                                       cmocka_unit_test(frames_wrong_or_cut_are_refused),
                                       cmocka_unit_test(addresses_without_host_or_port_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
