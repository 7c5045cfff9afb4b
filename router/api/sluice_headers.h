/* router/api/sluice_headers.h - X-Sluice-* headers: placement wishes of one request, for comparison and
 * debugging. */
#ifndef SLUICE_ROUTER_API_SLUICE_HEADERS_H
#define SLUICE_ROUTER_API_SLUICE_HEADERS_H

#include "router/api/json_field.h"
#include "router/flow/gen_req.h"

/* The value of a header or NULL. */
typedef const char *sl_header_fn(const void *arg, const char *name);

/* Fills the wishes of req (defaults where there is no header):
 *   X-Sluice-Mode: pd | colocated | hybrid      X-Sluice-Split: tokens       X-Sluice-Chunk: N | 0 | auto
 *   X-Sluice-Prefill-Node, X-Sluice-Decode-Node: names                       X-Sluice-Digest: 1
 *   X-Sluice-No-Cache: 1                        X-Sluice-Speculation: N | off | auto
 *   X-Sluice-Deadline-Ms, X-Sluice-Ttft-Ms, X-Sluice-Tpot-Ms: milliseconds
 * False with the fault set, the header as its param, when a value is not one of these. */
bool sl_headers_read(sl_header_fn *get, const void *arg, struct sl_gen_req *req, struct sl_fault *fault);

#endif
