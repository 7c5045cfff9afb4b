/* common/grammar/matcher.c - a state's threads stand one after the other as numbers: instruction, depth, the
 * places to return to, innermost last. A call right in front of a return leaves no place, so lists do not
 * grow a stack. */
#include "common/grammar/matcher.h"

#include <string.h>

#include "common/base/digest.h"
#include "common/base/hashmap.h"
#include "common/base/mem.h"

#define SEEN_SLOTS (2 * SL_MATCHER_MAX_VISITS) /* a power of two */

struct numbers {
    uint32_t *at;
    uint32_t n, cap;
};

struct state {
    uint32_t *threads;
    uint32_t n; /* numbers of threads */
    bool ends;
    uint32_t *next; /* [SYMBOLS], NULL until asked for; UNKNOWN */
};

#define UNKNOWN UINT32_MAX
#define SYMBOLS 257 /* bytes and the mark */

struct seen {
    uint64_t digest;
    uint32_t round; /* free in another one */
};

struct sl_matcher {
    const struct sl_grammar *program;
    struct state *states; /* [0] is dead, [1] the start */
    uint32_t n_states, cap_states;
    size_t n_numbers;              /* of all threads */
    struct sl_hashmap *by_threads; /* digest -> number of a state */
    struct numbers work, found;    /* of the state that is being made */
    struct seen *seen;             /* [SEEN_SLOTS] threads met in this round */
    uint32_t n_seen, round;
    bool full; /* sl_matcher_look() */
};

static void append(struct numbers *to, const uint32_t *from, uint32_t n)
{
    if (to->n + n > to->cap) {
        to->cap = 2 * (to->n + n) + 64;
        to->at = sl_xrealloc(to->at, to->cap * sizeof *to->at);
    }
    if (n)
        memcpy(to->at + to->n, from, n * sizeof *from);
    to->n += n;
}

/* Onto the work: stack[0, depth), depth, instruction; taken from its end. */
static void push(struct sl_matcher *m, uint32_t pc, const uint32_t *stack, uint32_t depth)
{
    append(&m->work, stack, depth);
    append(&m->work, &depth, 1);
    append(&m->work, &pc, 1);
}

/* False: it was met before, or too many were. */
static bool meet(struct sl_matcher *m, const uint32_t *thread, uint32_t n)
{
    if (m->n_seen == SL_MATCHER_MAX_VISITS)
        return false;
    uint64_t d = sl_digest64(thread, n * sizeof *thread, 0);
    size_t i = d & (SEEN_SLOTS - 1);
    for (; m->seen[i].round == m->round; i = (i + 1) & (SEEN_SLOTS - 1))
        if (m->seen[i].digest == d)
            return false;
    m->seen[i] = (struct seen){.digest = d, .round = m->round};
    m->n_seen++;
    return true;
}

/* Follows the work to the threads that wait for a byte or may end: into found. */
static void follow(struct sl_matcher *m)
{
    uint32_t stack[SL_MATCHER_MAX_DEPTH + 1];
    if (++m->round == 0) { /* after 2^32 rounds */
        memset(m->seen, 0, SEEN_SLOTS * sizeof *m->seen);
        m->round = 1;
    }
    m->n_seen = 0;
    m->found.n = 0;
    while (m->work.n) {
        uint32_t *top = &m->work.at[m->work.n];
        uint32_t pc = top[-1], depth = top[-2];
        bool is_new = meet(m, top - 2 - depth, depth + 2);
        if (depth)
            memcpy(stack, top - 2 - depth, depth * sizeof *stack);
        m->work.n -= depth + 2;
        if (!is_new)
            continue;
        const struct sl_insn *i = &m->program->insns[pc];
        switch ((enum sl_insn_op)i->op) {
        case SL_INSN_BYTE:
        case SL_INSN_MARK:
        case SL_INSN_END:
            append(&m->found, &pc, 1);
            append(&m->found, &depth, 1);
            append(&m->found, stack, depth);
            break;
        case SL_INSN_SPLIT:
            push(m, i->y, stack, depth);
            push(m, i->x, stack, depth);
            break;
        case SL_INSN_JUMP:
            push(m, i->x, stack, depth);
            break;
        case SL_INSN_CALL:
            for (pc++; m->program->insns[pc].op == SL_INSN_JUMP;)
                pc = m->program->insns[pc].x;
            if (m->program->insns[pc].op != SL_INSN_RETURN)
                stack[depth++] = pc;
            if (depth <= SL_MATCHER_MAX_DEPTH)
                push(m, i->x, stack, depth);
            break;
        case SL_INSN_RETURN:
            if (depth)
                push(m, stack[depth - 1], stack, depth - 1);
            break;
        }
    }
}

static bool may_end(const struct sl_matcher *m)
{
    for (uint32_t i = 0; i < m->found.n; i += 2 + m->found.at[i + 1])
        if (m->program->insns[m->found.at[i]].op == SL_INSN_END)
            return true;
    return false;
}

bool sl_matcher_is_new(const struct sl_matcher *m)
{
    return m->n_states == SL_MATCHER_START + 1;
}

/* The first one has it always: some byte goes on. */
static bool is_room(const struct sl_matcher *m)
{
    if (sl_matcher_is_new(m))
        return true;
    return m->n_states < SL_MATCHER_LOOK && m->n_numbers + m->found.n <= SL_MATCHER_LOOK_NUMBERS;
}

/* The number of the state with the threads in found; UNKNOWN: it is a new one, and there is no room. */
static uint32_t keep_found(struct sl_matcher *m, bool limited)
{
    size_t bytes = m->found.n * sizeof *m->found.at;
    if (!bytes)
        return SL_MATCHER_DEAD;
    uint64_t key = sl_digest64(m->found.at, bytes, 1);
    for (;; key++) { /* another key for each collision */
        uintptr_t known = (uintptr_t)sl_hashmap_get_u64(m->by_threads, key);
        if (!known)
            break;
        const struct state *s = &m->states[known];
        if (s->n == m->found.n && memcmp(s->threads, m->found.at, bytes) == 0)
            return (uint32_t)known;
    }
    if (limited && !is_room(m))
        return UNKNOWN;
    if (m->n_states == m->cap_states) {
        m->cap_states *= 2;
        m->states = sl_xrealloc(m->states, m->cap_states * sizeof *m->states);
    }
    m->states[m->n_states] =
        (struct state){.threads = sl_xmemdup(m->found.at, bytes), .n = m->found.n, .ends = may_end(m)};
    m->n_numbers += m->found.n;
    sl_hashmap_put_u64(m->by_threads, key, (void *)(uintptr_t)m->n_states);
    return m->n_states++;
}

static void forget_states(struct sl_matcher *m)
{
    for (uint32_t i = SL_MATCHER_START; i < m->n_states; i++) {
        sl_free(m->states[i].threads);
        sl_free(m->states[i].next);
    }
    sl_hashmap_free(m->by_threads);
}

void sl_matcher_free(struct sl_matcher *m)
{
    if (!m)
        return;
    forget_states(m);
    sl_free(m->states);
    sl_free(m->work.at);
    sl_free(m->found.at);
    sl_free(m->seen);
    sl_free(m);
}

struct sl_matcher *sl_matcher_new(const struct sl_grammar *p)
{
    struct sl_matcher *m = sl_xcalloc(1, sizeof *m);
    m->program = p;
    m->cap_states = 64;
    m->states = sl_xcalloc(m->cap_states, sizeof *m->states);
    m->n_states = SL_MATCHER_START;
    m->by_threads = sl_hashmap_new();
    m->seen = sl_xcalloc(SEEN_SLOTS, sizeof *m->seen);
    push(m, 0, NULL, 0);
    follow(m);
    if (keep_found(m, false) == SL_MATCHER_START)
        return m;
    sl_matcher_free(m);
    return NULL;
}

static uint32_t find_next(struct sl_matcher *m, uint32_t state, unsigned symbol, bool limited)
{
    const struct state *s = &m->states[state];
    for (uint32_t i = 0; i < s->n; i += 2 + s->threads[i + 1]) {
        const struct sl_insn *n = &m->program->insns[s->threads[i]];
        if (n->op == SL_INSN_BYTE ? symbol >= n->lo && symbol <= n->hi
                                  : n->op == SL_INSN_MARK && symbol == SL_MATCHER_MARK)
            push(m, s->threads[i] + 1, &s->threads[i + 2], s->threads[i + 1]);
    }
    follow(m);
    return keep_found(m, limited);
}

static uint32_t step(struct sl_matcher *m, uint32_t state, unsigned symbol, bool limited)
{
    if (state == SL_MATCHER_DEAD)
        return SL_MATCHER_DEAD;
    if (!m->states[state].next) {
        m->states[state].next = sl_xalloc(SYMBOLS * sizeof(uint32_t));
        for (int i = 0; i < SYMBOLS; i++)
            m->states[state].next[i] = UNKNOWN;
    }
    if (m->states[state].next[symbol] != UNKNOWN)
        return m->states[state].next[symbol];
    uint32_t to = limited && m->full ? UNKNOWN : find_next(m, state, symbol, limited);
    if (to == UNKNOWN) {
        m->full = true;
        return SL_MATCHER_DEAD;
    }
    m->states[state].next[symbol] = to;
    return to;
}

uint32_t sl_matcher_step(struct sl_matcher *m, uint32_t state, unsigned symbol)
{
    return step(m, state, symbol, false);
}

uint32_t sl_matcher_look(struct sl_matcher *m, uint32_t state, unsigned symbol)
{
    return step(m, state, symbol, true);
}

bool sl_matcher_is_full(const struct sl_matcher *m)
{
    return m->full;
}

bool sl_matcher_ends(const struct sl_matcher *m, uint32_t state)
{
    return m->states[state].ends;
}

uint32_t sl_matcher_forget(struct sl_matcher *m, uint32_t state)
{
    m->found.n = 0;
    append(&m->found, m->states[state].threads, m->states[state].n);
    forget_states(m);
    m->by_threads = sl_hashmap_new();
    m->n_states = SL_MATCHER_START;
    m->n_numbers = 0;
    m->full = false;
    return keep_found(m, false);
}

uint32_t sl_matcher_trim(struct sl_matcher *m, uint32_t state, bool *forgot)
{
    *forgot = m->full || m->n_states > SL_MATCHER_KEEP || m->n_numbers > SL_MATCHER_KEEP_NUMBERS;
    return *forgot ? sl_matcher_forget(m, state) : state;
}
