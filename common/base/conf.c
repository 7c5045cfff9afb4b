/* common/base/conf.c - one table of options, three sources: defaults, file, command line; a later one
 * replaces.
 *
 * inih reads the file. It cuts lines at INI_MAX_LINE without a word, so the file is checked for longer lines
 * first; and a line that begins with a blank continues the one before, so a scalar key given twice is
 * refused: that is what such a line, or a forgotten older setting, looks like. A list key may be given many
 * times and collects. */
#include "common/base/conf.h"

#include <ctype.h>
#include <inttypes.h>
#include <errno.h>
#include <ini.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/text_file.h"

#define MAX_FILE_BYTES ((size_t)1 << 20)
#define MAX_LINE_BYTES 198 /* inih's buffer of 200 less newline and NUL */
#define MAX_LIST_ITEMS 4096
#define MAX_KEY_BYTES  64u /* of the keys that a wrong one is compared with */
#define SUGGESTION_MAX 100
#define CHECK_CONFIG   "--check-config"

enum source { FROM_NOTHING, FROM_DEFAULT, FROM_FILE, FROM_ARGV };

struct loader {
    const struct sl_conf_opt *opts;
    char *target;
    enum source *from; /* per option: who gave the value it has */
    enum sl_err err;   /* of the first line that failed */
    struct sl_why why;
};

static void *field(char *target, const struct sl_conf_opt *o)
{
    return target + o->offset;
}

static void list_clear(struct sl_conf_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        sl_free(list->items[i]);
    sl_free(list->items);
    *list = (struct sl_conf_list){0};
}

static bool list_add(struct sl_conf_list *list, const char *text)
{
    for (;;) {
        size_t len = strcspn(text, ",");
        const char *first = text, *last = text + len;
        while (first < last && isspace((unsigned char)*first))
            first++;
        while (last > first && isspace((unsigned char)last[-1]))
            last--;
        if (first < last) {
            if (list->n == MAX_LIST_ITEMS)
                return false;
            list->items = sl_xrealloc_array(list->items, list->n + 1, sizeof *list->items);
            list->items[list->n++] = sl_xstrndup(first, (size_t)(last - first));
        }
        if (text[len] == '\0')
            return true;
        text += len + 1;
    }
}

/* A decimal number without sign, spaces or anything behind it but one suffix letter of `suffixes` (powers of
 * 1024). */
static bool parse_u64(const char *text, const char *suffixes, uint64_t *out)
{
    if (!isdigit((unsigned char)text[0]))
        return false;
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno != 0)
        return false;
    if (*end) {
        const char *at = strchr(suffixes, toupper((unsigned char)*end));
        if (!at || end[1])
            return false;
        unsigned shift = 10u * (unsigned)(at - suffixes + 1);
        if (v > UINT64_MAX >> shift)
            return false;
        v <<= shift;
    }
    *out = v;
    return true;
}

static bool parse_i32(const char *text, int32_t *out)
{
    if (!isdigit((unsigned char)text[text[0] == '-']))
        return false;
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (errno != 0 || *end || v < INT32_MIN || v > INT32_MAX)
        return false;
    *out = (int32_t)v;
    return true;
}

static bool parse_f64(const char *text, double *out)
{
    if (!isdigit((unsigned char)text[0]) && !strchr("-.", text[0]))
        return false;
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v))
        return false;
    *out = v;
    return true;
}

static bool parse_bool(const char *text, bool *out)
{
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};
    for (size_t i = 0; i < SL_COUNTOF(yes); i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *out = strcmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static bool parse_word(const char *text, const char *const *words, int *out)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(text, words[i]) == 0) {
            *out = i;
            return true;
        }
    return false;
}

static bool has_range(const struct sl_conf_opt *o)
{
    return o->min != 0 || o->max != 0;
}

/* What a value of this option looks like, for messages and help. */
void sl_conf_expected(const struct sl_conf_opt *o, char *text, size_t size)
{
    static const char *const kinds[] = {
        [SL_CONF_STRING] = "text",        [SL_CONF_LIST] = "a comma-separated list",
        [SL_CONF_U32] = "a whole number", [SL_CONF_U64] = "a whole number",
        [SL_CONF_I32] = "a whole number", [SL_CONF_F64] = "a number",
        [SL_CONF_BOOL] = "true or false", [SL_CONF_BYTES] = "a size such as 64K, 512M or 2G",
    };
    if (o->type == SL_CONF_ENUM) {
        size_t len = (size_t)snprintf(text, size, "one of");
        for (int i = 0; o->words[i] && len < size; i++)
            len += (size_t)snprintf(text + len, size - len, "%s %s", i ? "," : "", o->words[i]);
    } else if (has_range(o)) {
        snprintf(text, size, "%s from %.15g to %.15g", kinds[o->type], o->min, o->max);
    } else {
        snprintf(text, size, "%s", kinds[o->type]);
    }
}

/* Stores the value when it parses and is in range. */
static bool store(const struct sl_conf_opt *o, const char *text, void *at)
{
    union {
        uint64_t u64;
        int32_t i32;
        double f64;
        bool b;
        int word;
    } v;
    double number = 0;
    bool ok = false;
    switch (o->type) {
    case SL_CONF_STRING:
        sl_free(*(char **)at);
        *(char **)at = sl_xstrdup(text);
        return true;
    case SL_CONF_LIST:
        return list_add(at, text);
    case SL_CONF_BOOL:
        if (!parse_bool(text, &v.b))
            return false;
        *(bool *)at = v.b;
        return true;
    case SL_CONF_ENUM:
        if (!parse_word(text, o->words, &v.word))
            return false;
        *(int *)at = v.word;
        return true;
    case SL_CONF_U32:
        ok = parse_u64(text, "", &v.u64) && v.u64 <= UINT32_MAX;
        number = ok ? (double)v.u64 : 0;
        break;
    case SL_CONF_U64:
    case SL_CONF_BYTES:
        ok = parse_u64(text, o->type == SL_CONF_BYTES ? "KMGT" : "", &v.u64);
        number = ok ? (double)v.u64 : 0;
        break;
    case SL_CONF_I32:
        ok = parse_i32(text, &v.i32);
        number = ok ? v.i32 : 0;
        break;
    case SL_CONF_F64:
        ok = parse_f64(text, &v.f64);
        number = ok ? v.f64 : 0;
        break;
    }
    if (!ok || (has_range(o) && (number < o->min || number > o->max)))
        return false;
    if (o->type == SL_CONF_U32)
        *(uint32_t *)at = (uint32_t)v.u64;
    else if (o->type == SL_CONF_I32)
        *(int32_t *)at = v.i32;
    else if (o->type == SL_CONF_F64)
        *(double *)at = v.f64;
    else
        *(uint64_t *)at = v.u64;
    return true;
}

/* The option a key names ('-' counts as '_'), or NULL. */
static const struct sl_conf_opt *find(const struct sl_conf_opt *opts, const char *key, size_t len)
{
    for (const struct sl_conf_opt *o = opts; o->key; o++) {
        size_t i = 0;
        while (i < len && o->key[i] && (key[i] == '-' ? '_' : key[i]) == o->key[i])
            i++;
        if (i == len && o->key[i] == '\0')
            return o;
    }
    return NULL;
}

/* Letters to change, add or take away to turn a into b; words longer than MAX_KEY_BYTES are not compared. */
static size_t distance(const char *a, size_t n_a, const char *b)
{
    size_t n_b = strlen(b), row[MAX_KEY_BYTES + 1];
    if (n_a > MAX_KEY_BYTES || n_b > MAX_KEY_BYTES)
        return SIZE_MAX;
    for (size_t j = 0; j <= n_b; j++)
        row[j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t diagonal = row[0]; /* of the row before */
        char c = a[i - 1] == '-' ? '_' : a[i - 1];
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t above = row[j], best = diagonal + (c != b[j - 1]);
            best = best < above + 1 ? best : above + 1;
            row[j] = best < row[j - 1] + 1 ? best : row[j - 1] + 1;
            diagonal = above;
        }
    }
    return row[n_b];
}

/* " (the nearest is X)" for the option that a wrong key comes nearest to; "" when none is near. */
static void suggest(const struct sl_conf_opt *opts, const char *key, size_t len, char *text, size_t size)
{
    size_t nearest = len / 3 + 1; /* a third of the letters may be wrong, and one more in short words */
    *text = '\0';
    for (const struct sl_conf_opt *o = opts; o->key; o++) {
        size_t d = distance(key, len, o->key);
        if (d > nearest || (d == nearest && *text))
            continue;
        nearest = d;
        snprintf(text, size, " (the nearest is %s)", o->key);
    }
}

static enum sl_err set(struct loader *ld, const struct sl_conf_opt *o, const char *text, enum source source)
{
    enum source *from = &ld->from[o - ld->opts];
    void *at = field(ld->target, o);
    if (o->type == SL_CONF_LIST && *from != source)
        list_clear(at);
    if (o->type != SL_CONF_LIST && source == FROM_FILE && *from == FROM_FILE)
        return sl_why_set(
            &ld->why, SL_ECONFIG,
            "%s is given twice; keep one (a line that begins with a blank continues the one before)", o->key);
    if (!store(o, text, at)) {
        char expected[SL_CONF_EXPECTED_MAX];
        sl_conf_expected(o, expected, sizeof expected);
        return sl_why_set(&ld->why, SL_ECONFIG, "%s is \"%.80s\"; expected %s", o->key, text, expected);
    }
    *from = source;
    return SL_OK;
}

/* inih's handler: 0 = error. It goes on after one, so later errors are swallowed here. */
static int on_file_line(void *user, const char *section, const char *name, const char *value)
{
    struct loader *ld = user;
    (void)section;
    if (ld->err != SL_OK)
        return 0;
    const struct sl_conf_opt *o = find(ld->opts, name, strlen(name));
    if (o) {
        ld->err = set(ld, o, value, FROM_FILE);
    } else {
        char nearest[SUGGESTION_MAX];
        suggest(ld->opts, name, strlen(name), nearest, sizeof nearest);
        ld->err = sl_why_set(&ld->why, SL_ECONFIG, "no option is called \"%.80s\"%s; --help lists them", name,
                             nearest);
    }
    return ld->err == SL_OK;
}

static int accept_line(void *user, const char *section, const char *name, const char *value)
{
    (void)user;
    (void)section;
    (void)name;
    (void)value;
    return 1;
}

static enum sl_err load_file(struct loader *ld, const char *path, struct sl_why *why)
{
    char *text;
    size_t n_text;
    enum sl_err err = sl_text_file_read("config file", path, MAX_FILE_BYTES, &text, &n_text, why);
    if (err)
        return err;
    int line = 1;
    for (const char *s = text; *s && err == SL_OK; line++) {
        size_t len = strcspn(s, "\n");
        if (len > MAX_LINE_BYTES)
            err = sl_why_set(
                why, SL_ECONFIG,
                "%s:%d: the line has %zu bytes; at most %d are read (a list may be given in several lines)",
                path, line, len, MAX_LINE_BYTES);
        s += len + (s[len] == '\n');
    }
    /* inih gives the first bad line of all kinds; in a pass that takes every key it can only be one of form
     */
    int bad_line = err == SL_OK ? ini_parse_string(text, accept_line, NULL) : 0;
    if (bad_line != 0)
        err = sl_why_set(why, SL_ECONFIG, "%s:%d: not a line of the form key = value", path, bad_line);
    if (err == SL_OK && (bad_line = ini_parse_string(text, on_file_line, ld)) != 0)
        err = sl_why_set(why, SL_ECONFIG, "%s:%d: %s", path, bad_line, ld->why.text);
    sl_free(text);
    return err;
}

static bool is_value(int argc, char **argv, int i)
{
    return i < argc && strncmp(argv[i], "--", 2) != 0;
}

static enum sl_err load_argv(struct loader *ld, int argc, char **argv, struct sl_why *why)
{
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (strncmp(arg, "--", 2) != 0 || arg[2] == '\0')
            return sl_why_set(why, SL_ECONFIG,
                              "\"%.80s\" on the command line is no option; options are --key=value", arg);
        if (strcmp(arg, CHECK_CONFIG) == 0)
            continue;
        const char *key = arg + 2;
        size_t len = strcspn(key, "=");
        const struct sl_conf_opt *o = find(ld->opts, key, len);
        if (!o && !(len == 6 && memcmp(key, "config", 6) == 0)) {
            char nearest[SUGGESTION_MAX];
            suggest(ld->opts, key, len, nearest, sizeof nearest);
            return sl_why_set(why, SL_ECONFIG, "no option is called --%.*s%s; --help lists them",
                              (int)(len > 80 ? 80 : len), key, nearest);
        }
        const char *value = key[len] == '=' ? key + len + 1 : NULL;
        if (!value && o && o->type == SL_CONF_BOOL && !is_value(argc, argv, i + 1))
            value = "true";
        else if (!value && i + 1 < argc)
            value = argv[++i];
        if (!value)
            return sl_why_set(why, SL_ECONFIG, "--%.*s needs a value", (int)len, key);
        if (!o)
            continue; /* --config: the caller has read it */
        enum sl_err err = set(ld, o, value, FROM_ARGV);
        while (err == SL_OK && o->type == SL_CONF_LIST && is_value(argc, argv, i + 1))
            err = set(ld, o, argv[++i], FROM_ARGV);
        if (err != SL_OK)
            return sl_why_set(why, err, "command line: %s", ld->why.text);
    }
    return SL_OK;
}

enum sl_err sl_conf_load(const struct sl_conf_opt *opts, const char *path, int argc, char **argv,
                         void *target, struct sl_why *why)
{
    size_t n_opts = 0;
    while (opts[n_opts].key)
        n_opts++;
    struct loader ld = {.opts = opts, .target = target, .from = sl_xcalloc(n_opts + 1, sizeof *ld.from)};
    for (size_t i = 0; i < n_opts; i++)
        if (opts[i].dflt)
            SL_ASSERT(set(&ld, &opts[i], opts[i].dflt, FROM_DEFAULT) == SL_OK);
    enum sl_err err = path ? load_file(&ld, path, why) : SL_OK;
    if (err == SL_OK)
        err = load_argv(&ld, argc, argv, why);
    sl_free(ld.from);
    return err;
}

enum sl_err sl_conf_set(const struct sl_conf_opt *opts, const char *key, const char *text, void *target,
                        struct sl_why *why)
{
    const struct sl_conf_opt *o = find(opts, key, strlen(key));
    char near[SUGGESTION_MAX], expected[SL_CONF_EXPECTED_MAX];
    if (!o) {
        suggest(opts, key, strlen(key), near, sizeof near);
        return sl_why_set(why, SL_ECONFIG, "there is no key %.40s%s", key, near);
    }
    if (o->type == SL_CONF_LIST)
        list_clear(field(target, o));
    if (store(o, text, field(target, o)))
        return SL_OK;
    sl_conf_expected(o, expected, sizeof expected);
    return sl_why_set(why, SL_ECONFIG, "%s is \"%.80s\"; expected %s", o->key, text, expected);
}

void sl_conf_print(const struct sl_conf_opt *o, const void *target, char *text, size_t size)
{
    const void *at = (const char *)target + o->offset;
    const struct sl_conf_list *list = at;
    size_t len = 0;
    text[0] = '\0';
    switch (o->type) {
    case SL_CONF_STRING:
        snprintf(text, size, "%s", *(char *const *)at ? *(char *const *)at : "");
        break;
    case SL_CONF_LIST:
        for (size_t i = 0; i < list->n && len < size; i++)
            len += (size_t)snprintf(text + len, size - len, "%s%s", i ? "," : "", list->items[i]);
        break;
    case SL_CONF_U32:
        snprintf(text, size, "%" PRIu32, *(const uint32_t *)at);
        break;
    case SL_CONF_U64:
    case SL_CONF_BYTES:
        snprintf(text, size, "%" PRIu64, *(const uint64_t *)at);
        break;
    case SL_CONF_I32:
        snprintf(text, size, "%" PRId32, *(const int32_t *)at);
        break;
    case SL_CONF_F64:
        snprintf(text, size, "%.15g", *(const double *)at);
        break;
    case SL_CONF_BOOL:
        snprintf(text, size, "%s", *(const bool *)at ? "true" : "false");
        break;
    case SL_CONF_ENUM:
        snprintf(text, size, "%s", o->words[*(const int *)at]);
        break;
    }
}

void sl_conf_fini(const struct sl_conf_opt *opts, void *target)
{
    for (const struct sl_conf_opt *o = opts; o->key; o++) {
        void *at = field(target, o);
        if (o->type == SL_CONF_STRING) {
            sl_free(*(char **)at);
            *(char **)at = NULL;
        } else if (o->type == SL_CONF_LIST) {
            list_clear(at);
        }
    }
}

const char *sl_conf_file_arg(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--config=", 9) == 0)
            return argv[i] + 9;
        if (strcmp(argv[i], "--config") == 0)
            return i + 1 < argc ? argv[i + 1] : NULL;
    }
    return NULL;
}

bool sl_conf_check_arg(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], CHECK_CONFIG) == 0)
            return true;
    return false;
}

static bool same_text(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

bool sl_conf_same(const struct sl_conf_opt *o, const void *a, const void *b)
{
    static const size_t bytes[] = {
        [SL_CONF_U32] = sizeof(uint32_t), [SL_CONF_U64] = sizeof(uint64_t),
        [SL_CONF_I32] = sizeof(int32_t),  [SL_CONF_F64] = sizeof(double),
        [SL_CONF_BOOL] = sizeof(bool),    [SL_CONF_BYTES] = sizeof(uint64_t),
        [SL_CONF_ENUM] = sizeof(int),
    };
    const void *at_a = (const char *)a + o->offset, *at_b = (const char *)b + o->offset;
    if (o->type == SL_CONF_STRING)
        return same_text(*(char *const *)at_a, *(char *const *)at_b);
    if (o->type != SL_CONF_LIST)
        return memcmp(at_a, at_b, bytes[o->type]) == 0;
    const struct sl_conf_list *la = at_a, *lb = at_b;
    bool same = la->n == lb->n;
    for (size_t i = 0; same && i < la->n; i++)
        same = same_text(la->items[i], lb->items[i]);
    return same;
}

void sl_conf_flag(const struct sl_conf_opt *o, char *text, size_t size)
{
    snprintf(text, size, "--%s", o->key);
    for (char *c = text + 2; *c; c++)
        if (*c == '_')
            *c = '-';
}

void sl_conf_help(const struct sl_conf_opt *opts, FILE *out)
{
    fprintf(out, "  --config=FILE\n      read options from FILE (lines of the form key = value)\n");
    for (const struct sl_conf_opt *o = opts; o->key; o++) {
        char expected[SL_CONF_EXPECTED_MAX], flag[MAX_KEY_BYTES];
        sl_conf_expected(o, expected, sizeof expected);
        sl_conf_flag(o, flag, sizeof flag);
        fprintf(out, "  %s=VALUE\n      %s\n      %s", flag, o->help, expected);
        if (o->dflt)
            fprintf(out, "; default %s", o->dflt[0] ? o->dflt : "(empty)");
        fputc('\n', out);
    }
}
