/* common/text/vocab.h - what a model file says about its vocabulary: pure data, input of sl_tokenizer_open().
 */
#ifndef SLUICE_COMMON_TEXT_VOCAB_H
#define SLUICE_COMMON_TEXT_VOCAB_H

#include <stdint.h>
#include "common/base/mem.h"

#define SL_VOCAB_MAX_TOKENS      (1u << 20)
#define SL_VOCAB_MAX_TOKEN_BYTES 4096
#define SL_VOCAB_NO_ID           UINT32_MAX

/* GGUF's numbers */
enum sl_token_type {
    SL_TOKEN_NORMAL = 1,
    SL_TOKEN_UNKNOWN = 2,
    SL_TOKEN_CONTROL = 3,      /* never in text of users: <|im_start|> */
    SL_TOKEN_USER_DEFINED = 4, /* literal text, found in any text before BPE */
    SL_TOKEN_UNUSED = 5,
    SL_TOKEN_BYTE = 6
};

struct sl_vocab_str {
    const char *p; /* not NUL-terminated */
    uint32_t n;
};

/* All pointers live in arena (or in static storage when arena is NULL). Zero-initialise, then set the ids
 * that are absent to SL_VOCAB_NO_ID (sl_vocab_src_init does both). */
struct sl_vocab_src {
    struct sl_arena *arena;
    char *model; /* tokenizer.ggml.model: "gpt2" = byte-level BPE */
    char *pre;   /* tokenizer.ggml.pre: "smollm"; NULL when the file does not say */
    uint32_t n_tokens;
    struct sl_vocab_str *tokens; /* [n_tokens] as in the file: byte-level tokens in GPT-2's byte alphabet */
    uint8_t *types;              /* [n_tokens] enum sl_token_type; NULL = all normal */
    uint32_t n_merges;
    struct sl_vocab_str *merges; /* [n_merges] "left right", best first */
    uint32_t bos_id, eos_id, eot_id, unk_id;
    bool add_bos, add_eos;
    char *chat_template; /* NUL-terminated; NULL when there is none */
    size_t chat_template_bytes;
};

void sl_vocab_src_init(struct sl_vocab_src *v);
void sl_vocab_src_fini(struct sl_vocab_src *v); /* frees the arena */

#endif
