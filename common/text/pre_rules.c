/* common/text/pre_rules.c - one table row per name.
 *
 * The rules are those of the tokenizer.json of the models that the names stand for, so that a GGUF file and
 * the folder it was made from give the same tokens: also where converters' programs leave a step out (NFC of
 * qwen2). Two cuts in a row are not one joint expression: the second sees each piece as a text of its own.
 * That is how `smollm` splits "a  1" into "a", two spaces, "1", where one joint expression would leave a
 * space at the digit. */
#include "common/text/pre_rules.h"

#include <stdio.h>
#include <string.h>

#define ENGLISH "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES  "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER   "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define BEFORE  "[^\\r\\n\\p{L}\\p{N}]?"

#define CUT(p)                                                                                               \
    {                                                                                                        \
        .kind = SL_CUT_ISOLATED, .pattern = p                                                                \
    }

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
static const struct sl_vocab_cut gpt2[] = {CUT(GPT2)};
static const struct sl_vocab_cut smollm[] = {CUT("\\p{N}"), CUT(GPT2)};
static const struct sl_vocab_cut llama3[] = {
    CUT(ENGLISH "|" BEFORE "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES)};
static const struct sl_vocab_cut qwen2[] = {
    CUT(ENGLISH "|" BEFORE "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES)};
static const struct sl_vocab_cut qwen35[] = {
    CUT(ENGLISH "|" BEFORE "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES)};
static const struct sl_vocab_cut tekken[] = {CUT(
    BEFORE UPPER "*" LOWER "+|" BEFORE UPPER "+" LOWER "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES)};

static const struct sl_vocab_norm nfc[] = {{.kind = SL_NORM_NFC}};

#define CUTS(c) .cuts = (c), .n_cuts = SL_COUNTOF(c)
#define NFC     .norms = nfc, .n_norms = 1
#define LLAMA3                                                                                               \
    {                                                                                                        \
        CUTS(llama3), .ignore_merges = true, .add_bos = true                                                 \
    }

static const struct {
    const char *name;
    struct sl_vocab_rules rules;
} table[] = {
    {"gpt-2", {CUTS(gpt2)}},
    {"mpt", {CUTS(gpt2)}},
    {"smollm", {CUTS(smollm)}},
    {"starcoder", {CUTS(smollm)}},
    {"refact", {CUTS(smollm)}},
    {"qwen2", {CUTS(qwen2), NFC}},
    {"qwen35", {CUTS(qwen35), NFC}},
    {"llama-bpe", LLAMA3},
    {"llama3", LLAMA3},
    {"llama-v3", LLAMA3},
    {"tekken", {CUTS(tekken), .ignore_merges = true, .add_bos = true}},
};

const struct sl_vocab_rules *sl_pre_rules(const char *name)
{
    for (size_t i = 0; i < SL_COUNTOF(table) && name; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i].rules;
    return NULL;
}

enum sl_err sl_pre_rules_unknown(const char *name, struct sl_why *why)
{
    char list[256] = "";
    size_t len = 0;
    for (size_t i = 0; i < SL_COUNTOF(table); i++)
        len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", i ? ", " : "", table[i].name);
    if (!name)
        return sl_why_set(
            why, SL_EUNSUPPORTED,
            "the model file names no pre-tokeniser (tokenizer.ggml.pre); known: %s; convert it with a "
            "current tool",
            list);
    return sl_why_set(why, SL_EUNSUPPORTED,
                      "unknown pre-tokeniser \"%.64s\"; known: %s; use a model with one of these", name,
                      list);
}
