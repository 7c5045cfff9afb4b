/* tests/fuzz/router/fuzz_ctl_reply.c - any message as a router's answer to sluicectl: in every form it is printed without
 * what a terminal obeys, and as JSON it parses. */
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "common/base/mem.h"
#include "common/wire/wire_msg.h"
#include "router/ctl/ctl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void print(const Sluice__AdminReply *reply, int form, FILE *out)
{
    switch (form) {
    case 0:
        sl_ctl_print_tables(reply, NULL, true, out);
        break;
    case 1:
        sl_ctl_print_tables(reply, "title,a", false, out);
        break;
    case 2:
        sl_ctl_print_yaml(reply, out);
        break;
    case 3:
        sl_ctl_print_json(reply, out);
        break;
    default:
        sl_ctl_print_chrome(reply, out);
    }
}

static void check(const Sluice__AdminReply *reply, int form)
{
    char *text;
    size_t n;
    FILE *out = open_memstream(&text, &n);
    SL_ASSERT(out);
    print(reply, form, out);
    SL_ASSERT(fclose(out) == 0);
    for (size_t i = 0; i < n; i++)
        SL_ASSERT(((unsigned char)text[i] >= 0x20 && text[i] != 0x7f) || text[i] == '\n');
    if (form >= 3) {
        json_t *j = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
        SL_ASSERT(j);
        json_decref(j);
    }
    sl_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Sluice__Envelope *e;
    struct sl_why why = {{0}};
    if (sl_wire_unpack(data, size, &e, &why) != SL_OK)
        return 0;
    if (e->body_case == SLUICE__ENVELOPE__BODY_ADMIN_REPLY)
        for (int form = 0; form < 5; form++)
            check(e->admin_reply, form);
    sl_wire_free(e);
    return 0;
}
