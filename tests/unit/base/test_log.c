/* Lines, levels and the limiter of common/base/log. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/support/support.h"

static void log_one_of_each(void *arg)
{
    (void)arg;
    SL_ERROR("e n=%d", 1);
    SL_WARN("w n=%d", 2);
    SL_INFO("i n=%d", 3);
    SL_DEBUG("d n=%d", 4);
    SL_TRACE("t n=%d", 5);
}

static void levels_only_those_up_to_the_set_one_are_written(void **state)
{
    (void)state;
    static const char *const expected[] = {
        "<3>e n=1\n",
        "<3>e n=1\n<4>w n=2\n",
        "<3>e n=1\n<4>w n=2\n<6>i n=3\n",
        "<3>e n=1\n<4>w n=2\n<6>i n=3\n<7>d n=4\n",
        "<3>e n=1\n<4>w n=2\n<6>i n=3\n<7>d n=4\n<7>t n=5\n",
    };
    for (int level = SL_LOG_ERROR; level <= SL_LOG_TRACE; level++) {
        sl_log_set_level((enum sl_log_level)level);
        char *text = sl_test_capture_stderr(log_one_of_each, NULL);
        assert_string_equal(text, expected[level]);
        sl_free(text);
    }
    sl_log_set_level(SL_LOG_INFO);
}

static int evaluations;

static int count_evaluation(void)
{
    return ++evaluations;
}

static void log_debug_counted(void *arg)
{
    (void)arg;
    SL_DEBUG("n=%d", count_evaluation());
}

static void levels_arguments_of_a_silent_debug_line_not_evaluated(void **state)
{
    (void)state;
    sl_log_set_level(SL_LOG_INFO);
    sl_free(sl_test_capture_stderr(log_debug_counted, NULL));
    assert_int_equal(evaluations, 0);
    sl_log_set_level(SL_LOG_DEBUG);
    sl_free(sl_test_capture_stderr(log_debug_counted, NULL));
    assert_int_equal(evaluations, 1);
    sl_log_set_level(SL_LOG_INFO);
}

static void level_parse_known_words_only(void **state)
{
    (void)state;
    enum sl_log_level level = SL_LOG_ERROR;
    assert_int_equal(sl_log_level_parse("trace", &level), SL_OK);
    assert_int_equal(level, SL_LOG_TRACE);
    assert_int_equal(sl_log_level_parse("error", &level), SL_OK);
    assert_int_equal(level, SL_LOG_ERROR);
    assert_int_equal(sl_log_level_parse("Info", &level), SL_EINVAL);
    assert_int_equal(sl_log_level_parse("", &level), SL_EINVAL);
}

static void log_text(void *arg)
{
    SL_INFO("prompt text=%s", (const char *)arg);
}

static void line_newlines_of_an_outsider_make_no_second_line(void **state)
{
    (void)state;
    char text[] = "a\n<3>forged\r\x1b[31m\x7f";
    char *out = sl_test_capture_stderr(log_text, text);
    assert_string_equal(out, "<6>prompt text=a?<3>forged??[31m?\n");
    sl_free(out);
}

static void line_too_long_is_cut_with_dots_and_ends(void **state)
{
    (void)state;
    char text[10000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    char *out = sl_test_capture_stderr(log_text, text);
    size_t n = strlen(out);
    assert_true(n > 1000 && n <= 4096);
    assert_string_equal(out + n - 5, "x...\n");
    assert_ptr_equal(strchr(out, '\n'), out + n - 1);
    sl_free(out);
}

static void log_to_a_full_disk(void *arg)
{
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_true(full >= 0 && dup2(full, STDERR_FILENO) >= 0);
    close(full);
    errno = EDOM;
    SL_INFO("line");
    *(int *)arg = errno;
}

static void line_that_cannot_be_written_leaves_errno_alone(void **state)
{
    (void)state;
    int seen = 0;
    sl_free(sl_test_capture_stderr(log_to_a_full_disk, &seen));
    assert_int_equal(seen, EDOM);
}

static void limit_first_allowed_then_counts_what_it_held_back(void **state)
{
    (void)state;
    struct sl_log_limit limit = {0};
    unsigned suppressed = 99;
    assert_true(sl_log_allow(&limit, 3600000, &suppressed));
    assert_int_equal(suppressed, 0);
    for (int i = 0; i < 3; i++)
        assert_false(sl_log_allow(&limit, 3600000, &suppressed));
    assert_true(limit.next_ms > sl_now_ms() + 3000000);
    limit.next_ms = 0; /* as if the period had passed */
    assert_true(sl_log_allow(&limit, 3600000, &suppressed));
    assert_int_equal(suppressed, 3);
    limit.next_ms = 0;
    assert_true(sl_log_allow(&limit, 0, &suppressed));
    assert_int_equal(suppressed, 0);
}

/* First in main(): the environment is read once, at the first use. */
static void level_not_set_comes_from_the_environment(void **state)
{
    (void)state;
    assert_int_equal(setenv("SLUICE_LOG", "debug", 1), 0);
    assert_true(sl_log_on(SL_LOG_DEBUG));
    assert_false(sl_log_on(SL_LOG_TRACE));
    assert_int_equal(unsetenv("SLUICE_LOG"), 0);
    assert_true(sl_log_on(SL_LOG_DEBUG));
}

/* All that is in the pipe. */
static char *read_pipe(int fd)
{
    struct sl_buf b;
    char bytes[4096];
    sl_buf_init(&b, 1 << 20);
    for (ssize_t n; (n = read(fd, bytes, sizeof bytes)) > 0;)
        sl_buf_append(&b, bytes, (size_t)n);
    return sl_buf_steal(&b);
}

static void reader_that_hangs_loses_lines_and_holds_nobody_up(void **state)
{
    enum { LINES = 5000 }; /* more than a pipe has room for */
    (void)state;
    int ends[2], real = dup(STDERR_FILENO);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
    for (int i = 0; i < LINES; i++)
        SL_INFO("a line of some length, as those of daemons are n=%d", i);
    char *before = read_pipe(ends[0]);
    SL_INFO("the reader is back");
    char *after = read_pipe(ends[0]);
    assert_true(dup2(real, STDERR_FILENO) >= 0);
    unsigned kept = 0, lost = 0;
    for (const char *at = before; (at = strchr(at, '\n')); at++)
        kept++;
    assert_int_equal(sscanf(after, "<4>the reader of the log hung, lines were lost n=%u", &lost), 1);
    assert_int_equal(kept + lost, LINES);
    assert_non_null(strstr(after, "\n<6>the reader is back\n"));
    sl_free(after);
    sl_free(before);
    close(ends[0]);
    close(ends[1]);
    close(real);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(level_not_set_comes_from_the_environment),
        cmocka_unit_test(levels_only_those_up_to_the_set_one_are_written),
        cmocka_unit_test(levels_arguments_of_a_silent_debug_line_not_evaluated),
        cmocka_unit_test(level_parse_known_words_only),
        cmocka_unit_test(line_newlines_of_an_outsider_make_no_second_line),
        cmocka_unit_test(line_too_long_is_cut_with_dots_and_ends),
        cmocka_unit_test(line_that_cannot_be_written_leaves_errno_alone),
        cmocka_unit_test(reader_that_hangs_loses_lines_and_holds_nobody_up),
        cmocka_unit_test(limit_first_allowed_then_counts_what_it_held_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
