/* common/grammar/matching.c - what is asked for is kept as bytes, which are also the key of its rule. */
#include "common/grammar/matching.h"

#include <string.h>

#include "common/base/hashmap.h"
#include "common/grammar/regex.h"

struct head {
    uint32_t kind, n;
};

void sl_matching_init(struct sl_matching *m)
{
    *m = (struct sl_matching){.rules = sl_hashmap_new(), .work_left = SL_REGEX_MAX_WORK};
}

void sl_matching_fini(struct sl_matching *m)
{
    sl_hashmap_free(m->rules);
}

void sl_asked_init(struct sl_asked *a, bool in_string)
{
    *a = (struct sl_asked){.max = UINT32_MAX, .in_string = in_string};
    sl_buf_init(&a->conditions, SIZE_MAX); /* of a schema that is bounded */
}

void sl_asked_fini(struct sl_asked *a)
{
    sl_buf_fini(&a->conditions);
}

void sl_asked_add(struct sl_asked *a, enum sl_match_kind kind, const char *text, size_t n)
{
    const struct head h = {.kind = kind, .n = (uint32_t)n};
    sl_buf_append(&a->conditions, &h, sizeof h);
    sl_buf_append(&a->conditions, text, n);
}

static enum sl_err add_conditions(struct sl_regex *r, const struct sl_asked *a, struct sl_why *why)
{
    enum sl_err err = SL_OK;
    struct head h;
    for (size_t at = 0; at < a->conditions.len && err == SL_OK; at += h.n) {
        memcpy(&h, a->conditions.data + at, sizeof h);
        at += sizeof h;
        const char *text = a->conditions.data + at;
        if (h.kind == SL_MATCH_EXCEPT)
            sl_regex_except(r, text, h.n);
        else
            err = sl_regex_match(r, text, h.n,
                                 h.kind == SL_MATCH_WHOLE  ? SL_REGEX_WHOLE
                                 : h.kind == SL_MATCH_PART ? SL_REGEX_PART
                                                           : SL_REGEX_NOWHERE,
                                 why);
    }
    sl_regex_length(r, a->min, a->max);
    return err;
}

enum sl_err sl_matching_write(struct sl_matching *m, const struct sl_asked *a, struct sl_writer *out,
                              struct sl_why *why)
{
    struct sl_buf key;
    const uint32_t rest[] = {a->min, a->max, a->in_string};
    sl_buf_init(&key, SIZE_MAX);
    sl_buf_append(&key, rest, sizeof rest);
    sl_buf_append(&key, a->conditions.data, a->conditions.len);
    uintptr_t known = (uintptr_t)sl_hashmap_get(m->rules, key.data, key.len);
    enum sl_err err = SL_OK;
    if (known) {
        sl_write_jump(out, (sl_label)known - 1);
    } else {
        sl_hashmap_put(m->rules, key.data, key.len, (void *)(uintptr_t)(sl_write_here(out) + 1));
        struct sl_regex *r = sl_regex_new();
        err = add_conditions(r, a, why);
        if (a->in_string)
            sl_write_word(out, "\"");
        if (err == SL_OK)
            err = sl_regex_write(r, out, a->in_string, &m->work_left, why);
        sl_regex_free(r);
    }
    sl_buf_fini(&key);
    return err;
}
