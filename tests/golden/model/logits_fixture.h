/* tests/golden/model/logits_fixture.h - logits that another program computed, as make_tiny.py and
 * make_hf_models.py write them. */
#ifndef SLUICE_TESTS_GOLDEN_MODEL_LOGITS_FIXTURE_H
#define SLUICE_TESTS_GOLDEN_MODEL_LOGITS_FIXTURE_H

#include <stdint.h>

struct logits_fixture {
    uint32_t crc; /* of the model file; 0 = not told */
    uint32_t n_positions, n_kept, n_vocab;
    int32_t *tokens; /* [n_positions] */
    uint32_t *kept;  /* [n_kept] ascending: positions whose logits follow */
    float *logits;   /* [n_kept, n_vocab] */
};

struct logits_fixture logits_fixture_read(const char *path); /* fails the test when it cannot */
void logits_fixture_free(struct logits_fixture *x);

#endif
