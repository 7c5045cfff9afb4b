/* tests/fuzz/model/fuzz_safetensors.c - any bytes as a .safetensors file: refused with a sentence, or every
 * byte of every tensor can be read. */
#include <stdint.h>

#include "common/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_safetensors *s;
    struct sl_why why = {{0}};
    volatile unsigned sum = 0;
    if (sl_safetensors_open_memory(data, size, "fuzz", &s, &why) != SL_OK) {
        SL_ASSERT(why.text[0] != 0);
        return 0;
    }
    for (size_t i = 0; i < sl_safetensors_n(s); i++) {
        const struct sl_safetensor *t = sl_safetensors_at(s, i);
        const uint8_t *bytes = t->data;
        SL_ASSERT(sl_safetensors_find(s, t->name) == t && (uintptr_t)bytes % t->dtype->bytes == 0);
        for (size_t j = 0; j < t->bytes; j++)
            sum += bytes[j];
    }
    sl_safetensors_close(s);
    return 0;
}
