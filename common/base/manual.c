/* common/base/manual.c - text into mdoc: a line of text never looks like a macro, and nothing in it is a
 * troff escape. */
#include "common/base/manual.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#define LITERAL "    " /* lines that begin so stand as they are */
#define COLUMNS 78u    /* of the source: mandoc -Tlint wants less than 80 */

static void put_char(FILE *out, char c)
{
    if (c == '\\')
        fputs("\\e", out);
    else
        fputc(c, out);
}

/* One line of text that begins where a macro could. */
static void put_line(FILE *out, const char *text, size_t n)
{
    while (n && isspace((unsigned char)text[n - 1]))
        n--;
    if (n && (text[0] == '.' || text[0] == '\''))
        fputs("\\&", out);
    for (size_t i = 0; i < n; i++)
        put_char(out, text[i]);
    fputc('\n', out);
}

/* The length of the sentence at text, at most n: up to a full stop before a blank and a capital. */
static size_t sentence(const char *text, size_t n)
{
    for (size_t i = 0; i + 2 < n; i++)
        if (text[i] == '.' && text[i + 1] == ' ' && isupper((unsigned char)text[i + 2]))
            return i + 1;
    return n;
}

static void put_sentences(FILE *out, const char *text, size_t n)
{
    while (n) {
        size_t len = sentence(text, n);
        if (len > COLUMNS) {
            len = COLUMNS;
            while (len && text[len] != ' ')
                len--;
            if (len == 0)
                len = strcspn(text, " \n");
        }
        put_line(out, text, len);
        while (len < n && text[len] == ' ')
            len++;
        text += len;
        n -= len;
    }
}

void sl_manual_head(FILE *out, const char *name, const char *section, const char *date, const char *summary)
{
    fprintf(out, ".Dd %s\n.Dt ", date);
    for (const char *c = name; *c; c++)
        fputc(toupper((unsigned char)*c), out);
    fprintf(out, " %s\n.Os\n.Sh NAME\n.Nm %s\n.Nd %s\n", section, name, summary);
}

void sl_manual_section(FILE *out, const char *title)
{
    fprintf(out, ".Sh %s\n", title);
}

void sl_manual_text(FILE *out, const char *text)
{
    bool literal = false, paragraph = false; /* paragraph: an empty line came, and text before it */
    while (*text) {
        size_t n = strcspn(text, "\n");
        bool is_literal = strncmp(text, LITERAL, strlen(LITERAL)) == 0;
        if (literal && n && !is_literal)
            fputs(".Ed\n", out);
        if (n == 0) {
            paragraph = true;
        } else if (is_literal) {
            if (!literal)
                fputs(".Bd -literal -offset indent\n", out);
            put_line(out, text + strlen(LITERAL), n - strlen(LITERAL));
        } else {
            if (paragraph)
                fputs(".Pp\n", out);
            put_sentences(out, text, n);
        }
        if (n) {
            paragraph = false;
            literal = is_literal;
        }
        text += n + (text[n] == '\n');
    }
    if (literal)
        fputs(".Ed\n", out);
}

void sl_manual_lines(FILE *out, const char *text)
{
    fputs(".Bd -literal\n", out);
    while (*text) {
        size_t n = strcspn(text, "\n");
        put_line(out, text, n);
        text += n + (text[n] == '\n');
    }
    fputs(".Ed\n", out);
}

void sl_manual_list_begin(FILE *out)
{
    fputs(".Bl -tag -width Ds\n", out);
}

void sl_manual_item(FILE *out, const char *macro, const char *thing, const char *value)
{
    /* Fl puts a dash of its own in front */
    const char *shown = strcmp(macro, "Fl") == 0 && *thing == '-' ? thing + 1 : thing;
    fprintf(out, ".It %s ", macro);
    for (const char *c = shown; *c; c++)
        put_char(out, *c);
    if (value) {
        fputs(" Ar \"", out);
        for (const char *c = value; *c; c++)
            put_char(out, *c);
        fputc('"', out);
    }
    fputc('\n', out);
}

void sl_manual_list_end(FILE *out)
{
    fputs(".El\n", out);
}

void sl_manual_see_also(FILE *out, const char *const *pages)
{
    sl_manual_section(out, "SEE ALSO");
    for (; *pages; pages++)
        fprintf(out, ".Xr %s%s\n", *pages, pages[1] ? " ," : "");
}
