/* common/text/pretoken_pcre2.c - cuts by regular expressions, one after the other.
 *
 * Each cut takes what it gets apart into matches and the gaps between them and puts them together as its kind
 * says; the pieces go on to the next cut as texts of their own: a look-ahead does not see past a cut. Pieces
 * go all the way through one by one, so nothing is stored.
 *
 * The text is checked once by the caller, so every match runs with PCRE2_NO_UTF_CHECK; without it each match
 * would check the rest of the text again, which is quadratic. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "common/text/pretoken.h"

#include <pcre2.h>
#include <string.h>

#include "common/text/pattern.h"

struct cut {
    pcre2_code *re;
    enum sl_cut_kind kind;
    bool invert;
    bool jit; /* compiled to machine code */
};

struct sl_pretoken {
    struct cut cuts[SL_PRETOKEN_MAX_CUTS];
    unsigned n_cuts;
};

struct walk {
    const struct sl_pretoken *p;
    pcre2_match_data *match[SL_PRETOKEN_MAX_CUTS];
    sl_piece_fn *fn;
    void *arg;
};

static enum sl_err compile(const char *pattern, pcre2_code **out, struct sl_why *why)
{
    struct sl_buf translated;
    int code = 0;
    uint32_t empty = 0;
    PCRE2_SIZE at = 0;
    char text[128] = "";
    sl_buf_init(&translated, 8 * SL_PATTERN_MAX_BYTES);
    enum sl_err e = sl_pattern_translate(pattern, strlen(pattern), &translated, why);
    pcre2_code *re = NULL;
    if (e)
        goto end;
    re = pcre2_compile((PCRE2_SPTR)(translated.data ? translated.data : ""), translated.len,
                       PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    if (!re) {
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
        e = sl_why_set(why, SL_EUNSUPPORTED, "the pre-tokeniser's pattern \"%.200s\" does not compile: %s",
                       pattern, text);
        goto end;
    }
    if (pcre2_pattern_info(re, PCRE2_INFO_MATCHEMPTY, &empty) || empty) {
        pcre2_code_free(re);
        e = sl_why_set(
            why, SL_EUNSUPPORTED,
            "the pre-tokeniser's pattern \"%.200s\" may match nothing at all, which is not supported",
            pattern);
        goto end;
    }
    /* Fails where memory may not be made executable (hardened units): then the interpreter runs, 5x slower.
     */
    (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
    *out = re;
end:
    sl_buf_fini(&translated);
    return e;
}

enum sl_err sl_pretoken_open(const struct sl_vocab_cut *cuts, size_t n_cuts, struct sl_pretoken **out,
                             struct sl_why *why)
{
    if (n_cuts > SL_PRETOKEN_MAX_CUTS)
        return sl_why_set(why, SL_ETOOBIG, "%zu pre-tokenisers in a row, at most %d are allowed", n_cuts,
                          SL_PRETOKEN_MAX_CUTS);
    struct sl_pretoken *p = sl_xcalloc(1, sizeof *p);
    for (size_t i = 0; i < n_cuts; i++) {
        struct cut *c = &p->cuts[p->n_cuts];
        enum sl_err e = compile(cuts[i].pattern, &c->re, why);
        if (e) {
            sl_pretoken_close(p);
            return e;
        }
        /* Fails where memory may not be made executable (hardened units): then the interpreter runs, 5x
         * slower. */
        c->jit = pcre2_jit_compile(c->re, PCRE2_JIT_COMPLETE) == 0;
        c->kind = cuts[i].kind;
        c->invert = cuts[i].invert;
        p->n_cuts++;
    }
    *out = p;
    return SL_OK;
}

void sl_pretoken_close(struct sl_pretoken *p)
{
    if (!p)
        return;
    for (unsigned i = 0; i < p->n_cuts; i++)
        pcre2_code_free(p->cuts[i].re);
    sl_free(p);
}

static enum sl_err split(const struct walk *w, unsigned cut, const char *text, size_t len);

/* Puts matches and gaps together. What is held waits for its neighbour. */
struct joiner {
    const struct walk *w;
    unsigned next; /* cut */
    enum sl_cut_kind kind;
    const char *held;
    size_t n_held;
    bool after_match; /* the last range was a match */
};

static enum sl_err hand_on(struct joiner *j)
{
    enum sl_err e = j->n_held ? split(j->w, j->next, j->held, j->n_held) : SL_OK;
    j->n_held = 0;
    return e;
}

/* Takes the next range, n > 0: neighbours in the text, in order. */
static enum sl_err join(struct joiner *j, const char *range, size_t n, bool is_match)
{
    bool together = false;
    switch (j->kind) {
    case SL_CUT_ISOLATED:
        break;
    case SL_CUT_REMOVED:
        if (is_match)
            return SL_OK;
        break;
    case SL_CUT_CONTIGUOUS:
        together = is_match == j->after_match;
        break;
    case SL_CUT_WITH_PREVIOUS:
        together = is_match && !j->after_match;
        break;
    case SL_CUT_WITH_NEXT:
        together = !is_match && j->after_match;
        break;
    }
    enum sl_err e = SL_OK;
    if (!together || j->n_held == 0) {
        e = hand_on(j);
        j->held = range;
    }
    j->n_held += n;
    j->after_match = is_match;
    return e;
}

static int match(const struct cut *c, const char *text, size_t len, size_t at, pcre2_match_data *m)
{
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (c->jit)
        rc = pcre2_jit_match(c->re, (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK, m, NULL);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(c->re, (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m, NULL);
    return rc;
}

static enum sl_err split(const struct walk *w, unsigned cut, const char *text, size_t len)
{
    if (len == 0)
        return SL_OK;
    if (cut == w->p->n_cuts)
        return w->fn(w->arg, text, len);
    const struct cut *c = &w->p->cuts[cut];
    struct joiner j = {.w = w, .next = cut + 1, .kind = c->kind};
    size_t at = 0; /* everything before is joined */
    enum sl_err e = SL_OK;
    while (at < len && !e) {
        pcre2_match_data *m = w->match[cut];
        int rc = match(c, text, len, at, m);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0)
            return rc == PCRE2_ERROR_NOMEMORY ? SL_ENOMEM : SL_ETOOBIG;
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(m);
        size_t from = span[0], to = span[1];
        SL_ASSERT(to > from); /* see compile() */
        if (from > at)
            e = join(&j, text + at, from - at, c->invert);
        if (!e)
            e = join(&j, text + from, to - from, !c->invert);
        at = to;
    }
    if (!e && at < len)
        e = join(&j, text + at, len - at, c->invert);
    return e ? e : hand_on(&j);
}

enum sl_err sl_pretoken_split(const struct sl_pretoken *p, const char *text, size_t len, sl_piece_fn *fn,
                              void *arg)
{
    struct walk w = {.p = p, .fn = fn, .arg = arg};
    enum sl_err e = SL_OK;
    for (unsigned i = 0; i < p->n_cuts; i++)
        if (!(w.match[i] = pcre2_match_data_create(1, NULL)))
            e = SL_ENOMEM;
    if (!e)
        e = split(&w, 0, text, len);
    for (unsigned i = 0; i < p->n_cuts; i++)
        pcre2_match_data_free(w.match[i]);
    return e;
}
