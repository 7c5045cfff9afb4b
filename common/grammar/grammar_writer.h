/* common/grammar/grammar_writer.h - writes a program (grammar.h) instruction by instruction. Jumps name
 * labels while it is written; they become places at the end.
 *
 * Zero a writer before its first use. Past SL_GRAMMAR_MAX_INSNS it writes nothing more and too_large says so:
 * look once, at the end. */
#ifndef SLUICE_COMMON_GRAMMAR_GRAMMAR_WRITER_H
#define SLUICE_COMMON_GRAMMAR_GRAMMAR_WRITER_H

#include <stdbool.h>
#include <stddef.h>

#include "common/grammar/grammar.h"

typedef uint32_t sl_label;

struct sl_writer {
    struct sl_insn *insns;
    uint32_t n, cap;
    uint32_t *places; /* of labels */
    uint32_t n_labels, cap_labels;
    bool too_large;
};

void sl_write_insn(struct sl_writer *w, struct sl_insn i);
sl_label sl_write_label(struct sl_writer *w);         /* a new one, of no place yet */
void sl_write_place(struct sl_writer *w, sl_label l); /* it is here */
sl_label sl_write_here(struct sl_writer *w);          /* both */
void sl_write_byte(struct sl_writer *w, unsigned lo, unsigned hi);
void sl_write_text(struct sl_writer *w, const char *s, size_t n);
void sl_write_word(struct sl_writer *w, const char *s);
void sl_write_split(struct sl_writer *w, sl_label x, sl_label y);
/* Goes on with what follows, or at `other`. */
void sl_write_or_at(struct sl_writer *w, sl_label other);
void sl_write_jump(struct sl_writer *w, sl_label x);
void sl_write_call(struct sl_writer *w, sl_label x);
void sl_write_return(struct sl_writer *w);
/* What follows may be left out, up to where *skip is placed. */
void sl_write_optional(struct sl_writer *w, sl_label *skip);

/* Alternatives: begin each with next (last: it is the last one), end the last with end. Zero it before. */
struct sl_write_alt {
    sl_label next, end;
    bool open;
};
void sl_write_alt_next(struct sl_writer *w, struct sl_write_alt *a, bool last);
void sl_write_alt_end(struct sl_writer *w, const struct sl_write_alt *a);

/* One byte of the ranges: pairs of lo and hi, ended by a 0. */
void sl_write_one_of(struct sl_writer *w, const char *ranges);
/* item, a rule, min to max times (UINT32_MAX: without end). */
void sl_write_repeat(struct sl_writer *w, sl_label item, uint32_t min, uint32_t max);
/* 0 to max digits, in line: numbers are short and calls cost a stack's place. */
void sl_write_digits(struct sl_writer *w, uint32_t max);

/* The program, its labels made places; the writer is empty afterwards. NULL: it was too large. */
struct sl_grammar *sl_writer_finish(struct sl_writer *w);
void sl_writer_fini(struct sl_writer *w);

#endif
