/* router/api/key_weights.c - see key_weights.h. The list is read anew for each request: it is short, and one
 * copy of the truth is enough. */
#include "router/api/key_weights.h"

#include <stdlib.h>
#include <string.h>

#define WEIGHT_MIN 0.01
#define WEIGHT_MAX 100.0 /* beyond that a class with a priority says better what is meant */

static bool read_weight(const char *text, double *out)
{
    char *end;
    const char *equals = strrchr(text, '=');
    if (!equals || equals == text)
        return false;
    *out = strtod(equals + 1, &end);
    return end != equals + 1 && *end == '\0' && *out >= WEIGHT_MIN && *out <= WEIGHT_MAX;
}

enum sl_err sl_key_weights_check(const struct sl_conf_list *list, struct sl_why *why)
{
    double w;
    for (size_t i = 0; i < list->n; i++)
        if (!read_weight(list->items[i], &w))
            return sl_why_set(
                why, SL_ECONFIG,
                "key_weights has \"%.100s\"; expected the name of a key and its weight, NAME=W with "
                "W from %g to %g",
                list->items[i], WEIGHT_MIN, WEIGHT_MAX);
    return SL_OK;
}

double sl_key_weight(const struct sl_conf_list *list, const char *name)
{
    double w;
    size_t n = name ? strlen(name) : 0;
    for (size_t i = 0; n && i < list->n; i++)
        if (strncmp(list->items[i], name, n) == 0 && strrchr(list->items[i], '=') == list->items[i] + n &&
            read_weight(list->items[i], &w))
            return w;
    return 1;
}
