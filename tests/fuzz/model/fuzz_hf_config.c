/* tests/fuzz/model/fuzz_hf_config.c - any JSON as a config.json: refused with a sentence, or numbers that can
 * be computed with. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/model/hf_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_hf_config c;
    struct sl_why why = {{0}};
    json_t *config = json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL);
    if (sl_hf_config_read(config, "fuzz", &c, &why) != SL_OK) {
        SL_ASSERT(why.text[0] != 0);
    } else {
        SL_ASSERT(c.head_dim > 0 && c.head_dim <= SL_HF_MAX_HEAD_DIM && c.n_heads > 0 && c.n_kv_heads > 0);
        for (size_t i = 0; i < c.n_entries; i++)
            SL_ASSERT(isfinite(c.entries[i].value.real) &&
                      strncmp(c.entries[i].key, c.arch, strlen(c.arch)) == 0);
    }
    json_decref(config);
    return 0;
}
