/* common/text/hf_tokenizer.c - tokenizer.json: tokens, merges and the tokens added to them.
 *
 * The vocabulary is copied into one arena whose size is bounded by the file's. Merges are looked up here,
 * where the JSON object is a map from text to id already, and handed on as ids: written as one string they
 * could not have a space inside. */
#include <string.h>

#include "common/text/byte_chars.h"
#include "common/text/hf_impl.h"
#include "common/text/hf_vocab.h"
#include "common/text/utf8.h"

/* --- small helpers --- */

const char *sl_hf_type(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "";
}

enum sl_err sl_hf_refuse_type(const struct hf_reader *r, const char *where, const json_t *object)
{
    return sl_why_set(r->why, SL_EUNSUPPORTED, "%s: %s of type \"%.40s\" is not supported", r->name, where,
                      sl_hf_type(object));
}

static bool is_word_of(const char *list, const char *word, size_t n)
{
    for (const char *at = list, *end; *at; at = *end ? end + 1 : end) {
        end = strchr(at, ' ');
        if (!end)
            end = at + strlen(at);
        if ((size_t)(end - at) == n && memcmp(at, word, n) == 0)
            return true;
    }
    return false;
}

enum sl_err sl_hf_only_keys(const struct hf_reader *r, const char *where, const json_t *object,
                            const char *known)
{
    for (void *it = json_object_iter((json_t *)object); it;
         it = json_object_iter_next((json_t *)object, it)) {
        const char *key = json_object_iter_key(it);
        if (!is_word_of(known, key, json_object_iter_key_len(it)))
            return sl_why_set(r->why, SL_EUNSUPPORTED, "%s: %s has \"%.40s\", which is not known", r->name,
                              where, key);
    }
    return SL_OK;
}

enum sl_err sl_hf_bool(const struct hf_reader *r, const json_t *object, const char *key, bool *out)
{
    const json_t *j = json_object_get(object, key);
    if (!j || json_is_null(j))
        return SL_OK;
    if (!json_is_boolean(j))
        return sl_why_set(r->why, SL_EPARSE, "%s: %s is neither true nor false", r->name, key);
    *out = json_is_true(j);
    return SL_OK;
}

struct sl_vocab_str sl_hf_str(const json_t *string)
{
    return (struct sl_vocab_str){json_string_value(string), (uint32_t)json_string_length(string)};
}

enum sl_err sl_hf_no_memory(const struct hf_reader *r)
{
    return sl_why_set(r->why, SL_ENOMEM, "%s: no memory for the vocabulary", r->name);
}

/* --- tokens --- */

static enum sl_err token_id(const struct hf_reader *r, const char *text, const json_t *id, uint32_t *out)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= SL_VOCAB_MAX_TOKENS)
        return sl_why_set(r->why, SL_EINVAL, "%s: token \"%.40s\" has no id from 0 to %u", r->name, text,
                          SL_VOCAB_MAX_TOKENS - 1);
    *out = (uint32_t)json_integer_value(id);
    return SL_OK;
}

static enum sl_err count_tokens(const struct hf_reader *r, const json_t *vocab, const json_t *added,
                                uint32_t *n)
{
    uint32_t id = 0;
    enum sl_err e = SL_OK;
    *n = 0;
    for (void *it = json_object_iter((json_t *)vocab); it && !e;
         it = json_object_iter_next((json_t *)vocab, it)) {
        e = token_id(r, json_object_iter_key(it), json_object_iter_value(it), &id);
        *n = id >= *n ? id + 1 : *n;
    }
    for (size_t i = 0; i < json_array_size(added) && !e; i++) {
        const json_t *t = json_array_get(added, i);
        const char *text = json_string_value(json_object_get(t, "content"));
        e = token_id(r, text ? text : "", json_object_get(t, "id"), &id);
        *n = id >= *n ? id + 1 : *n;
    }
    if (!e && *n == 0)
        e = sl_why_set(r->why, SL_EINVAL, "%s: the vocabulary is empty", r->name);
    return e;
}

/* Ids past the end are left out: the model has no row for them. */
static enum sl_err set_token(struct hf_reader *r, uint32_t id, const char *text, size_t n, unsigned type)
{
    if (id >= r->v->n_tokens)
        return SL_OK;
    if (n > SL_VOCAB_MAX_TOKEN_BYTES)
        return sl_why_set(r->why, SL_ETOOBIG, "%s: token %u has %zu bytes, at most %d are allowed", r->name,
                          id, n, SL_VOCAB_MAX_TOKEN_BYTES);
    struct sl_vocab_str *t = &r->v->tokens[id];
    if (t->n && (t->n != n || memcmp(t->p, text, n) != 0))
        return sl_why_set(r->why, SL_EINVAL, "%s: token %u is both \"%.40s\" and \"%.40s\"", r->name, id,
                          t->p, text);
    t->p = sl_arena_strndup(r->v->arena, text, n);
    t->n = (uint32_t)n;
    r->v->types[id] = (uint8_t)type;
    return t->p ? SL_OK : sl_hf_no_memory(r);
}

static bool is_byte_token(const char *s, size_t n)
{
    static const char digits[] = "0123456789ABCDEF";
    return n == 6 && memcmp(s, "<0x", 3) == 0 && s[5] == '>' && memchr(digits, s[3], 16) &&
           memchr(digits, s[4], 16);
}

static enum sl_err read_tokens(struct hf_reader *r, const json_t *vocab, const json_t *added,
                               bool byte_fallback, uint32_t n_vocab)
{
    struct sl_vocab_src *v = r->v;
    uint32_t id = 0;
    enum sl_err e = count_tokens(r, vocab, added, &v->n_tokens);
    if (e)
        return e;
    if (n_vocab)
        v->n_tokens = n_vocab;
    v->tokens = sl_arena_alloc(v->arena, v->n_tokens * sizeof *v->tokens);
    v->types = sl_arena_alloc(v->arena, v->n_tokens);
    v->strips = sl_arena_alloc(v->arena, v->n_tokens);
    if (!v->tokens || !v->types || !v->strips)
        return sl_hf_no_memory(r);
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        v->tokens[i].p = "";
        v->types[i] = SL_TOKEN_UNUSED;
    }
    for (void *it = json_object_iter((json_t *)vocab); it && !e;
         it = json_object_iter_next((json_t *)vocab, it)) {
        const char *text = json_object_iter_key(it);
        size_t n = json_object_iter_key_len(it);
        e = token_id(r, text, json_object_iter_value(it), &id);
        if (!e)
            e = set_token(r, id, text, n,
                          byte_fallback && is_byte_token(text, n) ? SL_TOKEN_BYTE : SL_TOKEN_NORMAL);
    }
    return e;
}

/* --- added tokens --- */

/* A token that is looked for behind the normaliser must be one that the normaliser leaves alone: then it may
 * be looked for in front, where it is still known which bytes are trusted. */
static enum sl_err unchanged(const struct hf_reader *r, struct sl_normal *normal, const char *text, size_t n)
{
    struct sl_normal_work work = {0};
    struct sl_buf out;
    sl_buf_init(&out, SL_NORMAL_MAX_GROWTH * (SL_VOCAB_MAX_TOKEN_BYTES + SL_NORMAL_MAX_BYTES));
    enum sl_err e = sl_normal_append(normal, &work, text, n, true, &out);
    if (!e && (out.len != n || memcmp(out.data, text, n) != 0))
        e = sl_why_set(
            r->why, SL_EUNSUPPORTED,
            "%s: added token \"%.40s\" is changed by the normalizer (normalized), which is not supported",
            r->name, text);
    sl_buf_fini(&out);
    sl_normal_work_fini(&work);
    return e;
}

static enum sl_err read_added_one(struct hf_reader *r, const json_t *t, const json_t *vocab,
                                  struct sl_normal *normal)
{
    const json_t *content = json_object_get(t, "content");
    bool single_word = false, lstrip = false, rstrip = false, normalized = true, special = false;
    uint32_t id = 0;
    enum sl_err e =
        sl_hf_only_keys(r, "an added token", t, "id content single_word lstrip rstrip normalized special");
    if (e)
        return e;
    if (!json_is_string(content))
        return sl_why_set(r->why, SL_EPARSE, "%s: an added token has no content", r->name);
    const char *text = json_string_value(content);
    size_t n = json_string_length(content);
    const struct {
        const char *key;
        bool *out;
    } flags[] = {{"single_word", &single_word},
                 {"lstrip", &lstrip},
                 {"rstrip", &rstrip},
                 {"normalized", &normalized},
                 {"special", &special}};
    for (size_t i = 0; i < SL_COUNTOF(flags) && !e; i++)
        e = sl_hf_bool(r, t, flags[i].key, flags[i].out);
    if (!e)
        e = token_id(r, text, json_object_get(t, "id"), &id);
    if (e || n == 0 || id >= r->v->n_tokens)
        return e;
    if (n > SL_VOCAB_MAX_TOKEN_BYTES)
        return sl_why_set(r->why, SL_ETOOBIG, "%s: an added token has %zu bytes, at most %d are allowed",
                          r->name, n, SL_VOCAB_MAX_TOKEN_BYTES);
    if (single_word)
        return sl_why_set(r->why, SL_EUNSUPPORTED,
                          "%s: added token \"%.40s\" is a single_word, which is not supported", r->name,
                          text);
    const json_t *known = memchr(text, 0, n) ? NULL : json_object_get(vocab, text);
    if (known && json_integer_value(known) != (json_int_t)id)
        return sl_why_set(r->why, SL_EINVAL,
                          "%s: added token \"%.40s\" has id %u, in the vocabulary it has %lld", r->name, text,
                          id, (long long)json_integer_value(known));
    if (normalized && normal)
        e = unchanged(r, normal, text, n);
    if (!e)
        e = set_token(r, id, text, n, special ? SL_TOKEN_CONTROL : SL_TOKEN_USER_DEFINED);
    r->v->strips[id] = (uint8_t)((lstrip ? SL_STRIP_LEFT : 0) | (rstrip ? SL_STRIP_RIGHT : 0));
    return e;
}

static enum sl_err read_added(struct hf_reader *r, const json_t *added, const json_t *vocab)
{
    struct sl_normal *normal = NULL;
    enum sl_err e = SL_OK;
    bool strips = false;
    if (r->n_norms)
        e = sl_normal_open(r->norms, r->n_norms, &normal, r->why);
    for (size_t i = 0; i < json_array_size(added) && !e; i++)
        e = read_added_one(r, json_array_get(added, i), vocab, normal);
    sl_normal_close(normal);
    for (uint32_t i = 0; i < r->v->n_tokens && !e; i++)
        strips = strips || r->v->strips[i];
    if (!strips)
        r->v->strips = NULL;
    return e;
}

/* --- model --- */

static uint32_t id_of(const json_t *vocab, const char *s, size_t n)
{
    const json_t *id = json_object_getn(vocab, s, n);
    return id ? (uint32_t)json_integer_value(id) : SL_VOCAB_NO_ID;
}

/* "left right" or ["left", "right"]. */
static bool merge_parts(const json_t *m, struct sl_vocab_str part[2])
{
    const json_t *left = json_array_get(m, 0), *right = json_array_get(m, 1);
    if (json_is_string(m)) {
        part[0] = sl_hf_str(m);
        const char *space = memchr(part[0].p, ' ', part[0].n);
        if (!space)
            return false;
        part[1] = (struct sl_vocab_str){space + 1, part[0].n - (uint32_t)(space - part[0].p) - 1};
        part[0].n = (uint32_t)(space - part[0].p);
    } else if (json_array_size(m) == 2 && json_is_string(left) && json_is_string(right)) {
        part[0] = sl_hf_str(left);
        part[1] = sl_hf_str(right);
    } else {
        return false;
    }
    return part[0].n && part[1].n && part[0].n <= SL_VOCAB_MAX_TOKEN_BYTES &&
           part[1].n <= SL_VOCAB_MAX_TOKEN_BYTES;
}

static enum sl_err read_merges(struct hf_reader *r, const json_t *merges, const json_t *vocab)
{
    struct sl_vocab_src *v = r->v;
    char joined[2 * SL_VOCAB_MAX_TOKEN_BYTES];
    if (!json_is_array(merges))
        return sl_why_set(r->why, SL_EPARSE, "%s: the model has no merges", r->name);
    if (json_array_size(merges) > 2 * SL_VOCAB_MAX_TOKENS)
        return sl_why_set(r->why, SL_ETOOBIG, "%s: %zu merges, at most %u are allowed", r->name,
                          json_array_size(merges), 2 * SL_VOCAB_MAX_TOKENS);
    v->n_merges = (uint32_t)json_array_size(merges);
    v->pairs = sl_arena_alloc(v->arena, v->n_merges * sizeof *v->pairs + 1);
    if (!v->pairs)
        return sl_hf_no_memory(r);
    for (uint32_t i = 0; i < v->n_merges; i++) {
        struct sl_vocab_str part[2];
        struct sl_vocab_pair *p = &v->pairs[i];
        *p = (struct sl_vocab_pair){SL_VOCAB_NO_ID, SL_VOCAB_NO_ID, SL_VOCAB_NO_ID};
        if (merge_parts(json_array_get(merges, i), part)) {
            memcpy(joined, part[0].p, part[0].n);
            memcpy(joined + part[0].n, part[1].p, part[1].n);
            p->left = id_of(vocab, part[0].p, part[0].n);
            p->right = id_of(vocab, part[1].p, part[1].n);
            p->merged = id_of(vocab, joined, part[0].n + part[1].n);
        }
        if (p->left >= v->n_tokens || p->right >= v->n_tokens || p->merged >= v->n_tokens)
            return sl_why_set(r->why, SL_EINVAL,
                              "%s: merge %u is not two tokens of the vocabulary that make a third", r->name,
                              i);
    }
    return SL_OK;
}

static enum sl_err absent(const struct hf_reader *r, const json_t *model, const char *key)
{
    const json_t *j = json_object_get(model, key);
    if (!j || json_is_null(j) || (json_is_string(j) && json_string_length(j) == 0) ||
        (json_is_number(j) && json_number_value(j) == 0))
        return SL_OK;
    return sl_why_set(r->why, SL_EUNSUPPORTED, "%s: a model with %s is not supported", r->name, key);
}

static enum sl_err read_unknown(struct hf_reader *r, const json_t *model, const json_t *vocab)
{
    const json_t *unk = json_object_get(model, "unk_token");
    if (!unk || json_is_null(unk))
        return SL_OK;
    if (!json_is_string(unk))
        return sl_why_set(r->why, SL_EPARSE, "%s: unk_token is no string", r->name);
    uint32_t id = id_of(vocab, json_string_value(unk), json_string_length(unk));
    if (id >= r->v->n_tokens) /* the library fails at the first unknown character */
        return sl_why_set(r->why, SL_EINVAL, "%s: unk_token \"%.40s\" is not in the vocabulary", r->name,
                          json_string_value(unk));
    r->v->unk_id = id;
    return SL_OK;
}

/* Where a byte has no token, the library would give the unknown token; no byte-level model is made like that.
 */
static enum sl_err all_bytes(const struct hf_reader *r, const json_t *vocab)
{
    struct sl_byte_chars a;
    sl_byte_chars_init(&a);
    for (unsigned b = 0; b < 256 && r->v->unk_id != SL_VOCAB_NO_ID; b++)
        if (id_of(vocab, a.text[b], a.len[b]) == SL_VOCAB_NO_ID)
            return sl_why_set(
                r->why, SL_EUNSUPPORTED,
                "%s: a byte-level model with unk_token and no token for byte %u is not supported", r->name,
                b);
    return SL_OK;
}

static enum sl_err read_model(struct hf_reader *r, const json_t *root, uint32_t n_vocab,
                              struct sl_vocab_rules *rules)
{
    const json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab"),
                 *added = json_object_get(root, "added_tokens");
    bool fallback = false;
    const char *type = sl_hf_type(model);
    if (*type ? strcmp(type, "BPE") != 0 : !json_object_get(model, "merges"))
        return sl_hf_refuse_type(r, "model", model);
    if (!json_is_object(vocab) || (added && !json_is_null(added) && !json_is_array(added)))
        return sl_why_set(r->why, SL_EPARSE, "%s: the model has no vocab, or added_tokens is no list",
                          r->name);
    enum sl_err e = sl_hf_only_keys(r, "model", model,
                                    "type dropout unk_token continuing_subword_prefix end_of_word_suffix "
                                    "fuse_unk byte_fallback ignore_merges vocab merges");
    static const char *const must_be_absent[] = {"dropout", "continuing_subword_prefix",
                                                 "end_of_word_suffix"};
    for (size_t i = 0; i < SL_COUNTOF(must_be_absent) && !e; i++)
        e = absent(r, model, must_be_absent[i]);
    if (!e)
        e = sl_hf_bool(r, model, "byte_fallback", &fallback);
    if (!e)
        e = sl_hf_bool(r, model, "ignore_merges", &rules->ignore_merges);
    if (!e)
        e = sl_hf_bool(r, model, "fuse_unk", &r->v->fuse_unk);
    if (!e)
        e = read_tokens(r, vocab, added, fallback && !r->byte_level, n_vocab);
    if (!e)
        e = read_unknown(r, model, vocab);
    if (!e && r->byte_level)
        e = all_bytes(r, vocab);
    if (!e)
        e = read_merges(r, json_object_get(model, "merges"), vocab);
    if (!e)
        e = read_added(r, added, vocab);
    return e;
}

static enum sl_err read_all(struct hf_reader *r, const json_t *root, uint32_t n_vocab)
{
    struct sl_vocab_src *v = r->v;
    struct sl_vocab_rules *rules = sl_arena_alloc(v->arena, sizeof *rules);
    if (!rules)
        return sl_hf_no_memory(r);
    enum sl_err e = sl_hf_only_keys(r, "the file", root,
                                    "version truncation padding added_tokens normalizer pre_tokenizer "
                                    "post_processor decoder model");
    if (!e)
        e = sl_hf_normalizer(r, json_object_get(root, "normalizer"));
    if (!e)
        e = sl_hf_pre_tokenizer(r, json_object_get(root, "pre_tokenizer"));
    if (!e)
        e = read_model(r, root, n_vocab, rules);
    if (!e)
        e = sl_hf_post_processor(r, json_object_get(root, "post_processor"));
    if (!e)
        e = sl_hf_decoder(r, json_object_get(root, "decoder"));
    if (e)
        return e;
    struct sl_vocab_norm *norms = sl_arena_alloc(v->arena, r->n_norms * sizeof *norms + 1);
    struct sl_vocab_cut *cuts = sl_arena_alloc(v->arena, r->n_cuts * sizeof *cuts + 1);
    v->model = sl_arena_strndup(v->arena, r->byte_level ? "gpt2" : "bpe", r->byte_level ? 4 : 3);
    if (!norms || !cuts || !v->model)
        return sl_hf_no_memory(r);
    memcpy(norms, r->norms, r->n_norms * sizeof *norms);
    memcpy(cuts, r->cuts, r->n_cuts * sizeof *cuts);
    rules->norms = norms;
    rules->n_norms = r->n_norms;
    rules->cuts = cuts;
    rules->n_cuts = r->n_cuts;
    v->rules = rules;
    return SL_OK;
}

enum sl_err sl_hf_tokenizer_parse(const char *json, size_t n, const char *name, uint32_t n_vocab,
                                  struct sl_vocab_src *src, struct sl_why *why)
{
    struct hf_reader r = {.name = name, .why = why, .v = src};
    json_error_t err;
    sl_vocab_src_init(src);
    if (n > SL_HF_MAX_TOKENIZER_BYTES || n_vocab > SL_VOCAB_MAX_TOKENS)
        return sl_why_set(why, SL_ETOOBIG, "%s: %zu bytes and %u tokens, at most %u and %u are allowed", name,
                          n, n_vocab, SL_HF_MAX_TOKENIZER_BYTES, SL_VOCAB_MAX_TOKENS);
    json_t *root = json_loadb(json, n, JSON_ALLOW_NUL, &err);
    if (!json_is_object(root)) {
        json_decref(root);
        return sl_why_set(why, SL_EPARSE, "%s: %s (line %d); it should be a tokenizer.json of Hugging Face",
                          name, root ? "no JSON object" : err.text, root ? 1 : err.line);
    }
    /* strings with their rounding, and what is kept for each token and merge */
    src->arena = sl_arena_new(16 * n + (size_t)64 * SL_VOCAB_MAX_TOKENS);
    enum sl_err e = read_all(&r, root, n_vocab);
    json_decref(root);
    if (e)
        sl_vocab_src_fini(src);
    return e;
}
