/* router/api/tool_force.h - a call that the model has to make (tool_choice required, or one function by name), or may
 * make and has to make well (a strict tool): what the nodes hold its text to. Pure.
 *
 * The text is the family's own syntax around JSON: a call is one of the tools with arguments that fit its
 * parameters. Where the syntax begins with a control token, which stands for no text, the token of a call that has
 * to come is given to the model as the end of its prompt. Where the model decides, text is free up to the syntax's
 * begin; arguments are held to the parameters of strict tools, and those of others to be an object. */
#ifndef SLUICE_ROUTER_API_TOOL_FORCE_H
#define SLUICE_ROUTER_API_TOOL_FORCE_H

#include "router/api/openai_parse.h"

/* Sets the schema and its frame in r->req->sampling, from r->tools, r->must_call, r->forced_tool and r->one_call, all
 * of which are set, and r->tool_format. begin_token: the one token that its begin is when that is a control token, -1:
 * none. False with the fault set: a schema that cannot be kept to. */
bool sl_tool_force(const struct sl_oai_request *r, int32_t begin_token, struct sl_fault *fault);

#endif
