/* common/text/template.h - renders the chat template found in a model file: a Jinja interpreter.
 *
 * Part of step 2 of the request path. The environment is the one transformers gives templates: trim_blocks,
 * lstrip_blocks, loop controls, immutable sandbox, tojson as json.dumps without ASCII escapes,
 * raise_exception, strftime_now.
 *
 * Trust: every byte of the output is known to come from the template (or the model file) or from the request;
 * the second kind is returned as spans, for sl_tokenizer_encode(). The mark follows each byte through all
 * operations.
 *
 * Bounds: a template or a request cannot make it run away; each limit below ends the rendering with
 * SL_ETOOBIG. Threads: a compiled template is immutable; rendering in any number of threads. */
#ifndef SLUICE_COMMON_TEXT_TEMPLATE_H
#define SLUICE_COMMON_TEXT_TEMPLATE_H

#include <jansson.h>
#include <stdint.h>
#include "common/base/buf.h"
#include "common/text/span.h"

#define SL_TEMPLATE_MAX_SOURCE_BYTES (1u << 20)
#define SL_TEMPLATE_MAX_NESTING      100  /* blocks and expressions inside each other in the source */
#define SL_TEMPLATE_MAX_DEPTH        1000 /* evaluations inside each other: macros, recursive loops, data */
#define SL_TEMPLATE_MAX_DATA_DEPTH   100  /* lists and objects inside each other in the request */
#define SL_TEMPLATE_MAX_STEPS        10000000u /* evaluations, and 16 bytes handled each: about a second */
#define SL_TEMPLATE_MAX_RANGE        100000    /* as Jinja's sandbox */
#define SL_TEMPLATE_MAX_MEMORY       (128u << 20) /* values, and texts on the way: about 20 times the messages' */

struct sl_template; /* opaque */

/* SL_EPARSE with line and reason; SL_ETOOBIG. src is copied. */
SL_MUST_CHECK enum sl_err sl_template_compile(const char *src, size_t len, struct sl_template **out,
                                              struct sl_why *why);
void sl_template_free(struct sl_template *t); /* takes NULL */

struct sl_template_args {
    const json_t *request; /* object: messages, tools, add_generation_prompt, ...: not trusted. May be NULL */
    const json_t *model;   /* object: bos_token, eos_token: trusted, wins over request. May be NULL */
    int64_t now_s;         /* strftime_now's time, seconds since 1970, shown in local time */
};

/* Appends the text to out and its untrusted ranges (offsets into out) to *untrusted.
 * SL_EINVAL: the template raised an exception, or met data it cannot use; the text is for the client (400).
 * SL_ETOOBIG: a limit above, or out's maximum. On error out and untrusted are as before. */
SL_MUST_CHECK enum sl_err sl_template_render(const struct sl_template *t, const struct sl_template_args *args,
                                             struct sl_buf *out, struct sl_spans *untrusted,
                                             struct sl_why *why);

#endif
