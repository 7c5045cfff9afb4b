/* router/api/tool_calls.h - calls of tools in what a model says (step 11 of the request path): which format
 * its chat template teaches, and a filter that takes the calls out of the text as it comes. Pure. */
#ifndef SLUICE_ROUTER_API_TOOL_CALLS_H
#define SLUICE_ROUTER_API_TOOL_CALLS_H

#include "common/base/buf.h"
#include "router/api/json_field.h"

#define SL_MAX_TOOLS           128
#define SL_TOOL_NAME_MAX_BYTES 64
#define SL_TOOL_CALL_MAX_BYTES (1u << 20) /* of the JSON of one call; longer is shown as text */
#define SL_TOOL_CALL_ID_CHARS  9          /* Mistral's templates take no other length */

/* How a family of models writes its calls. */
struct sl_tool_format {
    const char *name;
    const char *taught;    /* a template with these words teaches it ... */
    const char *untaught;  /* ... unless it has these; NULL = none */
    const char *begin;     /* in front of a call; NULL: a call is the whole answer, from its first '{' */
    const char *end;       /* behind it; NULL: the end of the answer */
    const char *arguments; /* member of a call that holds them; "name" is the other */
    bool begin_is_control; /* begin is a control token, which has to be shown to be seen */
    struct { /* what stands around the JSON of calls the model has to make; between NULL: one call only */
        const char *before, *between, *after;
    } forced; /* a begin that is a control token stands in front of it */
};

/* The format a chat template teaches, NULL: none of those known, or source is NULL. */
const struct sl_tool_format *sl_tool_format_of(const char *template_source);

/* tools of a body: checked. The fault's param names what is wrong. */
bool sl_tools_check(const json_t *tools, struct sl_fault *fault);
/* The tool's arguments have to fit its schema. */
bool sl_tool_is_strict(const json_t *tool);

struct sl_tool_filter; /* opaque; one per choice */

/* one_call: later calls are dropped. */
struct sl_tool_filter *sl_tool_filter_new(const struct sl_tool_format *format, bool one_call);
void sl_tool_filter_free(struct sl_tool_filter *f); /* takes NULL */

/* Text as it comes, n bytes, cut anywhere. To content: what is no call; to calls, a list: {"name",
 * "arguments"}, the arguments a string of JSON. What only looked like a call is content. Blanks around calls
 * are dropped. */
void sl_tool_filter_put(struct sl_tool_filter *f, const char *text, size_t n, struct sl_buf *content,
                        json_t *calls);
/* The answer ended: what was held back. */
void sl_tool_filter_end(struct sl_tool_filter *f, struct sl_buf *content, json_t *calls);

/* The id of call k of a choice: letters and digits, the same for the same answer. */
void sl_tool_call_id(const char *request_id, uint32_t choice, uint32_t k, char id[SL_TOOL_CALL_ID_CHARS + 1]);

#endif
