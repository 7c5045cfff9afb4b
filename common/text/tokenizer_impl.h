/* common/text/tokenizer_impl.h - what tokenizer_open.c builds and tokenizer.c uses. */
#ifndef SLUICE_COMMON_TEXT_TOKENIZER_IMPL_H
#define SLUICE_COMMON_TEXT_TOKENIZER_IMPL_H

#include "common/base/hashmap.h"
#include "common/text/alphabet.h"
#include "common/text/bpe.h"
#include "common/text/normalise.h"
#include "common/text/pretoken.h"
#include "common/text/special_match.h"
#include "common/text/tokenizer.h"

struct sl_tokenizer {
    uint32_t n_vocab;
    char *blob;      /* the pieces' bytes, one after the other */
    size_t *at;      /* [n_vocab + 1] where each begins */
    uint8_t *types;  /* [n_vocab] */
    uint8_t *strips; /* [n_vocab] SL_STRIP bits; NULL = none */
    size_t reach;    /* bytes of text that one token can stand for at most; 0 = not known */
    bool byte_level;
    bool ignore_merges;
    bool leading_space; /* encoding puts a space in front, so decoding takes one away */
    bool add_bos, add_eos;
    uint32_t bos, eos;
    uint32_t fused; /* the unknown token, when those that follow each other in a piece are one */
    uint32_t *eog;  /* [n_eog] ascending */
    size_t n_eog;
    struct sl_hashmap *by_text; /* byte-level: a token's bytes; else its text in the file -> id + 1 */
    struct sl_special *special;
    struct sl_normal *normal;     /* NULL: texts are taken as they are */
    struct sl_pretoken *pretoken; /* NULL: a text is one piece */
    struct sl_alphabet *alphabet;
    struct sl_bpe *bpe;
};

static inline bool sl_token_is_control(unsigned type)
{
    return type == SL_TOKEN_CONTROL || type == SL_TOKEN_UNKNOWN;
}

/* Found in texts by its name. */
static inline bool sl_token_is_literal(unsigned type)
{
    return sl_token_is_control(type) || type == SL_TOKEN_USER_DEFINED;
}

static inline uint32_t sl_token_by_text(const struct sl_tokenizer *t, const char *p, size_t n)
{
    uintptr_t v = (uintptr_t)sl_hashmap_get(t->by_text, p, n);
    return v ? (uint32_t)(v - 1) : SL_VOCAB_NO_ID;
}

struct sl_merge_list {
    struct sl_bpe_merge *items;
    size_t n, cap;
};
void sl_merge_list_add(struct sl_merge_list *l, uint32_t left, uint32_t right, uint32_t merged,
                       uint32_t rank);

/* spm_merges.c: the merges that the scores of src imply; fills t->alphabet too. SL_EINVAL. */
SL_MUST_CHECK enum sl_err sl_spm_merges(struct sl_tokenizer *t, const struct sl_vocab_src *src,
                                        struct sl_merge_list *out, struct sl_why *why);

#endif
