/* tests/unit/router/ctl/test_ctl.c - the command line, help, tables and JSON of sluicectl, and its exit
 * codes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
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
    size_t len = strcspn(text, "\n#|`;)&<>");
    snprintf(line, sizeof line, "%.*s%s", (int)(len < 200 ? len : 200), text, prose ? " --help" : "");
    if (parse(&c, &why, line) != SL_OK)
        fail_msg("%s: 'sluicectl %s' is not understood: %s", file, line, why.text);
}

static void commands_in_the_documents_parse(void **s)
{
    (void)s;
    static const char *const files[] = {"README.md",      "docs/operations.md", "docs/models.md",
                                        "docs/faults.md", "docs/benchmarks.md", "docs/protocol.md"};
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

/* Tables of words: rows and columns are parted by newlines and commas. */
static Sluice__AdminTable *words_table(const char *title, const char *text)
{
    Sluice__AdminTable *t = sl_xcalloc(1, sizeof *t);
    sluice__admin_table__init(t);
    t->title = sl_xstrdup(title);
    char *copy = sl_xstrdup(text), *rest = copy, *line;
    while ((line = strsep(&rest, "\n")) != NULL && *line) {
        char **list = sl_xcalloc(32, sizeof *list), *word;
        size_t n = 0;
        while ((word = strsep(&line, ",")) != NULL)
            list[n++] = sl_xstrdup(word);
        if (!t->columns) {
            t->columns = list;
            t->n_columns = n;
            continue;
        }
        Sluice__AdminRow *r = sl_xcalloc(1, sizeof *r);
        sluice__admin_row__init(r);
        r->cells = list;
        r->n_cells = n;
        t->rows = sl_xrealloc(t->rows, (t->n_rows + 1) * sizeof *t->rows);
        t->rows[t->n_rows++] = r;
    }
    sl_free(copy);
    return t;
}

static void words_free(Sluice__AdminTable *t)
{
    for (size_t i = 0; i < t->n_columns; i++)
        sl_free(t->columns[i]);
    sl_free(t->columns);
    for (size_t r = 0; r < t->n_rows; r++) {
        for (size_t i = 0; i < t->rows[r]->n_cells; i++)
            sl_free(t->rows[r]->cells[i]);
        sl_free(t->rows[r]->cells);
        sl_free(t->rows[r]);
    }
    sl_free(t->rows);
    sl_free(t->title);
    sl_free(t);
}

static void print_chrome(FILE *f)
{
    sl_ctl_print_chrome(&reply, f);
}

static void trace_for_perfetto_has_a_lane_per_node_and_a_step_per_token(void **s)
{
    (void)s;
    Sluice__AdminTable *tables[] = {
        words_table("trace", "at_ms,ms,lane,part,what,detail\n0.000,30.5,router,request,request,x\"y\n"
                             "1.250,-,router,queue,placed,pd\n2.000,10.000,p0,prefill,chunk,64 tokens\n"
                             "14.000,16.000,d0,decode,decode,2 tokens\n"),
        words_table("tokens", "token,token_at_ms,gap_ms\n0,14.000,0.000\n1,20.000,6.000\n2,30.000,10.000\n")};
    sluice__admin_reply__init(&reply);
    reply.tables = tables;
    reply.n_tables = 2;
    char *text = written(print_chrome);
    static const char *const parts[] = {
        "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"process_"
        "name\",\"args\":{"
        "\"name\":\"router\"}},\n",
        "{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"name\":\"request\",\"cat\":\"request\",\"ts\":0,\"dur\":30500,"
        "\"args\":{\"detail\":\"x\\"
        "\"y\"}}",
        "{\"ph\":\"i\",\"pid\":1,\"tid\":2,\"name\":\"placed\",\"cat\":\"queue\",\"ts\":1250,\"s\":\"t\"",
        "{\"ph\":\"X\",\"pid\":2,\"tid\":3,\"name\":\"chunk\",\"cat\":\"prefill\",\"ts\":2000,\"dur\":10000",
        "{\"ph\":\"X\",\"pid\":3,\"tid\":4,\"name\":\"step\",\"cat\":\"decode\",\"ts\":14000,\"dur\":6000",
        "{\"ph\":\"X\",\"pid\":3,\"tid\":4,\"name\":\"step\",\"cat\":\"decode\",\"ts\":20000,\"dur\":10000,"
        "\"args\":{\"detail\":\"token "
        "2\"}}\n]}\n"};
    for (size_t i = 0; i < SL_COUNTOF(parts); i++)
        if (!strstr(text, parts[i]))
            fail_msg("no %s in %s", parts[i], text);
    assert_null(strstr(text, "\"decode\",\"cat\"")); /* the steps stand for it */
    sl_free(text);
    words_free(tables[0]);
    words_free(tables[1]);
}

/* A router that top asks, until it is told to end. */
struct shown {
    struct sl_queue *questions;
    _Atomic bool over;
    unsigned rounds;
};

static void answer_top(void *arg)
{
    struct shown *w = arg;
    Sluice__AdminTable *tables[] = {
        words_table("problems", "level,problem,do\nwarning,Node d1 is dead.,look\n"),
        words_table(
            "nodes",
            "node,boot,state,prefers,running,waiting,rows,queued_tokens,pages_free,pages,prompt_tokens,"
            "decode_tokens\na-node-with-a-name-that-is-long\x1b[2J,01,up,decode,3,0,3,123456789,25,100,1000,"
            "50\n"),
        words_table(
            "requests",
            "id,state,mode,P,D,tokens,age\nchatcmpl-0123456789abcdef-1ffff,streaming,hybrid,prefill-0,decode-"
            "0,1234567,10.5s\n")};
    while (!w->over) {
        struct sl_wire_in *in = sl_queue_pop(w->questions);
        if (!in) {
            sl_queue_wait(w->questions, 20);
            continue;
        }
        const char *op = in->msg->admin->op;
        Sluice__AdminReply m = SLUICE__ADMIN_REPLY__INIT;
        Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
        m.text = (char *)"Ready: mode hybrid, 1 of 2 nodes up, 1 requests open, 1 warning.";
        m.tables = &tables[strcmp(op, "status") == 0 ? 0 : strcmp(op, "nodes") == 0 ? 1 : 2];
        m.n_tables = 1;
        e.body_case = SLUICE__ENVELOPE__BODY_ADMIN_REPLY;
        e.admin_reply = &m;
        w->rounds += m.tables == &tables[2];
        sl_wire_reply(in, &e);
    }
    for (size_t i = 0; i < SL_COUNTOF(tables); i++)
        words_free(tables[i]);
}

/* Runs top with a terminal of 80 columns and 24 lines on both sides; q is typed at once. Returns what it drew. */
static size_t run_top_on_a_terminal(const struct sl_ctl_call *call, char *drawn, size_t size)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY), in = dup(STDIN_FILENO), out = dup(STDOUT_FILENO);
    assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    struct winsize w = {.ws_row = 24, .ws_col = 80};
    assert_true(slave >= 0 && ioctl(slave, TIOCSWINSZ, &w) == 0);
    assert_int_equal(write(master, "xq", 2), 2);
    fflush(stdout);
    dup2(slave, STDIN_FILENO);
    dup2(slave, STDOUT_FILENO);
    enum sl_ctl_exit code = call->command->run(call);
    fflush(stdout);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    /* a terminal gives what was written to it in parts, and a little later */
    size_t n = 0;
    drawn[0] = '\0';
    while (n + 1 < size && !strstr(drawn, "\033[?1049l")) {
        ssize_t got = read(master, drawn + n, size - 1 - n);
        assert_true(got > 0);
        n += (size_t)got;
        drawn[n] = '\0';
    }
    close(in);
    close(out);
    close(slave);
    close(master);
    assert_int_equal(code, SL_CTL_OK);
    return n;
}

static void top_fits_80_columns_and_ends_at_q(void **s)
{
    (void)s;
    struct shown w = {.questions = sl_queue_new(8)};
    struct sl_wire_server *server;
    struct sl_thread t = {0};
    struct sl_ctl_call c;
    struct sl_why why;
    static char drawn[65536];
    assert_int_equal(sl_wire_server_open("inproc://ctl-top", NULL, 2, w.questions, 0, &server, NULL), SL_OK);
    assert_int_equal(sl_thread_start(&t, "router", answer_top, &w), SL_OK);
    assert_int_equal(parse(&c, &why, "top --router inproc://ctl-top -t 60 -w 3600"), SL_OK);
    run_top_on_a_terminal(&c, drawn, sizeof drawn);
    atomic_store(&w.over, true);
    sl_thread_join(&t);
    sl_wire_server_close(server);
    sl_queue_free(w.questions);
    assert_int_equal(w.rounds, 1); /* an hour's wait was cut short by the key */
    static const char *const parts[] = {"1 of 2 nodes up",
                                        "warning: Node d1 is dead.",
                                        "a-node-with-a-n up",
                                        "75%",
                                        "chatcmpl-0123456789abcdef-1ff streaming",
                                        "\033[?25h\033[?1049l"};
    for (size_t i = 0; i < SL_COUNTOF(parts); i++)
        if (!strstr(drawn, parts[i]))
            fail_msg("no '%s' in '%s'", parts[i], drawn);
    for (char *line = strstr(drawn, "\033[H") + 3, *end; (end = strstr(line, "\033[K")) != NULL;
         line = end + 5)
        if (end - line > 80)
            fail_msg("%ld columns: %.*s", (long)(end - line), (int)(end - line), line);
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
        cmocka_unit_test(trace_for_perfetto_has_a_lane_per_node_and_a_step_per_token),
        cmocka_unit_test(top_fits_80_columns_and_ends_at_q),
        cmocka_unit_test(exit_code_tells_what_happened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
