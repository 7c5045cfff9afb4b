/* router/api/responses_parse.h - a body of /v1/responses -> the one of /v1/chat/completions that asks for the same (step 1 of the
 * request path), so that there is one parser, one prompt and one answer for both. Pure.
 *
 * Members whose name and meaning are the chat's go over as they are. */
#ifndef SLUICE_ROUTER_API_RESPONSES_PARSE_H
#define SLUICE_ROUTER_API_RESPONSES_PARSE_H

#include "router/api/json_field.h"

/* instructions, tools, text, tool_choice and metadata as JSON: an answer repeats them, the stream of one three times, which has to
 * stay below max_unread_bytes (4 MiB by default). */
#define SL_RESPONSES_ECHO_MAX_BYTES (1u << 20)

/* Owned by the caller, with references to parts of body. NULL with the fault set. */
json_t *sl_responses_to_chat(const json_t *body, struct sl_fault *fault);

/* A fault of the chat in the words of the body that the chat was made of. */
void sl_responses_name_fault(struct sl_fault *fault);

/* What an answer repeats of the body it answers; owned by the caller. */
json_t *sl_responses_echo(const json_t *body);

#endif
