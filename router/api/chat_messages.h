/* router/api/chat_messages.h - the messages of a chat: checked, and brought into the shape templates are
 * written for. Pure. */
#ifndef SLUICE_ROUTER_API_CHAT_MESSAGES_H
#define SLUICE_ROUTER_API_CHAT_MESSAGES_H

#include "router/api/json_field.h"

/* Of one chat: with more, common templates take more steps than SL_TEMPLATE_MAX_STEPS, and each message takes half
 * a KB here and again in the template, which only shows after all of them were handled. */
#define SL_CHAT_MAX_MESSAGES 65536u
/* False: the list, which the client calls name, has more, and the fault is set. */
bool sl_chat_few_enough(const json_t *list, const char *name, struct sl_fault *fault);

/* Returns a new list, owned by the caller, or NULL with the fault set (the param names the message:
 * "messages[2].content"):
 *   - content parts of type text become one string (most templates die on a list);
 *   - tool_calls[].function.arguments, a string of JSON on the wire, becomes the object templates expect;
 *   - the role "developer" becomes "system" unless knows_developer: templates that do not know it drop the
 *     message silently. */
json_t *sl_chat_messages(const json_t *messages, bool knows_developer, struct sl_fault *fault);

/* A list of text parts as one string, owned by the caller; NULL with the fault set, whose param is where. */
json_t *sl_chat_text(const json_t *parts, const char *where, struct sl_fault *fault);
/* The arguments of a call, a string that holds a JSON object, parsed; owned by the caller. NULL: it holds none that
 * sl_json_within() takes. */
json_t *sl_chat_arguments(const json_t *text, size_t *memory);
#define SL_CHAT_ARGUMENTS                                                                                    \
    "expected a string that holds a JSON object, at most 64 deep; all of a request take 96 MiB at most."

#endif
