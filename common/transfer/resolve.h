/* common/transfer/resolve.h - the address of a peer as the network has it, without waiting for a name server.
 *
 * Not for other folders. Threads: the one that started it. */
#ifndef SLUICE_COMMON_TRANSFER_RESOLVE_H
#define SLUICE_COMMON_TRANSFER_RESOLVE_H

#include <sys/socket.h>

#include "common/base/err.h"

struct sl_resolve; /* opaque */

/* address: "host:port". A host in numbers is known at once; a name is looked up by a thread of its own. *out is the
 * caller's, to be ended with sl_resolve_end(). SL_ECONFIG: no such address. SL_EPEER: too many name servers hang. */
SL_MUST_CHECK enum sl_err sl_resolve_start(const char *address, struct sl_resolve **out, struct sl_why *why);
/* SL_EAGAIN: not known yet. SL_EPEER: there is no such name. */
SL_MUST_CHECK enum sl_err sl_resolve_poll(const struct sl_resolve *r, struct sockaddr_storage *sa,
                                          socklen_t *len, struct sl_why *why);
void sl_resolve_end(struct sl_resolve *r); /* at any time; takes NULL */
/* The same for who may wait, as at a start. */
SL_MUST_CHECK enum sl_err sl_resolve_wait(const char *address, struct sockaddr_storage *sa, socklen_t *len,
                                          struct sl_why *why);

#endif
