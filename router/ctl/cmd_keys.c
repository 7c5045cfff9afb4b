/* router/ctl/cmd_keys.c - sluicectl keys: makes keys for clients and looks at the router's key file. The router
 * is not asked; it reads the file when it is reloaded. */
#include "router/ctl/ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/key_line.h"
#include "common/base/secret.h"

static enum sl_ctl_exit complain(enum sl_ctl_exit code, struct sl_why *why)
{
    sl_ctl_complain(why->text);
    return code;
}

/* A new key behind what the file has, whose last line may lack its end. The file is made for its owner and
 * group: the router's. */
static enum sl_err append(const char *path, const char *line, struct sl_why *why)
{
    char last = '\n';
    int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    if (fd < 0)
        return sl_why_set(why, SL_EIO, "%.200s cannot be written: %s", path, strerror(errno));
    struct stat st;
    if (fstat(fd, &st) == 0 && st.st_size > 0 && pread(fd, &last, 1, st.st_size - 1) != 1)
        last = '\n';
    char text[SL_KEY_LINE_BYTES + 2];
    int n = snprintf(text, sizeof text, "%s%s\n", last == '\n' ? "" : "\n", line);
    enum sl_err err = SL_OK;
    if (write(fd, text, (size_t)n) != n || fsync(fd) != 0)
        err = sl_why_set(why, SL_EIO, "%.200s cannot be written: %s", path, strerror(errno));
    close(fd);
    return err;
}

enum sl_ctl_exit sl_ctl_keys_add(const struct sl_ctl_call *call)
{
    const char *name = call->args[0], *path = call->n_args > 1 ? call->args[1] : NULL;
    char key[SL_KEY_NEW_BYTES], line[SL_KEY_LINE_BYTES];
    struct sl_why why = {{0}};
    if (!sl_key_name_is_valid(name, strlen(name))) {
        (void)sl_why_set(
            &why, SL_EINVAL,
            "the name of a key has 1 to %u letters, digits, dots, dashes or underscores, not '%.60s'",
            SL_KEY_MAX_NAME, name);
        return complain(SL_CTL_USAGE, &why);
    }
    sl_key_line_new(name, key, line);
    if (path && append(path, line, &why) != SL_OK)
        return complain(SL_CTL_REFUSED, &why);
    printf("%s\n", key);
    if (path)
        fprintf(stderr,
                "This is the key of %s; it is written nowhere. %s has its hash now; reload the router.\n",
                name, path);
    else
        fprintf(stderr, "This is the key of %s; it is written nowhere. For the router's key file:\n%s\n",
                name, line);
    return SL_CTL_OK;
}

/* Calls fn for every key of the file; false when something was wrong, which is told. */
static bool each_key(const char *path, bool (*fn)(const struct sl_key_line *line, void *arg), void *arg)
{
    char text[SL_KEY_LINE_BYTES];
    struct sl_why why = {{0}}, what = {{0}};
    FILE *f = fopen(path, "re");
    if (!f) {
        (void)sl_why_set(&why, SL_EIO, "%.200s cannot be opened: %s", path, strerror(errno));
        sl_ctl_complain(why.text);
        return false;
    }
    bool good = true;
    for (unsigned no = 1; good && fgets(text, sizeof text, f); no++) {
        struct sl_key_line line;
        enum sl_err err = sl_key_line_parse(text, &line, &what);
        if (err == SL_OK && !fn(&line, arg))
            break;
        good = err == SL_OK || err == SL_ENOTFOUND;
        if (!good) {
            (void)sl_why_set(&why, err, "%.200s:%u: %.200s", path, no, what.text);
            sl_ctl_complain(why.text);
        }
    }
    fclose(f);
    return good;
}

static bool show_key(const struct sl_key_line *line, void *arg)
{
    (void)arg;
    size_t blank = line->n_limits ? strspn(line->limits, " \t") : 0;
    printf("%-24.*s %-7s %.*s\n", (int)(line->n_name ? line->n_name : 1), line->n_name ? line->name : "-",
           line->key ? "plain" : "hashed", (int)(line->n_limits - blank),
           line->n_limits ? line->limits + blank : "");
    return true;
}

enum sl_ctl_exit sl_ctl_keys_list(const struct sl_ctl_call *call)
{
    if (!call->no_headers)
        printf("%-24s %-7s %s\n", "NAME", "KEY", "LIMITS");
    return each_key(call->args[0], show_key, NULL) ? SL_CTL_OK : SL_CTL_REFUSED;
}

struct wanted {
    char key[SL_KEY_MAX_BYTES + 2];
    bool found;
};

static bool is_wanted(const struct sl_key_line *line, void *arg)
{
    struct wanted *w = arg;
    unsigned char digest[SL_KEY_DIGEST_BYTES];
    size_t n = strlen(w->key);
    if (line->key) {
        w->found = line->n_key == n && sl_secret_equal(line->key, w->key, n);
    } else {
        sl_key_digest(line->salt, w->key, n, digest);
        w->found = sl_secret_equal(digest, line->digest, sizeof digest);
    }
    if (w->found)
        printf("%.*s\n", (int)(line->n_name ? line->n_name : 1), line->n_name ? line->name : "-");
    return !w->found;
}

enum sl_ctl_exit sl_ctl_keys_check(const struct sl_ctl_call *call)
{
    struct wanted w = {.found = false};
    if (!fgets(w.key, sizeof w.key, stdin))
        w.key[0] = '\0';
    w.key[strcspn(w.key, "\r\n")] = '\0';
    if (!w.key[0]) {
        sl_ctl_complain("keys check reads a key from its standard input, and there was none");
        return SL_CTL_USAGE;
    }
    bool good = each_key(call->args[0], is_wanted, &w);
    explicit_bzero(w.key, sizeof w.key);
    if (good && !w.found)
        sl_ctl_complain("this key is not in the file");
    return w.found ? SL_CTL_OK : SL_CTL_REFUSED;
}
