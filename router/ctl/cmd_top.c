/* router/ctl/cmd_top.c - the cluster live on one screen: three questions a round, drawn anew. Fits 80 columns
 * and as many lines as there are; what does not fit is counted. */
#include "router/ctl/ctl.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/wire/wire_sock.h"

#define COLUMNS     80u
#define MAX_BYTES   (1u << 20)             /* of a screen */
#define PROBLEMS    4u                     /* shown; status has all */
#define SCREEN_ON   "\033[?1049h\033[?25l" /* the other screen, no cursor */
#define SCREEN_OFF  "\033[?25h\033[?1049l"
#define REDRAW      "\033[H"
#define END_OF_LINE "\033[K\n"
#define CLEAR_REST  "\033[J"

enum question { STATUS, NODES, REQUESTS, N_QUESTIONS };

struct screen {
    struct sl_buf text;
    size_t columns, lines, used;
    bool terminal;
};

struct look { /* what the cluster said in one round */
    Sluice__Envelope *answers[N_QUESTIONS];
    uint64_t at_us;
    struct sl_why why;
};

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
    (void)number;
    stopped = 1;
}

static void look_free(struct look *l)
{
    for (int i = 0; i < N_QUESTIONS; i++)
        sl_wire_free(l->answers[i]);
    *l = (struct look){0};
}

static enum sl_ctl_exit look(const struct sl_ctl_call *call, struct look *out)
{
    static const char *const ops[] = {"status", "nodes", "requests"};
    static const char *const none[] = {"0"};
    enum sl_ctl_exit code = SL_CTL_OK;
    for (int i = 0; i < N_QUESTIONS && code == SL_CTL_OK; i++)
        code = sl_ctl_question(call, ops[i], none, i == REQUESTS, &out->answers[i], &out->why);
    out->at_us = sl_now_us();
    return code;
}

static void line(struct screen *s, const char *text)
{
    char fit[1024];
    if (s->used >= s->lines)
        return;
    sl_ctl_clean(text, s->columns, fit, sizeof fit);
    sl_buf_puts(&s->text, fit);
    sl_buf_puts(&s->text, s->terminal ? END_OF_LINE : "\n");
    s->used++;
}

/* Appends cell, cut or filled to n columns; right: numbers. */
static void cell(char *row, size_t size, const char *text, size_t n, bool right)
{
    char fit[256];
    size_t at = strlen(row), w = sl_ctl_clean(text, n, fit, sizeof fit), gap = at ? 1 : 0;
    snprintf(row + at, size - at, "%*s%*s%s%*s", (int)gap, "", right ? (int)(n - w) : 0, "", fit,
             right ? 0 : (int)(n - w), "");
}

struct column {
    const char *title, *name; /* name NULL: made here */
    size_t columns;
    bool right;
};
static const struct column node_columns[] = {{"NODE", "node", 15, false},
                                             {"STATE", "state", 8, false},
                                             {"DUTY", "prefers", 7, false},
                                             {"RUN", "running", 4, true},
                                             {"WAIT", "waiting", 4, true},
                                             {"ROWS", "rows", 4, true},
                                             {"QUEUED", "queued_tokens", 7, true},
                                             {"PAGES", NULL, 5, true},
                                             {"PROMPT/S", "prompt_tokens", 8, true},
                                             {"DECODE/S", "decode_tokens", 8, true}};
static const struct column request_columns[] = {{"REQUEST", "id", 29, false}, {"STATE", "state", 9, false},
                                                {"MODE", "mode", 9, false},   {"P", "P", 7, false},
                                                {"D", "D", 7, false},         {"TOKENS", "tokens", 6, true},
                                                {"AGE", "age", 7, true}};

static void heads(struct screen *s, const struct column *c, size_t n)
{
    char row[512] = "";
    for (size_t i = 0; i < n; i++)
        cell(row, sizeof row, c[i].title, c[i].columns, c[i].right);
    line(s, "");
    line(s, row);
}

static double number(const Sluice__AdminTable *t, size_t row, const char *column)
{
    return strtod(sl_ctl_cell(t, row, column), NULL); /* "-" is 0 */
}

/* Of a counter of the same life of the node in the look before; -1 = not known yet. */
static double per_second(const struct look *now, const struct look *before, size_t row, const char *column)
{
    const Sluice__AdminTable *t = sl_ctl_table(now->answers[NODES]->admin_reply, "nodes");
    const Sluice__AdminTable *old =
        before->answers[NODES] ? sl_ctl_table(before->answers[NODES]->admin_reply, "nodes") : NULL;
    for (size_t i = 0; old && i < old->n_rows; i++)
        if (strcmp(sl_ctl_cell(old, i, "boot"), sl_ctl_cell(t, row, "boot")) == 0 &&
            now->at_us > before->at_us)
            return (number(t, row, column) - number(old, i, column)) * 1e6 /
                   (double)(now->at_us - before->at_us);
    return -1;
}

static void node_value(const struct look *now, const struct look *before, size_t row, const struct column *c,
                       char *out, size_t size)
{
    const Sluice__AdminTable *t = sl_ctl_table(now->answers[NODES]->admin_reply, "nodes");
    double pages = number(t, row, "pages");
    if (!c->name) {
        double used = pages > 0 ? 1 - number(t, row, "pages_free") / pages : 0;
        snprintf(out, size, "%.0f%%", used * 100);
    } else if (strstr(c->title, "/S")) {
        double rate = per_second(now, before, row, c->name);
        snprintf(out, size, rate < 0 ? "-" : "%.0f", rate);
    } else {
        snprintf(out, size, "%s", sl_ctl_cell(t, row, c->name));
    }
}

static void draw_nodes(struct screen *s, const struct look *now, const struct look *before, size_t keep)
{
    const Sluice__AdminTable *t = sl_ctl_table(now->answers[NODES]->admin_reply, "nodes");
    heads(s, node_columns, SL_COUNTOF(node_columns));
    for (size_t i = 0; t && i < t->n_rows; i++) {
        char row[512] = "", value[256];
        if (s->used + keep + 1 >= s->lines && i + 1 < t->n_rows) {
            snprintf(row, sizeof row, "... and %zu more", t->n_rows - i);
            line(s, row);
            return;
        }
        for (size_t c = 0; c < SL_COUNTOF(node_columns); c++) {
            node_value(now, before, i, &node_columns[c], value, sizeof value);
            cell(row, sizeof row, value, node_columns[c].columns, node_columns[c].right);
        }
        line(s, row);
    }
}

static void draw_requests(struct screen *s, const struct look *now)
{
    const Sluice__AdminTable *t = sl_ctl_table(now->answers[REQUESTS]->admin_reply, "requests");
    if (!t || t->n_rows == 0)
        return;
    heads(s, request_columns, SL_COUNTOF(request_columns));
    for (size_t i = 0; i < t->n_rows; i++) {
        char row[512] = "";
        if (s->used + 1 == s->lines && i + 1 < t->n_rows) {
            snprintf(row, sizeof row, "... and %zu more", t->n_rows - i);
            line(s, row);
            return;
        }
        for (size_t c = 0; c < SL_COUNTOF(request_columns); c++)
            cell(row, sizeof row, sl_ctl_cell(t, i, request_columns[c].name), request_columns[c].columns,
                 request_columns[c].right);
        line(s, row);
    }
}

static void draw(struct screen *s, const struct look *now, const struct look *before)
{
    char row[1024], clock[16];
    time_t t = time(NULL);
    struct tm tm;
    localtime_r(&t, &tm);
    strftime(clock, sizeof clock, "%H:%M:%S", &tm);
    if (!now->answers[REQUESTS]) {
        snprintf(row, sizeof row, "%s  %s", clock, now->why.text);
        line(s, row);
        return;
    }
    const Sluice__AdminReply *status = now->answers[STATUS]->admin_reply;
    snprintf(row, sizeof row, "%s  %s", clock, status->text ? status->text : "");
    line(s, row);
    const Sluice__AdminTable *p = sl_ctl_table(status, "problems");
    for (size_t i = 0; p && i < p->n_rows && i < PROBLEMS; i++) {
        snprintf(row, sizeof row, "%s: %s", sl_ctl_cell(p, i, "level"), sl_ctl_cell(p, i, "problem"));
        line(s, row);
    }
    draw_nodes(s, now, before, 4);
    draw_requests(s, now);
}

static struct screen screen_of(bool terminal)
{
    struct screen s = {.columns = COLUMNS, .lines = SIZE_MAX, .terminal = terminal};
    struct winsize w;
    if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col && w.ws_row) {
        s.columns = w.ws_col;
        s.lines = w.ws_row > 1 ? w.ws_row - 1u : 1; /* the last line end must not scroll */
    }
    sl_buf_init(&s.text, MAX_BYTES);
    return s;
}

static void show(const struct look *now, const struct look *before, bool terminal)
{
    struct screen s = screen_of(terminal);
    if (terminal)
        sl_buf_puts(&s.text, REDRAW);
    draw(&s, now, before);
    if (terminal)
        sl_buf_puts(&s.text, CLEAR_REST);
    fwrite(s.text.data, 1, s.text.len, stdout);
    fflush(stdout);
    sl_buf_fini(&s.text);
}

/* Until the next round is due. True when a person asks to end. */
static bool wait_for_key(bool keys, uint32_t ms)
{
    uint64_t end_ms = sl_now_ms() + ms;
    for (uint64_t now = sl_now_ms(); now < end_ms && !stopped; now = sl_now_ms()) {
        struct pollfd p = {.fd = keys ? STDIN_FILENO : -1, .events = POLLIN};
        char c;
        if (poll(&p, 1, (int)(end_ms - now)) != 1)
            continue;
        ssize_t n = read(STDIN_FILENO, &c, 1);
        if (n == 1 && (c == 'q' || c == 'Q'))
            return true;
        if (n == 0 || (n < 0 && errno != EINTR))
            return true; /* the terminal is gone */
    }
    return stopped;
}

static enum sl_ctl_exit rounds(const struct sl_ctl_call *call, bool keys)
{
    struct look now = {0}, before = {0};
    enum sl_ctl_exit code;
    do {
        look_free(&before);
        before = now;
        now = (struct look){0};
        code = look(call, &now);
        show(&now, &before, true);
    } while (!wait_for_key(keys, (call->watch_s ? call->watch_s : 1) * 1000));
    look_free(&before);
    look_free(&now);
    return code;
}

enum sl_ctl_exit sl_ctl_top(const struct sl_ctl_call *call)
{
    if (!isatty(STDOUT_FILENO)) {
        struct look now = {0}, before = {0};
        enum sl_ctl_exit code = look(call, &now);
        if (code == SL_CTL_OK)
            show(&now, &before, false);
        else
            sl_ctl_complain(now.why.text);
        look_free(&now);
        return code;
    }
    struct termios old, raw;
    bool keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &old) == 0;
    struct sigaction on = {.sa_handler = on_signal};
    sigaction(SIGINT, &on, NULL);
    sigaction(SIGTERM, &on, NULL);
    sigaction(SIGHUP, &on, NULL);
    if (keys) {
        raw = old;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    fputs(SCREEN_ON, stdout);
    enum sl_ctl_exit code = rounds(call, keys);
    fputs(SCREEN_OFF, stdout);
    fflush(stdout);
    if (keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &old);
    return code;
}
