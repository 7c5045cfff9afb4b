/* common/text/stop_match.c - one KMP automaton per stop string, run side by side.
 *
 * Each automaton knows after every byte how long a beginning of its string the text ends with; the longest of
 * these is what must be held back. Strings are few (SL_STOP_MAX_STRINGS), so one combined automaton would
 * save nothing. Held text is always such a beginning, so it never needs more room than the longest stop
 * string, and it begins at a character, as the string does. */
#include "common/text/stop_match.h"

#include <string.h>

#include "common/base/mem.h"

struct pattern {
    char *text;
    size_t n;
    size_t matched;                       /* bytes of text that the input ends with */
    uint16_t fallback[SL_STOP_MAX_BYTES]; /* KMP: longest proper border of text[0..i] */
};

struct sl_stop {
    struct pattern patterns[SL_STOP_MAX_STRINGS];
    size_t n;
    char held[SL_STOP_MAX_BYTES + 1];
    size_t n_held;
    int found; /* -1 until a match */
};

enum sl_err sl_stop_new(const char *const *strings, const size_t *lens, size_t n, struct sl_stop **out,
                        struct sl_why *why)
{
    if (n > SL_STOP_MAX_STRINGS)
        return sl_why_set(why, SL_ETOOBIG, "%zu stop strings, at most %d are allowed", n,
                          SL_STOP_MAX_STRINGS);
    for (size_t i = 0; i < n; i++) {
        if (lens[i] == 0)
            return sl_why_set(why, SL_EINVAL, "stop string %zu is empty", i);
        if (lens[i] > SL_STOP_MAX_BYTES)
            return sl_why_set(why, SL_ETOOBIG, "stop string %zu has %zu bytes, at most %d are allowed", i,
                              lens[i], SL_STOP_MAX_BYTES);
    }
    struct sl_stop *s = sl_xcalloc(1, sizeof *s);
    s->n = n;
    s->found = -1;
    for (size_t i = 0; i < n; i++) {
        struct pattern *p = &s->patterns[i];
        p->text = sl_xmemdup(strings[i], lens[i]);
        p->n = lens[i];
        for (size_t k = 1, border = 0; k < p->n; k++) {
            while (border && p->text[k] != p->text[border])
                border = p->fallback[border - 1];
            border += p->text[k] == p->text[border];
            p->fallback[k] = (uint16_t)border;
        }
    }
    *out = s;
    return SL_OK;
}

void sl_stop_free(struct sl_stop *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++)
        sl_free(s->patterns[i].text);
    sl_free(s);
}

/* Feeds one byte; true when the string is complete. */
static bool step(struct pattern *p, char c)
{
    while (p->matched && p->text[p->matched] != c)
        p->matched = p->fallback[p->matched - 1];
    p->matched += p->text[p->matched] == c;
    return p->matched == p->n;
}

int sl_stop_push(struct sl_stop *s, const char *text, size_t n, bool include, struct sl_buf *out)
{
    if (s->n == 0) {
        sl_buf_append(out, text, n);
        return -1;
    }
    for (size_t i = 0; i < n && s->found < 0; i++) {
        size_t keep = 0;
        for (size_t k = 0; k < s->n; k++) {
            struct pattern *p = &s->patterns[k];
            if (step(p, text[i]) && (s->found < 0 || p->n > s->patterns[s->found].n))
                s->found = (int)k;
            if (p->matched > keep)
                keep = p->matched;
        }
        s->held[s->n_held++] = text[i];
        if (s->found >= 0)
            keep = include ? 0 : s->patterns[s->found].n;
        size_t show = s->n_held - keep;
        sl_buf_append(out, s->held, show);
        s->n_held = keep;
        memmove(s->held, s->held + show, keep);
    }
    if (s->found >= 0)
        s->n_held = 0;
    return s->found;
}

void sl_stop_end(struct sl_stop *s, struct sl_buf *out)
{
    sl_buf_append(out, s->held, s->n_held);
    s->n_held = 0;
}

size_t sl_stop_held_bytes(const struct sl_stop *s)
{
    return s->n_held;
}
