/* tests/unit/text/gguf_build.h - writes GGUF bytes, right and wrong ones, for tests. */
#ifndef SLUICE_TESTS_UNIT_TEXT_GGUF_BUILD_H
#define SLUICE_TESTS_UNIT_TEXT_GGUF_BUILD_H

#include <stdint.h>
#include "common/base/buf.h"

void gguf_put_u32(struct sl_buf *b, uint32_t v);
void gguf_put_u64(struct sl_buf *b, uint64_t v);
void gguf_put_str(struct sl_buf *b, const char *s);
void gguf_put_header(struct sl_buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv);
void gguf_put_kv_str(struct sl_buf *b, const char *key, const char *value);
void gguf_put_kv_u32(struct sl_buf *b, const char *key, uint32_t value);
void gguf_put_kv_strs(struct sl_buf *b, const char *key, const char *const *values, size_t n);
void gguf_put_kv_i32s(struct sl_buf *b, const char *key, const int32_t *values, size_t n);
void gguf_put_kv_f32s(struct sl_buf *b, const char *key, const float *values, size_t n);
void gguf_put_kv_bool(struct sl_buf *b, const char *key, bool value);
void gguf_put_tensor(struct sl_buf *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                     uint64_t offset);
void gguf_put_padding(struct sl_buf *b, size_t alignment);

#endif
