/* tests/support/make_hf/make_hf_impl.h - what make_hf.c, make_hf_tokenizer.c and make_hf_weights.c share. */
#ifndef SLUICE_TESTS_SUPPORT_MAKE_HF_MAKE_HF_IMPL_H
#define SLUICE_TESTS_SUPPORT_MAKE_HF_MAKE_HF_IMPL_H

#include <jansson.h>
#include "common/base/gguf.h"
#include "tests/support/make_hf/make_hf.h"

struct sl_make_hf_run {
    const struct sl_make_hf *m;
    const struct sl_gguf *g;
    char arch[32];
    struct sl_why *why;
};

/* folder/name; takes json. */
enum sl_err sl_make_hf_put(const struct sl_make_hf_run *r, const char *name, json_t *json);
enum sl_err sl_make_hf_config(const struct sl_make_hf_run *r);
enum sl_err sl_make_hf_tokenizer(const struct sl_make_hf_run *r);
enum sl_err sl_make_hf_weights(const struct sl_make_hf_run *r);

#endif
