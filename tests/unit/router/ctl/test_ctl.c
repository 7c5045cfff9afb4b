/* tests/unit/router/ctl/test_ctl.c - the command line, help, tables and JSON of sluicectl, and its exit
 * codes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/wire/wire_sock.h"
#include "router/ctl/ctl.h"

static enum sl_err parse(struct sl_ctl_call *c, struct sl_why *why, const char *line)
{
    static char copy[256];
    char *argv[16] = {(char *)"sluicectl"};
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *p = copy, *word; (word = strsep(&p, " ")) != NULL;)
        if (*word)
            argv[argc++] = word;
    memset(why, 0, sizeof *why);
    return sl_ctl_parse(argc, argv, c, why);
}

static void parse_options_before_and_after_the_command(void **s)
{
    (void)s;
    struct sl_ctl_call c;
    struct sl_why why;
    unsetenv("SLUICE_ROUTER");
    assert_int_equal(parse(&c, &why, "status"), SL_OK);
    assert_string_equal(c.command->name, "status");
    assert_string_equal(c.router, SL_CTL_ROUTER);
    assert_int_equal(c.timeout_ms, 5000);
    assert_int_equal(parse(&c, &why, "-o json explain --timeout=0.25 last --router tcp://h:1"), SL_OK);
    assert_int_equal(c.format, SL_CTL_JSON);
    assert_int_equal(c.timeout_ms, 250);
    assert_string_equal(c.router, "tcp://h:1");
    assert_int_equal(c.n_args, 1);
    assert_string_equal(c.args[0], "last");
    setenv("SLUICE_ROUTER", "tcp://env:2", 1);
    assert_int_equal(parse(&c, &why, "nodes -w2 --no-headers"), SL_OK);
    assert_string_equal(c.router, "tcp://env:2");
    assert_int_equal(c.watch_s, 2);
    assert_true(c.no_headers);
    unsetenv("SLUICE_ROUTER");
    assert_int_equal(parse(&c, &why, "cancel -- -odd-id"), SL_OK);
    assert_string_equal(c.args[0], "-odd-id");
    assert_int_equal(parse(&c, &why, "drain --help"), SL_OK);
    assert_true(c.help && c.command);
    assert_int_equal(parse(&c, &why, "help drain"), SL_OK);
    assert_true(c.help && c.command);
    assert_int_equal(parse(&c, &why, "node -o yaml drain d0"), SL_OK);
    assert_string_equal(c.command->name, "node drain");
    assert_int_equal(c.n_args, 1);
    assert_string_equal(c.args[0], "d0");
    assert_int_equal(c.format, SL_CTL_YAML);
    assert_int_equal(parse(&c, &why, "events -f"), SL_OK);
    assert_true(c.follow);
}

static void parse_wrong_lines_are_refused_in_words(void **s)
{
    (void)s;
    static const struct {
        const char *line, *word;
    } rows[] = {
        {"", "No command"},
        {"dance", "dance"},
        {"status extra", "Usage"},
        {"drain", "NODE"},
        {"-o xml status", "xml"},
        {"status --odd", "--odd"},
        {"status -t", "--timeout"},
        {"status -t abc", "abc"},
        {"status -t -1", "-1"},
        {"mode pd -w 1", "--watch"},
        {"status --help=yes", "no value"},
        {"node", "node drain"},
        {"node dance d0", "node show"},
        {"nodes --follow", "events"},
    };
    for (size_t i = 0; i < SL_COUNTOF(rows); i++) {
        struct sl_ctl_call c;
        struct sl_why why;
        assert_int_equal(parse(&c, &why, rows[i].line), SL_EINVAL);
        if (!strstr(why.text, rows[i].word))
            fail_msg("'%s': %s", rows[i].line, why.text);
    }
}

static char *written(void (*fn)(FILE *))
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    fn(f);
    fclose(f);
    return text;
}

static void help_names_every_command_and_option(void **s)
{
    (void)s;
    char *text = written(sl_ctl_help);
    for (const struct sl_ctl_command *c = sl_ctl_commands; c->name; c++)
        assert_non_null(strstr(text, c->name));
    for (const struct sl_ctl_option *o = sl_ctl_options; o->name; o++)
        assert_non_null(strstr(text, o->name));
    assert_non_null(strstr(text, "Exit codes"));
    sl_free(text);
}

/* A line end, an escape in one byte (C1) and in two characters, a mark that turns the direction, and half a
 * character. */
static char *cells[] = {(char *)"a\"b\\", (char *)"x\ny",
                        (char *)"\xc3\xa9\xc2\x9b\x1b[2J\xe2\x80\xae\xf0\x9f\x98\x80\xf3\xa0\x80\x81\xc3"};
static char *short_cells[] = {(char *)"1", (char *)"22"};

static void fill(Sluice__AdminReply *r, Sluice__AdminTable *t, Sluice__AdminRow *rows)
{
    static char *columns[] = {(char *)"node", (char *)"boot", (char *)"rows"};
    static Sluice__AdminTable *tables[1];
    static Sluice__AdminRow *list[2];
    sluice__admin_reply__init(r);
    sluice__admin_table__init(t);
    for (int i = 0; i < 2; i++) {
        sluice__admin_row__init(&rows[i]);
        list[i] = &rows[i];
    }
    rows[0].cells = cells;
    rows[0].n_cells = 3;
    rows[1].cells = short_cells;
    rows[1].n_cells = 2;
    t->title = (char *)"t";
    t->columns = columns;
    t->n_columns = 3;
    t->rows = list;
    t->n_rows = 2;
    tables[0] = t;
    r->tables = tables;
    r->n_tables = 1;
    r->text = (char *)"A sentence.";
}

static const char *hidden_columns;
static bool with_headers;
static Sluice__AdminReply reply;

static void print_tables(FILE *f)
{
    sl_ctl_print_tables(&reply, hidden_columns, with_headers, f);
}

static void print_json(FILE *f)
{
    sl_ctl_print_json(&reply, f);
}

static void table_is_aligned_and_control_bytes_are_kept_from_the_terminal(void **s)
{
    (void)s;
    Sluice__AdminTable t;
    Sluice__AdminRow rows[2];
    fill(&reply, &t, rows);
    with_headers = true;
    char *text = written(print_tables);
    assert_string_equal(text, "A sentence.\n\n"
                              "NODE  BOOT  ROWS\n"
                              "a\"b\\  x?y   \xc3\xa9??[2J?\xf0\x9f\x98\x80??\n"
                              "1     22    -\n");
    sl_free(text);
    hidden_columns = "boot,other";
    with_headers = false;
    text = written(print_tables);
    assert_string_equal(text, "A sentence.\n\na\"b\\  \xc3\xa9??[2J?\xf0\x9f\x98\x80??\n1     -\n");
    sl_free(text);
    hidden_columns = NULL;
}

static void json_is_escaped(void **s)
{
    (void)s;
    Sluice__AdminTable t;
    Sluice__AdminRow rows[2];
    fill(&reply, &t, rows);
    reply.code = SL_ENOTFOUND;
    char *text = written(print_json);
    assert_string_equal(text,
                        "{\"code\":\"ENOTFOUND\",\"text\":\"A "
                        "sentence.\",\"tables\":[{\"title\":\"t\",\"columns\":[\"node\",\"boot\","
                        "\"rows\"],\"rows\":[[\"a\\\"b\\\\\",\"x\\ny\",\"\xc3\xa9\\u009b\\u001b[2J\\u202e"
                        "\xf0\x9f\x98\x80\\udb40\\udc01\\ufffd\"],[\"1\",\"22\"]]}]}\n");
    sl_free(text);
}

static void print_yaml(FILE *f)
{
    sl_ctl_print_yaml(&reply, f);
}

static void yaml_has_the_shape_of_json(void **s)
{
    (void)s;
    Sluice__AdminTable t;
    Sluice__AdminRow rows[2];
    fill(&reply, &t, rows);
    char *text = written(print_yaml);
    assert_string_equal(text, "---\ncode: \"OK\"\ntext: \"A sentence.\"\ntables:\n- title: \"t\"\n"
                              "  columns: [\"node\",\"boot\",\"rows\"]\n  rows:\n"
                              "  - [\"a\\\"b\\\\\",\"x\\ny\",\"\xc3\xa9\\u009b\\u001b[2J\\u202e"
                              "\xf0\x9f\x98\x80\\udb40\\udc01\\ufffd\"]\n  - [\"1\",\"22\"]\n");
    sl_free(text);
}

/* The words of one command of a document, up to what belongs to the shell. Prose may name a command without its
 * arguments. */
static void expect_parses(const char *file, const char *text, bool prose)
{
    struct sl_ctl_call c;
    struct sl_why why;
    char line[256];
    size_t len = strcspn(text, "\n#|`;)&>");
    snprintf(line, sizeof line, "%.*s%s", (int)(len < 200 ? len : 200), text, prose ? " --help" : "");
    if (parse(&c, &why, line) != SL_OK)
        fail_msg("%s: 'sluicectl %s' is not understood: %s", file, line, why.text);
}

static void commands_in_the_documents_parse(void **s)
{
    (void)s;
    static const char *const files[] = {"README.md", "docs/operations.md", "docs/models.md", "docs/faults.md",
                                        "docs/benchmarks.md"};
    size_t n_found = 0;
    for (size_t i = 0; i < SL_COUNTOF(files); i++) {
        char path[512], line[4096];
        snprintf(path, sizeof path, "%s/%s", SL_ROOT, files[i]);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        while (fgets(line, sizeof line, f)) {
            bool code = strncmp(line, "    ", 4) == 0;
            for (char *p = line; (p = strstr(p, "sluicectl ")) != NULL; p += 10) {
                /* prose names the program without a command; a command in prose stands between accents */
                if (p[10] == '-' || (p > line && p[-1] == '`') || (code && (p == line + 4 || p[-1] == ' '))) {
                    expect_parses(files[i], p + 10, !code);
                    n_found++;
                }
            }
        }
        fclose(f);
    }
    assert_true(n_found > 10);
}

static void run_completion(FILE *f)
{
    char *argv[] = {(char *)"sluicectl", (char *)"completion", (char *)"bash", NULL};
    struct sl_ctl_call c;
    struct sl_why why;
    assert_int_equal(sl_ctl_parse(3, argv, &c, &why), SL_OK);
    fflush(stdout);
    int out = dup(STDOUT_FILENO);
    FILE *to = tmpfile();
    dup2(fileno(to), STDOUT_FILENO);
    assert_int_equal(c.command->run(&c), SL_CTL_OK);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    close(out);
    rewind(to);
    for (int ch; (ch = fgetc(to)) != EOF;)
        fputc(ch, f);
    fclose(to);
}

/* What bash offers for a line that ends in its last word; nodes are played by a function. */
static void expect_offer(const char *line, const char *expected)
{
    char *script = written(run_completion);
    FILE *f = fopen("complete.sh", "w");
    assert_non_null(f);
    fprintf(f,
            "%s\nsluicectl() { printf 'p0 up\\n$(touch hacked) up\\nd;0 up\\n'; }\n"
            "COMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _sluicectl; printf '%%s ' "
            "\"${COMPREPLY[@]}\"\n",
            script, line);
    fclose(f);
    sl_free(script);
    FILE *p = popen("bash complete.sh", "r");
    char got[4096] = "";
    assert_non_null(p);
    size_t n = fread(got, 1, sizeof got - 1, p);
    got[n] = '\0';
    assert_int_equal(pclose(p), 0);
    if (!strstr(got, expected))
        fail_msg("'%s' offers '%s', not '%s'", line, got, expected);
}

static void completion_offers_what_fits_and_runs_nothing(void **s)
{
    (void)s;
    char dir[] = "/tmp/sluice-ctl-XXXXXX";
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chdir(dir), 0);
    expect_offer("sluicectl sta", "status ");
    expect_offer("sluicectl node ''", "show drain undrain ");
    expect_offer("sluicectl mode c", "colocated ");
    expect_offer("sluicectl -o y", "yaml ");
    expect_offer("sluicectl node drain ''", "p0 \\$\\(touch d\\;0 ");
    expect_offer("sluicectl drain p", "p0 ");
    assert_int_not_equal(access("hacked", F_OK), 0);
    assert_int_equal(unlink("complete.sh"), 0);
    assert_int_equal(chdir("/"), 0);
    rmdir(dir);
}

/* A router that answers one question with a code. */
static void answer(struct sl_queue *q, enum sl_err code)
{
    struct sl_wire_in *in;
    while ((in = sl_queue_pop(q)) == NULL)
        sl_queue_wait(q, 100);
    assert_int_equal(in->msg->body_case, SLUICE__ENVELOPE__BODY_ADMIN);
    assert_string_equal(in->msg->admin->op, "cancel");
    assert_string_equal(in->msg->admin->args[0], "r-1");
    Sluice__AdminReply m = SLUICE__ADMIN_REPLY__INIT;
    m.code = code;
    m.text = (char *)"Said the test.";
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_ADMIN_REPLY;
    e.admin_reply = &m;
    sl_wire_reply(in, &e);
}

struct run {
    struct sl_ctl_call *call;
    enum sl_ctl_exit code;
};

static void run_command(void *arg)
{
    struct run *r = arg;
    r->code = r->call->command->run(r->call);
}

static void exit_code_tells_what_happened(void **s)
{
    (void)s;
    struct sl_queue *q = sl_queue_new(4);
    struct sl_wire_server *server;
    assert_int_equal(sl_wire_server_open("inproc://ctl-test", NULL, 2, q, 0, &server, NULL), SL_OK);
    static const enum sl_err codes[] = {SL_OK, SL_ENOTFOUND};
    static const enum sl_ctl_exit exits[] = {SL_CTL_OK, SL_CTL_REFUSED};
    struct sl_ctl_call c;
    struct sl_why why;
    assert_int_equal(parse(&c, &why, "cancel r-1 --router inproc://ctl-test -t 60"), SL_OK);
    for (int i = 0; i < 2; i++) {
        struct run r = {.call = &c};
        struct sl_thread t = {0};
        assert_int_equal(sl_thread_start(&t, "ctl", run_command, &r), SL_OK);
        answer(q, codes[i]);
        sl_thread_join(&t);
        assert_int_equal(r.code, exits[i]);
    }
    sl_wire_server_close(server);
    sl_queue_free(q);
    assert_int_equal(parse(&c, &why, "status --router ipc:///nowhere/at/all.sock -t 0.2"), SL_OK);
    assert_int_equal(c.command->run(&c), SL_CTL_UNREACHABLE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parse_options_before_and_after_the_command),
        cmocka_unit_test(parse_wrong_lines_are_refused_in_words),
        cmocka_unit_test(help_names_every_command_and_option),
        cmocka_unit_test(table_is_aligned_and_control_bytes_are_kept_from_the_terminal),
        cmocka_unit_test(json_is_escaped),
        cmocka_unit_test(yaml_has_the_shape_of_json),
        cmocka_unit_test(commands_in_the_documents_parse),
        cmocka_unit_test(completion_offers_what_fits_and_runs_nothing),
        cmocka_unit_test(exit_code_tells_what_happened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
