/* common/grammar/regex.c - conditions -> kinds of characters -> terms (regex_terms.c) -> automaton -> program.
 *
 * A tree becomes a term from its end: what follows a place is a term already when the place is reached, so that looking
 * ahead is one more condition on it, and $ that it has the empty text. States of the automaton that lead to no end are left
 * out before it is written. */
#include "common/grammar/regex.h"

#include <string.h>

#include "common/base/hashmap.h"
#include "common/base/mem.h"
#include "common/grammar/regex_parse.h"
#include "common/grammar/regex_terms.h"

enum start { AT_START, PERHAPS_AT_START, BEHIND_START };

struct condition {
    uint32_t root;
    enum sl_regex_where where;
};

struct way {
    struct sl_kinds kinds;
    uint32_t to; /* state */
};

struct state {
    sl_term term;
    uint32_t way, n_ways;
    bool lives; /* some text from here on ends */
    sl_label at;
};

/* What the writer knows of a set of kinds: its texts, and the rule that reads one of them when there are many. */
struct piece {
    struct sl_char_texts texts;
    bool has_rule;
    sl_label rule;
};

struct sl_regex {
    struct sl_re_tree tree;
    struct condition *conditions;
    uint32_t n_conditions;
    bool has_except;
    uint32_t except; /* node */
    uint32_t min, max;
    /* while it is written */
    struct sl_char_set *chars; /* [n_kinds] */
    struct sl_kinds *kinds_of; /* [tree.n_sets] */
    uint32_t n_kinds;
    struct sl_terms *terms;
    bool unclear_start;
    struct state *states;
    uint32_t n_states, cap_states;
    struct way *ways;
    uint32_t n_ways, cap_ways;
    struct sl_hashmap *state_of; /* term -> state + 1 */
    struct piece *pieces;        /* [n_ways at most] */
    uint32_t n_pieces;
    struct sl_hashmap *piece_of; /* kinds -> piece + 1 */
};

struct sl_regex *sl_regex_new(void)
{
    struct sl_regex *r = sl_xcalloc(1, sizeof *r);
    r->max = UINT32_MAX;
    return r;
}

void sl_regex_free(struct sl_regex *r)
{
    if (!r)
        return;
    sl_re_tree_fini(&r->tree);
    for (uint32_t i = 0; r->chars && i < SL_TERM_MAX_KINDS; i++)
        sl_char_set_fini(&r->chars[i]);
    for (uint32_t i = 0; i < r->n_pieces; i++)
        sl_free(r->pieces[i].texts.at);
    sl_terms_free(r->terms);
    sl_hashmap_free(r->state_of);
    sl_hashmap_free(r->piece_of);
    sl_free(r->conditions);
    sl_free(r->chars);
    sl_free(r->kinds_of);
    sl_free(r->states);
    sl_free(r->ways);
    sl_free(r->pieces);
    sl_free(r);
}

enum sl_err sl_regex_match(struct sl_regex *r, const char *expression, size_t n, enum sl_regex_where where,
                           struct sl_why *why)
{
    uint32_t root;
    enum sl_err err = sl_re_parse(&r->tree, expression, n, &root, why);
    if (err != SL_OK)
        return err;
    r->conditions = sl_xrealloc_array(r->conditions, r->n_conditions + 1, sizeof *r->conditions);
    r->conditions[r->n_conditions++] = (struct condition){.root = root, .where = where};
    return SL_OK;
}

void sl_regex_length(struct sl_regex *r, uint32_t min, uint32_t max)
{
    r->min = min;
    r->max = max;
}

void sl_regex_except(struct sl_regex *r, const char *text, size_t n)
{
    uint32_t node = sl_re_literal(&r->tree, text, n);
    r->except = r->has_except ? sl_re_or(&r->tree, r->except, node) : node;
    r->has_except = true;
}

/* ---- kinds of characters: those that no set tells apart ---- */

/* Whether r is within a set: its ranges begin and end where those of some kind do. */
static bool within(const struct sl_char_set *s, uint32_t c)
{
    uint32_t lo = 0, hi = s->n;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (s->ranges[mid].hi < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < s->n && s->ranges[lo].lo <= c;
}

/* The kind i becomes two where the set cuts through it. False: there are too many. */
static bool cut_kind(struct sl_regex *r, uint32_t i, const struct sl_char_set *s)
{
    struct sl_char_set in = {0}, out = {0};
    const struct sl_char_set *k = &r->chars[i];
    for (uint32_t a = 0, b = 0; a < k->n; a++) {
        uint32_t lo = k->ranges[a].lo, hi = k->ranges[a].hi;
        while (b < s->n && s->ranges[b].hi < lo)
            b++;
        for (uint32_t c = b; lo <= hi; c++) {
            bool met = c < s->n && s->ranges[c].lo <= hi;
            uint32_t from = met ? s->ranges[c].lo : hi + 1;
            if (from > lo)
                sl_char_set_add(&out, lo, from - 1);
            if (!met)
                break;
            lo = from > lo ? from : lo;
            uint32_t to = s->ranges[c].hi < hi ? s->ranges[c].hi : hi;
            sl_char_set_add(&in, lo, to);
            lo = to + 1;
        }
    }
    bool fits = true;
    if (in.n && out.n) {
        fits = r->n_kinds < SL_TERM_MAX_KINDS;
        sl_char_set_fini(&r->chars[i]);
        r->chars[i] = in;
        if (fits)
            r->chars[r->n_kinds++] = out;
        else
            sl_char_set_fini(&out);
    } else {
        sl_char_set_fini(&in);
        sl_char_set_fini(&out);
    }
    return fits;
}

static bool find_kinds(struct sl_regex *r, uint32_t *work_left)
{
    bool fits = true;
    r->chars = sl_xcalloc(SL_TERM_MAX_KINDS, sizeof *r->chars);
    sl_char_set_add(&r->chars[0], 0, SL_CHAR_MAX);
    sl_char_set_settle(&r->chars[0]);
    r->n_kinds = 1;
    for (uint32_t i = 0; fits && i < r->tree.n_sets; i++)
        for (uint32_t k = 0, n = r->n_kinds; fits && k < n; k++) {
            fits = *work_left > 0 && cut_kind(r, k, &r->tree.sets[i]);
            *work_left -= fits;
        }
    r->kinds_of = sl_xcalloc(r->tree.n_sets + 1, sizeof *r->kinds_of);
    for (uint32_t i = 0; fits && i < r->tree.n_sets; i++)
        for (uint32_t k = 0; k < r->n_kinds; k++)
            if (within(&r->tree.sets[i], r->chars[k].ranges[0].lo))
                r->kinds_of[i].bits[k / 64] |= UINT64_C(1) << k % 64;
    return fits;
}

/* ---- terms ---- */

static enum start start_behind(enum start s, enum sl_re_takes takes)
{
    return takes == SL_RE_NOTHING                          ? s
           : takes == SL_RE_SOMETHING || s == BEHIND_START ? BEHIND_START
                                                           : PERHAPS_AT_START;
}

/* What the node reads, and what follows behind it. */
static sl_term term_of(struct sl_regex *r, uint32_t node, sl_term follows, enum start start)
{
    const struct sl_re_node *n = &r->tree.nodes[node];
    struct sl_terms *t = r->terms;
    if (n->plain && follows != SL_TERM_EMPTY) /* once, and not once for each alternative */
        return sl_term_cat(t, term_of(r, node, SL_TERM_EMPTY, start), follows);
    switch (n->op) {
    case SL_RE_EMPTY:
        return follows;
    case SL_RE_SET:
        return sl_term_cat(t, sl_term_kinds(t, &r->kinds_of[n->a]), follows);
    case SL_RE_CAT:
        for (; n->op == SL_RE_CAT && !sl_terms_tired(t); node = n->a, n = &r->tree.nodes[node])
            follows = term_of(r, n->b, follows, start_behind(start, r->tree.nodes[n->a].takes));
        return term_of(r, node, follows, start);
    case SL_RE_OR: {
        sl_term all = SL_TERM_NONE;
        for (; n->op == SL_RE_OR && !sl_terms_tired(t); node = n->a, n = &r->tree.nodes[node])
            all = sl_term_or(t, all, term_of(r, n->b, follows, start));
        return sl_term_or(t, all, term_of(r, node, follows, start));
    }
    case SL_RE_REPEAT:
        return sl_term_cat(t, sl_term_repeat(t, term_of(r, n->a, SL_TERM_EMPTY, start), n->min, n->max),
                           follows);
    case SL_RE_START:
        r->unclear_start |= start == PERHAPS_AT_START;
        return start == AT_START ? follows : SL_TERM_NONE;
    case SL_RE_END:
        return sl_term_has_empty(t, follows) ? SL_TERM_EMPTY : SL_TERM_NONE;
    case SL_RE_LOOK: {
        sl_term ahead = term_of(r, n->a, SL_TERM_ALL, start);
        return sl_term_and(t, n->negated ? sl_term_not(t, ahead) : ahead, follows);
    }
    }
    return SL_TERM_NONE;
}

static sl_term any_char(struct sl_regex *r)
{
    struct sl_kinds k = {0};
    for (uint32_t i = 0; i < r->n_kinds; i++)
        k.bits[i / 64] |= UINT64_C(1) << i % 64;
    return sl_term_kinds(r->terms, &k);
}

static sl_term term_of_condition(struct sl_regex *r, const struct condition *c)
{
    struct sl_terms *t = r->terms;
    if (c->where == SL_REGEX_WHOLE)
        return term_of(r, c->root, SL_TERM_EMPTY, AT_START);
    sl_term here = term_of(r, c->root, SL_TERM_ALL, AT_START);
    sl_term later = sl_term_cat(t, SL_TERM_ALL, term_of(r, c->root, SL_TERM_ALL, BEHIND_START));
    sl_term part = sl_term_or(t, here, sl_term_cat(t, any_char(r), later));
    return c->where == SL_REGEX_PART ? part : sl_term_not(t, part);
}

static sl_term term_of_all(struct sl_regex *r)
{
    struct sl_terms *t = r->terms;
    sl_term all = sl_term_repeat(t, any_char(r), r->min, r->max);
    for (uint32_t i = 0; i < r->n_conditions; i++)
        all = sl_term_and(t, all, term_of_condition(r, &r->conditions[i]));
    if (r->has_except)
        all = sl_term_and(t, all, sl_term_not(t, term_of(r, r->except, SL_TERM_EMPTY, AT_START)));
    return all;
}

/* ---- automaton ---- */

static uint32_t state_of(struct sl_regex *r, sl_term term)
{
    uintptr_t known = (uintptr_t)sl_hashmap_get_u64(r->state_of, term);
    if (known)
        return (uint32_t)known - 1;
    if (r->n_states == r->cap_states) {
        r->cap_states = r->cap_states ? 2 * r->cap_states : 64;
        r->states = sl_xrealloc_array(r->states, r->cap_states, sizeof *r->states);
    }
    r->states[r->n_states] = (struct state){.term = term};
    sl_hashmap_put_u64(r->state_of, term, (void *)(uintptr_t)(r->n_states + 1));
    return r->n_states++;
}

static bool find_states(struct sl_regex *r, sl_term start)
{
    r->state_of = sl_hashmap_new();
    (void)state_of(r, start);
    for (uint32_t i = 0; i < r->n_states && r->n_states <= SL_REGEX_MAX_STATES && !sl_terms_tired(r->terms);
         i++) {
        uint32_t n;
        const struct sl_term_way *w = sl_term_ways(r->terms, r->states[i].term, &n);
        r->states[i].way = r->n_ways;
        r->states[i].n_ways = n;
        if (r->n_ways + n > r->cap_ways) {
            r->cap_ways = 2 * (r->n_ways + n);
            r->ways = sl_xrealloc_array(r->ways, r->cap_ways, sizeof *r->ways);
        }
        for (uint32_t k = 0; k < n; k++)
            r->ways[r->n_ways++] = (struct way){.kinds = w[k].kinds, .to = state_of(r, w[k].to)};
    }
    return r->n_states <= SL_REGEX_MAX_STATES && !sl_terms_tired(r->terms);
}

/* Backwards from the ends, over the ways in the order of where they lead. */
static void find_living(struct sl_regex *r)
{
    uint32_t *before = sl_xcalloc(r->n_states + 1, sizeof *before); /* ways that lead to states in front */
    uint32_t *from = sl_xcalloc(r->n_ways + 1, sizeof *from), *todo = sl_xcalloc(r->n_states, sizeof *todo),
             n = 0;
    for (uint32_t i = 0; i < r->n_ways; i++)
        before[r->ways[i].to + 1]++;
    for (uint32_t i = 0; i < r->n_states; i++)
        before[i + 1] += before[i];
    for (uint32_t i = r->n_states; i-- > 0;)
        for (uint32_t k = 0; k < r->states[i].n_ways; k++)
            from[--before[r->ways[r->states[i].way + k].to + 1]] = i;
    for (uint32_t i = 0; i < r->n_states; i++) /* now before[i + 1] is where those to i begin */
        if (sl_term_has_empty(r->terms, r->states[i].term)) {
            r->states[i].lives = true;
            todo[n++] = i;
        }
    while (n) {
        uint32_t to = todo[--n];
        uint32_t end = to + 1 < r->n_states ? before[to + 2] : r->n_ways;
        for (uint32_t k = before[to + 1]; k < end; k++) {
            struct state *s = &r->states[from[k]];
            if (!s->lives)
                todo[n++] = from[k];
            s->lives = true;
        }
    }
    sl_free(before);
    sl_free(from);
    sl_free(todo);
}

/* ---- program ---- */

static struct piece *piece_of(struct sl_regex *r, const struct sl_kinds *kinds, bool in_string)
{
    uintptr_t known = (uintptr_t)sl_hashmap_get(r->piece_of, kinds, sizeof *kinds);
    if (known)
        return &r->pieces[known - 1];
    struct sl_char_set s = {0};
    for (uint32_t i = 0; i < r->n_kinds; i++)
        for (uint32_t k = 0; (kinds->bits[i / 64] >> i % 64 & 1) && k < r->chars[i].n; k++)
            sl_char_set_add(&s, r->chars[i].ranges[k].lo, r->chars[i].ranges[k].hi);
    sl_char_set_settle(&s);
    struct piece *p = &r->pieces[r->n_pieces++];
    sl_char_set_texts(&s, in_string, &p->texts);
    sl_char_set_fini(&s);
    sl_hashmap_put(r->piece_of, kinds, sizeof *kinds, (void *)(uintptr_t)r->n_pieces);
    return p;
}

static void write_texts(struct sl_writer *out, const struct sl_char_texts *t)
{
    struct sl_write_alt a = {0};
    for (uint32_t i = 0; i < t->n; i++) {
        sl_write_alt_next(out, &a, i + 1 == t->n);
        for (uint8_t k = 0; k < t->at[i].n; k++)
            sl_write_byte(out, t->at[i].lo[k], t->at[i].hi[k]);
    }
    sl_write_alt_end(out, &a);
}

/* Few texts in line, more as a rule that the states share. */
static void write_piece(struct sl_writer *out, struct piece *p)
{
    if (p->texts.n <= 3) {
        write_texts(out, &p->texts);
        return;
    }
    if (!p->has_rule)
        p->rule = sl_write_label(out);
    p->has_rule = true;
    sl_write_call(out, p->rule);
}

/* False: more ways from it than are followed. */
static bool write_state(struct sl_regex *r, const struct state *s, sl_label end, bool in_string,
                        struct sl_writer *out)
{
    uint32_t n_texts = 0, left = sl_term_has_empty(r->terms, s->term) ? 1 : 0;
    for (uint32_t k = 0; k < s->n_ways; k++)
        left += r->states[r->ways[s->way + k].to].lives;
    sl_write_place(out, s->at);
    for (uint32_t k = 0; k < s->n_ways; k++) {
        const struct way *w = &r->ways[s->way + k];
        if (!r->states[w->to].lives)
            continue;
        sl_label other = 0;
        if (left-- > 1) {
            other = sl_write_label(out);
            sl_write_or_at(out, other);
        }
        struct piece *p = piece_of(r, &w->kinds, in_string);
        n_texts += p->texts.n;
        write_piece(out, p);
        sl_write_jump(out, r->states[w->to].at);
        if (left)
            sl_write_place(out, other);
    }
    if (left)
        sl_write_jump(out, end);
    return n_texts <= SL_REGEX_MAX_WAYS;
}

static enum sl_err write_states(struct sl_regex *r, bool in_string, struct sl_writer *out, struct sl_why *why)
{
    bool fits = true;
    sl_label end = sl_write_label(out);
    r->piece_of = sl_hashmap_new();
    r->pieces = sl_xcalloc(r->n_ways + 1, sizeof *r->pieces);
    for (uint32_t i = 0; i < r->n_states; i++)
        r->states[i].at = sl_write_label(out);
    for (uint32_t i = 0; i < r->n_states && fits; i++)
        if (r->states[i].lives)
            fits = write_state(r, &r->states[i], end, in_string, out);
    for (uint32_t i = 0; i < r->n_pieces && fits; i++) {
        if (!r->pieces[i].has_rule)
            continue;
        sl_write_place(out, r->pieces[i].rule);
        write_texts(out, &r->pieces[i].texts);
        sl_write_return(out);
    }
    sl_write_place(out, end);
    if (in_string)
        sl_write_word(out, "\"");
    sl_write_return(out);
    return fits
               ? SL_OK
               : sl_why_set(why, SL_EUNSUPPORTED,
                            "more than %u ranges of characters at one place are not kept to here; name fewer",
                            SL_REGEX_MAX_WAYS);
}

enum sl_err sl_regex_write(struct sl_regex *r, struct sl_writer *out, bool in_string, uint32_t *work_left,
                           struct sl_why *why)
{
    if (!find_kinds(r, work_left))
        return sl_why_set(why, SL_EUNSUPPORTED,
                          "more than %u characters that are told apart are not kept to here; name fewer",
                          SL_TERM_MAX_KINDS);
    r->terms = sl_terms_new(r->n_kinds, work_left);
    sl_term start = term_of_all(r);
    if (r->unclear_start)
        return sl_why_set(why, SL_EUNSUPPORTED,
                          "a ^ behind what may be empty is not kept to here; put ^ first");
    if (!find_states(r, start))
        return sl_why_set(
            why, SL_EUNSUPPORTED,
            "needs more than %u states, or more than %u steps to find them, which is too much here; "
            "repeat less, or begin with ^",
            SL_REGEX_MAX_STATES, SL_REGEX_MAX_WORK);
    find_living(r);
    if (!r->states[0].lives)
        return sl_why_set(why, SL_EINVAL, "no text meets it and the words beside it");
    return write_states(r, in_string, out, why);
}
