/* common/node/node_order.h - a Submit or a Prefill, checked: the same words for both (step 4 of the request
 * path). */
#ifndef SLUICE_COMMON_NODE_NODE_ORDER_H
#define SLUICE_COMMON_NODE_NODE_ORDER_H

#include "common/engine/engine.h"
#include "common/node/node_words.h"
#include "common/transfer/transfer.h"
#include "proto/sluice.pb-c.h"

/* Points into the message. */
struct sl_order {
    const char *request_id;
    uint32_t attempt;
    uint64_t router_boot_id;
    const int32_t *tokens;
    size_t n_tokens;
    uint32_t n_prompt;
    const Sluice__Sampling *sampling;
    uint32_t deadline_ms;
    uint32_t split_tokens;
    const Sluice__PeerRef *peer; /* NULL = none */
    const char *cache_salt;
    int32_t chunk_tokens; /* SL_CHUNK_DEFAULT when the message says nothing */
    int32_t speculation;  /* likewise SL_SPEC_DEFAULT */
    int32_t priority;
    uint32_t ttft_ms, tpot_ms; /* wishes; 0 = none */
    uint32_t expected_tokens;  /* 0 = not known */
    bool want_digest, no_prefix_cache;
};

/* False when e is neither. */
bool sl_order_read(const Sluice__Envelope *e, struct sl_order *out);

/* Everything that can be wrong without asking the engine; why says what was found and expected. SL_EINVAL,
 * SL_ETOOBIG. */
SL_MUST_CHECK enum sl_err sl_order_check(const struct sl_order *o, uint32_t page_tokens, struct sl_why *why);

/* What the sampler and the engine want to hear. *bias is the caller's (sl_free) and may be freed once the
 * sequence is open. Only of an order that was checked. */
void sl_order_sampling(const struct sl_order *o, struct sl_sampling *out, struct sl_logit_bias **bias);
/* Fields that both duties fill alike; sampling is borrowed. */
void sl_order_spec(const struct sl_order *o, const struct sl_sampling *sampling, uint64_t now_us,
                   struct sl_seq_spec *out);
/* Opens the sequence of an order that was checked: duty says what the duty adds to what the order says
 * (owner, remote_to, compute_to, sample, decode, granted). Errors of sl_engine_seq_open() and of the schema.
 */
SL_MUST_CHECK enum sl_err sl_order_open(const struct sl_order *o, struct sl_engine *e,
                                        struct sl_node_words *words, const struct sl_seq_spec *duty,
                                        struct sl_seq **out, struct sl_why *why);
void sl_order_peer(const struct sl_order *o, struct sl_xfer_peer *out);

#endif
