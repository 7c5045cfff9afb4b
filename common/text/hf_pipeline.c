/* common/text/hf_pipeline.c - normalizer, pre_tokenizer, post_processor and decoder of tokenizer.json.
 *
 * Normalizers become steps, pre-tokenisers become cuts (vocab.h). Metaspace and a ByteLevel with a prefix
 * space change the text as well; that is a step when no cut stands before it, and is refused otherwise.
 * Nothing may come behind ByteLevel, since it would see GPT-2's alphabet instead of the text. Strings are
 * copied into the vocabulary's arena. */
#include <string.h>

#include "common/text/hf_impl.h"
#include "common/text/pattern.h"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static enum sl_err bad(const struct hf_reader *r, const char *what)
{
    return sl_why_set(r->why, SL_EPARSE, "%s: %s", r->name, what);
}

static enum sl_err add_norm(struct hf_reader *r, struct sl_vocab_norm step)
{
    if (r->n_norms == SL_COUNTOF(r->norms))
        return sl_why_set(r->why, SL_ETOOBIG, "%s: more than %d normalizers", r->name, SL_NORMAL_MAX_STEPS);
    step.from.p = sl_arena_strndup(r->v->arena, step.from.n ? step.from.p : "", step.from.n);
    step.to.p = sl_arena_strndup(r->v->arena, step.to.n ? step.to.p : "", step.to.n);
    if (!step.from.p || !step.to.p)
        return sl_hf_no_memory(r);
    r->norms[r->n_norms++] = step;
    return SL_OK;
}

static enum sl_err add_cut(struct hf_reader *r, enum sl_cut_kind kind, bool invert, const char *pattern,
                           size_t n)
{
    if (r->n_cuts == SL_COUNTOF(r->cuts))
        return sl_why_set(r->why, SL_ETOOBIG, "%s: more than %d pre-tokenizers", r->name,
                          SL_PRETOKEN_MAX_CUTS);
    if (memchr(pattern, 0, n))
        return sl_why_set(r->why, SL_EUNSUPPORTED, "%s: a pattern with a NUL is not supported", r->name);
    char *copy = sl_arena_strndup(r->v->arena, pattern, n);
    if (!copy)
        return sl_hf_no_memory(r);
    r->cuts[r->n_cuts++] = (struct sl_vocab_cut){.kind = kind, .invert = invert, .pattern = copy};
    return SL_OK;
}

/* object's pattern is {kind: "..."}. */
static bool pattern_of(const json_t *object, const char *kind, struct sl_vocab_str *out)
{
    const json_t *pattern = json_object_get(object, "pattern"), *text = json_object_get(pattern, kind);
    if (!json_is_string(text) || json_object_size(pattern) != 1)
        return false;
    *out = sl_hf_str(text);
    return true;
}

/* --- normalizer --- */

static enum sl_err replace(struct hf_reader *r, const json_t *n)
{
    struct sl_vocab_norm step = {.kind = SL_NORM_REPLACE};
    const json_t *content = json_object_get(n, "content");
    enum sl_err e = sl_hf_only_keys(r, "normalizer Replace", n, "type pattern content");
    if (e)
        return e;
    if (!json_is_string(content))
        return bad(r, "normalizer Replace has no content");
    if (!pattern_of(n, "String", &step.from))
        return sl_why_set(r->why, SL_EUNSUPPORTED,
                          "%s: normalizer Replace of anything but a String is not supported", r->name);
    step.to = sl_hf_str(content);
    return add_norm(r, step);
}

static enum sl_err prepend(struct hf_reader *r, const json_t *n)
{
    const json_t *text = json_object_get(n, "prepend");
    enum sl_err e = sl_hf_only_keys(r, "normalizer Prepend", n, "type prepend");
    if (e)
        return e;
    if (!json_is_string(text))
        return bad(r, "normalizer Prepend has no prepend");
    return add_norm(r, (struct sl_vocab_norm){.kind = SL_NORM_PREPEND, .to = sl_hf_str(text)});
}

static enum sl_err normalizer_one(struct hf_reader *r, const json_t *n)
{
    const char *type = sl_hf_type(n);
    if (strcmp(type, "NFC") == 0) {
        enum sl_err e = sl_hf_only_keys(r, "normalizer NFC", n, "type");
        return e ? e : add_norm(r, (struct sl_vocab_norm){.kind = SL_NORM_NFC});
    }
    if (strcmp(type, "Replace") == 0)
        return replace(r, n);
    if (strcmp(type, "Prepend") == 0)
        return prepend(r, n);
    return sl_hf_refuse_type(r, "normalizer", n);
}

/* Calls one for object, or for each of a Sequence's. Sequences inside each other are not made by anybody. */
static enum sl_err each(struct hf_reader *r, const char *where, const char *list, const json_t *object,
                        enum sl_err (*one)(struct hf_reader *, const json_t *))
{
    if (!object || json_is_null(object))
        return SL_OK;
    if (strcmp(sl_hf_type(object), "Sequence") != 0)
        return one(r, object);
    const json_t *items = json_object_get(object, list);
    enum sl_err e = SL_OK;
    if (!json_is_array(items))
        return sl_why_set(r->why, SL_EPARSE, "%s: %s Sequence has no %s", r->name, where, list);
    if (json_object_size(object) != 2)
        return sl_why_set(r->why, SL_EUNSUPPORTED, "%s: %s Sequence has more than %s", r->name, where, list);
    for (size_t i = 0; i < json_array_size(items) && !e; i++)
        e = one(r, json_array_get(items, i));
    return e;
}

enum sl_err sl_hf_normalizer(struct hf_reader *r, const json_t *normalizer)
{
    return each(r, "normalizer", "normalizers", normalizer, normalizer_one);
}

/* --- pre_tokenizer --- */

static enum sl_err may_change_text(const struct hf_reader *r, const char *what)
{
    if (r->n_cuts == 0)
        return SL_OK;
    return sl_why_set(r->why, SL_EUNSUPPORTED, "%s: pre_tokenizer %s behind another one is not supported",
                      r->name, what);
}

static enum sl_err byte_level(struct hf_reader *r, const json_t *p)
{
    bool prefix = true, regex = true, trim = false;
    enum sl_err e =
        sl_hf_only_keys(r, "pre_tokenizer ByteLevel", p, "type add_prefix_space trim_offsets use_regex");
    if (!e)
        e = sl_hf_bool(r, p, "add_prefix_space", &prefix);
    if (!e)
        e = sl_hf_bool(r, p, "use_regex", &regex);
    if (!e)
        e = sl_hf_bool(r, p, "trim_offsets", &trim);
    if (!e && prefix) {
        e = may_change_text(r, "ByteLevel with add_prefix_space");
        if (!e)
            e = add_norm(r, (struct sl_vocab_norm){.kind = SL_NORM_LEAD, .to = {" ", 1}});
    }
    if (!e && regex)
        e = add_cut(r, SL_CUT_ISOLATED, false, GPT2, strlen(GPT2));
    r->byte_level = true;
    return e;
}

static enum sl_err behavior(const struct hf_reader *r, const json_t *p, enum sl_cut_kind *out)
{
    static const struct {
        const char *name;
        enum sl_cut_kind kind;
    } known[] = {{"Isolated", SL_CUT_ISOLATED},
                 {"Removed", SL_CUT_REMOVED},
                 {"Contiguous", SL_CUT_CONTIGUOUS},
                 {"MergedWithPrevious", SL_CUT_WITH_PREVIOUS},
                 {"MergedWithNext", SL_CUT_WITH_NEXT}};
    const char *name = json_string_value(json_object_get(p, "behavior"));
    for (size_t i = 0; i < SL_COUNTOF(known) && name; i++)
        if (strcmp(known[i].name, name) == 0) {
            *out = known[i].kind;
            return SL_OK;
        }
    return sl_why_set(r->why, SL_EUNSUPPORTED,
                      "%s: pre_tokenizer Split with behavior \"%.40s\" is not supported", r->name,
                      name ? name : "");
}

static enum sl_err split(struct hf_reader *r, const json_t *p)
{
    enum sl_cut_kind kind = SL_CUT_ISOLATED;
    bool invert = false;
    struct sl_vocab_str text;
    enum sl_err e = sl_hf_only_keys(r, "pre_tokenizer Split", p, "type pattern behavior invert");
    if (!e)
        e = behavior(r, p, &kind);
    if (!e)
        e = sl_hf_bool(r, p, "invert", &invert);
    if (e)
        return e;
    if (pattern_of(p, "Regex", &text))
        return add_cut(r, kind, invert, text.p, text.n);
    if (!pattern_of(p, "String", &text))
        return bad(r, "pre_tokenizer Split has no pattern");
    struct sl_buf quoted;
    sl_buf_init(&quoted, SL_PATTERN_MAX_BYTES);
    sl_pattern_quote(text.p, text.n, &quoted);
    if (sl_buf_failed(&quoted) || quoted.len == 0)
        e = sl_why_set(r->why, SL_ETOOBIG,
                       "%s: pre_tokenizer Split has an empty pattern or one that is too long", r->name);
    else
        e = add_cut(r, kind, invert, quoted.data, quoted.len);
    sl_buf_fini(&quoted);
    return e;
}

static enum sl_err digits(struct hf_reader *r, const json_t *p)
{
    bool individual = false;
    enum sl_err e = sl_hf_only_keys(r, "pre_tokenizer Digits", p, "type individual_digits");
    if (!e)
        e = sl_hf_bool(r, p, "individual_digits", &individual);
    return e ? e : add_cut(r, individual ? SL_CUT_ISOLATED : SL_CUT_CONTIGUOUS, false, "\\p{N}", 5);
}

static enum sl_err metaspace(struct hf_reader *r, const json_t *p)
{
    const json_t *mark = json_object_get(p, "replacement"), *given = json_object_get(p, "prepend_scheme");
    const char *scheme = json_string_value(given);
    bool prefix = true, cut = true;
    enum sl_err e = sl_hf_only_keys(r, "pre_tokenizer Metaspace", p,
                                    "type replacement add_prefix_space prepend_scheme split str_rep");
    if (!e)
        e = may_change_text(r, "Metaspace");
    if (!e)
        e = sl_hf_bool(r, p, "add_prefix_space", &prefix); /* before there were schemes */
    if (!e)
        e = sl_hf_bool(r, p, "split", &cut);
    if (e)
        return e;
    if (!json_is_string(mark) || json_string_length(mark) == 0)
        return bad(r, "pre_tokenizer Metaspace has no replacement");
    if (!scheme)
        scheme = prefix ? "always" : "never";
    bool always = strcmp(scheme, "always") == 0, first = strcmp(scheme, "first") == 0;
    if (!always && !first && strcmp(scheme, "never") != 0)
        return sl_why_set(r->why, SL_EUNSUPPORTED,
                          "%s: pre_tokenizer Metaspace with prepend_scheme \"%.40s\" is not supported",
                          r->name, scheme);
    e = add_norm(r, (struct sl_vocab_norm){.kind = SL_NORM_REPLACE, .from = {" ", 1}, .to = sl_hf_str(mark)});
    if (!e && (always || first))
        e = add_norm(
            r, (struct sl_vocab_norm){.kind = SL_NORM_LEAD, .first_only = first, .to = sl_hf_str(mark)});
    if (!e && cut)
        e = add_cut(r, SL_CUT_WITH_NEXT, false, json_string_value(mark), json_string_length(mark));
    return e;
}

static enum sl_err pre_tokenizer_one(struct hf_reader *r, const json_t *p)
{
    const char *type = sl_hf_type(p);
    if (r->byte_level)
        return sl_why_set(r->why, SL_EUNSUPPORTED,
                          "%s: pre_tokenizer %.40s behind ByteLevel is not supported", r->name, type);
    if (strcmp(type, "ByteLevel") == 0)
        return byte_level(r, p);
    if (strcmp(type, "Split") == 0)
        return split(r, p);
    if (strcmp(type, "Digits") == 0)
        return digits(r, p);
    if (strcmp(type, "Metaspace") == 0)
        return metaspace(r, p);
    return sl_hf_refuse_type(r, "pre_tokenizer", p);
}

enum sl_err sl_hf_pre_tokenizer(struct hf_reader *r, const json_t *pre)
{
    return each(r, "pre_tokenizer", "pretokenizers", pre, pre_tokenizer_one);
}

/* --- post_processor --- */

/* The id of a special token of the template. */
static enum sl_err template_id(const struct hf_reader *r, const json_t *t, const json_t *item, uint32_t *out)
{
    const char *name = json_string_value(json_object_get(item, "id"));
    const json_t *token = name ? json_object_get(json_object_get(t, "special_tokens"), name) : NULL;
    const json_t *ids = json_object_get(token, "ids"), *id = json_array_get(ids, 0);
    if (json_array_size(ids) != 1 || !json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= r->v->n_tokens)
        return sl_why_set(
            r->why, SL_EINVAL,
            "%s: post_processor TemplateProcessing names \"%.40s\", which is not one token of the "
            "vocabulary",
            r->name, name ? name : "");
    *out = (uint32_t)json_integer_value(id);
    return SL_OK;
}

static enum sl_err template_processing(struct hf_reader *r, const json_t *t)
{
    const json_t *single = json_object_get(t, "single");
    bool behind = false;
    enum sl_err e =
        sl_hf_only_keys(r, "post_processor TemplateProcessing", t, "type single pair special_tokens");
    if (!e && !json_is_array(single))
        e = bad(r, "post_processor TemplateProcessing has no single");
    for (size_t i = 0; i < json_array_size(single) && !e; i++) {
        const json_t *item = json_array_get(single, i), *special = json_object_get(item, "SpecialToken");
        bool *add = behind ? &r->v->add_eos : &r->v->add_bos;
        if (json_object_get(item, "Sequence")) {
            if (behind)
                e = bad(r, "post_processor TemplateProcessing has the text twice");
            behind = true;
        } else if (!special || *add) {
            e = sl_why_set(
                r->why, SL_EUNSUPPORTED,
                "%s: post_processor TemplateProcessing with more than one token on a side of the text "
                "is not supported",
                r->name);
        } else {
            e = template_id(r, t, special, behind ? &r->v->eos_id : &r->v->bos_id);
            *add = true;
        }
    }
    if (!e && !behind)
        e = bad(r, "post_processor TemplateProcessing leaves the text out");
    return e;
}

static enum sl_err post_processor_one(struct hf_reader *r, const json_t *p)
{
    const char *type = sl_hf_type(p);
    if (strcmp(type, "ByteLevel") == 0) /* offsets only */
        return SL_OK;
    if (strcmp(type, "TemplateProcessing") == 0)
        return template_processing(r, p);
    return sl_hf_refuse_type(r, "post_processor", p);
}

enum sl_err sl_hf_post_processor(struct hf_reader *r, const json_t *post)
{
    return each(r, "post_processor", "processors", post, post_processor_one);
}

/* --- decoder --- */

/* Decoding is the same for all of a kind (tokenizer_open.c); here it is only seen that nothing else is asked
 * for. */
static enum sl_err decoder_one(struct hf_reader *r, const json_t *d)
{
    const char *type = sl_hf_type(d);
    struct sl_vocab_str from;
    if (strcmp(type, "ByteLevel") == 0 && r->byte_level)
        return SL_OK;
    if (!r->byte_level && (strcmp(type, "ByteFallback") == 0 || strcmp(type, "Fuse") == 0 ||
                           strcmp(type, "Metaspace") == 0 || strcmp(type, "Strip") == 0))
        return SL_OK;
    if (!r->byte_level && strcmp(type, "Replace") == 0 && pattern_of(d, "String", &from) && from.n == 3 &&
        memcmp(from.p, SL_VOCAB_SPACE, 3) == 0)
        return SL_OK;
    return sl_hf_refuse_type(r, "decoder", d);
}

enum sl_err sl_hf_decoder(const struct hf_reader *r, const json_t *decoder)
{
    struct hf_reader copy = *r;
    return each(&copy, "decoder", "decoders", decoder, decoder_one);
}
