/* router/api/key_weights.h - how much of the nodes' time a key gets beside others when there is not enough
 * for all (router/place/fair_share.h): "NAME=2" in the router's config. A key that is not named has 1.
 * Immutable after parsing; any thread. */
#ifndef SLUICE_ROUTER_API_KEY_WEIGHTS_H
#define SLUICE_ROUTER_API_KEY_WEIGHTS_H

#include "common/base/conf.h"

/* SL_ECONFIG: what was found and expected. */
SL_MUST_CHECK enum sl_err sl_key_weights_check(const struct sl_conf_list *list, struct sl_why *why);
/* Of a list that was checked; name may be NULL. */
double sl_key_weight(const struct sl_conf_list *list, const char *name);

#endif
