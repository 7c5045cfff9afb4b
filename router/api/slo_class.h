/* router/api/slo_class.h - service classes: what users of a kind may expect, named in the router's config and
 * chosen per request.
 *
 * A class is written "NAME ttft_ms=1000 tpot_ms=50 priority=0", every part but the name optional. A request
 * is of the class its header X-Sluice-Class names, else of the one named like its API key, else of the one
 * named "default", else of none. Immutable after parsing; any thread. */
#ifndef SLUICE_ROUTER_API_SLO_CLASS_H
#define SLUICE_ROUTER_API_SLO_CLASS_H

#include "common/base/conf.h"
#include "router/api/json_field.h"
#include "router/flow/gen_req.h"

#define SL_SLO_CLASSES  32u
#define SL_SLO_NAME     33u
#define SL_SLO_MAX_MS   (24u * 3600u * 1000u)
#define SL_SLO_PRIORITY 1000 /* either way: more would outlive ageing */

struct sl_slo_class {
    char name[SL_SLO_NAME];
    uint32_t ttft_ms, tpot_ms; /* 0 = no wish */
    int32_t priority;
};

struct sl_slo_classes {
    struct sl_slo_class of[SL_SLO_CLASSES];
    uint32_t n;
};

/* SL_ECONFIG: what was found and expected. */
SL_MUST_CHECK enum sl_err sl_slo_classes_parse(const struct sl_conf_list *list, struct sl_slo_classes *out,
                                               struct sl_why *why);

/* Fills ttft_ms, tpot_ms and priority of req where it brings none of its own (0 is none); asked is the header
 * or NULL. False with the fault set when there is no class of that name. */
bool sl_slo_apply(const struct sl_slo_classes *c, const char *asked, struct sl_gen_req *req,
                  struct sl_fault *fault);

#endif
