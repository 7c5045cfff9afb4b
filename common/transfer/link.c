/* common/transfer/link.c - the transports by name, and the one form of their addresses. */
#include "common/transfer/link.h"

#include <string.h>

const struct sl_link_ops *sl_link_find(const char *name)
{
    static const struct sl_link_ops *const all[] = {&sl_link_ucx, &sl_link_nccl, &sl_link_loop};
    for (size_t i = 0; i < SL_COUNTOF(all); i++)
        if (name && strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

enum sl_err sl_link_address_split(const char *text, struct sl_link_address *out, struct sl_why *why)
{
    const char *colon = strrchr(text, ':'), *host = text;
    size_t host_n = colon ? (size_t)(colon - text) : 0, port_n = colon ? strlen(colon + 1) : 0;
    if (host_n >= 2 && text[0] == '[' && text[host_n - 1] == ']') {
        host++;
        host_n -= 2;
    } else if (colon && memchr(text, ':', host_n)) {
        host_n = 0; /* an IPv6 address without brackets: where does the port begin? */
    }
    if (host_n == 0 || host_n >= sizeof out->host || port_n == 0 || port_n >= sizeof out->port)
        return sl_why_set(why, SL_ECONFIG, "\"%s\" is no transfer address: expected host:port", text);
    memset(out, 0, sizeof *out);
    memcpy(out->host, host, host_n);
    memcpy(out->port, colon + 1, port_n);
    return SL_OK;
}
