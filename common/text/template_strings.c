/* common/text/template_strings.c - work on strings that methods, filters and operators share. All of it keeps
 * trust marks. */
#include "common/text/template_internal.h"

#include <string.h>
#include <wctype.h>

#include "common/text/utf8.h"

const struct str *sl_tpl_need_str(struct cx *cx, struct val v, const char *what)
{
    if (v.type != VAL_STR)
        sl_tpl_fail(&cx->base, SL_EINVAL, "%s must be a string, not %s", what, sl_tpl_type_name(v));
    return v.s;
}

int64_t sl_tpl_int_arg(struct cx *cx, struct val slot, int64_t dflt, const char *what)
{
    if (slot.type == VAL_MISSING || slot.type == VAL_NONE)
        return dflt;
    if (slot.type != VAL_INT && slot.type != VAL_BOOL)
        sl_tpl_fail(&cx->base, SL_EINVAL, "%s must be an integer, not %s", what, sl_tpl_type_name(slot));
    return slot.type == VAL_BOOL ? slot.b : slot.i;
}

const struct str *sl_tpl_str_arg(struct cx *cx, struct val slot, const char *what)
{
    if (slot.type == VAL_MISSING || slot.type == VAL_NONE)
        return NULL;
    return sl_tpl_need_str(cx, slot, what);
}

struct val sl_tpl_as_markup(struct cx *cx, struct val string)
{
    struct str *s = sl_tpl_alloc(&cx->base, sizeof *s);
    *s = *string.s;
    s->markup = true;
    return (struct val){.type = VAL_STR, .s = s};
}

struct val sl_tpl_replace(struct cx *cx, const struct str *s, const struct str *old, const struct str *new_,
                          int64_t count)
{
    struct sb sb;
    size_t at = 0, used = 1;
    sl_tpl_sb_init(&sb, cx);
    while (count != 0 && at <= s->n) {
        size_t hit = sl_tpl_find(s, at, s->n, old);
        if (hit == SIZE_MAX)
            break;
        sl_tpl_sb_str(&sb, s, at, hit);
        sl_tpl_sb_all(&sb, new_);
        at = hit + old->n;
        count -= count > 0;
        if (old->n == 0) { /* between all characters, and at both ends */
            if (at == s->n) {
                at++;
                break;
            }
            sl_tpl_cp(s->p, at, s->n, &used);
            sl_tpl_sb_str(&sb, s, at, at + used);
            at += used;
        }
    }
    if (at < s->n)
        sl_tpl_sb_str(&sb, s, at, s->n);
    return sl_tpl_sb_done(&sb);
}

uint32_t sl_tpl_map_case(struct cx *cx, uint32_t cp, bool upper)
{
    if (cp < 0x80)
        return upper && cp >= 'a' && cp <= 'z' ? cp - 32 : !upper && cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
    if (!cx->locale)
        cx->locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    if (!cx->locale)
        return cp;
    return (uint32_t)(upper ? towupper_l((wint_t)cp, cx->locale) : towlower_l((wint_t)cp, cx->locale));
}

static bool is_cased(struct cx *cx, uint32_t cp)
{
    return sl_tpl_map_case(cx, cp, true) != cp || sl_tpl_map_case(cx, cp, false) != cp;
}

struct val sl_tpl_change_case(struct cx *cx, const struct str *s, enum case_how how)
{
    struct sb sb;
    bool in_word = false;
    sl_tpl_sb_init(&sb, cx);
    for (size_t i = 0, used; i < s->n; i += used) {
        uint32_t cp = sl_tpl_cp(s->p, i, s->n, &used);
        bool untrusted = s->marks ? s->marks[i] : s->untrusted;
        bool upper = how == CASE_UPPER || ((how == CASE_TITLE || how == CASE_CAPITALIZE) && !in_word) ||
                     (how == CASE_SWAP && sl_tpl_map_case(cx, cp, true) != cp);
        in_word = how == CASE_TITLE ? is_cased(cx, cp) : true;
        if (cp == 0xDF && upper) /* the one letter in common use whose capital is two */
            sl_tpl_sb_bytes(&sb, how == CASE_UPPER || how == CASE_SWAP ? "SS" : "Ss", 2, untrusted);
        else
            sl_tpl_sb_cp(&sb, sl_tpl_map_case(cx, cp, upper), untrusted);
    }
    return sl_tpl_sb_done(&sb);
}

struct val sl_tpl_join(struct cx *cx, const struct str *sep, const struct list *items)
{
    struct sb sb;
    sl_tpl_sb_init(&sb, cx);
    for (size_t i = 0; i < items->n; i++) {
        if (i && sep)
            sl_tpl_sb_all(&sb, sep);
        sl_tpl_print(&sb, items->items[i]);
    }
    return sl_tpl_sb_done(&sb);
}

struct val sl_tpl_escape(struct cx *cx, const struct str *s)
{
    struct sb sb;
    size_t from = 0;
    sl_tpl_sb_init(&sb, cx);
    for (size_t i = 0; i < s->n; i++) {
        const char *e = s->p[i] == '&'    ? "&amp;"
                        : s->p[i] == '<'  ? "&lt;"
                        : s->p[i] == '>'  ? "&gt;"
                        : s->p[i] == '"'  ? "&#34;"
                        : s->p[i] == '\'' ? "&#39;"
                                          : NULL;
        if (!e)
            continue;
        sl_tpl_sb_str(&sb, s, from, i);
        sl_tpl_sb_puts(&sb, e);
        from = i + 1;
    }
    sl_tpl_sb_str(&sb, s, from, s->n);
    return sl_tpl_as_markup(cx, sl_tpl_sb_done(&sb));
}

size_t sl_tpl_find_last(struct cx *cx, const struct str *s, size_t to, const struct str *needle)
{
    size_t n = needle->n;
    if (n == 0)
        return to;
    for (size_t at = to >= n ? to - n + 1 : 0; at-- > 0;) {
        if (s->p[at] != needle->p[0] || s->p[at + n - 1] != needle->p[n - 1])
            continue;
        sl_tpl_charge(cx, n);
        if (memcmp(s->p + at, needle->p, n) == 0)
            return at;
    }
    return SIZE_MAX;
}
