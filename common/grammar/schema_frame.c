/* common/grammar/schema_frame.c - free text in front of a mark is read as Knuth, Morris and Pratt do it: one place
 * of the program for each number of the mark's bytes that the text ends with, so that a state has one thread and
 * a byte of free text costs what a byte of JSON does. */
#include "common/grammar/schema_frame.h"

#include <string.h>

#include "common/base/err.h"

#define BLANKS "  \t\n\r\r" /* ranges: those that the router's filter passes over in front of a call */

static void write_end(struct sl_writer *w)
{
    sl_write_insn(w, (struct sl_insn){.op = SL_INSN_END});
}

static void write_values(struct sl_writer *w, const struct sl_schema_frame *f, sl_label value)
{
    sl_label end = sl_write_label(w);
    sl_write_word(w, f->before);
    sl_write_call(w, value);
    for (uint32_t i = 1; i < f->max; i++) {
        sl_write_or_at(w, end);
        sl_write_word(w, f->between);
        sl_write_call(w, value);
    }
    sl_write_place(w, end);
    sl_write_word(w, f->after);
}

/* The text may end here, or the mark's token may come. */
static void write_free(struct sl_writer *w, sl_label call)
{
    sl_label end = sl_write_label(w), token = sl_write_label(w), more = sl_write_label(w);
    sl_write_or_at(w, end);
    sl_write_split(w, token, more);
    sl_write_place(w, end);
    write_end(w);
    sl_write_place(w, token);
    sl_write_insn(w, (struct sl_insn){.op = SL_INSN_MARK});
    sl_write_jump(w, call);
    sl_write_place(w, more);
}

/* How many bytes of the mark a text ends with that ended with k of them, k < n, and then had this byte. */
static size_t more_of(const char *mark, size_t k, unsigned byte)
{
    char text[SL_SCHEMA_FRAME_BYTES + 1];
    memcpy(text, mark, k);
    text[k++] = (char)byte;
    for (size_t j = k; j > 0; j--)
        if (memcmp(mark, text + k - j, j) == 0)
            return j;
    return 0;
}

static void write_up_to_mark(struct sl_writer *w, const char *mark, sl_label again, sl_label call)
{
    size_t n = strlen(mark);
    sl_label at[SL_SCHEMA_FRAME_BYTES + 1];
    at[0] = again;
    at[n] = call;
    for (size_t k = 1; k < n; k++)
        at[k] = sl_write_label(w);
    for (size_t k = 0; k < n; k++) {
        sl_write_place(w, at[k]);
        write_free(w, call);
        for (unsigned lo = 0, hi; lo < 256; lo = hi + 1) {
            size_t to = more_of(mark, k, lo);
            for (hi = lo; hi < 255 && more_of(mark, k, hi + 1) == to;)
                hi++;
            sl_label other = sl_write_label(w);
            if (hi < 255)
                sl_write_or_at(w, other);
            sl_write_byte(w, lo, hi);
            sl_write_jump(w, at[to]);
            sl_write_place(w, other);
        }
    }
}

/* Blanks, then a value or any other text. */
static void write_from_first_byte(struct sl_writer *w, sl_label again, sl_label call)
{
    static const unsigned char others[][2] = {
        {0, '\t' - 1}, {'\n' + 1, '\r' - 1}, {'\r' + 1, ' ' - 1}, {' ' + 1, '{' - 1}, {'{' + 1, 255}};
    sl_label text = sl_write_label(w), other = sl_write_label(w);
    struct sl_write_alt a = {0};
    sl_write_place(w, again);
    write_free(w, call);
    sl_write_or_at(w, call);
    sl_write_or_at(w, other);
    sl_write_one_of(w, BLANKS);
    sl_write_jump(w, again);
    sl_write_place(w, other);
    for (size_t i = 0; i < SL_COUNTOF(others); i++) {
        sl_write_alt_next(w, &a, i + 1 == SL_COUNTOF(others));
        sl_write_byte(w, others[i][0], others[i][1]);
    }
    sl_write_alt_end(w, &a);
    sl_write_place(w, text);
    write_free(w, call);
    sl_write_byte(w, 0, 255);
    sl_write_jump(w, text);
}

void sl_write_frame(struct sl_writer *w, const struct sl_schema_frame *f, sl_label value)
{
    sl_label again = sl_write_label(w), call = sl_write_label(w);
    SL_ASSERT(!f->mark || strlen(f->mark) <= SL_SCHEMA_FRAME_BYTES);
    if (f->mark && *f->mark)
        write_up_to_mark(w, f->mark, again, call);
    else if (f->mark)
        write_from_first_byte(w, again, call);
    sl_write_place(w, call);
    write_values(w, f, value);
    if (f->mark && f->again)
        sl_write_jump(w, again);
    else
        write_end(w);
}
