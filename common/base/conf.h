/* common/base/conf.h - config file (INI) and command line into a struct, by one table.
 *
 * The table is the documentation too: --help, the commented example files and the manual pages are made from
 * it (program.h). A key that is not in the table, a value out of range or a line that does not parse is
 * refused with a sentence that names file and line, and the known key that comes nearest; the daemon then
 * exits 78 (SL_EXIT_CONFIG). Command line: --key=value or --key value, the key with '-' for '_'; --key alone
 * is true for a bool, and a list takes all words up to the next option. Every option of the table can be given
 * there and wins over the file; --config FILE names the file; --check-config is
 * passed over (sl_conf_check_arg). */
#ifndef SLUICE_COMMON_BASE_CONF_H
#define SLUICE_COMMON_BASE_CONF_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "common/base/err.h"

#define SL_EXIT_CONFIG       78  /* sysexits.h EX_CONFIG */
#define SL_CONF_EXPECTED_MAX 200 /* bytes of sl_conf_expected()'s text */

enum sl_conf_type {
    SL_CONF_STRING, /* char *, owned, replaced with sl_free */
    SL_CONF_LIST,   /* struct sl_conf_list: comma- or repeat-separated strings */
    SL_CONF_U32,
    SL_CONF_U64,
    SL_CONF_I32,
    SL_CONF_F64,
    SL_CONF_BOOL,  /* bool: true false yes no on off 1 0 */
    SL_CONF_BYTES, /* uint64_t: 64K, 512M, 2G (powers of 1024), plain bytes */
    SL_CONF_ENUM   /* int: index into words[] */
};

struct sl_conf_list {
    char **items;
    size_t n;
};

struct sl_conf_opt {
    const char *key; /* "listen", "kv_memory" */
    enum sl_conf_type type;
    size_t offset;            /* offsetof into the target struct */
    const char *dflt;         /* text form of the default, or NULL = zero/empty */
    const char *help;         /* one line, with the unit */
    double min, max;          /* numbers only; both 0 = any */
    const char *const *words; /* SL_CONF_ENUM: NULL-terminated */
};

/* Fills *target (zeroed by the caller) with defaults, then the file (path NULL = none), then argv. opts ends
 * with a NULL key. Keys may stand in the file under any [section]; sections are headings only. Leftover
 * non-option words of argv are SL_ECONFIG. On error *target is safe for sl_conf_fini. */
SL_MUST_CHECK enum sl_err sl_conf_load(const struct sl_conf_opt *opts, const char *path, int argc,
                                       char **argv, void *target, struct sl_why *why);
void sl_conf_fini(const struct sl_conf_opt *opts, void *target);

/* --config FILE out of argv, or NULL. */
const char *sl_conf_file_arg(int argc, char **argv);
/* True when argv has --check-config: the caller ends after its checks. */
bool sl_conf_check_arg(int argc, char **argv);
/* Writes the table as option help. */
void sl_conf_help(const struct sl_conf_opt *opts, FILE *out);
/* What a value of the option looks like: "a whole number from 1 to 64". */
void sl_conf_expected(const struct sl_conf_opt *o, char *text, size_t size);
/* Its form on the command line: "--kv-memory". */
void sl_conf_flag(const struct sl_conf_opt *o, char *text, size_t size);
/* Stores one value by its key, as a line of the file would; a list is replaced. SL_ECONFIG: *target is as it was,
 * why says what was expected. */
SL_MUST_CHECK enum sl_err sl_conf_set(const struct sl_conf_opt *opts, const char *key, const char *text,
                                      void *target, struct sl_why *why);
/* The value of an option as sl_conf_set() takes it, cut to size. */
void sl_conf_print(const struct sl_conf_opt *o, const void *target, char *text, size_t size);
/* True when two targets of one table have the same value of option o. */
bool sl_conf_same(const struct sl_conf_opt *o, const void *a, const void *b);

#endif
