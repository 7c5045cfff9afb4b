/* common/grammar/grammar_writer.c - arrays that double when full; nothing is thought over before the end. */
#include "common/grammar/grammar_writer.h"

#include <string.h>

#include "common/base/mem.h"

void sl_write_insn(struct sl_writer *w, struct sl_insn i)
{
    if (w->n == SL_GRAMMAR_MAX_INSNS) {
        w->too_large = true;
        return;
    }
    if (w->n == w->cap) {
        w->cap = w->cap ? 2 * w->cap : 256;
        w->insns = sl_xrealloc(w->insns, w->cap * sizeof *w->insns);
    }
    w->insns[w->n++] = i;
}

sl_label sl_write_label(struct sl_writer *w)
{
    if (w->n_labels == w->cap_labels) {
        w->cap_labels = w->cap_labels ? 2 * w->cap_labels : 256;
        w->places = sl_xrealloc(w->places, w->cap_labels * sizeof *w->places);
    }
    return w->n_labels++;
}

void sl_write_place(struct sl_writer *w, sl_label l)
{
    w->places[l] = w->n;
}

sl_label sl_write_here(struct sl_writer *w)
{
    sl_label l = sl_write_label(w);
    sl_write_place(w, l);
    return l;
}

void sl_write_byte(struct sl_writer *w, unsigned lo, unsigned hi)
{
    sl_write_insn(w, (struct sl_insn){.op = SL_INSN_BYTE, .lo = (uint8_t)lo, .hi = (uint8_t)hi});
}

void sl_write_text(struct sl_writer *w, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sl_write_byte(w, (unsigned char)s[i], (unsigned char)s[i]);
}

void sl_write_word(struct sl_writer *w, const char *s)
{
    sl_write_text(w, s, strlen(s));
}

void sl_write_split(struct sl_writer *w, sl_label x, sl_label y)
{
    sl_write_insn(w, (struct sl_insn){.op = SL_INSN_SPLIT, .x = x, .y = y});
}

void sl_write_or_at(struct sl_writer *w, sl_label other)
{
    sl_label go_on = sl_write_label(w);
    sl_write_split(w, go_on, other);
    sl_write_place(w, go_on);
}

void sl_write_jump(struct sl_writer *w, sl_label x)
{
    sl_write_insn(w, (struct sl_insn){.op = SL_INSN_JUMP, .x = x});
}

void sl_write_call(struct sl_writer *w, sl_label x)
{
    sl_write_insn(w, (struct sl_insn){.op = SL_INSN_CALL, .x = x});
}

void sl_write_return(struct sl_writer *w)
{
    sl_write_insn(w, (struct sl_insn){.op = SL_INSN_RETURN});
}

void sl_write_alt_next(struct sl_writer *w, struct sl_write_alt *a, bool last)
{
    if (!a->open)
        a->end = sl_write_label(w);
    else
        sl_write_jump(w, a->end);
    if (a->open)
        sl_write_place(w, a->next);
    a->open = true;
    if (last)
        return;
    sl_label first = sl_write_label(w);
    a->next = sl_write_label(w);
    sl_write_split(w, first, a->next);
    sl_write_place(w, first);
}

void sl_write_alt_end(struct sl_writer *w, const struct sl_write_alt *a)
{
    sl_write_place(w, a->end);
}

void sl_write_one_of(struct sl_writer *w, const char *ranges)
{
    struct sl_write_alt a = {0};
    for (const char *r = ranges; *r; r += 2) {
        sl_write_alt_next(w, &a, r[2] == '\0');
        sl_write_byte(w, (unsigned char)r[0], (unsigned char)r[1]);
    }
    sl_write_alt_end(w, &a);
}

void sl_write_repeat(struct sl_writer *w, sl_label item, uint32_t min, uint32_t max)
{
    sl_label end = sl_write_label(w);
    for (uint32_t i = 0; i < min; i++)
        sl_write_call(w, item);
    if (max == UINT32_MAX) {
        sl_label again = sl_write_here(w), more = sl_write_label(w);
        sl_write_split(w, more, end);
        sl_write_place(w, more);
        sl_write_call(w, item);
        sl_write_jump(w, again);
    }
    for (uint32_t i = min; max != UINT32_MAX && i < max; i++) {
        sl_write_or_at(w, end);
        sl_write_call(w, item);
    }
    sl_write_place(w, end);
}

void sl_write_digits(struct sl_writer *w, uint32_t max)
{
    sl_label end = sl_write_label(w);
    for (uint32_t i = 0; i < max; i++) {
        sl_write_or_at(w, end);
        sl_write_byte(w, '0', '9');
    }
    sl_write_place(w, end);
}

void sl_write_optional(struct sl_writer *w, sl_label *skip)
{
    *skip = sl_write_label(w);
    sl_write_or_at(w, *skip);
}

static void resolve(struct sl_writer *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        struct sl_insn *n = &w->insns[i];
        if (n->op == SL_INSN_SPLIT || n->op == SL_INSN_JUMP || n->op == SL_INSN_CALL)
            n->x = w->places[n->x];
        if (n->op == SL_INSN_SPLIT)
            n->y = w->places[n->y];
    }
}

struct sl_grammar *sl_writer_finish(struct sl_writer *w)
{
    struct sl_grammar *p = NULL;
    if (!w->too_large) {
        resolve(w);
        p = sl_xalloc(sizeof *p);
        *p = (struct sl_grammar){.insns = w->insns, .n = w->n};
        w->insns = NULL;
    }
    sl_writer_fini(w);
    return p;
}

void sl_writer_fini(struct sl_writer *w)
{
    sl_free(w->insns);
    sl_free(w->places);
    *w = (struct sl_writer){0};
}

void sl_grammar_free(struct sl_grammar *p)
{
    if (!p)
        return;
    sl_free(p->insns);
    sl_free(p);
}
