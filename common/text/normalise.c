/* common/text/normalise.c - step after step, each from one buffer to the next. */
#include "common/text/normalise.h"

#include <string.h>

#include "common/text/nfc.h"
#include "common/text/utf8.h"

struct sl_normal {
    struct sl_arena *arena;
    struct sl_vocab_norm *steps;
    size_t n;
};

static enum sl_err check(const struct sl_vocab_norm *s, struct sl_why *why)
{
    if (s->from.n > SL_NORMAL_MAX_BYTES || s->to.n > SL_NORMAL_MAX_BYTES)
        return sl_why_set(why, SL_ETOOBIG, "a normaliser's text has %u bytes, at most %d are allowed",
                          s->from.n > s->to.n ? s->from.n : s->to.n, SL_NORMAL_MAX_BYTES);
    if (s->kind == SL_NORM_REPLACE && s->from.n == 0)
        return sl_why_set(why, SL_EUNSUPPORTED,
                          "a normaliser replaces the empty text, which is not supported");
    if (sl_utf8_valid_prefix(s->from.p, s->from.n) != s->from.n ||
        sl_utf8_valid_prefix(s->to.p, s->to.n) != s->to.n)
        return sl_why_set(why, SL_EUNSUPPORTED, "a normaliser's text is not UTF-8");
    return SL_OK;
}

/* Bytes that one byte of text can become. */
static size_t growth(const struct sl_vocab_norm *s)
{
    if (s->kind == SL_NORM_NFC)
        return 3;
    if (s->kind == SL_NORM_REPLACE)
        return s->to.n > s->from.n ? (s->to.n + s->from.n - 1) / s->from.n : 1;
    return 1;
}

enum sl_err sl_normal_open(const struct sl_vocab_norm *steps, size_t n, struct sl_normal **out,
                           struct sl_why *why)
{
    size_t grows = 1;
    enum sl_err e = SL_OK;
    if (n > SL_NORMAL_MAX_STEPS)
        return sl_why_set(why, SL_ETOOBIG, "the normaliser has %zu steps, at most %d are allowed", n,
                          SL_NORMAL_MAX_STEPS);
    for (size_t i = 0; i < n && !e; i++) {
        e = check(&steps[i], why);
        grows *= growth(&steps[i]);
        if (!e && grows > SL_NORMAL_MAX_GROWTH)
            e = sl_why_set(why, SL_ETOOBIG, "the normaliser makes a text more than %d times as long",
                           SL_NORMAL_MAX_GROWTH);
    }
    if (e)
        return e;
    struct sl_normal *s = sl_xcalloc(1, sizeof *s);
    s->arena = sl_arena_new((size_t)SL_NORMAL_MAX_STEPS * 4 * SL_NORMAL_MAX_BYTES);
    s->steps = sl_xcalloc(n + 1, sizeof *s->steps);
    s->n = n;
    for (size_t i = 0; i < n; i++) {
        s->steps[i] = steps[i];
        s->steps[i].from.p =
            sl_arena_strndup(s->arena, steps[i].from.n ? steps[i].from.p : "", steps[i].from.n);
        s->steps[i].to.p = sl_arena_strndup(s->arena, steps[i].to.n ? steps[i].to.p : "", steps[i].to.n);
        SL_ASSERT(s->steps[i].from.p && s->steps[i].to.p);
    }
    *out = s;
    return SL_OK;
}

void sl_normal_close(struct sl_normal *s)
{
    if (!s)
        return;
    sl_arena_free(s->arena);
    sl_free(s->steps);
    sl_free(s);
}

size_t sl_normal_shrink(const struct sl_normal *s)
{
    size_t shrink = 1;
    for (size_t i = 0; i < s->n; i++) {
        const struct sl_vocab_norm *step = &s->steps[i];
        if (step->kind == SL_NORM_NFC)
            shrink *= 3; /* three jamo of 3 bytes, a syllable of 3 */
        else if (step->kind == SL_NORM_REPLACE && step->to.n == 0)
            return 0;
        else if (step->kind == SL_NORM_REPLACE)
            shrink *= (step->from.n + step->to.n - 1) / step->to.n;
    }
    return shrink;
}

bool sl_normal_leads(const struct sl_normal *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->steps[i].kind == SL_NORM_PREPEND || s->steps[i].kind == SL_NORM_LEAD)
            return true;
    return false;
}

void sl_normal_work_fini(struct sl_normal_work *w)
{
    sl_buf_fini(&w->bufs[0]);
    sl_buf_fini(&w->bufs[1]);
    *w = (struct sl_normal_work){0};
}

static bool begins_with(const char *text, size_t n, struct sl_vocab_str s)
{
    return s.n <= n && memcmp(text, s.p, s.n) == 0;
}

static bool replace(const char *text, size_t n, struct sl_vocab_str from, struct sl_vocab_str to,
                    struct sl_buf *out)
{
    bool ok = true;
    for (size_t i = 0; i < n && ok;) {
        const char *hit = memmem(text + i, n - i, from.p, from.n);
        size_t gap = hit ? (size_t)(hit - text) - i : n - i;
        ok = sl_buf_append(out, text + i, gap);
        i += gap;
        if (ok && hit) {
            ok = sl_buf_append(out, to.p, to.n);
            i += from.n;
        }
    }
    return ok;
}

static enum sl_err run(const struct sl_vocab_norm *s, const char *text, size_t n, bool first,
                       struct sl_buf *out)
{
    bool ok = true;
    switch (s->kind) {
    case SL_NORM_NFC:
        return sl_nfc_append(text, n, out);
    case SL_NORM_REPLACE:
        ok = replace(text, n, s->from, s->to, out);
        break;
    case SL_NORM_PREPEND:
        ok = (n == 0 || sl_buf_append(out, s->to.p, s->to.n)) && sl_buf_append(out, text, n);
        break;
    case SL_NORM_LEAD:
        if (n && (first || !s->first_only) && !begins_with(text, n, s->to))
            ok = sl_buf_append(out, s->to.p, s->to.n);
        ok = ok && sl_buf_append(out, text, n);
        break;
    }
    return ok ? SL_OK : SL_ETOOBIG;
}

enum sl_err sl_normal_append(const struct sl_normal *s, struct sl_normal_work *w, const char *text, size_t n,
                             bool first, struct sl_buf *out)
{
    enum sl_err e = SL_OK;
    for (size_t i = 0; i < s->n && !e; i++) {
        struct sl_buf *to = &w->bufs[i & 1];
        if (i + 1 == s->n)
            to = out;
        else if (to->max == 0)
            sl_buf_init(to, out->max);
        else
            sl_buf_clear(to);
        e = run(&s->steps[i], text, n, first, to);
        text = to->data ? to->data : "";
        n = to->len;
    }
    return e;
}
