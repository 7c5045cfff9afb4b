/* common/text/spm_merges.c - merges of a SentencePiece vocabulary.
 *
 * SentencePiece has no list of merges: any two neighbours that make a token together may merge, the token
 * with the highest score first. Written out for all tokens and all places where one can be divided into two
 * that may stand side by side, that is a list of ranked merges, where tokens of equal score share a rank.
 * Control tokens are left out, as SentencePiece does: text never becomes one. User-defined ones are cut out
 * of a text before, and byte tokens stand for bytes only. */
#include <math.h>
#include <stdlib.h>

#include "common/text/tokenizer_impl.h"
#include "common/text/utf8.h"

void sl_merge_list_add(struct sl_merge_list *l, uint32_t left, uint32_t right, uint32_t merged, uint32_t rank)
{
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 1024;
        l->items = sl_xrealloc_array(l->items, l->cap, sizeof *l->items);
    }
    l->items[l->n++] = (struct sl_bpe_merge){left, right, merged, rank};
}

static bool may_merge(const struct sl_tokenizer *t, struct sl_vocab_str s, uint32_t id)
{
    return (t->types[id] == SL_TOKEN_NORMAL || t->types[id] == SL_TOKEN_UNUSED) && s.n &&
           sl_utf8_valid_prefix(s.p, s.n) == s.n;
}

/* Highest first. */
static int score_cmp(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

static uint32_t rank_of(const float *ranked, uint32_t n, float score)
{
    uint32_t lo = 0, hi = n - 1;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (ranked[mid] > score)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

#define NEW_CHAR (UINT32_MAX - 1) /* a character that is no token, and has no id yet */

/* The symbol that stands for s[0..n), n > 0: a token, or one character. */
static uint32_t symbol(const struct sl_tokenizer *t, const char *s, size_t n)
{
    uint32_t id = sl_token_by_text(t, s, n), cp = 0;
    size_t used = 0;
    if (id != SL_VOCAB_NO_ID && may_merge(t, (struct sl_vocab_str){s, (uint32_t)n}, id))
        return id;
    bool one = n <= 4 && sl_utf8_next(s, n, &cp, &used) == SL_UTF8_VALID && used == n;
    return one ? NEW_CHAR : SL_VOCAB_NO_ID;
}

static uint32_t made(struct sl_tokenizer *t, uint32_t id, const char *s, size_t n)
{
    uint32_t cp = 0;
    size_t used = 0;
    if (id != NEW_CHAR)
        return id;
    sl_utf8_next(s, n, &cp, &used);
    return sl_alphabet_char_id(t->alphabet, cp);
}

static void divide(struct sl_tokenizer *t, struct sl_vocab_str s, uint32_t id, uint32_t rank,
                   struct sl_merge_list *out)
{
    uint32_t cp = 0, before = 0;
    size_t used = 0;
    for (size_t i = 0; i < s.n; i += used, before = cp) {
        sl_utf8_next(s.p + i, s.n - i, &cp, &used);
        if (i == 0)
            continue;
        sl_alphabet_join(t->alphabet, before, cp);
        uint32_t left = symbol(t, s.p, i);
        uint32_t right = left == SL_VOCAB_NO_ID ? left : symbol(t, s.p + i, s.n - i);
        if (right != SL_VOCAB_NO_ID)
            sl_merge_list_add(out, made(t, left, s.p, i), made(t, right, s.p + i, s.n - i), id, rank);
    }
}

enum sl_err sl_spm_merges(struct sl_tokenizer *t, const struct sl_vocab_src *src, struct sl_merge_list *out,
                          struct sl_why *why)
{
    if (!src->scores)
        return sl_why_set(why, SL_EINVAL,
                          "the vocabulary has no scores, which SentencePiece needs; convert the model again");
    for (uint32_t i = 0; i < src->n_tokens; i++)
        if (isnan(src->scores[i]))
            return sl_why_set(why, SL_EINVAL, "the score of token %u is no number; convert the model again",
                              i);
    float *ranked = sl_xmemdup(src->scores, src->n_tokens * sizeof *ranked);
    qsort(ranked, src->n_tokens, sizeof *ranked, score_cmp);
    for (uint32_t i = 0; i < src->n_tokens; i++) {
        uint32_t cp = 0;
        size_t used = 0;
        struct sl_vocab_str s = src->tokens[i];
        if (may_merge(t, s, i) && sl_utf8_next(s.p, s.n, &cp, &used) == SL_UTF8_VALID && used == s.n)
            sl_alphabet_add_char(t->alphabet, cp, i);
    }
    for (uint32_t i = 0; i < src->n_tokens; i++)
        if (may_merge(t, src->tokens[i], i) && sl_token_by_text(t, src->tokens[i].p, src->tokens[i].n) == i)
            divide(t, src->tokens[i], i, rank_of(ranked, src->n_tokens, src->scores[i]), out);
    sl_free(ranked);
    return SL_OK;
}
