/* common/base/start_signals.h - while a daemon loads for minutes, SIGTERM and SIGINT end it at once.
 *
 * The daemons block both and read them by signalfd once they serve; until then nobody would. There is nothing to drain
 * before that, and files that are written meanwhile stand a kill. */
#ifndef SLUICE_COMMON_BASE_START_SIGNALS_H
#define SLUICE_COMMON_BASE_START_SIGNALS_H

#include "common/base/thread.h"

struct sl_start_signals {
    struct sl_thread thread;
    int signal_fd, over[2]; /* a pipe: its end closes when the start is over */
};

/* A daemon's first act: SIGHUP waits until it serves, for the reload that it asks for, and does not end it meanwhile. */
void sl_start_signals_keep_reload(void);

/* From here to sl_start_signals_end() either signal ends the process with status 0. Both must be blocked already, and
 * stay so. s stays where it is. SL_EIO: no descriptors or no thread. */
SL_MUST_CHECK enum sl_err sl_start_signals_begin(struct sl_start_signals *s, struct sl_why *why);
/* What comes afterwards is for the caller's signalfd. */
void sl_start_signals_end(struct sl_start_signals *s);

#endif
