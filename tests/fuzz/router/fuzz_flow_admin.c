/* tests/fuzz/router/fuzz_flow_admin.c - any operations that an administrator asks a router for: each is answered with a
 * sentence or tables that fit on the wire. Input: lines, the operation and its arguments between blanks. */
#include <stdint.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/wire/wire_msg.h"
#include "router/flow/request_flow.h"
#include "tests/unit/router/flow/flow_rig.h"

#define MAX_LINES 8
#define MAX_ARGS  5

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct sl_flow *open_flow(void)
{
    struct sl_flow *f;
    struct sl_why why = {{0}};
    const struct sl_flow_conf conf = {.register_url = "inproc://fuzz-register",
                                      .event_url = "inproc://fuzz-events",
                                      .admin_url = "inproc://fuzz-admin",
                                      .mode = SLUICE__MODE__MODE_HYBRID,
                                      .max_requests = 8,
                                      .heartbeat_ms = 1000,
                                      .node_dead_ms = 60000,
                                      .node_stall_ms = 60000,
                                      .command_timeout_ms = 1000,
                                      .default_deadline_ms = 1000,
                                      .boot_id = 1,
                                      .tokenizer = rig_tokenizer(),
                                      .context_length = 4096,
                                      .metrics = sl_metrics_new(),
                                      .model_name = "m",
                                      .version = "0"};
    sl_log_set_level(SL_LOG_ERROR);
    SL_ASSERT(sl_flow_open(&conf, &f, &why) == SL_OK);
    return f;
}

static void ask(struct sl_flow *f, char *line)
{
    const char *args[MAX_ARGS], *op = strsep(&line, " ");
    size_t n = 0;
    Sluice__AdminReply *reply;
    struct sl_buf bytes;
    while (line && n < MAX_ARGS)
        args[n++] = strsep(&line, " ");
    SL_ASSERT(sl_flow_admin(f, op, args, n, RIG_WAIT_MS, &reply) == SL_OK);
    SL_ASSERT((reply->text && reply->text[0]) || reply->n_tables);
    for (size_t t = 0; t < reply->n_tables; t++)
        for (size_t i = 0; i < reply->tables[t]->n_rows; i++)
            SL_ASSERT(reply->tables[t]->rows[i]->n_cells == reply->tables[t]->n_columns);
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT, *again;
    struct sl_why why = {{0}};
    e.body_case = SLUICE__ENVELOPE__BODY_ADMIN_REPLY;
    e.admin_reply = reply;
    sl_buf_init(&bytes, SL_WIRE_MAX_BYTES);
    SL_ASSERT(sl_wire_pack(&e, &bytes) == SL_OK &&
              sl_wire_unpack(bytes.data, bytes.len, &again, &why) == SL_OK);
    sl_wire_free(again);
    sl_buf_fini(&bytes);
    sluice__admin_reply__free_unpacked(reply, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct sl_flow *flow;
    if (!flow)
        flow = open_flow();
    char *text = sl_xstrndup((const char *)data, size), *rest = text;
    for (int i = 0; rest && i < MAX_LINES; i++)
        ask(flow, strsep(&rest, "\n"));
    sl_free(text);
    return 0;
}
