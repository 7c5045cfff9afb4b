/* common/wire/wire_msg.h - protobuf messages <-> bytes, with limits. With wire_sock the only user of
 * protobuf-c's allocator. */
#ifndef SLUICE_COMMON_WIRE_WIRE_MSG_H
#define SLUICE_COMMON_WIRE_WIRE_MSG_H

#include "common/base/buf.h"
#include "proto/sluice.pb-c.h"

#define SL_PROTOCOL_VERSION       1u
#define SL_WIRE_MAX_BYTES         (16u << 20) /* largest message: a prompt of 1M tokens is about 4 MiB */
#define SL_WIRE_MAX_ID            64u         /* bytes of a request id with its NUL */
#define SL_WIRE_MAX_NAME          64u         /* bytes of a node name with its NUL */
#define SL_WIRE_MAX_STRING        (1u << 20)  /* bytes of any other string */
#define SL_WIRE_MAX_TOKENS        (1u << 20)  /* tokens of one request */
#define SL_WIRE_MAX_PREFIX_HASHES 4096u       /* of a heartbeat */
#define SL_WIRE_MAX_DEADLINE_MS   (24u * 3600u * 1000u) /* a day: of a request, from when it is sent */

/* Serialises e (its version is set here). Memory of out is the caller's buffer. SL_ETOOBIG. */
SL_MUST_CHECK enum sl_err sl_wire_pack(Sluice__Envelope *e, struct sl_buf *out);

/* Checks size and version, unpacks into one allocation group freed by sl_wire_free(). Checks ids, names and
 * counts against the limits above, required oneof present, enum values known, strings valid UTF-8. SL_EPROTO,
 * SL_ETOOBIG, SL_EMISMATCH (version; why names both), SL_EUNSUPPORTED (a body this program does not know: a
 * newer peer's). */
SL_MUST_CHECK enum sl_err sl_wire_unpack(const void *bytes, size_t n, Sluice__Envelope **out,
                                         struct sl_why *why);
void sl_wire_free(Sluice__Envelope *e); /* of sl_wire_unpack() only; takes NULL */

#endif
