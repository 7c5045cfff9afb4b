/* common/base/err.c - names and groups of the status codes.
 *
 * Names stand in a table in enum order; groups are ranges of the enum, so that a new code only needs its
 * place. */
#include "common/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

static const char *const names[SL_N_ERR] = {
    [SL_OK] = "OK",
    [SL_EINVAL] = "EINVAL",
    [SL_EPARSE] = "EPARSE",
    [SL_ETOOBIG] = "ETOOBIG",
    [SL_ENOTFOUND] = "ENOTFOUND",
    [SL_EUNSUPPORTED] = "EUNSUPPORTED",
    [SL_EDENIED] = "EDENIED",
    [SL_ECONFIG] = "ECONFIG",
    [SL_EAGAIN] = "EAGAIN",
    [SL_ENOPAGES] = "ENOPAGES",
    [SL_EDRAINING] = "EDRAINING",
    [SL_ENOTREADY] = "ENOTREADY",
    [SL_ECANCELED] = "ECANCELED",
    [SL_EDEADLINE] = "EDEADLINE",
    [SL_ELOST] = "ELOST",
    [SL_EPEER] = "EPEER",
    [SL_EMISMATCH] = "EMISMATCH",
    [SL_EDIGEST] = "EDIGEST",
    [SL_EPROTO] = "EPROTO",
    [SL_ENOMEM] = "ENOMEM",
    [SL_EIO] = "EIO",
    [SL_EDEVICE] = "EDEVICE",
    [SL_EBUG] = "EBUG",
};

enum sl_err_class sl_err_class(enum sl_err e)
{
    int v = (int)e; /* may come off the wire: any number */
    if (v == SL_OK)
        return SL_CLASS_OK;
    if (v >= SL_EINVAL && v <= SL_ECONFIG)
        return SL_CLASS_BAD_INPUT;
    if (v >= SL_EAGAIN && v <= SL_ENOTREADY)
        return SL_CLASS_LATER;
    if (v >= SL_ECANCELED && v <= SL_ELOST)
        return SL_CLASS_REQUEST;
    if (v >= SL_EPEER && v <= SL_EPROTO)
        return SL_CLASS_PEER;
    return SL_CLASS_PROCESS;
}

const char *sl_err_name(enum sl_err e)
{
    int v = (int)e;
    return v >= 0 && v < SL_N_ERR ? names[v] : "EUNKNOWN";
}

enum sl_err sl_why_set(struct sl_why *why, enum sl_err e, const char *fmt, ...)
{
    if (!why)
        return e;
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(why->text, sizeof why->text, fmt, ap) < 0)
        why->text[0] = '\0';
    va_end(ap);
    return e;
}

const char *sl_shown(char buf[SL_SHOWN_BYTES], const char *name, size_t n)
{
    size_t kept = n < SL_SHOWN_BYTES - 4 ? n : SL_SHOWN_BYTES - 4;
    for (size_t i = 0; i < kept; i++)
        buf[i] = name[i] >= 0x20 && name[i] < 0x7f ? name[i] : '?';
    memcpy(buf + kept, n > kept ? "..." : "", n > kept ? 4 : 1);
    return buf;
}

void sl_assert_fail(const char *expr, const char *file, int line)
{
    SL_ERROR("assertion failed: %s at=%s:%d", expr, file, line);
    abort();
}
