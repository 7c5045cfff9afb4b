/* tests/fuzz/wire/fuzz_wire_msg.c - bytes that claim to be a message of the control plane.
 *
 * What is accepted can be packed again and stays what it is; what asks for a leg and passes the node's check
 * can be turned into what the engine and the sampler take. */
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/node/node_order.h"
#include "common/wire/wire_msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_order(const Sluice__Envelope *e)
{
    struct sl_order o;
    struct sl_why why = {{0}};
    if (!sl_order_read(e, &o))
        return;
    if (sl_order_check(&o, 16, &why) != SL_OK) {
        SL_ASSERT(why.text[0]);
        return;
    }
    struct sl_sampling sampling;
    struct sl_logit_bias *bias;
    struct sl_seq_spec spec;
    struct sl_xfer_peer peer;
    sl_order_sampling(&o, &sampling, &bias);
    sl_order_spec(&o, &sampling, 0, &spec);
    sl_order_peer(&o, &peer);
    SL_ASSERT(spec.n_tokens >= spec.n_prompt && spec.n_prompt > 0);
    SL_ASSERT(sampling.n_stop_ids <= SL_MAX_STOP_IDS && sampling.n_bias <= SL_MAX_LOGIT_BIAS);
    SL_ASSERT(strnlen(peer.address, sizeof peer.address) < sizeof peer.address);
    sl_free(bias);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_why why = {{0}};
    Sluice__Envelope *e = NULL, *again = NULL;
    if (sl_wire_unpack(data, size, &e, &why) != SL_OK) {
        SL_ASSERT(why.text[0] && !e);
        return 0;
    }
    check_order(e);
    struct sl_buf b;
    sl_buf_init(&b, SL_WIRE_MAX_BYTES);
    /* unknown fields are packed as they came, with a number that protobuf-c reads only in its long form too
     */
    if (sl_wire_pack(e, &b) == SL_OK && sl_wire_unpack(b.data, b.len, &again, &why) == SL_OK) {
        SL_ASSERT(again->body_case == e->body_case);
        sl_wire_free(again);
    }
    sl_buf_fini(&b);
    sl_wire_free(e);
    return 0;
}
