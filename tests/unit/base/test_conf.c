/* Sources, types, ranges and refusals of common/base/conf. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#include "common/base/conf.h"
#include "common/base/mem.h"
#include "tests/support/support.h"

struct target {
    char *name, *empty;
    struct sl_conf_list peers;
    uint32_t threads, any;
    uint64_t big;
    int32_t level;
    double ratio;
    bool exact;
    uint64_t kv_memory;
    int mode;
};

static const char *const modes[] = {"pd", "colocated", "hybrid", NULL};

static const struct sl_conf_opt opts[] = {
    {"name", SL_CONF_STRING, offsetof(struct target, name), "d0", "Name of the node", 0, 0, NULL},
    {"empty", SL_CONF_STRING, offsetof(struct target, empty), NULL, "Nothing", 0, 0, NULL},
    {"peers", SL_CONF_LIST, offsetof(struct target, peers), "a,b", "Peers", 0, 0, NULL},
    {"threads", SL_CONF_U32, offsetof(struct target, threads), "2", "Threads", 1, 64, NULL},
    {"any", SL_CONF_U32, offsetof(struct target, any), "0", "Any", 0, 0, NULL},
    {"big", SL_CONF_U64, offsetof(struct target, big), NULL, "Anything", 0, 0, NULL},
    {"level", SL_CONF_I32, offsetof(struct target, level), "-3", "Level", -10, 10, NULL},
    {"ratio", SL_CONF_F64, offsetof(struct target, ratio), "0.5", "Ratio", 0, 1, NULL},
    {"exact", SL_CONF_BOOL, offsetof(struct target, exact), "true", "Exact", 0, 0, NULL},
    {"kv_memory", SL_CONF_BYTES, offsetof(struct target, kv_memory), "64M", "Bytes of KV", 0, 0, NULL},
    {"mode", SL_CONF_ENUM, offsetof(struct target, mode), "hybrid", "Mode", 0, 0, modes},
    {0},
};

/* Loads file text (NULL = none) and up to 8 arguments. */
static enum sl_err load(struct target *t, struct sl_why *why, const char *file, const char *const *args)
{
    char *argv[9] = {sl_xstrdup("program")};
    int argc = 1;
    for (; args && args[argc - 1]; argc++)
        argv[argc] = sl_xstrdup(args[argc - 1]);
    char *path = file ? sl_test_temp_file(file, strlen(file)) : NULL;
    *t = (struct target){0};
    *why = (struct sl_why){0};
    enum sl_err err = sl_conf_load(opts, path, argc, argv, t, why);
    if (path) {
        /* the place in front of a message: FILE:LINE */
        char *at = strstr(why->text, path);
        if (at)
            memmove(at, at + strlen(path), strlen(at + strlen(path)) + 1);
        unlink(path);
        sl_free(path);
    }
    for (int i = 0; i < argc; i++)
        sl_free(argv[i]);
    return err;
}

static void load_nothing_gives_the_defaults(void **state)
{
    (void)state;
    struct target t;
    struct sl_why why;
    assert_int_equal(load(&t, &why, NULL, NULL), SL_OK);
    assert_string_equal(t.name, "d0");
    assert_null(t.empty);
    assert_int_equal(t.peers.n, 2);
    assert_string_equal(t.peers.items[1], "b");
    assert_int_equal(t.threads, 2);
    assert_int_equal(t.big, 0);
    assert_int_equal(t.level, -3);
    assert_true(t.ratio == 0.5);
    assert_true(t.exact);
    assert_int_equal(t.kv_memory, 64 << 20);
    assert_int_equal(t.mode, 2);
    sl_conf_fini(opts, &t);
    assert_null(t.name);
    assert_int_equal(t.peers.n, 0);
    sl_conf_fini(opts, &t);
}

static void load_file_replaces_defaults_and_argv_replaces_the_file(void **state)
{
    (void)state;
    struct target t;
    struct sl_why why;
    const char *file = "# a comment\n"
                       "threads = 4\n"
                       "[any section]\n"
                       "name = from file   ; a remark\n"
                       "mode=pd\n"
                       "exact = off\n"
                       "\n"
                       "big = 18446744073709551615\n"
                       "kv_memory = 2g\n"
                       "peers = x , y,,\n"
                       "peers = z\n";
    assert_int_equal(load(&t, &why, file, NULL), SL_OK);
    assert_string_equal(t.name, "from file");
    assert_int_equal(t.threads, 4);
    assert_int_equal(t.mode, 0);
    assert_false(t.exact);
    assert_true(t.big == UINT64_MAX);
    assert_true(t.kv_memory == (uint64_t)2 << 30);
    assert_int_equal(t.peers.n, 3);
    assert_string_equal(t.peers.items[0], "x");
    assert_string_equal(t.peers.items[1], "y");
    assert_string_equal(t.peers.items[2], "z");
    sl_conf_fini(opts, &t);

    static const char *const args[] = {"--name=from argv", "--kv-memory", "100", "--peers", "p",
                                       "--peers=q",        "--level=-10", NULL};
    assert_int_equal(load(&t, &why, file, args), SL_OK);
    assert_string_equal(t.name, "from argv");
    assert_int_equal(t.kv_memory, 100);
    assert_int_equal(t.level, -10);
    assert_int_equal(t.threads, 4);
    assert_int_equal(t.peers.n, 2);
    assert_string_equal(t.peers.items[0], "p");
    assert_string_equal(t.peers.items[1], "q");
    sl_conf_fini(opts, &t);
}

static void load_values_at_the_edges(void **state)
{
    (void)state;
    struct target t;
    struct sl_why why;
    static const struct {
        const char *arg;
        bool ok;
    } table[] = {
        {"--threads=1", true},       {"--threads=64", true},     {"--threads=0", false},
        {"--threads=65", false},     {"--threads=-1", false},    {"--threads=+1", false},
        {"--threads= 1", false},     {"--threads=1x", false},    {"--threads=", false},
        {"--threads=0x10", false},   {"--threads=1.0", false},   {"--threads=4294967297", false},
        {"--threads=1K", false},     {"--level=10", true},       {"--level=11", false},
        {"--level=-11", false},      {"--level=--1", false},     {"--level=4294967296", false},
        {"--level=", false},         {"--ratio=0", true},        {"--ratio=1", true},
        {"--ratio=1e-3", true},      {"--ratio=.5", true},       {"--ratio=1.0001", false},
        {"--ratio=-0.1", false},     {"--ratio=nan", false},     {"--ratio=inf", false},
        {"--ratio=-nan", false},     {"--ratio=0.5x", false},    {"--ratio=", false},
        {"--exact=yes", true},       {"--exact=0", true},        {"--exact=TRUE", false},
        {"--exact=", false},         {"--mode=colocated", true}, {"--mode=Pd", false},
        {"--mode=", false},          {"--kv_memory=0", true},    {"--kv_memory=16T", true},
        {"--kv_memory=1KB", false},  {"--kv_memory=K", false},   {"--kv_memory=16777216T", false},
        {"--kv_memory=1.5G", false}, {"--kv_memory=1P", false},  {"--big=18446744073709551616", false},
        {"--big=1K", false},         {"--any=4294967295", true}, {"--any=4294967296", false},
        {"--name=", true},           {"--peers=", true},
    };
    for (size_t i = 0; i < SL_COUNTOF(table); i++) {
        const char *const args[] = {table[i].arg, NULL};
        enum sl_err err = load(&t, &why, NULL, args);
        if (err != (table[i].ok ? SL_OK : SL_ECONFIG))
            fail_msg("%s: %s", table[i].arg, why.text);
        assert_true((why.text[0] == '\0') == table[i].ok);
        sl_conf_fini(opts, &t);
    }
}

static void load_wrong_file_names_the_line_and_says_what_to_do(void **state)
{
    (void)state;
    char long_line[600] = "name = ";
    memset(long_line + 7, 'x', 500);
    char lists[SL_WHY_MAX + 200] = "\n\npeers = ";
    memset(lists + 10, 'y', 188);
    const struct {
        const char *file, *text;
    } table[] = {
        {"name = a\nthread = 3\n",
         ":2: no option is called \"thread\" (the nearest is threads); --help lists them"},
        {"kv-memroy = 3\n",
         ":1: no option is called \"kv-memroy\" (the nearest is kv_memory); --help lists them"},
        {"zzzz = 3\n", ":1: no option is called \"zzzz\"; --help lists them"},
        {"threads = many\n", ":1: threads is \"many\"; expected a whole number from 1 to 64"},
        {"\n\nmode = fast\n", ":3: mode is \"fast\"; expected one of pd, colocated, hybrid"},
        {"name = a\nnonsense\nthread = 3", ":2: not a line of the form key = value"},
        {"[open\n", ":1: not a line of the form key = value"},
        {"kv_memory = 1.5G", ":1: kv_memory is \"1.5G\"; expected a size such as 64K, 512M or 2G"},
        {"threads = 3\nname = x\nthreads = 4\n",
         ":3: threads is given twice; keep one (a line that begins with a blank continues the one before)"},
        {"name = x\n  threads = 4\n",
         ":2: name is given twice; keep one (a line that begins with a blank continues the one before)"},
        {"threads = bad\nmode = bad\n", ":1: threads is \"bad\"; expected a whole number from 1 to 64"},
        {long_line,
         ":1: the line has 507 bytes; at most 198 are read (a list may be given in several lines)"},
    };
    struct target t;
    struct sl_why why;
    for (size_t i = 0; i < SL_COUNTOF(table); i++) {
        assert_int_equal(load(&t, &why, table[i].file, NULL), SL_ECONFIG);
        assert_string_equal(why.text, table[i].text);
        sl_conf_fini(opts, &t);
    }
    assert_int_equal(load(&t, &why, lists, NULL), SL_OK); /* 196 bytes: the longest line is whole */
    assert_int_equal(strlen(t.peers.items[0]), 188);
    sl_conf_fini(opts, &t);
}

static void load_file_that_cannot_be_read_is_refused(void **state)
{
    (void)state;
    struct target t = {0};
    struct sl_why why = {0};
    assert_int_equal(sl_conf_load(opts, "/nonexistent/file.conf", 0, NULL, &t, &why), SL_ECONFIG);
    assert_non_null(strstr(why.text, "/nonexistent/file.conf"));
    assert_non_null(strstr(why.text, "No such file"));
    sl_conf_fini(opts, &t);
    assert_int_equal(sl_conf_load(opts, "/", 0, NULL, &t, &why), SL_ECONFIG);
    sl_conf_fini(opts, &t);
    char *path = sl_test_temp_file("name = a\0b\n", 11);
    assert_int_equal(sl_conf_load(opts, path, 0, NULL, &t, &why), SL_ECONFIG);
    assert_non_null(strstr(why.text, "not a text file"));
    sl_conf_fini(opts, &t);
    unlink(path);
    sl_free(path);
    char *big = sl_xalloc((1 << 20) + 1);
    memset(big, '\n', (1 << 20) + 1);
    path = sl_test_temp_file(big, (1 << 20) + 1);
    assert_int_equal(sl_conf_load(opts, path, 0, NULL, &t, &why), SL_ECONFIG);
    assert_non_null(strstr(why.text, "larger than 1 MiB"));
    sl_conf_fini(opts, &t);
    unlink(path);
    sl_free(path);
    sl_free(big);
}

static void load_words_behind_a_list_are_its_items_and_a_bare_bool_is_true(void **state)
{
    (void)state;
    struct target t;
    struct sl_why why;
    static const char *const words[] = {"--peers", "x,y", "z", "--exact", "--any", "7", NULL};
    assert_int_equal(load(&t, &why, "exact = false\n", words), SL_OK);
    assert_int_equal(t.peers.n, 3);
    assert_string_equal(t.peers.items[2], "z");
    assert_true(t.exact);
    assert_int_equal(t.any, 7);
    sl_conf_fini(opts, &t);
    static const char *const last[] = {"--exact=false", "--peers=q", "r", NULL};
    assert_int_equal(load(&t, &why, NULL, last), SL_OK);
    assert_int_equal(t.peers.n, 2);
    assert_false(t.exact);
    sl_conf_fini(opts, &t);
    static const char *const wrong[] = {"--exact", "maybe", NULL};
    assert_int_equal(load(&t, &why, NULL, wrong), SL_ECONFIG);
    sl_conf_fini(opts, &t);
}

static void load_wrong_command_lines_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *args[3];
        const char *text;
    } table[] = {
        {{"word"}, "\"word\" on the command line is no option; options are --key=value"},
        {{"-x"}, "\"-x\" on the command line is no option; options are --key=value"},
        {{"--"}, "\"--\" on the command line is no option; options are --key=value"},
        {{"--thread=3"}, "no option is called --thread (the nearest is threads); --help lists them"},
        {{"--threadsx=3"}, "no option is called --threadsx (the nearest is threads); --help lists them"},
        {{"--threads"}, "--threads needs a value"},
        {{"--threads=3", "word"}, "\"word\" on the command line is no option; options are --key=value"},
        {{"--threads=99"}, "command line: threads is \"99\"; expected a whole number from 1 to 64"},
        {{"--config"}, "--config needs a value"},
    };
    struct target t;
    struct sl_why why;
    for (size_t i = 0; i < SL_COUNTOF(table); i++) {
        assert_int_equal(load(&t, &why, NULL, table[i].args), SL_ECONFIG);
        assert_string_equal(why.text, table[i].text);
        sl_conf_fini(opts, &t);
    }
}

static void config_argument_is_found_and_skipped(void **state)
{
    (void)state;
    char *argv[] = {"program", "--name=x", "--config", "a.conf", NULL};
    assert_string_equal(sl_conf_file_arg(4, argv), "a.conf");
    assert_null(sl_conf_file_arg(3, argv));
    assert_null(sl_conf_file_arg(2, argv));
    char *joined[] = {"program", "--config=b.conf"};
    assert_string_equal(sl_conf_file_arg(2, joined), "b.conf");
    struct target t = {0};
    struct sl_why why = {0};
    assert_int_equal(sl_conf_load(opts, NULL, 4, argv, &t, &why), SL_OK);
    assert_string_equal(t.name, "x");
    sl_conf_fini(opts, &t);
    char *check[] = {"program", "--check-config", "--name=x"};
    assert_true(sl_conf_check_arg(3, check));
    assert_false(sl_conf_check_arg(4, argv));
    memset(&t, 0, sizeof t);
    assert_int_equal(sl_conf_load(opts, NULL, 3, check, &t, &why), SL_OK);
    assert_string_equal(t.name, "x");
    sl_conf_fini(opts, &t);
}

static char *written(void (*write_table)(FILE *))
{
    char *path = sl_test_temp_file("", 0);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    write_table(f);
    assert_int_equal(fclose(f), 0);
    char *text = sl_test_read_file(path, NULL);
    unlink(path);
    sl_free(path);
    return text;
}

static void write_help(FILE *f)
{
    sl_conf_help(opts, f);
}

static void help_names_every_option_with_its_default(void **state)
{
    (void)state;
    char *text = written(write_help);
    assert_non_null(strstr(
        text, "  --kv-memory=VALUE\n      Bytes of KV\n      a size such as 64K, 512M or 2G; default 64M\n"));
    assert_non_null(
        strstr(text, "  --threads=VALUE\n      Threads\n      a whole number from 1 to 64; default 2\n"));
    assert_non_null(strstr(text, "one of pd, colocated, hybrid; default hybrid\n"));
    assert_non_null(strstr(text, "--config=FILE"));
    sl_free(text);
}

static void same_compares_values_of_every_type(void **state)
{
    (void)state;
    struct target a, b;
    struct sl_why why;
    for (const struct sl_conf_opt *o = opts; o->key; o++) {
        assert_int_equal(load(&a, &why, NULL, NULL), SL_OK);
        assert_int_equal(load(&b, &why, NULL, NULL), SL_OK);
        assert_true(sl_conf_same(o, &a, &b));
        if (o->type == SL_CONF_STRING) {
            char **text = (char **)((char *)&b + o->offset);
            sl_free(*text);
            *text = sl_xstrdup("other");
        } else if (o->type == SL_CONF_LIST) {
            struct sl_conf_list *list = (struct sl_conf_list *)((char *)&b + o->offset);
            sl_free(list->items[--list->n]);
        } else {
            *((char *)&b + o->offset) ^= 1;
        }
        assert_false(sl_conf_same(o, &a, &b));
        sl_conf_fini(opts, &a);
        sl_conf_fini(opts, &b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(load_nothing_gives_the_defaults),
        cmocka_unit_test(load_file_replaces_defaults_and_argv_replaces_the_file),
        cmocka_unit_test(load_values_at_the_edges),
        cmocka_unit_test(load_wrong_file_names_the_line_and_says_what_to_do),
        cmocka_unit_test(load_file_that_cannot_be_read_is_refused),
        cmocka_unit_test(load_words_behind_a_list_are_its_items_and_a_bare_bool_is_true),
        cmocka_unit_test(load_wrong_command_lines_are_refused),
        cmocka_unit_test(config_argument_is_found_and_skipped),
        cmocka_unit_test(help_names_every_option_with_its_default),
        cmocka_unit_test(same_compares_values_of_every_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
