/* tests/support/make_hf/make_hf_tokenizer.c - tokenizer.json and tokenizer_config.json of a byte-level
 * vocabulary. */
#include "tests/support/make_hf/make_hf_impl.h"

#include <string.h>

#include "common/base/mem.h"
#include "common/text/gguf_vocab.h"
#include "common/text/pre_rules.h"

static json_t *text(struct sl_vocab_str s)
{
    return json_stringn(s.p, s.n);
}

static json_t *byte_level(void)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
                     "use_regex", 0);
}

static json_t *pre_tokenizer(const struct sl_vocab_rules *rules)
{
    json_t *steps = json_array();
    for (size_t i = 0; i < rules->n_cuts; i++)
        json_array_append_new(steps,
                              json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                                        rules->cuts[i].pattern, "behavior", "Isolated", "invert", 0));
    json_array_append_new(steps, byte_level());
    return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps);
}

static json_t *model(const struct sl_vocab_src *v, const struct sl_vocab_rules *rules)
{
    json_t *vocab = json_object(), *merges = json_array();
    for (uint32_t i = 0; i < v->n_tokens; i++)
        json_object_setn_new(vocab, v->tokens[i].p, v->tokens[i].n, json_integer(i));
    for (uint32_t i = 0; i < v->n_merges; i++)
        json_array_append_new(merges, text(v->merges[i]));
    return json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout",
                     "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                     "byte_fallback", 0, "ignore_merges", (int)rules->ignore_merges, "vocab", vocab, "merges",
                     merges);
}

static json_t *added(const struct sl_vocab_src *v)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < v->n_tokens && v->types; i++)
        if (v->types[i] == SL_TOKEN_CONTROL || v->types[i] == SL_TOKEN_USER_DEFINED)
            json_array_append_new(list,
                                  json_pack("{s:i, s:o, s:b, s:b, s:b, s:b, s:b}", "id", (int)i, "content",
                                            text(v->tokens[i]), "single_word", 0, "lstrip", 0, "rstrip", 0,
                                            "normalized", 0, "special", v->types[i] == SL_TOKEN_CONTROL));
    return list;
}

static enum sl_err put_tokenizer(const struct sl_make_hf_run *r, const struct sl_vocab_src *v)
{
    const struct sl_vocab_rules *rules = v->rules ? v->rules : sl_pre_rules(v->pre);
    if (strcmp(v->model, "gpt2") != 0 || !rules)
        return sl_why_set(r->why, SL_EUNSUPPORTED, "%s: only byte-level vocabularies with known rules",
                          r->m->gguf);
    json_t *t =
        json_pack("{s:s, s:n, s:n, s:o, s:o?, s:o, s:n, s:o, s:o}", "version", "1.0", "truncation", "padding",
                  "added_tokens", added(v), "normalizer",
                  rules->n_norms ? json_pack("{s:s}", "type", "NFC") : NULL, "pre_tokenizer",
                  pre_tokenizer(rules), "post_processor", "decoder", byte_level(), "model", model(v, rules));
    return sl_make_hf_put(r, "tokenizer.json", t);
}

static enum sl_err put_tokenizer_config(const struct sl_make_hf_run *r, const struct sl_vocab_src *v)
{
    json_t *c = json_pack("{s:b, s:b}", "add_bos_token", (int)v->add_bos, "add_eos_token", (int)v->add_eos);
    if (v->bos_id < v->n_tokens)
        json_object_set_new(c, "bos_token", text(v->tokens[v->bos_id]));
    if (v->eos_id < v->n_tokens)
        json_object_set_new(c, "eos_token", text(v->tokens[v->eos_id]));
    if (v->chat_template)
        json_object_set_new(c, "chat_template", json_stringn(v->chat_template, v->chat_template_bytes));
    return sl_make_hf_put(r, "tokenizer_config.json", c);
}

enum sl_err sl_make_hf_tokenizer(const struct sl_make_hf_run *r)
{
    struct sl_vocab_src v;
    struct sl_model_info info;
    enum sl_err e = sl_gguf_vocab_read(r->g, &v, &info, r->why);
    if (e)
        return e;
    e = put_tokenizer(r, &v);
    if (!e)
        e = put_tokenizer_config(r, &v);
    if (!e && v.eos_id < v.n_tokens)
        e = sl_make_hf_put(r, "generation_config.json", json_pack("{s:[i]}", "eos_token_id", (int)v.eos_id));
    sl_vocab_src_fini(&v);
    return e;
}
