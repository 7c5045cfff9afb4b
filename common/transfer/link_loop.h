/* common/transfer/link_loop.h - faults for the loop transport: tests see what the protocol does when the
 * network misbehaves. */
#ifndef SLUICE_COMMON_TRANSFER_LINK_LOOP_H
#define SLUICE_COMMON_TRANSFER_LINK_LOOP_H

#include <stddef.h>

/* What happens to one message. CORRUPT flips a bit of the payload; CUT closes the connection instead of
 * delivering; HOLD announces it, and its bytes leave and land only at sl_link_loop_release(); FAIL announces it, and
 * its receive fails, before the connection is told to be gone. */
enum sl_loop_fault {
    SL_LOOP_DELIVER,
    SL_LOOP_DROP,
    SL_LOOP_DUPLICATE,
    SL_LOOP_CORRUPT,
    SL_LOOP_CUT,
    SL_LOOP_HOLD,
    SL_LOOP_FAIL
};

/* Asked for every message sent by any loop link of the process, from the sender's thread. NULL takes it back.
 * Not while links are open. */
typedef enum sl_loop_fault sl_loop_fault_fn(void *arg, const void *header, size_t header_len,
                                            size_t payload_len);
void sl_link_loop_set_fault(sl_loop_fault_fn *fn, void *arg);
/* Lets all held payloads of all links land. Any thread. */
void sl_link_loop_release(void);

#endif
