/* common/grammar/json_text.c - RFC 8259, but for blanks, digits and surrogates (json_schema.h says which are left out). */
#include "common/grammar/json_text.h"

#include "common/grammar/number_bound.h"

#define INDENT_CHARS    20 /* behind a line feed */
#define EXPONENT_DIGITS 2  /* so that no number is infinite */

static void write_blanks(struct sl_writer *out)
{
    struct sl_write_alt a = {0};
    sl_write_alt_next(out, &a, false);
    sl_write_alt_next(out, &a, false);
    sl_write_byte(out, ' ', ' ');
    sl_write_alt_next(out, &a, true);
    sl_write_byte(out, '\n', '\n');
    sl_label end = sl_write_label(out);
    for (uint32_t i = 0; i < INDENT_CHARS; i++) {
        sl_write_or_at(out, end);
        sl_write_one_of(out, "  \t\t");
    }
    sl_write_place(out, end);
    sl_write_alt_end(out, &a);
    sl_write_return(out);
}

void sl_json_blanks(struct sl_writer *out, const struct sl_json_rules *r)
{
    sl_write_call(out, r->rule[SL_JSON_BLANKS]);
}

static void hex(struct sl_writer *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        sl_write_one_of(out, "09afAF");
}

/* A character of a string: itself in UTF-8 (table 3-7 of the Unicode standard), or an escape. */
static void write_char(struct sl_writer *out)
{
    static const struct {
        unsigned char lo, hi, lo2, hi2, more;
    } utf8[] = {{0xC2, 0xDF, 0x80, 0xBF, 0}, {0xE0, 0xE0, 0xA0, 0xBF, 1}, {0xE1, 0xEC, 0x80, 0xBF, 1},
                {0xED, 0xED, 0x80, 0x9F, 1}, {0xEE, 0xEF, 0x80, 0xBF, 1}, {0xF0, 0xF0, 0x90, 0xBF, 2},
                {0xF1, 0xF3, 0x80, 0xBF, 2}, {0xF4, 0xF4, 0x80, 0x8F, 2}};
    struct sl_write_alt a = {0};
    sl_write_alt_next(out, &a, false);
    sl_write_one_of(out, " !#[]~");
    for (size_t i = 0; i < SL_COUNTOF(utf8); i++) {
        sl_write_alt_next(out, &a, false);
        sl_write_byte(out, utf8[i].lo, utf8[i].hi);
        sl_write_byte(out, utf8[i].lo2, utf8[i].hi2);
        for (unsigned k = 0; k < utf8[i].more; k++)
            sl_write_byte(out, 0x80, 0xBF);
    }
    sl_write_alt_next(out, &a, false);
    sl_write_word(out, "\\");
    sl_write_one_of(out, "\"\"\\\\//bbffnnrrtt");
    sl_write_alt_next(out, &a, false); /* \u, no surrogates */
    sl_write_word(out, "\\u");
    sl_write_one_of(out, "09acefACEF");
    hex(out, 3);
    sl_write_alt_next(out, &a, true);
    sl_write_word(out, "\\u");
    sl_write_one_of(out, "ddDD");
    sl_write_byte(out, '0', '7');
    hex(out, 2);
    sl_write_alt_end(out, &a);
    sl_write_return(out);
}

void sl_json_string(struct sl_writer *out, const struct sl_json_rules *r, uint32_t min, uint32_t max)
{
    sl_write_word(out, "\"");
    sl_write_repeat(out, r->rule[SL_JSON_CHAR], min, max);
    sl_write_word(out, "\"");
    sl_write_return(out);
}

static void write_number(struct sl_writer *out, bool integer)
{
    sl_label skip;
    struct sl_write_alt a = {0};
    sl_write_optional(out, &skip);
    sl_write_word(out, "-");
    sl_write_place(out, skip);
    sl_write_alt_next(out, &a, false);
    sl_write_word(out, "0");
    sl_write_alt_next(out, &a, true);
    sl_write_byte(out, '1', '9');
    sl_write_digits(out, SL_NUMBER_WHOLE_DIGITS - 1);
    sl_write_alt_end(out, &a);
    if (!integer) {
        sl_write_optional(out, &skip);
        sl_write_word(out, ".");
        sl_write_byte(out, '0', '9');
        sl_write_digits(out, SL_NUMBER_PART_DIGITS - 1);
        sl_write_place(out, skip);
        sl_write_optional(out, &skip);
        sl_label sign;
        sl_write_one_of(out, "eeEE");
        sl_write_optional(out, &sign);
        sl_write_one_of(out, "++--");
        sl_write_place(out, sign);
        sl_write_byte(out, '0', '9');
        sl_write_digits(out, EXPONENT_DIGITS - 1);
        sl_write_place(out, skip);
    }
    sl_write_return(out);
}

/* An item; others stand in front of it when i is not 0. */
static void write_item(struct sl_writer *out, const struct sl_json_rules *r, const struct sl_json_list *l,
                       uint32_t i)
{
    if (i) {
        sl_write_word(out, ",");
        sl_json_blanks(out, r);
    }
    sl_write_call(out, i < l->n_first ? l->first[i] : l->item);
}

void sl_json_list(struct sl_writer *out, const struct sl_json_rules *r, const struct sl_json_list *l)
{
    sl_label end = sl_write_label(out);
    uint32_t i = 0, need = l->min > l->n_first ? l->min : l->n_first;
    need = need < l->max ? need : l->max;
    sl_write_text(out, &l->open, 1);
    sl_json_blanks(out, r);
    for (; i < need; i++)
        write_item(out, r, l, i);
    if (i == 0 && l->max > 0) { /* the first has no comma in front */
        sl_write_or_at(out, end);
        write_item(out, r, l, i++);
    }
    if (l->max == UINT32_MAX) {
        sl_label again = sl_write_here(out);
        sl_write_or_at(out, end);
        write_item(out, r, l, i);
        sl_write_jump(out, again);
    }
    for (; l->max != UINT32_MAX && i < l->max; i++) {
        sl_write_or_at(out, end);
        write_item(out, r, l, i);
    }
    sl_write_place(out, end);
    sl_json_blanks(out, r);
    sl_write_text(out, &l->close, 1);
    sl_write_return(out);
}

void sl_json_rules(struct sl_writer *out, struct sl_json_rules *r)
{
    sl_label pair = sl_write_label(out);
    struct sl_write_alt a = {0};
    for (int i = 0; i < SL_JSON_N_RULES; i++)
        r->rule[i] = sl_write_label(out);
    sl_write_place(out, r->rule[SL_JSON_ANY]);
    sl_write_alt_next(out, &a, false);
    sl_write_call(out, r->rule[SL_JSON_ANY_OBJECT]);
    sl_write_alt_next(out, &a, false);
    sl_write_call(out, r->rule[SL_JSON_ANY_ARRAY]);
    sl_write_alt_next(out, &a, false);
    sl_write_call(out, r->rule[SL_JSON_STRING]);
    sl_write_alt_next(out, &a, false);
    sl_write_call(out, r->rule[SL_JSON_NUMBER]);
    sl_write_alt_next(out, &a, false);
    sl_write_word(out, "true");
    sl_write_alt_next(out, &a, false);
    sl_write_word(out, "false");
    sl_write_alt_next(out, &a, true);
    sl_write_word(out, "null");
    sl_write_alt_end(out, &a);
    sl_write_return(out);
    sl_write_place(out, pair);
    sl_write_call(out, r->rule[SL_JSON_STRING]);
    sl_write_word(out, ":");
    sl_json_blanks(out, r);
    sl_write_call(out, r->rule[SL_JSON_ANY]);
    sl_write_return(out);
    sl_write_place(out, r->rule[SL_JSON_ANY_OBJECT]);
    sl_json_list(out, r, &(struct sl_json_list){.open = '{', .close = '}', .item = pair, .max = UINT32_MAX});
    sl_write_place(out, r->rule[SL_JSON_ANY_ARRAY]);
    sl_json_list(
        out, r,
        &(struct sl_json_list){.open = '[', .close = ']', .item = r->rule[SL_JSON_ANY], .max = UINT32_MAX});
    sl_write_place(out, r->rule[SL_JSON_STRING]);
    sl_json_string(out, r, 0, UINT32_MAX);
    sl_write_place(out, r->rule[SL_JSON_CHAR]);
    write_char(out);
    sl_write_place(out, r->rule[SL_JSON_NUMBER]);
    write_number(out, false);
    sl_write_place(out, r->rule[SL_JSON_INTEGER]);
    write_number(out, true);
    sl_write_place(out, r->rule[SL_JSON_BLANKS]);
    write_blanks(out);
}
