/* common/text/hf_files.c - see hf_files.h. */
#include "common/text/hf_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/fd_read.h"
#include "common/base/mem.h"

/* The size of an open file. */
static enum sl_err check_file(int fd, const char *path, size_t max, size_t *n, struct sl_why *why)
{
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0)
        return sl_why_set(why, errno == ENOENT ? SL_ENOTFOUND : SL_EIO,
                          "%s: %s; a Hugging Face model folder needs it", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return sl_why_set(why, SL_EIO, "%s: not a file", path);
    if ((uintmax_t)st.st_size > max)
        return sl_why_set(why, SL_ETOOBIG, "%s: %jd bytes, at most %zu are allowed", path,
                          (intmax_t)st.st_size, max);
    *n = (size_t)st.st_size;
    return SL_OK;
}

enum sl_err sl_hf_read_file(const char *folder, const char *name, size_t max, bool optional, char **out,
                            size_t *n, struct sl_why *why)
{
    char *path = sl_xasprintf("%s/%s", folder, name), *text = NULL;
    enum sl_err e = SL_OK;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* of a FIFO too that nobody writes */
    *out = NULL;
    *n = 0;
    if (fd < 0 && errno == ENOENT && optional)
        goto end;
    if ((e = check_file(fd, path, max, n, why)) != SL_OK)
        goto end;
    if ((text = sl_try_alloc(*n + 1)) == NULL) {
        e = sl_why_set(why, SL_ENOMEM, "%s: no memory for %zu bytes", path, *n);
    } else if (!sl_fd_read_all(fd, text, *n)) {
        e = sl_why_set(why, SL_EIO, "%s: could not be read to its end", path);
    } else {
        text[*n] = 0;
        *out = text;
        text = NULL;
    }
end:
    if (e != SL_OK)
        *n = 0;
    sl_free(text);
    if (fd >= 0)
        close(fd);
    sl_free(path);
    return e;
}

enum sl_err sl_hf_read_json(const char *folder, const char *name, bool optional, json_t **out,
                            struct sl_why *why)
{
    char *text = NULL;
    size_t n = 0;
    json_error_t err = {0};
    enum sl_err e = sl_hf_read_file(folder, name, SL_HF_MAX_CONFIG_BYTES, optional, &text, &n, why);
    *out = NULL;
    if (!e && text) {
        json_t *j = json_loadb(text, n, JSON_ALLOW_NUL, &err);
        if (json_is_object(j)) {
            *out = j;
        } else {
            e = sl_why_set(why, SL_EPARSE, "%s/%s: %s (line %d)", folder, name,
                           j ? "no JSON object" : err.text, j ? 1 : err.line);
            json_decref(j);
        }
    }
    sl_free(text);
    return e;
}
