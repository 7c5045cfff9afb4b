/* common/grammar/regex_terms.c - terms are kept in one normal form, so that the many ways to write a language fall
 * together where that is cheap: lists of alternatives and of conditions are flat, sorted and without doubles, chains are
 * nested to the right, repetitions count. That makes derivatives finitely many, and in practice few.
 *
 * Recursion goes as deep as groups do: chains and lists are walked in loops. */
#include "common/grammar/regex_terms.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/hashmap.h"
#include "common/base/mem.h"

enum op { NONE, EMPTY, ALL, KINDS, CAT, OR, AND, NOT, REPEAT };

struct term {
    uint8_t op;
    bool has_empty;
    uint32_t a, b;     /* terms; KINDS: a is the place in kinds; OR, AND: b terms from a on in lists */
    uint32_t min, max; /* REPEAT */
};

struct numbers {
    uint32_t *at;
    uint32_t n, cap;
};

struct sl_terms {
    struct term *terms;
    uint32_t n, cap;
    struct sl_kinds *kinds; /* [n_sets] */
    uint32_t n_sets, cap_sets;
    struct sl_kinds every;
    struct sl_hashmap *known;   /* what a term is made of -> its number + 1 */
    struct numbers lists, work; /* work: lists that are being made, one on the other */
    struct numbers first;       /* sets that a term may begin with */
    struct sl_term_way *ways;
    uint32_t n_ways, cap_ways;
    uint32_t *work_left;
};

static void push(struct numbers *to, uint32_t x)
{
    if (to->n == to->cap) {
        to->cap = to->cap ? 2 * to->cap : 64;
        to->at = sl_xrealloc_array(to->at, to->cap, sizeof *to->at);
    }
    to->at[to->n++] = x;
}

static bool tire(struct sl_terms *t)
{
    if (*t->work_left)
        --*t->work_left;
    return *t->work_left == 0;
}

bool sl_terms_tired(const struct sl_terms *t)
{
    return *t->work_left == 0;
}

/* The one term that is made of these bytes. */
static sl_term keep(struct sl_terms *t, const void *key, size_t n_key, struct term made)
{
    uintptr_t known = (uintptr_t)sl_hashmap_get(t->known, key, n_key);
    if (known)
        return (sl_term)known - 1;
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 256;
        t->terms = sl_xrealloc_array(t->terms, t->cap, sizeof *t->terms);
    }
    t->terms[t->n] = made;
    sl_hashmap_put(t->known, key, n_key, (void *)(uintptr_t)(t->n + 1));
    return t->n++;
}

static sl_term keep_pair(struct sl_terms *t, struct term made)
{
    const uint32_t key[] = {made.op, made.a, made.b, made.min, made.max};
    return keep(t, key, sizeof key, made);
}

struct sl_terms *sl_terms_new(uint32_t n_kinds, uint32_t *work_left)
{
    struct sl_terms *t = sl_xcalloc(1, sizeof *t);
    t->work_left = work_left;
    t->known = sl_hashmap_new();
    for (uint32_t i = 0; i < n_kinds; i++)
        t->every.bits[i / 64] |= UINT64_C(1) << i % 64;
    for (uint8_t op = NONE; op <= ALL; op++)
        (void)keep_pair(t, (struct term){.op = op, .has_empty = op != NONE});
    return t;
}

void sl_terms_free(struct sl_terms *t)
{
    if (!t)
        return;
    sl_hashmap_free(t->known);
    sl_free(t->terms);
    sl_free(t->kinds);
    sl_free(t->lists.at);
    sl_free(t->work.at);
    sl_free(t->first.at);
    sl_free(t->ways);
    sl_free(t);
}

bool sl_term_has_empty(const struct sl_terms *t, sl_term a)
{
    return t->terms[a].has_empty;
}

static bool no_kinds(const struct sl_kinds *k)
{
    uint64_t any = 0;
    for (unsigned i = 0; i < SL_COUNTOF(k->bits); i++)
        any |= k->bits[i];
    return any == 0;
}

sl_term sl_term_kinds(struct sl_terms *t, const struct sl_kinds *k)
{
    if (no_kinds(k))
        return SL_TERM_NONE;
    char key[sizeof *k + 1] = {0}; /* of a length that no other key has */
    memcpy(key, k, sizeof *k);
    uintptr_t known = (uintptr_t)sl_hashmap_get(t->known, key, sizeof key);
    if (known)
        return (sl_term)known - 1;
    if (t->n_sets == t->cap_sets) {
        t->cap_sets = t->cap_sets ? 2 * t->cap_sets : 64;
        t->kinds = sl_xrealloc_array(t->kinds, t->cap_sets, sizeof *t->kinds);
    }
    t->kinds[t->n_sets] = *k;
    return keep(t, key, sizeof key, (struct term){.op = KINDS, .a = t->n_sets++});
}

/* a is no chain itself. */
static sl_term cat_one(struct sl_terms *t, sl_term a, sl_term b)
{
    if (tire(t) || a == SL_TERM_NONE || b == SL_TERM_NONE)
        return SL_TERM_NONE;
    if (a == SL_TERM_EMPTY)
        return b;
    if (b == SL_TERM_EMPTY)
        return a;
    const struct term *x = &t->terms[a], *y = &t->terms[b];
    if ((a == SL_TERM_ALL && y->has_empty) || (b == SL_TERM_ALL && x->has_empty))
        return SL_TERM_ALL;
    bool endless = a == SL_TERM_ALL || (x->op == REPEAT && x->min == 0 && x->max == SL_TERM_NO_END);
    if (endless && y->op == CAT && y->a == a) /* x*x* is x* */
        return b;
    return keep_pair(t, (struct term){.op = CAT, .has_empty = x->has_empty && y->has_empty, .a = a, .b = b});
}

sl_term sl_term_cat(struct sl_terms *t, sl_term a, sl_term b)
{
    uint32_t from = t->work.n;
    for (; t->terms[a].op == CAT; a = t->terms[a].b)
        push(&t->work, t->terms[a].a);
    push(&t->work, a);
    while (t->work.n > from)
        b = cat_one(t, t->work.at[--t->work.n], b);
    return b;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Nested lists of the same kind come apart in place: they are flat themselves. */
static void flatten(struct sl_terms *t, uint8_t op, uint32_t from)
{
    for (uint32_t i = from, n = t->work.n; i < n; i++) {
        const struct term x = t->terms[t->work.at[i]];
        if (x.op != op)
            continue;
        t->work.at[i] = t->lists.at[x.a];
        for (uint32_t k = 1; k < x.b; k++)
            push(&t->work, t->lists.at[x.a + k]);
    }
}

/* The list of what lies on the work from there on, taken from it. */
static sl_term list_of(struct sl_terms *t, uint8_t op, uint32_t from)
{
    sl_term neutral = op == OR ? SL_TERM_NONE : SL_TERM_ALL, winner = op == OR ? SL_TERM_ALL : SL_TERM_NONE;
    struct sl_kinds set = op == OR ? (struct sl_kinds){0} : t->every;
    uint32_t n = 0, min = 0, max = SL_TERM_NO_END;
    bool has_set = false, has_empty = op == AND, alone = false, wins = tire(t);
    sl_term any = sl_term_kinds(t, &t->every);
    flatten(t, op, from);
    for (uint32_t i = from; i < t->work.n; i++) {
        sl_term id = t->work.at[i];
        const struct term *x = &t->terms[id];
        wins |= id == winner;
        has_empty = op == OR ? has_empty | x->has_empty : has_empty & x->has_empty;
        alone |= id == SL_TERM_EMPTY;
        if (x->op == KINDS) {
            for (unsigned k = 0; k < SL_COUNTOF(set.bits); k++)
                set.bits[k] =
                    op == OR ? set.bits[k] | t->kinds[x->a].bits[k] : set.bits[k] & t->kinds[x->a].bits[k];
            has_set = true;
        } else if (op == AND && x->op == REPEAT && x->a == any) { /* both lengths */
            min = x->min > min ? x->min : min;
            max = x->max < max ? x->max : max;
        } else if (id != neutral && id != SL_TERM_EMPTY) {
            t->work.at[from + n++] = id;
        }
        (void)tire(t);
    }
    t->work.n = from + n;
    if (wins || (alone && op == AND) || min > max) {
        t->work.n = from;
        return wins ? winner : alone && has_empty && min <= max ? SL_TERM_EMPTY : SL_TERM_NONE;
    }
    if (min > 0 || max != SL_TERM_NO_END)
        push(&t->work, sl_term_repeat(t, any, min, max));
    if (has_set) {
        sl_term id = sl_term_kinds(t, &set);
        if (id == SL_TERM_NONE && op == AND) {
            t->work.n = from;
            return SL_TERM_NONE;
        }
        if (id != SL_TERM_NONE)
            push(&t->work, id);
    }
    uint32_t *list = t->work.at + from;
    n = t->work.n - from;
    qsort(list, n, sizeof *list, by_number);
    uint32_t kept = 0;
    bool others_empty = false;
    for (uint32_t i = 0; i < n; i++) {
        others_empty |= t->terms[list[i]].has_empty;
        if (kept == 0 || list[kept - 1] != list[i])
            list[kept++] = list[i];
    }
    t->work.n = from + kept;
    if (alone && !others_empty) /* an OR: the empty text stands for itself when nothing else has it */
        push(&t->work, SL_TERM_EMPTY);
    n = t->work.n - from;
    sl_term out = n == 0 ? neutral : t->work.at[from];
    if (n > 1) {
        push(&t->work, op); /* part of the key */
        struct term made = {.op = op, .has_empty = has_empty, .a = t->lists.n, .b = n};
        sl_term before = t->n;
        out = keep(t, t->work.at + from, (n + 1) * sizeof *list, made);
        for (uint32_t i = 0; out == before && i < n; i++)
            push(&t->lists, t->work.at[from + i]);
    }
    t->work.n = from;
    return out;
}

static sl_term two(struct sl_terms *t, uint8_t op, sl_term a, sl_term b)
{
    uint32_t from = t->work.n;
    push(&t->work, a);
    push(&t->work, b);
    return list_of(t, op, from);
}

sl_term sl_term_or(struct sl_terms *t, sl_term a, sl_term b)
{
    return two(t, OR, a, b);
}

sl_term sl_term_and(struct sl_terms *t, sl_term a, sl_term b)
{
    return two(t, AND, a, b);
}

sl_term sl_term_not(struct sl_terms *t, sl_term a)
{
    const struct term *x = &t->terms[a];
    if (tire(t) || a == SL_TERM_ALL)
        return SL_TERM_NONE;
    if (a == SL_TERM_NONE)
        return SL_TERM_ALL;
    if (x->op == NOT)
        return x->a;
    return keep_pair(t, (struct term){.op = NOT, .has_empty = !x->has_empty, .a = a});
}

sl_term sl_term_repeat(struct sl_terms *t, sl_term a, uint32_t min, uint32_t max)
{
    const struct term *x = &t->terms[a];
    if (tire(t) || (a == SL_TERM_NONE && min > 0))
        return SL_TERM_NONE;
    if (a == SL_TERM_NONE || a == SL_TERM_EMPTY || max == 0)
        return SL_TERM_EMPTY;
    if (x->has_empty)
        min = 0;
    if (a == SL_TERM_ALL || (min == 1 && max == 1) ||
        (x->op == REPEAT && x->min == 0 && x->max == SL_TERM_NO_END))
        return a;
    if (x->op == KINDS && min == 0 && max == SL_TERM_NO_END &&
        memcmp(&t->kinds[x->a], &t->every, sizeof t->every) == 0)
        return SL_TERM_ALL;
    if (min == 0 && max == 1 && x->has_empty)
        return a;
    return keep_pair(t, (struct term){.op = REPEAT, .has_empty = min == 0, .a = a, .min = min, .max = max});
}

/* The rest of the texts that begin with a character of that kind. */
static sl_term rest_of(struct sl_terms *t, sl_term a, uint32_t kind)
{
    const struct term x = t->terms[a]; /* a copy: terms move while rests are made */
    uint32_t from = t->work.n;
    if (tire(t))
        return SL_TERM_NONE;
    switch ((enum op)x.op) {
    case NONE:
    case EMPTY:
        break;
    case ALL:
        return SL_TERM_ALL;
    case KINDS:
        return t->kinds[x.a].bits[kind / 64] >> kind % 64 & 1 ? SL_TERM_EMPTY : SL_TERM_NONE;
    case NOT:
        return sl_term_not(t, rest_of(t, x.a, kind));
    case REPEAT: {
        sl_term first = rest_of(t, x.a, kind);
        return sl_term_cat(
            t, first,
            sl_term_repeat(t, x.a, x.min ? x.min - 1 : 0, x.max == SL_TERM_NO_END ? x.max : x.max - 1));
    }
    case OR:
    case AND:
        for (uint32_t i = 0; i < x.b; i++) {
            sl_term one = rest_of(t, t->lists.at[x.a + i], kind);
            push(&t->work, one);
        }
        return list_of(t, x.op, from);
    case CAT:
        for (bool on = true; on;) {
            bool chain = t->terms[a].op == CAT;
            sl_term head = chain ? t->terms[a].a : a, tail = chain ? t->terms[a].b : SL_TERM_EMPTY;
            sl_term one = sl_term_cat(t, rest_of(t, head, kind), tail);
            push(&t->work, one);
            on = chain && t->terms[head].has_empty;
            a = tail;
        }
        return list_of(t, OR, from);
    }
    return SL_TERM_NONE;
}

/* The sets that tell the first characters of a term apart, onto first. */
static void find_first(struct sl_terms *t, sl_term a)
{
    const struct term *x = &t->terms[a];
    for (; x->op == CAT && !tire(t); x = &t->terms[x->b]) {
        find_first(t, x->a);
        if (!t->terms[x->a].has_empty)
            return;
    }
    if (tire(t))
        return;
    if (x->op == NOT || x->op == REPEAT)
        find_first(t, x->a);
    for (uint32_t i = 0; (x->op == OR || x->op == AND) && i < x->b; i++)
        find_first(t, t->lists.at[x->a + i]);
    if (x->op == KINDS) {
        uint32_t k = 0;
        while (k < t->first.n && t->first.at[k] != x->a)
            k++;
        if (k == t->first.n)
            push(&t->first, x->a);
    }
}

static void add_way(struct sl_terms *t, struct sl_kinds kinds)
{
    if (t->n_ways == t->cap_ways) {
        t->cap_ways = t->cap_ways ? 2 * t->cap_ways : 16;
        t->ways = sl_xrealloc_array(t->ways, t->cap_ways, sizeof *t->ways);
    }
    t->ways[t->n_ways++] = (struct sl_term_way){.kinds = kinds};
}

/* Each way in two: kinds within the set and others. */
static void cut_ways(struct sl_terms *t, const struct sl_kinds *set)
{
    for (uint32_t i = 0, n = t->n_ways; i < n; i++) {
        struct sl_kinds in = t->ways[i].kinds, out = in;
        for (unsigned k = 0; k < SL_COUNTOF(in.bits); k++) {
            in.bits[k] &= set->bits[k];
            out.bits[k] &= ~set->bits[k];
        }
        if (no_kinds(&in) || no_kinds(&out))
            continue;
        t->ways[i].kinds = in;
        add_way(t, out);
    }
}

static uint32_t first_kind(const struct sl_kinds *k)
{
    uint32_t i = 0;
    while (!k->bits[i / 64])
        i += 64;
    return i + (uint32_t)__builtin_ctzll(k->bits[i / 64]);
}

const struct sl_term_way *sl_term_ways(struct sl_terms *t, sl_term a, uint32_t *n)
{
    t->first.n = 0;
    t->n_ways = 0;
    find_first(t, a);
    add_way(t, t->every);
    for (uint32_t i = 0; i < t->first.n; i++)
        cut_ways(t, &t->kinds[t->first.at[i]]);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < t->n_ways; i++) {
        struct sl_term_way w = t->ways[i];
        uint32_t same = 0;
        w.to = rest_of(t, a, first_kind(&w.kinds));
        while (same < kept && t->ways[same].to != w.to)
            same++;
        if (w.to == SL_TERM_NONE)
            continue;
        if (same == kept)
            t->ways[kept++] = w;
        else
            for (unsigned k = 0; k < SL_COUNTOF(w.kinds.bits); k++)
                t->ways[same].kinds.bits[k] |= w.kinds.bits[k];
    }
    *n = kept;
    return t->ways;
}
