/* common/text/tokenizer_open.c - a model file's vocabulary becomes the tables that encode and decode use.
 *
 * Tokens are turned into the bytes they stand for once, here: byte-level ones are written in GPT-2's
 * alphabet, the others with another character for a space. From then on BPE works on ids. Control and
 * user-defined tokens are literal text. */
#include <stdlib.h>
#include <string.h>

#include "common/text/byte_chars.h"
#include "common/text/pre_rules.h"
#include "common/text/tokenizer_impl.h"
#include "common/text/utf8.h"

/* Names under which models end a turn, whatever the file says about eos. */
static const char *const eog_names[] = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>",      "<|eom_id|>",
                                        "<|end|>",    "<|return|>",    "<|end_of_text|>", "<end_of_turn>",
                                        "<EOT>",      "<eos>",         "<|endofturn|>"};

/* The value of "<0x0A>", or -1. */
static int byte_token(struct sl_vocab_str s)
{
    static const char digits[] = "0123456789ABCDEF";
    if (s.n != 6 || memcmp(s.p, "<0x", 3) != 0 || s.p[5] != '>')
        return -1;
    const char *hi = memchr(digits, s.p[3], 16), *lo = memchr(digits, s.p[4], 16);
    return hi && lo ? (int)((hi - digits) * 16 + (lo - digits)) : -1;
}

/* Writes the bytes that token i stands for, never more than its text has. */
static size_t token_bytes(const struct sl_tokenizer *t, const struct sl_byte_chars *a, struct sl_vocab_str s,
                          unsigned type, char *out)
{
    size_t n = 0;
    int byte = byte_token(s);
    if (!t->byte_level && byte >= 0 && (type == SL_TOKEN_BYTE || type == SL_TOKEN_NORMAL)) {
        *out = (char)byte;
        return 1;
    }
    if (t->byte_level && !sl_token_is_literal(type) && sl_byte_chars_decode(a, s.p, s.n, out, &n))
        return n;
    for (size_t i = 0; i < s.n;) {
        if (!t->byte_level && !sl_token_is_control(type) && s.n - i >= 3 &&
            memcmp(s.p + i, SL_VOCAB_SPACE, 3) == 0) {
            out[n++] = ' ';
            i += 3;
        } else {
            out[n++] = s.p[i++];
        }
    }
    return n;
}

static enum sl_err add_tokens(struct sl_tokenizer *t, const struct sl_vocab_src *src,
                              const struct sl_byte_chars *a, struct sl_why *why)
{
    size_t total = 0, longest = 1;
    for (uint32_t i = 0; i < src->n_tokens; i++)
        total += src->tokens[i].n;
    t->blob = sl_try_alloc(total + 1);
    if (!t->blob)
        return sl_why_set(why, SL_ENOMEM, "no memory for a vocabulary of %zu bytes", total);
    t->at = sl_xcalloc((size_t)src->n_tokens + 1, sizeof *t->at);
    t->types = sl_xcalloc((size_t)src->n_tokens + 1, 1);
    if (src->strips)
        t->strips = sl_xmemdup(src->strips, src->n_tokens);
    for (uint32_t i = 0; i < src->n_tokens; i++) {
        struct sl_vocab_str s = src->tokens[i];
        char *out = t->blob + t->at[i];
        t->types[i] = src->types ? src->types[i] : SL_TOKEN_NORMAL;
        size_t n = token_bytes(t, a, s, t->types[i], out);
        /* the rest of a text must leave whole characters on both sides */
        if (sl_token_is_literal(t->types[i]) && s.n && sl_utf8_valid_prefix(s.p, s.n) == s.n)
            sl_special_add(t->special, s.p, s.n, i);
        struct sl_vocab_str key = t->byte_level ? (struct sl_vocab_str){out, (uint32_t)n} : s;
        if (key.n && !sl_hashmap_get(t->by_text, key.p, key.n))
            sl_hashmap_put(t->by_text, key.p, key.n, (void *)((uintptr_t)i + 1));
        t->at[i + 1] = t->at[i] + n;
        longest = n > longest ? n : longest;
    }
    t->n_vocab = src->n_tokens;
    t->reach = longest;
    return SL_OK;
}

static void open_alphabet(struct sl_tokenizer *t, const struct sl_vocab_src *src)
{
    struct sl_alphabet_conf c = {.bytes = t->byte_level, .n_vocab = src->n_tokens, .unk = SL_VOCAB_NO_ID};
    bool all_bytes = true;
    for (unsigned b = 0; b < 256; b++)
        c.byte_ids[b] = SL_VOCAB_NO_ID;
    for (unsigned b = 0; b < 256 && t->byte_level; b++) {
        char byte = (char)b;
        uint32_t id = sl_token_by_text(t, &byte, 1);
        c.byte_ids[b] = id != SL_VOCAB_NO_ID && sl_token_is_control(t->types[id]) ? SL_VOCAB_NO_ID : id;
    }
    for (uint32_t i = 0; i < src->n_tokens && !t->byte_level; i++) {
        int byte = t->types[i] == SL_TOKEN_BYTE ? byte_token(src->tokens[i]) : -1;
        if (byte >= 0 && c.byte_ids[byte] == SL_VOCAB_NO_ID)
            c.byte_ids[byte] = i;
    }
    for (unsigned b = 0; b < 256; b++)
        all_bytes = all_bytes && c.byte_ids[b] != SL_VOCAB_NO_ID;
    if (!t->byte_level && !all_bytes) {
        c.unk = src->unk_id;
        if (src->fuse_unk || strcmp(src->model, "llama") == 0)
            t->fused = src->unk_id;
        t->reach = 0;
    }
    t->alphabet = sl_alphabet_new(&c);
}

/* The token that a part of a merge names. */
static uint32_t named(const struct sl_tokenizer *t, const struct sl_byte_chars *a, const char *s, size_t n)
{
    char bytes[2 * SL_VOCAB_MAX_TOKEN_BYTES + 2];
    size_t n_bytes = 0;
    if (t->byte_level && n <= sizeof bytes && sl_byte_chars_decode(a, s, n, bytes, &n_bytes))
        return sl_token_by_text(t, bytes, n_bytes);
    return sl_token_by_text(t, s, n);
}

static bool parse_merge(const struct sl_tokenizer *t, const struct sl_byte_chars *a, struct sl_vocab_str s,
                        struct sl_vocab_pair *out)
{
    char joined[2 * SL_VOCAB_MAX_TOKEN_BYTES + 2];
    const char *space = s.n > 2 && s.n < sizeof joined ? memchr(s.p + 1, ' ', s.n - 1) : NULL;
    if (!space)
        return false;
    size_t left = (size_t)(space - s.p), right = s.n - left - 1;
    memcpy(joined, s.p, left);
    memcpy(joined + left, space + 1, right);
    *out = (struct sl_vocab_pair){named(t, a, s.p, left), named(t, a, space + 1, right),
                                  named(t, a, joined, left + right)};
    return true;
}

/* A text never becomes a control token by merging. That leaves recognised text as it is: a control token is
 * cut out of it before. */
static enum sl_err ranked_merges(const struct sl_tokenizer *t, const struct sl_vocab_src *src,
                                 const struct sl_byte_chars *a, struct sl_merge_list *out, struct sl_why *why)
{
    if (src->n_merges == 0)
        return sl_why_set(why, SL_EINVAL,
                          "the vocabulary has no merges, which BPE needs; convert the model again");
    for (uint32_t i = 0; i < src->n_merges; i++) {
        struct sl_vocab_pair p = {0};
        bool good = true;
        if (src->pairs)
            p = src->pairs[i];
        else
            good = parse_merge(t, a, src->merges[i], &p);
        if (!good || p.left >= t->n_vocab || p.right >= t->n_vocab || p.merged >= t->n_vocab)
            return sl_why_set(
                why, SL_EINVAL,
                "merge %u is not two tokens of the vocabulary that make a third; convert the model again", i);
        if (!sl_token_is_control(t->types[p.merged]))
            sl_merge_list_add(out, p.left, p.right, p.merged, i);
    }
    return SL_OK;
}

/* Characters that are tokens, and what may stand side by side; for "bpe". */
static void fill_alphabet(struct sl_tokenizer *t, const struct sl_vocab_src *src)
{
    for (uint32_t i = 0; i < src->n_tokens; i++) {
        struct sl_vocab_str s = src->tokens[i];
        uint32_t cp = 0, before = 0;
        size_t used = 0;
        if (sl_token_is_control(t->types[i]) || sl_utf8_valid_prefix(s.p, s.n) != s.n)
            continue;
        for (size_t at = 0; at < s.n; at += used, before = cp) {
            sl_utf8_next(s.p + at, s.n - at, &cp, &used);
            if (at)
                sl_alphabet_join(t->alphabet, before, cp);
            else if (used == s.n && t->types[i] != SL_TOKEN_BYTE)
                sl_alphabet_add_char(t->alphabet, cp, i);
        }
    }
}

static enum sl_err add_merges(struct sl_tokenizer *t, const struct sl_vocab_src *src,
                              const struct sl_byte_chars *a, struct sl_why *why)
{
    struct sl_merge_list list = {0};
    enum sl_err e;
    open_alphabet(t, src);
    if (strcmp(src->model, "llama") == 0) {
        e = sl_spm_merges(t, src, &list, why);
    } else {
        if (!t->byte_level)
            fill_alphabet(t, src);
        e = ranked_merges(t, src, a, &list, why);
    }
    if (!e && (list.n > SL_BPE_MAX_MERGES || sl_alphabet_n_ids(t->alphabet) > SL_BPE_MAX_IDS))
        e = sl_why_set(why, SL_ETOOBIG,
                       "the vocabulary has %zu merges of %u symbols, at most %u and %u are allowed", list.n,
                       sl_alphabet_n_ids(t->alphabet), SL_BPE_MAX_MERGES, SL_BPE_MAX_IDS);
    if (!e)
        t->bpe = sl_bpe_new(list.items, list.n);
    sl_free(list.items);
    return e;
}

static enum sl_err open_rules(struct sl_tokenizer *t, const struct sl_vocab_src *src, struct sl_why *why)
{
    static const struct sl_vocab_norm spm[] = {
        {.kind = SL_NORM_PREPEND, .to = {SL_VOCAB_SPACE, 3}},
        {.kind = SL_NORM_REPLACE, .from = {" ", 1}, .to = {SL_VOCAB_SPACE, 3}}};
    const struct sl_vocab_rules of_llama = {.norms = spm + !src->add_space_prefix,
                                            .n_norms = src->add_space_prefix ? 2 : 1};
    const struct sl_vocab_rules *rules = src->rules;
    if (!rules && strcmp(src->model, "llama") == 0)
        rules = &of_llama;
    if (!rules)
        rules = sl_pre_rules(src->pre);
    if (!rules)
        return sl_pre_rules_unknown(src->pre, why);
    t->ignore_merges = rules->ignore_merges;
    enum sl_err e = SL_OK;
    if (rules->n_norms) {
        e = sl_normal_open(rules->norms, rules->n_norms, &t->normal, why);
        t->leading_space = !e && strcmp(src->model, "gpt2") != 0 && sl_normal_leads(t->normal);
    }
    if (!e && rules->n_cuts)
        e = sl_pretoken_open(rules->cuts, rules->n_cuts, &t->pretoken, why);
    return e;
}

static int id_cmp(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void add_eog(struct sl_tokenizer *t, uint32_t id)
{
    if (id == SL_VOCAB_NO_ID || sl_tokenizer_is_eog(t, id))
        return;
    t->eog[t->n_eog++] = id;
    qsort(t->eog, t->n_eog, sizeof *t->eog, id_cmp);
}

static void add_ends(struct sl_tokenizer *t, const struct sl_vocab_src *src)
{
    t->eog = sl_xcalloc(SL_COUNTOF(eog_names) + 2 + src->n_eog, sizeof *t->eog);
    add_eog(t, src->eos_id);
    add_eog(t, src->eot_id);
    for (uint32_t i = 0; i < src->n_eog; i++)
        add_eog(t, src->eog_ids[i]);
    for (size_t i = 0; i < SL_COUNTOF(eog_names); i++) {
        uint32_t id = sl_token_by_text(t, eog_names[i], strlen(eog_names[i]));
        if (id != SL_VOCAB_NO_ID && sl_token_is_literal(t->types[id]))
            add_eog(t, id);
    }
}

static enum sl_err check(const struct sl_vocab_src *src, struct sl_why *why)
{
    if (!src->model || (strcmp(src->model, "gpt2") != 0 && strcmp(src->model, "llama") != 0 &&
                        strcmp(src->model, "bpe") != 0))
        return sl_why_set(
            why, SL_EUNSUPPORTED,
            "tokenizer model \"%.64s\" is not supported; expected gpt2 (byte-level BPE) or llama "
            "(SentencePiece BPE); use such a model",
            src->model ? src->model : "");
    if (src->n_tokens == 0 || src->n_tokens > SL_VOCAB_MAX_TOKENS)
        return sl_why_set(why, SL_EINVAL, "the vocabulary has %u tokens, expected 1 to %u", src->n_tokens,
                          SL_VOCAB_MAX_TOKENS);
    if (src->n_eog > SL_VOCAB_MAX_EOG)
        return sl_why_set(why, SL_ETOOBIG, "%u tokens end a generation, at most %d are allowed", src->n_eog,
                          SL_VOCAB_MAX_EOG);
    const uint32_t given[] = {src->bos_id, src->eos_id, src->eot_id, src->unk_id};
    for (size_t i = 0; i < SL_COUNTOF(given) + src->n_eog; i++) {
        uint32_t id = i < SL_COUNTOF(given) ? given[i] : src->eog_ids[i - SL_COUNTOF(given)];
        if (id != SL_VOCAB_NO_ID && id >= src->n_tokens)
            return sl_why_set(why, SL_EINVAL, "special token id %u, but there are only %u tokens", id,
                              src->n_tokens);
    }
    return SL_OK;
}

static enum sl_err fill(struct sl_tokenizer *t, const struct sl_vocab_src *src, struct sl_why *why)
{
    struct sl_byte_chars a;
    enum sl_err e = check(src, why);
    if (!e)
        e = open_rules(t, src, why);
    if (e)
        return e;
    t->byte_level = strcmp(src->model, "gpt2") == 0;
    t->by_text = sl_hashmap_new();
    t->special = sl_special_new();
    sl_byte_chars_init(&a);
    e = add_tokens(t, src, &a, why);
    if (!e)
        e = add_merges(t, src, &a, why);
    if (e)
        return e;
    if (t->normal)
        t->reach *= sl_normal_shrink(t->normal);
    for (uint32_t i = 0; i < t->n_vocab && t->strips; i++)
        if (t->strips[i])
            t->reach = 0; /* takes in any number of spaces */
    t->bos = src->bos_id;
    t->eos = src->eos_id;
    t->add_bos = src->add_bos && src->bos_id != SL_VOCAB_NO_ID;
    t->add_eos = src->add_eos && src->eos_id != SL_VOCAB_NO_ID;
    add_ends(t, src);
    return SL_OK;
}

enum sl_err sl_tokenizer_open(const struct sl_vocab_src *src, struct sl_tokenizer **out, struct sl_why *why)
{
    struct sl_tokenizer *t = sl_xcalloc(1, sizeof *t);
    t->fused = SL_VOCAB_NO_ID;
    enum sl_err e = fill(t, src, why);
    if (e) {
        sl_tokenizer_close(t);
        return e;
    }
    *out = t;
    return SL_OK;
}

void sl_tokenizer_close(struct sl_tokenizer *t)
{
    if (!t)
        return;
    sl_bpe_free(t->bpe);
    sl_alphabet_free(t->alphabet);
    sl_pretoken_close(t->pretoken);
    sl_normal_close(t->normal);
    sl_special_free(t->special);
    sl_hashmap_free(t->by_text);
    sl_free(t->eog);
    sl_free(t->strips);
    sl_free(t->types);
    sl_free(t->at);
    sl_free(t->blob);
    sl_free(t);
}
