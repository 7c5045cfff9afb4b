/* tests/support/make_model/make_gguf.c - the primitives of a GGUF file: little endian, strings with a 64-bit
 * length. */
#include "tests/support/make_model/make_model.h"

#include "common/base/gguf.h"
#include <string.h>

void sl_make_u32(struct sl_buf *b, uint32_t v)
{
    uint8_t p[4];
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
    sl_buf_append(b, p, sizeof p);
}

void sl_make_u64(struct sl_buf *b, uint64_t v)
{
    sl_make_u32(b, (uint32_t)v);
    sl_make_u32(b, (uint32_t)(v >> 32));
}

void sl_make_str(struct sl_buf *b, const char *s, size_t n)
{
    sl_make_u64(b, n);
    sl_buf_append(b, s, n);
}

static void key(struct sl_buf *b, const char *k, uint32_t type)
{
    sl_make_str(b, k, strlen(k));
    sl_make_u32(b, type);
}

void sl_make_kv_str(struct sl_buf *b, const char *k, const char *value)
{
    key(b, k, SL_GGUF_STRING);
    sl_make_str(b, value, strlen(value));
}

void sl_make_kv_u32(struct sl_buf *b, const char *k, uint32_t value)
{
    key(b, k, SL_GGUF_U32);
    sl_make_u32(b, value);
}

void sl_make_kv_f32(struct sl_buf *b, const char *k, float value)
{
    uint32_t u;
    memcpy(&u, &value, sizeof u);
    key(b, k, SL_GGUF_F32);
    sl_make_u32(b, u);
}

void sl_make_kv_bool(struct sl_buf *b, const char *k, bool value)
{
    key(b, k, SL_GGUF_BOOL);
    sl_buf_putc(b, value ? 1 : 0);
}

void sl_make_kv_array(struct sl_buf *b, const char *k, uint32_t type, uint64_t n)
{
    key(b, k, SL_GGUF_ARRAY);
    sl_make_u32(b, type);
    sl_make_u64(b, n);
}
