/* router/api/openai_parse.h - an OpenAI request body -> struct sl_gen_req and what the prompt is made of
 * (step 1 of the request path). Pure: no I/O, no clock. The parameters, their ranges and their meaning are
 * vLLM's where OpenAI leaves room.
 *
 * What is understood and not offered is refused by name; what cannot change the answer (user, metadata, ...)
 * is ignored; a name nobody knows is ignored and reported once by the caller. */
#ifndef SLUICE_ROUTER_API_OPENAI_PARSE_H
#define SLUICE_ROUTER_API_OPENAI_PARSE_H

#include "router/api/json_field.h"
#include "common/grammar/json_schema.h"
#include "router/api/tool_calls.h"
#include "router/flow/gen_req.h"

#define SL_MAX_TOP_LOGPROBS 20 /* vLLM's and OpenAI's chat limit */
#define SL_MAX_BIASES       1024
#define SL_MAX_STOP_TOKENS  16  /* stop_token_ids and the model's end tokens together; nodes take no more */
#define SL_MAX_STOP_BYTES   256 /* of one stop string; common/text/stop_match.h takes no more */
#define SL_MAX_SALT_BYTES   256
#define SL_MAX_UNKNOWN      8
#define SL_MAX_CHOICES      128 /* OpenAI's limit of n; here of prompts times n */

/* The model as the parser needs it. */
struct sl_oai_model {
    const char *const *names; /* served names, the first is the one shown */
    size_t n_names;
    uint32_t n_vocab, context_length;
    const uint32_t *eog; /* tokens that end a generation */
    size_t n_eog;
};

enum sl_prompt_kind { SL_PROMPT_TEXT, SL_PROMPT_TOKENS, SL_PROMPT_MESSAGES };

/* One of a completion's prompts, or the chat. prompt.h makes its tokens and max_tokens. */
struct sl_oai_prompt {
    const char *text; /* SL_PROMPT_TEXT */
    size_t text_len;
    int32_t *tokens; /* in the request's arena */
    uint32_t n_tokens, max_tokens;
};

/* What a body asks for beside req: n_prompts * n choices, those of the first prompt first. Strings and JSON
 * point into the body's json_t. */
struct sl_oai_request {
    struct sl_gen_req *req; /* what all choices have in common: tokens and n_tokens are not set */
    enum sl_prompt_kind prompt_kind;
    struct sl_oai_prompt *prompts;                /* in the request's arena */
    uint32_t n_prompts, n;                        /* together at most SL_MAX_CHOICES */
    const json_t *messages;                       /* SL_PROMPT_MESSAGES: checked by chat_messages.h */
    const json_t *template_kwargs;                /* object or NULL */
    const json_t *tools;                          /* the model may call: checked; NULL = none */
    bool must_call, strict, one_call;             /* it has to; some tool is strict; at most one call */
    char forced_tool[SL_TOOL_NAME_MAX_BYTES + 1]; /* the one it has to call; "" = any */
    const struct sl_tool_format *tool_format;     /* how, prompt.h knows; NULL when tools is */
    bool add_generation_prompt, continue_final_message;
    bool add_special;   /* bos and eos where the model file asks for them */
    bool parse_special; /* control tokens in the text are recognised (our extension; default no) */
    int64_t truncate;   /* keep the last N prompt tokens; 0 = off, -1 = what the context takes */
    bool max_tokens_given;
    bool continuous_usage;
    bool tokens_as_ids;      /* return_tokens_as_token_ids: "token_id:42" in logprobs */
    const char *request_id;  /* body's request_id or NULL */
    const json_t *responses; /* the body of /v1/responses that the chat was made of; NULL = none */
    int32_t user_stop_ids[SL_MAX_STOP_TOKENS]; /* stop_token_ids as given, without the model's own */
    uint32_t n_user_stop_ids;
    const char *unknown[SL_MAX_UNKNOWN]; /* names of members nobody knows */
    size_t n_unknown;
};

/* Fills req (made by the caller in its arena) and out. False with the fault set. */
bool sl_oai_parse(const struct sl_oai_model *model, bool chat, const json_t *body, struct sl_gen_req *req,
                  struct sl_oai_request *out, struct sl_fault *fault);

/* The schema that the answer has to fit, as text for the nodes, into req; compiled to tell what is wrong with it.
 * frame as sl_json_schema_compile() has it; param names the member it came from. */
bool sl_oai_keep_schema(const json_t *schema, const struct sl_schema_frame *frame, const char *param,
                        struct sl_gen_req *req, struct sl_fault *fault);

/* prompt as token ids: [int] checked against the vocabulary, into arena. Also for /detokenize ("tokens"). */
bool sl_oai_token_list(const json_t *list, const char *name, uint32_t n_vocab, struct sl_arena *arena,
                       int32_t **tokens, uint32_t *n, struct sl_fault *fault);

/* The model named in a body, NULL = the one served. 404 when unknown. */
bool sl_oai_check_model(const struct sl_oai_model *model, const char *name, struct sl_fault *fault);

#endif
