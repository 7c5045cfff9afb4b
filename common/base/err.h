/* common/base/err.h - status codes, the sentence that explains one, and the assert for bugs.
 *
 * A code says what is lost and so what the caller does; sl_err_class() gives that group, and
 * router/flow/recover.c and router/http/http_error.c are the only places that switch on it.
 * What a person configures (a model file, a config line) also fills a struct sl_why with one sentence:
 * what was found, what was expected, what to do. */
#ifndef SLUICE_COMMON_BASE_ERR_H
#define SLUICE_COMMON_BASE_ERR_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SL_MUST_CHECK        __attribute__((warn_unused_result))
#define SL_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define SL_NORETURN          __attribute__((noreturn))
#define SL_UNUSED            __attribute__((unused))
#define SL_COUNTOF(a)        (sizeof(a) / sizeof((a)[0]))

enum sl_err {
    SL_OK = 0,
    /* bad input: the sender must change what it sent */
    SL_EINVAL,       /* a value out of range or of the wrong kind */
    SL_EPARSE,       /* bytes that do not follow their format */
    SL_ETOOBIG,      /* over a named limit */
    SL_ENOTFOUND,    /* no such request, node, model, key */
    SL_EUNSUPPORTED, /* understood, and not offered */
    SL_EDENIED,      /* no or wrong key */
    SL_ECONFIG,      /* a config file or command line is wrong: exit 78 */
    /* later: the same thing may work in a while */
    SL_EAGAIN,    /* a bounded queue is full */
    SL_ENOPAGES,  /* no free KV pages; normal under load */
    SL_EDRAINING, /* the node takes no new work */
    SL_ENOTREADY, /* no compatible set of nodes yet */
    /* this request is over */
    SL_ECANCELED, /* by its owner */
    SL_EDEADLINE, /* its deadline passed */
    SL_ELOST,     /* the node no longer knows it */
    /* this peer or link: place again elsewhere */
    SL_EPEER,     /* peer dead, unreachable or silent */
    SL_EMISMATCH, /* handshake refused; the why names both values */
    SL_EDIGEST,   /* bytes arrived different from what was sent */
    SL_EPROTO,    /* a message that breaks the protocol */
    /* this process: stop */
    SL_ENOMEM,
    SL_EIO,     /* a file or socket call failed */
    SL_EDEVICE, /* the accelerator failed */
    SL_EBUG,    /* an invariant does not hold */
    SL_N_ERR
};

enum sl_err_class {
    SL_CLASS_OK,
    SL_CLASS_BAD_INPUT,
    SL_CLASS_LATER,
    SL_CLASS_REQUEST,
    SL_CLASS_PEER,
    SL_CLASS_PROCESS
};

enum sl_err_class sl_err_class(enum sl_err e);

/* The code's name without prefix, "ENOPAGES"; static storage, never NULL, also for unknown numbers. */
const char *sl_err_name(enum sl_err e);

/* One sentence for a person. Zero-initialise; empty text means nothing was said. */
#define SL_WHY_MAX 512
struct sl_why {
    char text[SL_WHY_MAX];
};

/* Writes the sentence (cut at SL_WHY_MAX - 1 bytes) and returns e, so that a failing function ends with
 * `return sl_why_set(why, SL_EINVAL, "...")`. why may be NULL. */
enum sl_err sl_why_set(struct sl_why *why, enum sl_err e, const char *fmt, ...) SL_PRINTF(3, 4);

/* A name from outside, safe to print: cut to the buffer, bytes that are not printable ASCII as '?'. Returns
 * buf.
 */
#define SL_SHOWN_BYTES 64
const char *sl_shown(char buf[SL_SHOWN_BYTES], const char *name, size_t n);

/* Bugs only; bytes from outside never reach it. On in all builds except inside kernels. */
SL_NORETURN void sl_assert_fail(const char *expr, const char *file, int line);
#define SL_ASSERT(x) ((x) ? (void)0 : sl_assert_fail(#x, __FILE__, __LINE__))

#ifdef __cplusplus
}
#endif
#endif
