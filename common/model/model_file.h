/* common/model/model_file.h - the door to a model's files: numbers by GGUF key, tensors by GGUF name.
 *
 * All that reads a model (model_conf.c, weights.c) comes through here and sees GGUF's words, whatever lies
 * behind: one GGUF file, or another container that answers in them (model_file_impl.h). Everything handed out
 * belongs to the file and is valid until close. Read-only after open: any thread. */
#ifndef SLUICE_COMMON_MODEL_MODEL_FILE_H
#define SLUICE_COMMON_MODEL_MODEL_FILE_H

#include "common/base/digest.h"
#include "common/base/gguf.h"
#include "kernels/tensor.h"

struct sl_model_file; /* opaque */

struct sl_model_tensor {
    const char *name; /* "blk.0.attn_q.weight", NUL-terminated */
    /* A vector is one row; sides past the second are multiplied into n_rows. The type is any that GGUF knows,
     * also one that the kernels do not take. */
    struct sl_tensor_view view;
    size_t bytes;
    /* Of q and k (weight or bias) where the file has the rows of each of so many heads in the order that
     * rotates by halves and GGUF in the one that rotates by pairs: sl_model_tensor_to_pairs() first. Else 0.
     */
    uint32_t pair_heads;
};

/* A folder is a Hugging Face model, anything else a GGUF file. On SL_OK *out is the caller's, to be closed;
 * else *out is untouched and why says what was found, what was expected and what to do. Errors: those of
 * sl_gguf_open(), sl_hf_config_read() and sl_hf_weights_open(). */
SL_MUST_CHECK enum sl_err sl_model_file_open(const char *path, struct sl_model_file **out,
                                             struct sl_why *why);
/* Takes an open GGUF file. */
struct sl_model_file *sl_model_file_of_gguf(struct sl_gguf *g);
void sl_model_file_close(struct sl_model_file *f); /* takes NULL */

const char *sl_model_file_path(const struct sl_model_file *f); /* for messages */

/* The state of all files behind the door when they were opened: another one after any change of them. */
struct sl_model_file_id {
    struct sl_digest128 digest;
    int64_t newest_ns; /* the last change of any of them */
};
/* False when it is not known: not files. */
SL_MUST_CHECK bool sl_model_file_id(const struct sl_model_file *f, struct sl_model_file_id *out);

/* The bytes of a tensor, or some of them, are not needed for now and shall not count as this process's
 * memory. They may still be read, again from the file. */
void sl_model_file_release(const struct sl_model_file *f, const void *p, size_t n);

/* Typed values. SL_ENOTFOUND when the key is absent, SL_EINVAL when it has another type or does not fit; *out
 * is then untouched. A whole number is a float as well. */
bool sl_model_file_has(const struct sl_model_file *f, const char *key);
SL_MUST_CHECK enum sl_err sl_model_file_u32(const struct sl_model_file *f, const char *key, uint32_t *out);
SL_MUST_CHECK enum sl_err sl_model_file_f32(const struct sl_model_file *f, const char *key, float *out);
SL_MUST_CHECK enum sl_err sl_model_file_str(const struct sl_model_file *f, const char *key,
                                            struct sl_gguf_str *out);

size_t sl_model_file_n_tensors(const struct sl_model_file *f);
const struct sl_model_tensor *sl_model_file_tensor_at(const struct sl_model_file *f, size_t i);
const struct sl_model_tensor *sl_model_file_tensor_find(const struct sl_model_file *f,
                                                        const char *name); /* NULL when absent */

/* The tensor with its rows in GGUF's order, bytes long. Only where pair_heads is not 0 and divides the rows
 * (a vector's elements) into heads of even length, as tensor_check.c has checked. */
void sl_model_tensor_to_pairs(const struct sl_model_tensor *t, void *out);

/* What the vocabulary beside the weights says: its size (0 = none there) and a digest of all that decides
 * which text a token is. */
void sl_model_file_vocab(const struct sl_model_file *f, uint64_t *n_tokens, struct sl_digest128 *digest);

#endif
