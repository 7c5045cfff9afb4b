/* tests/unit/model/model_rig.h - a random model open on a backend, with a page pool, for tests of whole
 * passes. */
#ifndef SLUICE_TESTS_UNIT_MODEL_MODEL_RIG_H
#define SLUICE_TESTS_UNIT_MODEL_MODEL_RIG_H

#include "common/model/model.h"
#include "tests/support/make_model/make_model.h"

struct rig_conf {
    const char *path;
    const char *backend;
    uint32_t n_threads, page_tokens, max_rows, n_pages;
    enum sl_dtype kv_dtype;
    int no_graphs;
    uint32_t tensor_parallel;    /* 0 = 1 */
    struct sl_rank_group *group; /* NULL = the model makes one */
    uint32_t device;             /* the first */
};

struct rig {
    struct rig_conf conf;
    const struct sl_backend_ops *ops;
    struct sl_dev *dev;
    struct sl_model *model;
    struct sl_kv *kv;
    float *logits; /* [max_rows, n_vocab] */
    atomic_uint_fast64_t progress;
};

/* Writes the model to a new temporary file; the caller unlinks and frees the path. */
char *rig_model_file(const struct sl_make_model *m);

bool rig_backend_available(const char *name);
void rig_open(struct rig *r, const struct rig_conf *c); /* dies with the reason when it cannot */
void rig_close(struct rig *r);

/* Every byte of every page becomes 0xff, a NaN in all KV dtypes: a read of a position not yet written shows.
 */
void rig_pages_poison(struct rig *r);

/* Logits [n_tokens, n_vocab] of a prompt over all pages, poisoned before and not in their order, in chunks and with
 * the last token alone, as a decode row; the caller's. n_tokens: at most max_rows. */
float *rig_prompt_logits(struct rig *r, uint32_t n_tokens, uint32_t chunk);

#endif
