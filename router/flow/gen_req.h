/* router/flow/gen_req.h - one generation request inside the router, between parsing (api/) and the journal
 * (flow/); and what comes back for it. Everything in it lives in its arena. */
#ifndef SLUICE_ROUTER_FLOW_GEN_REQ_H
#define SLUICE_ROUTER_FLOW_GEN_REQ_H

#include "common/base/mem.h"
#include "proto/sluice.pb-c.h"

#define SL_MAX_STOP_STRINGS 16          /* OpenAI's limit is 4, vLLM's 16 by default */
#define SL_GEN_ARENA_BYTES  (64u << 20) /* per request: body, prompt text, tokens, output */

enum sl_mode_override { SL_MODE_DEFAULT, SL_MODE_PD, SL_MODE_COLOCATED, SL_MODE_HYBRID };

struct sl_gen_req {
    struct sl_arena *arena; /* owns this struct and all it points to */
    char id[64];            /* "chatcmpl-<router boot id>-<n>"; the client's x-request-id is kept beside it */
    const char *client_id;  /* X-Request-Id or NULL */
    bool chat;              /* of messages, else a completion */
    bool stream, include_usage, echo;
    const char *model;    /* as the client wrote it, for the answer */
    const char *key_name; /* which API key, for logs and fairness; NULL */
    double key_weight;    /* its share beside other keys' when there is not enough for all; 0 = 1 */

    int32_t *tokens; /* the prompt */
    uint32_t n_tokens;
    Sluice__Sampling sampling; /* n_logprobs, max_tokens, min_tokens, seed ... filled with defaults */
    bool logprobs;
    const char *stop[SL_MAX_STOP_STRINGS];
    uint32_t n_stop;
    bool include_stop; /* include_stop_str_in_output */
    bool skip_special; /* default true: control tokens have no text */
    bool return_token_ids;
    const char *cache_salt; /* NULL = shared */
    int32_t priority;
    const char *slo_class;     /* name, the router's; NULL = none */
    uint32_t ttft_ms, tpot_ms; /* wished: from arrival to the first token, between tokens; 0 = no wish */

    /* placement wishes, for comparison and debugging: headers X-Sluice-Mode, -Split, -Chunk, -Prefill-Node,
     * -Decode-Node, -Digest */
    enum sl_mode_override mode;
    int64_t split;       /* tokens, -1 = by rule */
    int32_t speculation; /* -2 = node's default, -1 automatic, 0 none, N drafts */
    int32_t chunk;       /* -2 = node's default, -1 automatic, 0 whole, N fixed */
    const char *want_prefill_node, *want_decode_node; /* names or NULL */
    bool want_digest;
    bool no_prefix_cache;
    uint32_t deadline_ms; /* from arrival */
    uint64_t arrived_us;  /* sl_now_us() when the body was complete */
};

struct sl_gen_usage {
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
};

enum sl_gen_event_kind {
    SL_GEN_TOKEN, /* one per token, in order; text may be empty while a character or a stop string is open */
    SL_GEN_DONE,  /* last: finish_reason and usage */
    SL_GEN_ERROR  /* last */
};

struct sl_gen_event {
    enum sl_gen_event_kind kind;
    /* SL_GEN_TOKEN */
    int32_t token;
    uint32_t index;
    const char *text; /* bytes that may be shown now, valid UTF-8; also rest of the text before SL_GEN_DONE
                         (token = -1) */
    size_t text_len;
    const Sluice__TokenEvent *raw; /* logprobs, digest; NULL when token is -1 */
    /* SL_GEN_DONE */
    const char *finish_reason; /* "stop", "length" */
    const char *stop_reason;   /* stop string matched, or NULL */
    int32_t stop_token;        /* stop id that ended it, or -1 */
    struct sl_gen_usage usage;
    /* SL_GEN_ERROR: http_error.c makes the status of it */
    enum sl_err err;
    const char *why;
    uint32_t retry_after_s; /* 0 = none */
};

/* Called on the flow thread; may only copy and enqueue. After DONE or ERROR it is not called again for this
 * request. */
typedef void sl_gen_event_fn(void *arg, const struct sl_gen_event *ev);

#endif
