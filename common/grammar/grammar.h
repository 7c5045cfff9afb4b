/* common/grammar/grammar.h - a language over bytes as a small program: what a text may look like.
 *
 * A thread of it stands at an instruction with a stack of places to return to; a text is in the language when
 * some thread reads all of it and ends. Rules are subroutines, so a language may be recursive. */
#ifndef SLUICE_COMMON_GRAMMAR_GRAMMAR_H
#define SLUICE_COMMON_GRAMMAR_GRAMMAR_H

#include <stdint.h>

#include "common/base/err.h"

#define SL_GRAMMAR_MAX_INSNS (1u << 16) /* 12 bytes each; a schema of 64 KiB stays below in practice */

enum sl_insn_op {
    SL_INSN_BYTE, /* one byte from lo to hi, then the next instruction */
    SL_INSN_MARK, /* in free text: a token that has no bytes and stands for a call's begin, then the next one */
    SL_INSN_SPLIT, /* both at x and at y */
    SL_INSN_JUMP,  /* at x */
    SL_INSN_CALL,  /* at x, and when that returns at the next instruction */
    SL_INSN_RETURN,
    SL_INSN_END /* the text may end here */
};

struct sl_insn {
    uint8_t op, lo, hi;
    uint32_t x, y;
};

struct sl_grammar {
    struct sl_insn *insns; /* starts at 0 */
    uint32_t n;
};

void sl_grammar_free(struct sl_grammar *p); /* takes NULL */

#endif
