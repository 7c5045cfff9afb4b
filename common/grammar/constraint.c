#include "common/grammar/constraint.h"

#include <string.h>

#include "common/base/hashmap.h"
#include "common/base/mem.h"
#include "common/grammar/matcher.h"

#define MAX_SETS 128 /* kept, of n_vocab bits each */

struct sl_constraint {
    const struct sl_token_bytes *tokens;
    struct sl_grammar *program;
    struct sl_matcher *matcher;
    int32_t *ends, mark;
    uint32_t n_ends, state;
    struct sl_hashmap *set_of; /* state -> its set */
    uint64_t *sets[MAX_SETS];
    uint32_t n_sets;
};

struct sl_constraint *sl_constraint_new(const struct sl_token_bytes *tokens, struct sl_grammar *program,
                                        const int32_t *ends, uint32_t n_ends, int32_t mark)
{
    struct sl_constraint *c = sl_xcalloc(1, sizeof *c);
    c->tokens = tokens;
    c->program = program;
    c->matcher = sl_matcher_new(program);
    c->ends = sl_xmemdup(ends, n_ends * sizeof *ends);
    c->n_ends = n_ends;
    c->mark = mark;
    c->state = SL_MATCHER_START;
    c->set_of = sl_hashmap_new();
    return c;
}

static void forget_sets(struct sl_constraint *c)
{
    while (c->n_sets)
        sl_free(c->sets[--c->n_sets]);
    sl_hashmap_free(c->set_of);
    c->set_of = sl_hashmap_new();
}

void sl_constraint_free(struct sl_constraint *c)
{
    if (!c)
        return;
    forget_sets(c);
    sl_hashmap_free(c->set_of);
    sl_matcher_free(c->matcher);
    sl_grammar_free(c->program);
    sl_free(c->ends);
    sl_free(c);
}

static void allow(uint64_t *set, uint32_t token)
{
    set[token / 64] |= UINT64_C(1) << token % 64;
}

/* Over the tokens in the order of their bytes: states of a shared beginning are known, and a beginning that
 * leads nowhere is passed over with all that have it. *any: a token is allowed. False: not walked to its end, as the
 * matcher is full; with whole it goes on, by the states that it has. */
static bool walk(struct sl_constraint *c, uint64_t *set, bool whole, bool *any)
{
    const struct sl_token_bytes *t = c->tokens;
    uint32_t state[SL_TOKEN_MAX_BYTES + 1], dead = UINT32_MAX; /* bytes of the beginning that leads nowhere */
    *any = false;
    state[0] = c->state;
    for (unsigned b = 0; b <= UINT8_MAX && whole; b++) /* so that tokens of one byte are never left out */
        (void)sl_matcher_look(c->matcher, c->state, (uint8_t)b);
    for (uint32_t i = 0; i < t->n && c->state != SL_MATCHER_DEAD; i++) {
        const char *bytes = t->bytes + t->at[t->ids[i]];
        uint32_t n = t->at[t->ids[i] + 1] - t->at[t->ids[i]], k = t->shared[i];
        if (k >= dead)
            continue;
        dead = UINT32_MAX;
        for (; k < n && dead == UINT32_MAX; k++) {
            state[k + 1] = sl_matcher_look(c->matcher, state[k], (uint8_t)bytes[k]);
            if (state[k + 1] == SL_MATCHER_DEAD)
                dead = k + 1;
        }
        if (sl_matcher_is_full(c->matcher) && !whole)
            return false;
        if (dead == UINT32_MAX) {
            allow(set, t->ids[i]);
            *any = true;
        }
    }
    return true;
}

static uint64_t *set_new(struct sl_constraint *c)
{
    uint64_t *set = c->sets[c->n_sets++] = sl_xcalloc((c->tokens->n_vocab + 63) / 64, sizeof *set);
    sl_hashmap_put_u64(c->set_of, c->state, set);
    return set;
}

static bool has_bytes(const struct sl_token_bytes *t, uint32_t token)
{
    return t->at[token] < t->at[token + 1];
}

static bool is_end(const struct sl_constraint *c, int32_t token)
{
    for (uint32_t i = 0; i < c->n_ends; i++)
        if (c->ends[i] == token)
            return true;
    return false;
}

/* Where a token without bytes leads: only free text has any. */
static uint32_t step_over(struct sl_constraint *c, int32_t token)
{
    uint32_t behind = sl_matcher_step(c->matcher, c->state, SL_MATCHER_MARK);
    if (behind == SL_MATCHER_DEAD || is_end(c, token))
        return SL_MATCHER_DEAD;
    return token == c->mark ? behind : c->state;
}

/* Those without bytes. */
static void allow_others(struct sl_constraint *c, uint64_t *set)
{
    if (sl_matcher_step(c->matcher, c->state, SL_MATCHER_MARK) == SL_MATCHER_DEAD)
        return;
    for (uint32_t i = 0; i < c->tokens->n_vocab; i++)
        if (!has_bytes(c->tokens, i))
            allow(set, i); /* ends too: free text may end */
}

const uint64_t *sl_constraint_allowed(struct sl_constraint *c)
{
    uint64_t *set = sl_hashmap_get_u64(c->set_of, c->state);
    if (set)
        return set;
    if (c->n_sets == MAX_SETS)
        forget_sets(c);
    bool any, is_new = sl_matcher_is_new(c->matcher);
    set = set_new(c);
    if (!walk(c, set, is_new, &any)) {
        /* Some of the states are of former tokens. Without them what is left out depends on the text alone. */
        c->state = sl_matcher_forget(c->matcher, c->state);
        forget_sets(c);
        set = set_new(c);
        (void)walk(c, set, true, &any);
    }
    if (!any || sl_matcher_ends(c->matcher, c->state))
        for (uint32_t i = 0; i < c->n_ends; i++)
            if (c->ends[i] >= 0 && (uint32_t)c->ends[i] < c->tokens->n_vocab)
                allow(set, (uint32_t)c->ends[i]);
    allow_others(c, set);
    return set;
}

void sl_constraint_take(struct sl_constraint *c, int32_t token)
{
    const struct sl_token_bytes *t = c->tokens;
    bool forgot;
    if (token < 0 || (uint32_t)token >= t->n_vocab)
        c->state = SL_MATCHER_DEAD;
    else if (!has_bytes(t, (uint32_t)token))
        c->state = step_over(c, token);
    else
        for (uint32_t k = t->at[token]; k < t->at[token + 1]; k++)
            c->state = sl_matcher_step(c->matcher, c->state, (uint8_t)t->bytes[k]);
    if (c->state == SL_MATCHER_DEAD)
        return;
    c->state = sl_matcher_trim(c->matcher, c->state, &forgot);
    if (forgot)
        forget_sets(c);
}
