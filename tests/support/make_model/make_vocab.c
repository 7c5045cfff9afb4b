/* tests/support/make_model/make_vocab.c - a byte-level BPE vocabulary of any size that a GPT-2 style
 * tokenizer accepts.
 *
 * Ids: 3 special tokens, with tools the mark of a call, the 256 bytes in GPT-2's order (printable ones first), then one token per merge.
 * Merges: common words letter by letter and with a leading space, then all letter pairs, pairs with a space,
 * triples, triples with a space, quads, until the vocabulary is full. Every merge joins two tokens that exist
 * already. */
#include "tests/support/make_model/make_model.h"

#include "common/base/gguf.h"
#include "common/base/hashmap.h"
#include "common/base/mem.h"
#include <stdio.h>
#include <string.h>

#define N_SPECIAL    3
#define SPACE        "\xc4\xa0" /* U+0120, how byte-level BPE writes a space */
#define TYPE_NORMAL  1
#define TYPE_CONTROL 3
#define TYPE_USER    4 /* one token, shown as text: what Qwen has for <tool_call> */

static const char *const specials[N_SPECIAL] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

static const char *const words[] = {
    "the",   "of",     "and",      "to",      "in",    "is",     "that",  "it",     "for",       "was",
    "on",    "are",    "as",       "with",    "his",   "they",   "at",    "be",     "this",      "have",
    "from",  "or",     "one",      "had",     "by",    "word",   "but",   "not",    "what",      "all",
    "were",  "we",     "when",     "your",    "can",   "said",   "there", "use",    "an",        "each",
    "which", "she",    "do",       "how",     "their", "if",     "will",  "up",     "other",     "about",
    "out",   "many",   "then",     "them",    "these", "so",     "some",  "her",    "would",     "make",
    "like",  "him",    "into",     "time",    "has",   "look",   "two",   "more",   "write",     "go",
    "see",   "number", "no",       "way",     "could", "people", "my",    "than",   "first",     "water",
    "been",  "call",   "who",      "oil",     "its",   "now",    "find",  "long",   "down",      "day",
    "did",   "get",    "come",     "made",    "may",   "part",   "user",  "system", "assistant", "hello",
    "world", "answer", "question", "capital", "page",  "token",  "cache", "model",
};

#define MESSAGES                                                                                             \
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"                   \
    "{{ '<|im_start|>system\nYou are a random model. Nothing you say means anything.<|im_end|>\n' }}{% "     \
    "endif "                                                                                                 \
    "%}"                                                                                                     \
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"     \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

static const char chat_template[] = MESSAGES;
/* The same for a model that calls tools in Hermes' way. */
static const char tools_template[] =
    "{% if tools %}{{ '<|im_start|>system\nYour tools: ' + tools | tojson + ' Call one as "
    "<tool_call>\\n{\"name\": NAME, \"arguments\": ARGUMENTS}\\n</tool_call><|im_end|>\n' }}{% endif "
    "%}" MESSAGES;

struct vocab {
    struct sl_hashmap *seen;
    struct sl_buf tokens, merges; /* GGUF string arrays, element by element */
    uint64_t n_tokens, n_merges, max_tokens;
};

static void token_add(struct vocab *v, const char *s)
{
    sl_hashmap_put(v->seen, s, strlen(s), v);
    sl_make_str(&v->tokens, s, strlen(s));
    v->n_tokens++;
}

static void merge_add(struct vocab *v, const char *left, const char *right)
{
    char joined[64], line[64];
    int n = snprintf(joined, sizeof joined, "%s%s", left, right);
    if (v->n_tokens == v->max_tokens || sl_hashmap_get(v->seen, joined, (size_t)n) != NULL)
        return;
    SL_ASSERT(sl_hashmap_get(v->seen, left, strlen(left)) && sl_hashmap_get(v->seen, right, strlen(right)));
    token_add(v, joined);
    n = snprintf(line, sizeof line, "%s %s", left, right);
    sl_make_str(&v->merges, line, (size_t)n);
    v->n_merges++;
}

static bool byte_printable(unsigned b)
{
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

static void bytes_add(struct vocab *v, bool *weak)
{
    unsigned n_other = 0;
    for (int printable = 1; printable >= 0; printable--) {
        for (unsigned b = 0; b < 256; b++) {
            if (byte_printable(b) != (printable == 1))
                continue;
            unsigned cp = printable ? b : 256 + n_other++;
            char s[3] = {(char)cp, 0, 0};
            if (cp >= 0x80) {
                s[0] = (char)(0xc0 | cp >> 6);
                s[1] = (char)(0x80 | (cp & 0x3f));
            }
            weak[v->n_tokens] = b >= 127 || (b < 32 && b != '\n');
            token_add(v, s);
        }
    }
}

static void words_add(struct vocab *v)
{
    for (size_t i = 0; i < SL_COUNTOF(words); i++) {
        const char *w = words[i];
        char prefix[32] = {w[0], 0};
        for (size_t j = 1; w[j] != 0; j++) {
            char letter[2] = {w[j], 0};
            merge_add(v, prefix, letter);
            prefix[j] = w[j];
        }
        /* When the vocabulary filled up inside the word, its whole form does not exist. */
        if (sl_hashmap_get(v->seen, w, strlen(w)) != NULL)
            merge_add(v, SPACE, w);
    }
}

/* All strings of `length` lower-case letters: left part of n_left letters, and a leading space merged to the
 * whole. */
static void letters_add(struct vocab *v, unsigned length, unsigned n_left, bool with_space)
{
    unsigned total = 1;
    for (unsigned i = 0; i < length; i++)
        total *= 26;
    for (unsigned i = 0; i < total && v->n_tokens < v->max_tokens; i++) {
        char s[8] = {0}, left[8] = {0};
        unsigned x = i;
        for (unsigned j = length; j-- > 0; x /= 26)
            s[j] = (char)('a' + x % 26);
        memcpy(left, s, n_left);
        if (with_space)
            merge_add(v, SPACE, s);
        else
            merge_add(v, left, s + n_left);
    }
}

bool sl_make_vocab_ok(uint32_t n_vocab, bool tools)
{
    return n_vocab >= N_SPECIAL + tools + 256 && n_vocab <= 400000;
}

uint64_t sl_make_vocab(struct sl_buf *kv, uint32_t n_vocab, bool tools, bool *weak)
{
    struct vocab v = {.seen = sl_hashmap_new(), .max_tokens = n_vocab};
    sl_buf_init(&v.tokens, 64u << 20);
    sl_buf_init(&v.merges, 64u << 20);
    for (size_t i = 0; i < N_SPECIAL; i++) {
        weak[i] = true;
        token_add(&v, specials[i]);
    }
    if (tools) {
        weak[v.n_tokens] = true;
        token_add(&v, "<tool_call>");
    }
    bytes_add(&v, weak);
    words_add(&v);
    letters_add(&v, 2, 1, false);
    letters_add(&v, 1, 1, true);
    letters_add(&v, 2, 2, true);
    letters_add(&v, 3, 2, false);
    letters_add(&v, 3, 3, true);
    letters_add(&v, 4, 2, false);
    SL_ASSERT(v.n_tokens == n_vocab);

    sl_make_kv_str(kv, "tokenizer.ggml.model", "gpt2");
    sl_make_kv_str(kv, "tokenizer.ggml.pre", "smollm");
    sl_make_kv_bool(kv, "tokenizer.ggml.add_space_prefix", false);
    sl_make_kv_bool(kv, "tokenizer.ggml.add_bos_token", false);
    sl_make_kv_array(kv, "tokenizer.ggml.tokens", SL_GGUF_STRING, v.n_tokens);
    sl_buf_append(kv, v.tokens.data, v.tokens.len);
    sl_make_kv_array(kv, "tokenizer.ggml.token_type", SL_GGUF_I32, v.n_tokens);
    for (uint64_t i = 0; i < v.n_tokens; i++)
        sl_make_u32(kv, i < N_SPECIAL ? TYPE_CONTROL : i == N_SPECIAL && tools ? TYPE_USER : TYPE_NORMAL);
    sl_make_kv_array(kv, "tokenizer.ggml.merges", SL_GGUF_STRING, v.n_merges);
    if (v.n_merges > 0)
        sl_buf_append(kv, v.merges.data, v.merges.len);
    sl_make_kv_u32(kv, "tokenizer.ggml.bos_token_id", 1);
    sl_make_kv_u32(kv, "tokenizer.ggml.eos_token_id", 2);
    sl_make_kv_u32(kv, "tokenizer.ggml.unknown_token_id", 0);
    sl_make_kv_u32(kv, "tokenizer.ggml.padding_token_id", 2);
    sl_make_kv_str(kv, "tokenizer.chat_template", tools ? tools_template : chat_template);

    sl_buf_fini(&v.tokens);
    sl_buf_fini(&v.merges);
    sl_hashmap_free(v.seen);
    return 12;
}
