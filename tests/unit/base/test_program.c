/* tests/unit/base/test_program.c - the texts that a daemon makes of its options, and the manual pages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/manual.h"
#include "common/base/mem.h"
#include "common/base/program.h"
#include "tests/support/support.h"

struct target {
    char *model, *level;
    uint32_t threads, fault;
};

static const struct sl_conf_opt opts[] = {
    {"model", SL_CONF_STRING, offsetof(struct target, model), NULL, "the file", 0, 0, NULL},
    {"threads", SL_CONF_U32, offsetof(struct target, threads), "2",
     "threads of which there may be many, so many that this line is longer than the window of a person who "
     "reads it",
     1, 64, NULL},
    {"log_level", SL_CONF_STRING, offsetof(struct target, level), "info", "what is logged", 0, 0, NULL},
    {"fault_x", SL_CONF_U32, offsetof(struct target, fault), "0", "for tests only", 0, 0, NULL},
    {0},
};
static const char *const reloads[] = {"log_level", NULL};
static const struct sl_program program = {
    .name = "sluice-test",
    .version = "9.8.7",
    .date = "November 30, 2026",
    .summary = "a program of the tests",
    .about = "First paragraph. Second sentence.\n\n.Not a macro\n    literal \\n\n",
    .signals = "SIGHUP reads.\n",
    .config_file = "/etc/sluice/test.conf",
    .config_about = "sluice-test.conf",
    .section = "test",
    .see_also = "sluice-router 8",
    .opts = opts,
    .reloads = reloads,
    .must_set = "model",
    .must_value = "/m.gguf",
};

/* What the program prints for one argument. */
static char *said(const char *arg)
{
    char *path = sl_test_temp_file("", 0), *argv[] = {(char *)"sluice-test", (char *)(uintptr_t)arg};
    fflush(stdout);
    int kept = dup(STDOUT_FILENO);
    assert_non_null(freopen(path, "we", stdout));
    bool answered = sl_program_answers(&program, 2, argv);
    fflush(stdout);
    assert_true(dup2(kept, STDOUT_FILENO) >= 0);
    close(kept);
    char *text = sl_test_read_file(path, NULL);
    unlink(path);
    sl_free(path);
    assert_int_equal(answered, *text != '\0');
    return text;
}

static void example_has_every_key_and_loads(void **s)
{
    (void)s;
    char *text = said("--example-config");
    assert_non_null(
        strstr(text, "\n[test]\n# the file\n# (text; a change needs a restart)\nmodel = /m.gguf\n"));
    assert_non_null(strstr(text, "\n# what is logged\n# (text; read anew at a reload)\n#log_level = info\n"));
    assert_non_null(strstr(text, "\n#threads = 2\n"));
    assert_null(strstr(text, "fault_x"));
    for (char *line = text; *line; line += strcspn(line, "\n") + 1)
        assert_true(strcspn(line, "\n") <= 100);
    for (char *at = text; (at = strstr(at, "\n#")) != NULL; at += 2)
        if (at[2] != ' ')
            at[1] = '\n';
    char *path = sl_test_temp_file(text, strlen(text));
    struct target t = {0};
    struct sl_why why = {{0}};
    assert_int_equal(sl_conf_load(opts, path, 0, NULL, &t, &why), SL_OK);
    assert_int_equal(t.threads, 2);
    assert_string_equal(t.level, "info");
    sl_conf_fini(opts, &t);
    unlink(path);
    sl_free(path);
    sl_free(text);
}

static void help_and_version_are_told(void **s)
{
    (void)s;
    char *text = said("--version");
    assert_string_equal(text, "sluice-test 9.8.7\n");
    sl_free(text);
    text = said("--help");
    assert_non_null(strstr(text, "  --log-level=VALUE\n"));
    assert_non_null(strstr(text, "  --check-config\n"));
    sl_free(text);
    text = said("--threads=3");
    assert_string_equal(text, "");
    sl_free(text);
}

static void manual_escapes_and_parts_sentences(void **s)
{
    (void)s;
    char *text = said("--manual");
    assert_ptr_equal(strstr(text, ".Dd November 30, 2026\n.Dt SLUICE-TEST 8\n.Os\n.Sh NAME\n"), text);
    assert_non_null(strstr(
        text, "\nFirst paragraph.\nSecond sentence.\n.Pp\n\\&.Not a macro\n.Bd -literal -offset indent\n"
              "literal \\en\n.Ed\n"));
    assert_non_null(strstr(
        text,
        ".It Ic log_level\nwhat is logged\n.br\nExpected: text; default: info; read anew at a reload.\n"));
    assert_non_null(strstr(text, ".It Fl -check-config\n"));
    assert_null(strstr(text, "fault_x"));
    sl_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(example_has_every_key_and_loads),
        cmocka_unit_test(help_and_version_are_told),
        cmocka_unit_test(manual_escapes_and_parts_sentences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
