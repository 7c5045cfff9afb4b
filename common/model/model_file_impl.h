/* common/model/model_file_impl.h - what a kind of model file fills in: model_file.c answers from it.
 *
 * A kind opens its container, checks it, and makes one of these: tensors under GGUF's names and in GGUF's
 * meaning (a norm that GGUF stores plus one is stored plus one), keys answered by get(). */
#ifndef SLUICE_COMMON_MODEL_MODEL_FILE_IMPL_H
#define SLUICE_COMMON_MODEL_MODEL_FILE_IMPL_H

#include "common/base/hashmap.h"
#include "common/model/model_file.h"

enum sl_model_value_kind {
    SL_MODEL_VALUE_COUNT, /* a whole number, not negative */
    SL_MODEL_VALUE_REAL,
    SL_MODEL_VALUE_TEXT,
    SL_MODEL_VALUE_OTHER /* there, but none of the above */
};

struct sl_model_value {
    enum sl_model_value_kind kind;
    uint64_t count;
    double real; /* set for a count too */
    struct sl_gguf_str text;
};

struct sl_model_file {
    void *impl;
    bool (*get)(const void *impl, const char *key, struct sl_model_value *out); /* false when absent */
    void (*close)(void *impl);
    void (*release)(const void *impl, const void *p, size_t n); /* (optional) */
    struct sl_model_file_id id;                                 /* zero = not known */
    char *path;
    struct sl_model_tensor *tensors; /* names and data belong to impl */
    size_t n_tensors;
    struct sl_hashmap *by_name; /* made by sl_model_file_new() */
    uint64_t n_tokens;
    struct sl_digest128 vocab_digest;
};

/* Takes impl and tensors (a heap array; equal names are the caller's to refuse); the rest is then set by the
 * caller. */
struct sl_model_file *sl_model_file_new(void *impl, const char *path, struct sl_model_tensor *tensors,
                                        size_t n_tensors);

/* model_file_hf.c: a Hugging Face folder. */
SL_MUST_CHECK enum sl_err sl_model_file_open_folder(const char *path, struct sl_model_file **out,
                                                    struct sl_why *why);

#endif
