/* common/base/program.h - what a daemon tells about itself instead of starting: help, version, a commented
 * config file and its manual page, all from the table of its options; and what a reload changes. */
#ifndef SLUICE_COMMON_BASE_PROGRAM_H
#define SLUICE_COMMON_BASE_PROGRAM_H

#include <stdbool.h>

#include "common/base/conf.h"

struct sl_program {
    const char *name; /* "sluice-router" */
    const char *version;
    const char *date;         /* of the version, for the manual page */
    const char *summary;      /* one line without full stop */
    const char *about;        /* paragraphs (manual.h) */
    const char *signals;      /* paragraphs: what it does at SIGTERM and SIGHUP */
    const char *config_file;  /* where the package puts it */
    const char *config_about; /* what the example file says first */
    const char *section;      /* heading in the config file */
    const char *see_also;     /* the manual pages beside its own: "name section" */
    const struct sl_conf_opt *opts;
    const char *const *reloads;        /* keys that SIGHUP reads anew; NULL-terminated */
    const char *must_set, *must_value; /* the one key without a default, and an example of it */
};

/* Prints what argv asks for (--help, --version, --example-config, --manual) and returns true, or false. */
bool sl_program_answers(const struct sl_program *p, int argc, char **argv);

/* After a reload: one line in the log for each option that differs between the two configurations, which
 * says whether it took effect. Options that only tests use are told as well. */
void sl_program_tell_changes(const struct sl_program *p, const void *before, const void *now);

#endif
