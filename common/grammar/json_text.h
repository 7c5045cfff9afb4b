/* common/grammar/json_text.h - the rules of JSON itself, which every schema may use. */
#ifndef SLUICE_COMMON_GRAMMAR_JSON_TEXT_H
#define SLUICE_COMMON_GRAMMAR_JSON_TEXT_H

#include "common/grammar/grammar_writer.h"

enum sl_json_rule {
    SL_JSON_ANY,
    SL_JSON_ANY_OBJECT,
    SL_JSON_ANY_ARRAY,
    SL_JSON_STRING,
    SL_JSON_CHAR,
    SL_JSON_NUMBER,
    SL_JSON_INTEGER,
    SL_JSON_BLANKS,
    SL_JSON_N_RULES
};

struct sl_json_rules {
    sl_label rule[SL_JSON_N_RULES];
};

/* Writes them all. */
void sl_json_rules(struct sl_writer *out, struct sl_json_rules *r);

/* What may stand between two words of JSON. */
void sl_json_blanks(struct sl_writer *out, const struct sl_json_rules *r);
/* A string of min to max characters, and a return. */
void sl_json_string(struct sl_writer *out, const struct sl_json_rules *r, uint32_t min, uint32_t max);

/* Items with commas between them: those of first, all of them, and then item, min to max together. */
struct sl_json_list {
    char open, close;
    const sl_label *first;
    uint32_t n_first;
    sl_label item;
    uint32_t min, max; /* UINT32_MAX: no end */
};
/* And a return. */
void sl_json_list(struct sl_writer *out, const struct sl_json_rules *r, const struct sl_json_list *l);

#endif
