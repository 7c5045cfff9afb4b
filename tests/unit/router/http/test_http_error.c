/* The error table, listening addresses, frames. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "router/http/http_error.h"
#include "router/http/http_listen.h"
#include "router/http/sse.h"

static void each_error_has_its_status_and_type(void **state)
{
    static const struct {
        enum sl_err err;
        unsigned status;
        const char *type;
    } cases[] = {
        {SL_EINVAL, 400, "BadRequestError"},
        {SL_EPARSE, 400, "BadRequestError"},
        {SL_EUNSUPPORTED, 400, "BadRequestError"},
        {SL_ETOOBIG, 413, "RequestTooLargeError"},
        {SL_ENOTFOUND, 404, "NotFoundError"},
        {SL_EDENIED, 401, "AuthenticationError"},
        {SL_EAGAIN, 429, "RateLimitError"},
        {SL_ENOPAGES, 429, "RateLimitError"},
        {SL_EDRAINING, 503, "ServiceUnavailableError"},
        {SL_ENOTREADY, 503, "ServiceUnavailableError"},
        {SL_EDEADLINE, 504, "TimeoutError"},
        {SL_ECANCELED, 499, "RequestCanceledError"},
        {SL_ELOST, 500, "InternalServerError"},
        {SL_EPEER, 500, "InternalServerError"},
        {SL_EDIGEST, 500, "InternalServerError"},
        {SL_EIO, 500, "InternalServerError"},
        {SL_ENOMEM, 503, "ServiceUnavailableError"},
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct sl_buf b;
        char type[64];
        assert_int_equal(sl_http_status(cases[i].err), cases[i].status);
        sl_buf_init(&b, 4096);
        sl_http_error_json(&(struct sl_http_error){.err = cases[i].err}, &b);
        snprintf(type, sizeof type, "\"type\":\"%s\"", cases[i].type);
        assert_non_null(strstr(b.data, type));
        sl_buf_fini(&b);
    }
    for (int e = SL_OK + 1; e < SL_N_ERR; e++)
        assert_true(sl_http_status((enum sl_err)e) >= 400 && sl_http_status((enum sl_err)e) < 600);
}

static void error_object_has_all_members_and_escapes(void **state)
{
    struct sl_buf b;
    (void)state;
    sl_buf_init(&b, 4096);
    sl_http_error_json(
        &(struct sl_http_error){
            .err = SL_EINVAL, .message = "a \"b\"\n", .param = "top_p", .extra = "\"n_ctx\":8"},
        &b);
    assert_string_equal(
        b.data, "{\"error\":{\"message\":\"a "
                "\\\"b\\\"\\n\",\"type\":\"BadRequestError\",\"param\":\"top_p\",\"code\":400,\"n_ctx\":8}}");
    sl_buf_clear(&b);
    sl_http_error_json(&(struct sl_http_error){.err = SL_ENOTREADY}, &b);
    assert_string_equal(b.data, "{\"error\":{\"message\":\"The service is not ready; try again "
                                "later.\",\"type\":\"ServiceUnavailableError\","
                                "\"param\":null,\"code\":503}}");
    sl_buf_fini(&b);
}

static void frames_are_lines(void **state)
{
    struct sl_buf b;
    (void)state;
    sl_buf_init(&b, 4096);
    sl_sse_begin(&b);
    sl_buf_puts(&b, "{}");
    sl_sse_end(&b);
    sl_sse_done(&b);
    assert_string_equal(b.data, "data: {}\n\ndata: [DONE]\n\n");
    sl_buf_fini(&b);
}

static void listening_is_loopback_unless_an_address_is_written(void **state)
{
    static const struct {
        const char *text;
        bool is_public;
    } good[] = {
        {"8000", false},
        {":8000", false},
        {"127.0.0.1:0", false},
        {"localhost:80", false},
        {"[::1]:8000", false},
        {"0.0.0.0:8000", true},
        {"192.168.1.5:65535", true},
        {"[::]:8000", true},
        {"127.1.2.3:8000", false},
    };
    static const char *const bad[] = {
        "",          ":",     "127.0.0.1", "example.org:80", "1.2.3.4:", "1.2.3.4:70000",
        "[::1:8000", "[]:80", "1.2.3.4:8o"};
    struct sl_why why = {0};
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(good); i++) {
        bool is_public;
        assert_int_equal(sl_http_listen_is_public(good[i].text, &is_public, &why), SL_OK);
        assert_int_equal(is_public, good[i].is_public);
    }
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        bool is_public;
        assert_int_equal(sl_http_listen_is_public(bad[i], &is_public, &why), SL_ECONFIG);
        assert_non_null(strstr(why.text, "expected"));
    }
}

static void address_in_use_is_said(void **state)
{
    struct sl_why why = {0};
    int a, b;
    uint16_t port, other;
    char text[32];
    (void)state;
    assert_int_equal(sl_http_listen_open("127.0.0.1:0", &a, &port, &why), SL_OK);
    assert_true(port > 0);
    snprintf(text, sizeof text, "127.0.0.1:%u", port);
    assert_int_equal(sl_http_listen_open(text, &b, &other, &why), SL_EIO);
    assert_non_null(strstr(why.text, text));
    close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_error_has_its_status_and_type),
        cmocka_unit_test(error_object_has_all_members_and_escapes),
        cmocka_unit_test(frames_are_lines),
        cmocka_unit_test(listening_is_loopback_unless_an_address_is_written),
        cmocka_unit_test(address_in_use_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
