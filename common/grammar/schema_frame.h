/* common/grammar/schema_frame.h - what stands around values of a schema: the syntax that a family of models has for
 * calls of tools. */
#ifndef SLUICE_COMMON_GRAMMAR_SCHEMA_FRAME_H
#define SLUICE_COMMON_GRAMMAR_SCHEMA_FRAME_H

#include "common/grammar/grammar_writer.h"

#define SL_SCHEMA_FRAME_BYTES 64 /* of each of its texts */
#define SL_SCHEMA_MAX_FRAMED  32 /* values */

/* before value (between value)* after, up to max values. Without a mark that is the whole text. With one, a text is
 * free - it may be anything, and may end - up to the first place where the mark is; behind the mark, all of this
 * has to stand. again: then the text is free once more, else it ends there. Bytes or SL_INSN_MARK are the mark.
 * A mark of no bytes: a text that begins with a value's first byte '{', or with blanks and that, is one. */
struct sl_schema_frame {
    const char *before, *between, *after;
    uint32_t max;
    const char *mark; /* NULL: none */
    bool again;
};

/* The program's text; value is the rule of the values. */
void sl_write_frame(struct sl_writer *w, const struct sl_schema_frame *f, sl_label value);

#endif
