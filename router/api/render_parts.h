/* router/api/render_parts.h - an answer that is being rendered, and the parts that more than one API's frames and bodies
 * are made of. Within the renderers (openai_render.h, responses_render.h). */
#ifndef SLUICE_ROUTER_API_RENDER_PARTS_H
#define SLUICE_ROUTER_API_RENDER_PARTS_H

#include "router/api/openai_render.h"
#include "router/api/tool_calls.h"

struct sl_render_prompt {
    int32_t *tokens; /* kept only when they are shown */
    uint32_t n;
};

struct sl_render_choice {
    uint32_t index, n_tokens;
    const struct sl_render_prompt *prompt;
    bool begun;
    size_t text_chars;            /* of the token texts so far, for text_offset */
    struct sl_tool_filter *tools; /* NULL: the model was given none */
    struct sl_buf said;           /* of the present event, by the filter */
    json_t *calls;                /* so far */
    size_t n_calls_shown;
    size_t message_at; /* /v1/responses: where the message stands among the calls; SIZE_MAX = there is none */
    /* unstreamed and /v1/responses: the answer's parts; lists without their brackets */
    struct sl_buf text, id_list, digest_list;
    struct sl_buf content;                                       /* chat logprobs */
    struct sl_buf tokens, token_logprobs, top_logprobs, offsets; /* completion logprobs */
    struct sl_buf done;                                          /* all of it, once it ended */
};

struct sl_render {
    bool responses; /* of /v1/responses; chat is true too */
    bool chat, stream, include_usage, continuous_usage, echo, logprobs, digests, ids, tokens_as_ids,
        skip_special;
    char id[64];
    char *head; /* {"id":...,"model":"..." */
    const struct sl_tokenizer *tok;
    struct sl_render_prompt *prompts;
    struct sl_render_choice *choices; /* those of the first prompt first */
    uint32_t n_prompts, n, n_open;
    struct sl_gen_usage usage; /* of the choices that ended */
    int32_t user_stop_ids[SL_MAX_STOP_TOKENS];
    uint32_t n_user_stop_ids;
    uint64_t n_events; /* /v1/responses: sent */
};

/* "..." */
void sl_render_put_string(struct sl_buf *out, const char *s, size_t n);
void sl_render_put_id_list(struct sl_buf *out, const int32_t *ids, uint32_t n);
/* ,"prompt_token_ids":[...] */
void sl_render_put_prompt_ids(const struct sl_render_prompt *p, struct sl_buf *out);

/* The token's logprobs, when they are asked for and t is not NULL, behind those the choice has. */
void sl_render_collect_logprobs(const struct sl_render *r, struct sl_render_choice *c,
                                const Sluice__TokenEvent *t);
void sl_render_clear_logprobs(struct sl_render_choice *c);
/* Those the choice has, or null. */
void sl_render_put_logprobs(const struct sl_render *r, const struct sl_render_choice *c, struct sl_buf *out);

/* Text, logprobs, id and digest of a SL_GEN_TOKEN, behind what the choice has. */
void sl_render_collect_token(const struct sl_render *r, struct sl_render_choice *c,
                             const struct sl_gen_event *ev);

#endif
