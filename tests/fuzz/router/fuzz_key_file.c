/* tests/fuzz/router/fuzz_key_file.c - any bytes as the file of API keys, and any key that a client presents. Input: the key
 * presented, a zero byte, the file; with a second zero byte, what the file is reloaded as. */
#include <stdint.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "router/api/api_keys.h"
#include "tests/fuzz/input_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t up_to_zero(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    return zero ? (size_t)(zero - data) : size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_api_keys *k;
    struct sl_why why = {{0}};
    char *presented = sl_xstrndup((const char *)data, size);
    size_t used = strlen(presented), n;
    sl_log_set_level(SL_LOG_ERROR);
    data += used + (used < size);
    size -= used + (used < size);
    n = up_to_zero(data, size);
    if (sl_api_keys_load(sl_input_file(0, data, n), &k, &why) != SL_OK) {
        SL_ASSERT(why.text[0]);
        sl_free(presented);
        return 0;
    }
    const struct sl_api_key *key = sl_api_keys_find(k, presented);
    SL_ASSERT(!key || (key->name && key->id[0]));
    if (n < size && sl_api_keys_reload(k, sl_input_file(0, data + n + 1, size - n - 1), &why) != SL_OK) {
        SL_ASSERT(why.text[0] && sl_api_keys_find(k, presented) == key);
    }
    SL_ASSERT(!key || key->id[0]); /* still there */
    sl_api_keys_free(k);
    sl_free(presented);
    return 0;
}
