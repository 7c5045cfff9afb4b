/* common/base/manual.h - manual pages in mdoc(7), written by the programs themselves from their tables.
 *
 * Texts are plain: an empty line parts paragraphs, lines that begin with four blanks stand as they are
 * (examples). Any thread; nothing is kept. */
#ifndef SLUICE_COMMON_BASE_MANUAL_H
#define SLUICE_COMMON_BASE_MANUAL_H

#include <stdio.h>

/* The page's head and its NAME. section is "1" or "8", date "November 30, 2026", summary has no full stop. */
void sl_manual_head(FILE *out, const char *name, const char *section, const char *date, const char *summary);
void sl_manual_section(FILE *out, const char *title);
/* Running text, one sentence a line as mdoc wants it. */
void sl_manual_text(FILE *out, const char *text);
/* Text that keeps its lines. */
void sl_manual_lines(FILE *out, const char *text);
/* A list of things and what they are: begin, then for each one an item and its text, end. macro is how the
 * thing is set: "Fl" an option, "Ic" a command or key, "Pa" a file, "Dv" a signal or a number. value (NULL =
 * none) is set as an argument. */
void sl_manual_list_begin(FILE *out);
void sl_manual_item(FILE *out, const char *macro, const char *thing, const char *value);
void sl_manual_list_end(FILE *out);
/* SEE ALSO; "name section" pairs, ordered by section, NULL-terminated. */
void sl_manual_see_also(FILE *out, const char *const *pages);

#endif
