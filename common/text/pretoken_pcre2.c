/* common/text/pretoken_pcre2.c - pre-tokenisers as regular expressions, one table row per name.
 *
 * A rule is one or two stages. Each stage cuts what it gets into matches and the gaps between them, and both
 * go on to the next stage as texts of their own: a look-ahead does not see past a cut. That is how `smollm`
 * splits "a  1" into "a", two spaces, "1", where one joint expression would leave a space at the digit.
 *
 * \s is written out: with PCRE2_UCP it matches U+180E, which Unicode no longer counts as white space, and so
 * does no engine the models' own tokenizers were built with. The text is checked once by the caller, so every
 * match runs with PCRE2_NO_UTF_CHECK; without it each match would check the rest of the text again, which is
 * quadratic. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "common/text/pretoken.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"

#define MAX_STAGES 2

/* inside a character class, without the brackets */
#define WS "\\t-\\r\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

#define DIGITS "\\p{N}"
#define GPT2                                                                                                 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|[" WS "]+(?![^" WS "])|[" WS "]+"
#define QWEN2                                                                                                \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" WS                              \
    "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|[" WS "]+(?![^" WS "])|[" WS "]+"

static const struct rule {
    const char *name;
    const char *stages[MAX_STAGES];
} rules[] = {
    {"gpt-2", {GPT2, NULL}},       {"mpt", {GPT2, NULL}},      {"smollm", {DIGITS, GPT2}},
    {"starcoder", {DIGITS, GPT2}}, {"refact", {DIGITS, GPT2}}, {"qwen2", {QWEN2, NULL}},
};

struct sl_pretoken {
    pcre2_code *stages[MAX_STAGES];
    unsigned n_stages;
};

struct walk {
    const struct sl_pretoken *p;
    pcre2_match_data *match[MAX_STAGES];
    sl_piece_fn *fn;
    void *arg;
};

static enum sl_err unknown(const char *name, struct sl_why *why)
{
    char list[256] = "";
    size_t len = 0;
    for (size_t i = 0; i < SL_COUNTOF(rules); i++)
        len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", i ? ", " : "", rules[i].name);
    if (!name)
        return sl_why_set(
            why, SL_EUNSUPPORTED,
            "the model file names no pre-tokeniser (tokenizer.ggml.pre); known: %s; convert it with a "
            "current tool",
            list);
    return sl_why_set(why, SL_EUNSUPPORTED,
                      "unknown pre-tokeniser \"%.64s\"; known: %s; use a model with one of these", name,
                      list);
}

enum sl_err sl_pretoken_open(const char *name, struct sl_pretoken **out, struct sl_why *why)
{
    const struct rule *rule = NULL;
    for (size_t i = 0; i < SL_COUNTOF(rules) && name; i++)
        if (strcmp(rules[i].name, name) == 0)
            rule = &rules[i];
    if (!rule)
        return unknown(name, why);
    struct sl_pretoken *p = sl_xcalloc(1, sizeof *p);
    while (p->n_stages < MAX_STAGES && rule->stages[p->n_stages]) {
        int code = 0;
        PCRE2_SIZE at = 0;
        pcre2_code *re = pcre2_compile((PCRE2_SPTR)rule->stages[p->n_stages], PCRE2_ZERO_TERMINATED,
                                       PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
        if (!re) {
            sl_pretoken_close(p);
            return sl_why_set(why, SL_EBUG, "pre-tokeniser %s does not compile (PCRE2 error %d at %zu)", name,
                              code, (size_t)at);
        }
        /* Fails where memory may not be made executable (hardened units): then the interpreter runs, 5x
         * slower. */
        (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
        p->stages[p->n_stages++] = re;
    }
    *out = p;
    return SL_OK;
}

void sl_pretoken_close(struct sl_pretoken *p)
{
    if (!p)
        return;
    for (unsigned i = 0; i < p->n_stages; i++)
        pcre2_code_free(p->stages[i]);
    sl_free(p);
}

static enum sl_err split(const struct walk *w, unsigned stage, const char *text, size_t len)
{
    if (len == 0)
        return SL_OK;
    if (stage == w->p->n_stages)
        return w->fn(w->arg, text, len);
    size_t at = 0; /* everything before is handed on */
    while (at < len) {
        const pcre2_code *re = w->p->stages[stage];
        pcre2_match_data *m = w->match[stage];
        int rc = pcre2_match(re, (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK, m, NULL);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
            rc = pcre2_match(re, (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m, NULL);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0)
            return rc == PCRE2_ERROR_NOMEMORY ? SL_ENOMEM : SL_ETOOBIG;
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(m);
        size_t from = span[0], to = span[1];
        SL_ASSERT(to > from); /* no rule matches nothing */
        enum sl_err e = split(w, stage + 1, text + at, from - at);
        if (!e)
            e = split(w, stage + 1, text + from, to - from);
        if (e)
            return e;
        at = to;
    }
    return split(w, stage + 1, text + at, len - at);
}

enum sl_err sl_pretoken_split(const struct sl_pretoken *p, const char *text, size_t len, sl_piece_fn *fn,
                              void *arg)
{
    struct walk w = {.p = p, .fn = fn, .arg = arg};
    enum sl_err e = SL_OK;
    for (unsigned i = 0; i < p->n_stages; i++)
        if (!(w.match[i] = pcre2_match_data_create(1, NULL)))
            e = SL_ENOMEM;
    if (!e)
        e = split(&w, 0, text, len);
    for (unsigned i = 0; i < p->n_stages; i++)
        pcre2_match_data_free(w.match[i]);
    return e;
}
