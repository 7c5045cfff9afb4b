/* common/text/vocab.h - what model files say about their vocabulary: pure data, input of sl_tokenizer_open(),
 * and the one function that reads it from a GGUF file or a Hugging Face folder. */
#ifndef SLUICE_COMMON_TEXT_VOCAB_H
#define SLUICE_COMMON_TEXT_VOCAB_H

#include <stdint.h>
#include "common/base/mem.h"

#define SL_VOCAB_MAX_TOKENS      (1u << 20)
#define SL_VOCAB_MAX_TOKEN_BYTES 4096
#define SL_VOCAB_MAX_EOG         256
#define SL_VOCAB_NO_ID           UINT32_MAX

#define SL_VOCAB_SPACE "\xE2\x96\x81" /* U+2581: how SentencePiece writes a space */

/* GGUF's numbers */
enum sl_token_type {
    SL_TOKEN_NORMAL = 1,
    SL_TOKEN_UNKNOWN = 2,
    SL_TOKEN_CONTROL = 3,      /* never in text of users: <|im_start|> */
    SL_TOKEN_USER_DEFINED = 4, /* literal text, found in any text before BPE */
    SL_TOKEN_UNUSED = 5,
    SL_TOKEN_BYTE = 6 /* "<0x0A>": stands for a byte of a character that no token has */
};

enum { /* bits of sl_vocab_src.strips: white space that a literal token takes in */
       SL_STRIP_LEFT = 1,
       SL_STRIP_RIGHT = 2
};

struct sl_vocab_str {
    const char *p; /* not NUL-terminated */
    uint32_t n;
};

/* --- how a text is made ready, one step after the other --- */

enum sl_norm_kind {
    SL_NORM_NFC,
    SL_NORM_PREPEND, /* to in front of a text that is not empty */
    SL_NORM_LEAD,    /* the same, unless the text begins with it */
    SL_NORM_REPLACE  /* every from becomes to */
};

struct sl_vocab_norm {
    enum sl_norm_kind kind;
    bool first_only; /* LEAD: only where the text begins, not behind a literal token */
    struct sl_vocab_str from, to;
};

/* What becomes of the matches of a pattern and of the gaps between them. */
enum sl_cut_kind {
    SL_CUT_ISOLATED,      /* each is a piece */
    SL_CUT_REMOVED,       /* the gaps are the pieces */
    SL_CUT_CONTIGUOUS,    /* neighbouring matches are one piece */
    SL_CUT_WITH_PREVIOUS, /* a match ends the piece before it */
    SL_CUT_WITH_NEXT      /* a match begins the piece after it */
};

struct sl_vocab_cut {
    enum sl_cut_kind kind;
    bool invert;         /* matches count as gaps and gaps as matches */
    const char *pattern; /* as in the model's file, see pattern.h */
};

struct sl_vocab_rules {
    const struct sl_vocab_norm *norms;
    size_t n_norms;
    const struct sl_vocab_cut *cuts;
    size_t n_cuts;
    bool ignore_merges; /* a piece that is a token is that token, whatever the merges say */
    bool add_bos;       /* where the file does not say */
};

/* A merge by ids. */
struct sl_vocab_pair {
    uint32_t left, right, merged;
};

/* All pointers live in arena (or in static storage when arena is NULL). sl_vocab_src_init() first. */
struct sl_vocab_src {
    struct sl_arena *arena;
    char *model; /* "gpt2": byte-level BPE; "llama": SentencePiece BPE, merges by score; "bpe": BPE of
                    characters with merges by rank */
    char *pre;   /* tokenizer.ggml.pre: "smollm"; NULL when the file does not say */
    const struct sl_vocab_rules *rules; /* where the file has them itself; NULL: those of pre and model */
    uint32_t n_tokens;
    struct sl_vocab_str *tokens; /* [n_tokens] as in the file: byte-level tokens in GPT-2's byte alphabet */
    uint8_t *types;              /* [n_tokens] enum sl_token_type; NULL = all normal */
    uint8_t *strips;             /* [n_tokens] SL_STRIP bits; NULL = none */
    float *scores;               /* [n_tokens] "llama": the higher merges first; else NULL */
    uint32_t n_merges;
    struct sl_vocab_str *merges; /* [n_merges] "left right", best first */
    struct sl_vocab_pair *pairs; /* [n_merges] in place of merges */
    uint32_t bos_id, eos_id, eot_id, unk_id;
    uint32_t *eog_ids; /* [n_eog] more tokens that end a generation */
    uint32_t n_eog;
    bool add_bos, add_eos;
    bool add_space_prefix; /* "llama": a space in front of each text */
    bool fuse_unk;         /* "bpe": unknown characters that follow each other are one unk_id */
    char *chat_template;   /* NUL-terminated; NULL when there is none */
    size_t chat_template_bytes;
};

void sl_vocab_src_init(struct sl_vocab_src *v); /* the ids become SL_VOCAB_NO_ID */
void sl_vocab_src_fini(struct sl_vocab_src *v); /* frees the arena */

struct sl_model_info {
    char architecture[64];
    char name[256];          /* general.name, or the last part of the path without .gguf */
    uint32_t context_length; /* 0 when the file does not say */
    uint32_t n_vocab;        /* number of tokens */
    size_t file_bytes;
};

/* Reads the model at path: a folder is read by sl_hf_vocab_load(), anything else by sl_gguf_vocab_load(); the
 * same rules for outputs and errors as there. */
SL_MUST_CHECK enum sl_err sl_vocab_load(const char *path, struct sl_vocab_src *src,
                                        struct sl_model_info *info, struct sl_why *why);

#endif
