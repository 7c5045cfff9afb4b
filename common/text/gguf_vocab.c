/* common/text/gguf_vocab.c - GGUF metadata to struct sl_vocab_src.
 *
 * Everything is copied into one arena whose size is bounded by the file's: each copied string is in the file
 * with at least 8 more bytes around it. Whether ids, types and merges make sense together is
 * sl_tokenizer_open()'s business; here only kinds, counts and lengths are checked. */
#include "common/text/gguf_vocab.h"

#include <stdio.h>
#include <string.h>

#include "common/text/pre_rules.h"

#define ALIGN_SLACK 64 /* arena rounding per allocation */

static enum sl_err no_memory(const struct sl_gguf *g, struct sl_why *why)
{
    return sl_why_set(why, SL_ENOMEM, "%s: no memory for the vocabulary", sl_gguf_path(g));
}

/* An optional string into a fixed field, cut when too long. */
static enum sl_err read_name(const struct sl_gguf *g, const char *key, char *out, size_t cap,
                             struct sl_why *why)
{
    struct sl_gguf_str s;
    enum sl_err e = sl_gguf_str(g, key, &s, why);
    if (e)
        return e;
    size_t n = s.n < cap - 1 ? s.n : cap - 1;
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)s.p[i] < 0x20 ? '?' : s.p[i];
    out[n] = 0;
    return SL_OK;
}

static enum sl_err read_info(const struct sl_gguf *g, struct sl_model_info *info, struct sl_why *why)
{
    *info = (struct sl_model_info){.file_bytes = sl_gguf_file_bytes(g)};
    enum sl_err e = read_name(g, "general.architecture", info->architecture, sizeof info->architecture, why);
    if (e)
        return e;
    e = read_name(g, "general.name", info->name, sizeof info->name, why);
    if (e == SL_ENOTFOUND) {
        const char *path = sl_gguf_path(g), *slash = strrchr(path, '/');
        snprintf(info->name, sizeof info->name, "%s", slash ? slash + 1 : path);
        char *dot = strrchr(info->name, '.');
        if (dot && strcmp(dot, ".gguf") == 0)
            *dot = 0;
    } else if (e) {
        return e;
    }
    char key[sizeof info->architecture + 32];
    snprintf(key, sizeof key, "%s.context_length", info->architecture);
    e = sl_gguf_u32(g, key, &info->context_length, why);
    return e == SL_ENOTFOUND ? SL_OK : e;
}

/* An optional string, copied and terminated; *out stays NULL when it is absent. */
static enum sl_err copy_str(const struct sl_gguf *g, const char *key, struct sl_arena *arena, char **out,
                            size_t *n, struct sl_why *why)
{
    struct sl_gguf_str s;
    enum sl_err e = sl_gguf_str(g, key, &s, why);
    if (e)
        return e == SL_ENOTFOUND ? SL_OK : e;
    if (!(*out = sl_arena_strndup(arena, s.p, s.n)))
        return no_memory(g, why);
    if (n)
        *n = s.n;
    return SL_OK;
}

/* A list of strings; the bytes of all of them lie in one block. */
static enum sl_err copy_list(const struct sl_gguf *g, const char *key, uint64_t max, size_t max_bytes,
                             struct sl_arena *arena, struct sl_vocab_str **out, uint32_t *n,
                             struct sl_why *why)
{
    struct sl_gguf_array a;
    enum sl_err e = sl_gguf_array(g, key, &a, why);
    if (e)
        return e;
    if (a.n && a.type != SL_GGUF_STRING)
        return sl_why_set(why, SL_EINVAL, "%s: %s is not a list of strings; convert the model again",
                          sl_gguf_path(g), key);
    if (a.n > max)
        return sl_why_set(why, SL_ETOOBIG, "%s: %s has %llu entries, at most %llu are allowed",
                          sl_gguf_path(g), key, (unsigned long long)a.n, (unsigned long long)max);
    struct sl_gguf_array walk = a;
    struct sl_gguf_str s;
    size_t total = 0, i = 0;
    while (sl_gguf_array_next_str(&walk, &s)) {
        if (s.n > max_bytes)
            return sl_why_set(why, SL_ETOOBIG, "%s: entry %zu of %s has %zu bytes, at most %zu are allowed",
                              sl_gguf_path(g), i, key, s.n, max_bytes);
        total += s.n;
        i++;
    }
    struct sl_vocab_str *list = sl_arena_alloc(arena, (size_t)a.n * sizeof *list + 1);
    char *bytes = sl_arena_alloc(arena, total + 1);
    if (!list || !bytes)
        return no_memory(g, why);
    for (i = 0; sl_gguf_array_next_str(&a, &s); i++) {
        if (s.n)
            memcpy(bytes, s.p, s.n);
        list[i] = (struct sl_vocab_str){bytes, (uint32_t)s.n};
        bytes += s.n;
    }
    *out = list;
    *n = (uint32_t)i;
    return SL_OK;
}

static enum sl_err copy_types(const struct sl_gguf *g, struct sl_vocab_src *v, struct sl_why *why)
{
    struct sl_gguf_array a;
    enum sl_err e = sl_gguf_array(g, "tokenizer.ggml.token_type", &a, why);
    if (e)
        return e == SL_ENOTFOUND ? SL_OK : e;
    if (a.n != v->n_tokens)
        return sl_why_set(
            why, SL_EINVAL,
            "%s: tokenizer.ggml.token_type has %llu entries for %u tokens; convert the model again",
            sl_gguf_path(g), (unsigned long long)a.n, v->n_tokens);
    if (!(v->types = sl_arena_alloc(v->arena, v->n_tokens)))
        return no_memory(g, why);
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        int64_t type = 0;
        if (!sl_gguf_array_next_i64(&a, &type) || type < SL_TOKEN_NORMAL || type > SL_TOKEN_BYTE)
            return sl_why_set(why, SL_EINVAL,
                              "%s: token %u has type %lld, expected 1 to 6; convert the model again",
                              sl_gguf_path(g), i, (long long)type);
        v->types[i] = (uint8_t)type;
    }
    return SL_OK;
}

static enum sl_err copy_scores(const struct sl_gguf *g, struct sl_vocab_src *v, struct sl_why *why)
{
    struct sl_gguf_array a;
    enum sl_err e = sl_gguf_array(g, "tokenizer.ggml.scores", &a, why);
    if (e)
        return e == SL_ENOTFOUND ? SL_OK : e;
    if (a.n != v->n_tokens)
        return sl_why_set(why, SL_EINVAL,
                          "%s: tokenizer.ggml.scores has %llu entries for %u tokens; convert the model again",
                          sl_gguf_path(g), (unsigned long long)a.n, v->n_tokens);
    if (!(v->scores = sl_arena_alloc(v->arena, v->n_tokens * sizeof *v->scores + 1)))
        return no_memory(g, why);
    for (uint32_t i = 0; i < v->n_tokens; i++)
        if (!sl_gguf_array_next_f32(&a, &v->scores[i]))
            return sl_why_set(why, SL_EINVAL,
                              "%s: tokenizer.ggml.scores is not a list of floats; convert the model again",
                              sl_gguf_path(g));
    return SL_OK;
}

static enum sl_err read_id(const struct sl_gguf *g, const char *key, uint32_t n_tokens, uint32_t *id,
                           struct sl_why *why)
{
    uint32_t u = SL_VOCAB_NO_ID;
    enum sl_err e = sl_gguf_u32(g, key, &u, why);
    if (e == SL_ENOTFOUND || (!e && u == SL_VOCAB_NO_ID)) /* -1 as unsigned: converters write it for "none" */
        return SL_OK;
    if (e)
        return e;
    if (u >= n_tokens)
        return sl_why_set(why, SL_EINVAL,
                          "%s: %s is %u but there are only %u tokens; convert the model again",
                          sl_gguf_path(g), key, u, n_tokens);
    *id = u;
    return SL_OK;
}

static enum sl_err read_flag(const struct sl_gguf *g, const char *key, bool *out, struct sl_why *why)
{
    enum sl_err e = sl_gguf_bool(g, key, out, why);
    return e == SL_ENOTFOUND ? SL_OK : e;
}

static enum sl_err read_vocab(const struct sl_gguf *g, struct sl_vocab_src *v, struct sl_why *why)
{
    enum sl_err e = copy_str(g, "tokenizer.ggml.model", v->arena, &v->model, NULL, why);
    if (e)
        return e;
    if (!v->model)
        return sl_why_set(
            why, SL_ENOTFOUND,
            "%s: no vocabulary in the file (tokenizer.ggml.model is missing); use a GGUF file that has one",
            sl_gguf_path(g));
    e = copy_str(g, "tokenizer.ggml.pre", v->arena, &v->pre, NULL, why);
    if (!e)
        e = copy_list(g, "tokenizer.ggml.tokens", SL_VOCAB_MAX_TOKENS, SL_VOCAB_MAX_TOKEN_BYTES, v->arena,
                      &v->tokens, &v->n_tokens, why);
    if (!e)
        e = copy_types(g, v, why);
    if (!e)
        e = copy_scores(g, v, why);
    if (!e) {
        e = copy_list(g, "tokenizer.ggml.merges", 2 * SL_VOCAB_MAX_TOKENS, 2 * SL_VOCAB_MAX_TOKEN_BYTES + 1,
                      v->arena, &v->merges, &v->n_merges, why);
        if (e == SL_ENOTFOUND) /* only byte-level BPE has them; sl_tokenizer_open() knows */
            e = SL_OK;
    }
    if (!e)
        e = read_id(g, "tokenizer.ggml.bos_token_id", v->n_tokens, &v->bos_id, why);
    if (!e)
        e = read_id(g, "tokenizer.ggml.eos_token_id", v->n_tokens, &v->eos_id, why);
    if (!e)
        e = read_id(g, "tokenizer.ggml.eot_token_id", v->n_tokens, &v->eot_id, why);
    if (!e)
        e = read_id(g, "tokenizer.ggml.unknown_token_id", v->n_tokens, &v->unk_id, why);
    bool spm = strcmp(v->model, "llama") == 0;
    const struct sl_vocab_rules *rules = sl_pre_rules(v->pre);
    v->add_bos = spm || (rules && rules->add_bos); /* where the file does not say */
    v->add_space_prefix = spm;
    if (!e)
        e = read_flag(g, "tokenizer.ggml.add_bos_token", &v->add_bos, why);
    if (!e)
        e = read_flag(g, "tokenizer.ggml.add_space_prefix", &v->add_space_prefix, why);
    if (!e)
        e = read_flag(g, "tokenizer.ggml.add_eos_token", &v->add_eos, why);
    if (!e)
        e = copy_str(g, "tokenizer.chat_template", v->arena, &v->chat_template, &v->chat_template_bytes, why);
    return e;
}

enum sl_err sl_gguf_vocab_read(const struct sl_gguf *g, struct sl_vocab_src *src, struct sl_model_info *info,
                               struct sl_why *why)
{
    sl_vocab_src_init(src);
    struct sl_model_info facts;
    enum sl_err e = read_info(g, &facts, why);
    if (e)
        return e;
    /* strings once, and the entries that describe them (16 bytes where the file has at least 8), types and
     * scores */
    src->arena = sl_arena_new(4 * sl_gguf_file_bytes(g) + 16 * ALIGN_SLACK);
    e = read_vocab(g, src, why);
    if (e) {
        sl_vocab_src_fini(src);
        return e;
    }
    facts.n_vocab = src->n_tokens;
    *info = facts;
    return SL_OK;
}

enum sl_err sl_gguf_vocab_load(const char *path, struct sl_vocab_src *src, struct sl_model_info *info,
                               struct sl_why *why)
{
    struct sl_gguf *g = NULL;
    sl_vocab_src_init(src);
    enum sl_err e = sl_gguf_open(path, &g, why);
    if (e)
        return e;
    e = sl_gguf_vocab_read(g, src, info, why);
    sl_gguf_close(g);
    return e;
}
