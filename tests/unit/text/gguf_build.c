/* tests/unit/text/gguf_build.c - see the header. */
#include "tests/unit/text/gguf_build.h"

#include <string.h>

#include "common/base/gguf.h"

void gguf_put_u32(struct sl_buf *b, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        sl_buf_putc(b, (char)(v >> 8 * i & 255));
}

void gguf_put_u64(struct sl_buf *b, uint64_t v)
{
    gguf_put_u32(b, (uint32_t)v);
    gguf_put_u32(b, (uint32_t)(v >> 32));
}

void gguf_put_str(struct sl_buf *b, const char *s)
{
    gguf_put_u64(b, strlen(s));
    sl_buf_puts(b, s);
}

void gguf_put_header(struct sl_buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    sl_buf_puts(b, "GGUF");
    gguf_put_u32(b, version);
    gguf_put_u64(b, n_tensors);
    gguf_put_u64(b, n_kv);
}

void gguf_put_kv_str(struct sl_buf *b, const char *key, const char *value)
{
    gguf_put_str(b, key);
    gguf_put_u32(b, SL_GGUF_STRING);
    gguf_put_str(b, value);
}

void gguf_put_kv_u32(struct sl_buf *b, const char *key, uint32_t value)
{
    gguf_put_str(b, key);
    gguf_put_u32(b, SL_GGUF_U32);
    gguf_put_u32(b, value);
}

void gguf_put_kv_strs(struct sl_buf *b, const char *key, const char *const *values, size_t n)
{
    gguf_put_str(b, key);
    gguf_put_u32(b, SL_GGUF_ARRAY);
    gguf_put_u32(b, SL_GGUF_STRING);
    gguf_put_u64(b, n);
    for (size_t i = 0; i < n; i++)
        gguf_put_str(b, values[i]);
}

void gguf_put_kv_i32s(struct sl_buf *b, const char *key, const int32_t *values, size_t n)
{
    gguf_put_str(b, key);
    gguf_put_u32(b, SL_GGUF_ARRAY);
    gguf_put_u32(b, SL_GGUF_I32);
    gguf_put_u64(b, n);
    for (size_t i = 0; i < n; i++)
        gguf_put_u32(b, (uint32_t)values[i]);
}

void gguf_put_kv_f32s(struct sl_buf *b, const char *key, const float *values, size_t n)
{
    gguf_put_str(b, key);
    gguf_put_u32(b, SL_GGUF_ARRAY);
    gguf_put_u32(b, SL_GGUF_F32);
    gguf_put_u64(b, n);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        gguf_put_u32(b, bits);
    }
}

void gguf_put_kv_bool(struct sl_buf *b, const char *key, bool value)
{
    gguf_put_str(b, key);
    gguf_put_u32(b, SL_GGUF_BOOL);
    sl_buf_putc(b, value);
}

void gguf_put_tensor(struct sl_buf *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                     uint64_t offset)
{
    gguf_put_str(b, name);
    gguf_put_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        gguf_put_u64(b, dims[i]);
    gguf_put_u32(b, type);
    gguf_put_u64(b, offset);
}

void gguf_put_padding(struct sl_buf *b, size_t alignment)
{
    while (b->len % alignment)
        sl_buf_putc(b, 0);
}
