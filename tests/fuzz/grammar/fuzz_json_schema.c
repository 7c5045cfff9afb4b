/* tests/fuzz/grammar/fuzz_json_schema.c - any schema over any text. Input: schema, a zero byte, text. What
 * the program takes to its end is JSON, but for the words that ask for plain text; as arguments of calls in free text,
 * text without a call may be anything. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/grammar/json_schema.h"
#include "common/grammar/matcher.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint32_t read_text(struct sl_matcher *m, const uint8_t *text, size_t n)
{
    uint32_t state = SL_MATCHER_START;
    for (size_t i = 0; i < n; i++)
        state = sl_matcher_step(m, state, text[i]);
    return state;
}

static void try_calls(const json_t *schema, const uint8_t *text, size_t n)
{
    static const struct sl_schema_frame frame = {
        .before = "\n", .between = "", .after = "</a>", .max = 1, .mark = "<a>", .again = true};
    struct sl_grammar *p;
    struct sl_why why = {0};
    if (sl_json_schema_compile(schema, &frame, &p, &why) != SL_OK) /* too large by the frame */
        return;
    struct sl_matcher *m = sl_matcher_new(p);
    SL_ASSERT(m);
    bool has_call = memmem(text, n, frame.mark, strlen(frame.mark)) != NULL;
    SL_ASSERT(has_call || sl_matcher_ends(m, read_text(m, text, n)));
    sl_matcher_free(m);
    sl_grammar_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t n = zero ? (size_t)(zero - data) : size;
    json_t *schema =
        n <= SL_SCHEMA_MAX_BYTES ? json_loadb((const char *)data, n, JSON_DECODE_ANY, NULL) : NULL;
    struct sl_grammar *p;
    struct sl_why why = {0};
    if (!schema)
        return 0;
    enum sl_err err = sl_json_schema_compile(schema, NULL, &p, &why);
    bool is_json = !json_object_get(schema, SL_SCHEMA_TEXTS) && !json_object_get(schema, SL_SCHEMA_REGEX);
    if (err == SL_OK && zero)
        try_calls(schema, data + n + 1, size - n - 1);
    json_decref(schema);
    if (err != SL_OK) {
        SL_ASSERT(why.text[0]);
        return 0;
    }
    struct sl_matcher *m = sl_matcher_new(p);
    SL_ASSERT(m);
    uint32_t state = zero ? read_text(m, data + n + 1, size - n - 1) : SL_MATCHER_START;
    if (is_json && state != SL_MATCHER_DEAD && sl_matcher_ends(m, state)) {
        json_t *j =
            json_loadb((const char *)data + n + 1, size - n - 1, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        SL_ASSERT(j);
        json_decref(j);
    }
    sl_matcher_free(m);
    sl_grammar_free(p);
    return 0;
}
