/* router/api/prompt.h - step 2 of the request path: template, tokens, limits. Pure but for the tokenizer's
 * tables; any thread. */
#ifndef SLUICE_ROUTER_API_PROMPT_H
#define SLUICE_ROUTER_API_PROMPT_H

#include "common/base/buf.h"
#include "common/text/template.h"
#include "common/text/tokenizer.h"
#include "router/api/openai_parse.h"

struct sl_prompt_conf {
    const struct sl_tokenizer *tokenizer;
    const struct sl_template *template;       /* NULL: the model has none, chats are refused */
    const json_t *template_model;             /* bos_token, eos_token */
    bool knows_developer;                     /* the template mentions that role */
    const struct sl_tool_format *tool_format; /* it teaches; NULL = none that is known */
    uint32_t context_length;
    int64_t now_s; /* for templates that show the date */
};

#define SL_PROMPT_MAX_TEXT_BYTES (32u << 20) /* rendered */

/* The text a chat becomes; untrusted: what of it came from the request. False with the fault set (the
 * template's own words when it raised an exception). */
bool sl_prompt_render(const struct sl_prompt_conf *conf, const struct sl_oai_request *r, struct sl_buf *text,
                      struct sl_spans *untrusted, struct sl_fault *fault);

/* Any text to ids in arena. */
bool sl_prompt_encode(const struct sl_prompt_conf *conf, const struct sl_encode_in *in,
                      struct sl_arena *arena, int32_t **tokens, uint32_t *n, struct sl_fault *fault);

/* Makes tokens and max_tokens of each prompt. What does not fit the context is refused with both numbers. */
bool sl_prompt_make(const struct sl_prompt_conf *conf, struct sl_oai_request *r, struct sl_fault *fault);

#endif
