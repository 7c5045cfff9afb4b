/* tests/support/make_model/make_model.h - writes a GGUF with random weights, so that everything runs with no
 * download.
 *
 * The same options give the same bytes on every machine: weights come from Philox and exact arithmetic (no
 * libm). Scales are chosen so that logits are lively: a few nats wide, dependent on the whole context, not an
 * echo of the last token. The rows of special tokens and of bytes that are not printable ASCII are weak, so
 * that free-running text stays readable and long. */
#ifndef SLUICE_TESTS_SUPPORT_MAKE_MODEL_H
#define SLUICE_TESTS_SUPPORT_MAKE_MODEL_H

#include "common/base/buf.h"
#include "kernels/tensor.h"

#define SL_MAKE_MAX_OVERRIDES 16

struct sl_make_override {
    const char *suffix; /* tensors whose name ends with it, "attn_v.weight" */
    enum sl_dtype type;
};

struct sl_make_model {
    const char *arch; /* "llama", "qwen2" (q, k, v biases), "qwen3" (norms on the heads of q, k), "gemma3" */
    const char *name;
    uint32_t n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, n_vocab, context_length;
    uint32_t sliding_window; /* attention.sliding_window; 0 = no such key */
    uint32_t window_pattern; /* attention.sliding_window_pattern; 0 = no such key */
    float rope_theta;
    const char *rope_scaling; /* rope.scaling.type, "linear"; NULL = none */
    float rope_scaling_factor;
    bool rope_factors;        /* writes rope_freqs.weight */
    bool tied;                /* no output.weight */
    bool tools;               /* the chat template names tools and how to call them */
    enum sl_dtype type;       /* of all matrices but the next */
    enum sl_dtype embed_type; /* of token_embd.weight */
    struct sl_make_override overrides[SL_MAKE_MAX_OVERRIDES];
    size_t n_overrides;
    uint64_t seed;
};

/* "tiny" (3 layers, d 64, 512 tokens), "smollm2" (the shape of SmolLM2-135M) or "1b" (the layers of
 * Llama-3.2-1B, 32000 tokens); in Q4_1 with Q8_0 embeddings. False for another name. */
bool sl_make_model_preset(const char *preset, struct sl_make_model *out);

/* Writes path through a temporary file beside it. SL_EINVAL (shape, with a sentence), SL_EIO. */
SL_MUST_CHECK enum sl_err sl_make_model_write(const struct sl_make_model *m, const char *path,
                                              struct sl_why *why);

/* make_vocab.c: tokens, types, merges, ids and the chat template as GGUF key-value pairs appended to kv;
 * returns how many. weak[n_vocab] is set for tokens whose rows should be weak. n_vocab must pass
 * sl_make_vocab_ok(). */
bool sl_make_vocab_ok(uint32_t n_vocab, bool tools);
uint64_t sl_make_vocab(struct sl_buf *kv, uint32_t n_vocab, bool tools, bool *weak);

/* make_gguf.c: GGUF's primitives. */
void sl_make_kv_str(struct sl_buf *b, const char *key, const char *value);
void sl_make_kv_u32(struct sl_buf *b, const char *key, uint32_t value);
void sl_make_kv_f32(struct sl_buf *b, const char *key, float value);
void sl_make_kv_bool(struct sl_buf *b, const char *key, bool value);
void sl_make_kv_array(struct sl_buf *b, const char *key, uint32_t type, uint64_t n); /* elements follow */
void sl_make_str(struct sl_buf *b, const char *s, size_t n);
void sl_make_u32(struct sl_buf *b, uint32_t v);
void sl_make_u64(struct sl_buf *b, uint64_t v);

/* quantise.c: one row of n float32 to the type; out has sl_quantise_row_bytes() bytes. n must be a multiple
 * of 32 for the quantised types, of 256 for the K types. Codes are rounded to nearest. */
size_t sl_quantise_row_bytes(enum sl_dtype type, uint64_t n);
void sl_quantise_row(enum sl_dtype type, const float *x, uint64_t n, void *out);
bool sl_quantise_type_parse(const char *word, enum sl_dtype *out); /* "f32" .. "q6_k" */

#endif
