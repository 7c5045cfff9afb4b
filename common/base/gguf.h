/* common/base/gguf.h - the project's one GGUF reader: maps a file, checks all of it, then answers by key and
 * by name.
 *
 * After sl_gguf_open() everything reachable is inside the mapped file: counts, string lengths, array sizes,
 * tensor dims, types, offsets and sizes were checked, keys and tensor names are unique. What the keys mean is
 * the caller's business (common/model for weights, common/text for the vocabulary). Version 2 and 3, little
 * endian. Strings and tensors point into the map: valid until close, not NUL-terminated (tensor names and the
 * path are). Threads: read-only after open, any thread. A file that is truncated while it is open ends the
 * process by SIGBUS: replace model files by rename, never in place. */
#ifndef SLUICE_COMMON_BASE_GGUF_H
#define SLUICE_COMMON_BASE_GGUF_H

#include <stdint.h>
#include "common/base/file_map.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SL_GGUF_MAX_KV           65536
#define SL_GGUF_MAX_TENSORS      65536
#define SL_GGUF_MAX_KEY_BYTES    1024
#define SL_GGUF_MAX_NAME_BYTES   256 /* of a tensor */
#define SL_GGUF_MAX_ARRAY_DEPTH  4
#define SL_GGUF_MAX_STRING_BYTES (16u << 20)
#define SL_GGUF_MAX_DIMS         4

enum sl_gguf_value_type {
    SL_GGUF_U8 = 0,
    SL_GGUF_I8 = 1,
    SL_GGUF_U16 = 2,
    SL_GGUF_I16 = 3,
    SL_GGUF_U32 = 4,
    SL_GGUF_I32 = 5,
    SL_GGUF_F32 = 6,
    SL_GGUF_BOOL = 7,
    SL_GGUF_STRING = 8,
    SL_GGUF_ARRAY = 9,
    SL_GGUF_U64 = 10,
    SL_GGUF_I64 = 11,
    SL_GGUF_F64 = 12
};

/* Tensor element types; the ids are ggml's. Only those the kernels read have a constant here, the rest are
 * known to sl_ggml_type_info() by name and size. */
enum sl_ggml_type_id {
    SL_GGML_F32 = 0,
    SL_GGML_F16 = 1,
    SL_GGML_Q4_0 = 2,
    SL_GGML_Q4_1 = 3,
    SL_GGML_Q8_0 = 8,
    SL_GGML_BF16 = 30
};

struct sl_ggml_type {
    uint32_t id;
    const char *name;      /* "Q4_1" */
    uint32_t block_values; /* values per block; a row is a whole number of blocks */
    uint32_t block_bytes;
};

struct sl_gguf; /* opaque */

struct sl_gguf_str {
    const char *p; /* not NUL-terminated, may hold any byte */
    size_t n;
};

/* A cursor over one array. Copy it to walk again. */
struct sl_gguf_array {
    uint32_t type; /* enum sl_gguf_value_type of the elements */
    uint64_t n;    /* elements left */
    const uint8_t *at;
};

struct sl_gguf_tensor {
    const char *name;                /* NUL-terminated */
    uint32_t type;                   /* ggml's id, known to sl_ggml_type_info() */
    uint32_t n_dims;                 /* 1..4 */
    uint64_t dims[SL_GGUF_MAX_DIMS]; /* dims[0] is the row length (fastest); 1 past n_dims; none is 0 */
    const void *data;                /* aligned to general.alignment (default 32) */
    size_t bytes;
};

/* Opens and checks. On SL_OK *out is the caller's, closed with sl_gguf_close(); else *out is untouched and
 * *why says what was found, what was expected and what to do. Errors: SL_EIO (no such file, not readable),
 * SL_EPARSE (not GGUF, truncated, inconsistent), SL_EUNSUPPORTED (version, big endian, unknown tensor type),
 * SL_ETOOBIG (over a limit above), SL_ENOMEM. */
SL_MUST_CHECK enum sl_err sl_gguf_open(const char *path, struct sl_gguf **out, struct sl_why *why);
/* The same over bytes that the caller keeps until close; name is for messages. */
SL_MUST_CHECK enum sl_err sl_gguf_open_memory(const void *bytes, size_t n, const char *name,
                                              struct sl_gguf **out, struct sl_why *why);
void sl_gguf_close(struct sl_gguf *g); /* takes NULL */

const char *sl_gguf_path(const struct sl_gguf *g);
/* As of open; false for bytes of the caller's. */
SL_MUST_CHECK bool sl_gguf_file_id(const struct sl_gguf *g, struct sl_file_id *out);
/* The mapped bytes at p are not needed for now and shall not count as this process's memory. They may still
 * be read, again from the file. */
void sl_gguf_release(const struct sl_gguf *g, const void *p, size_t n);
size_t sl_gguf_file_bytes(const struct sl_gguf *g);

/* Typed values. SL_ENOTFOUND when the key is absent and SL_EINVAL when it has another type or does not fit;
 * both fill why, and *out is untouched, so that an optional key is: preset *out, call, accept SL_ENOTFOUND.
 * u32 and u64 accept any integer type whose value fits; f32 accepts f64 and integers too. */
bool sl_gguf_has(const struct sl_gguf *g, const char *key);
SL_MUST_CHECK enum sl_err sl_gguf_u32(const struct sl_gguf *g, const char *key, uint32_t *out,
                                      struct sl_why *why);
SL_MUST_CHECK enum sl_err sl_gguf_u64(const struct sl_gguf *g, const char *key, uint64_t *out,
                                      struct sl_why *why);
SL_MUST_CHECK enum sl_err sl_gguf_f32(const struct sl_gguf *g, const char *key, float *out,
                                      struct sl_why *why);
SL_MUST_CHECK enum sl_err sl_gguf_bool(const struct sl_gguf *g, const char *key, bool *out,
                                       struct sl_why *why);
SL_MUST_CHECK enum sl_err sl_gguf_str(const struct sl_gguf *g, const char *key, struct sl_gguf_str *out,
                                      struct sl_why *why);
SL_MUST_CHECK enum sl_err sl_gguf_array(const struct sl_gguf *g, const char *key, struct sl_gguf_array *out,
                                        struct sl_why *why);

/* Take the next element; false at the end or when the element is of another kind (then the cursor stands
 * still). */
bool sl_gguf_array_next_str(struct sl_gguf_array *a, struct sl_gguf_str *out);
bool sl_gguf_array_next_i64(struct sl_gguf_array *a,
                            int64_t *out); /* any integer type and bool; u64 over INT64_MAX: false */
bool sl_gguf_array_next_f32(struct sl_gguf_array *a, float *out); /* f32, f64 */

size_t sl_gguf_n_tensors(const struct sl_gguf *g);
const struct sl_gguf_tensor *sl_gguf_tensor_at(const struct sl_gguf *g,
                                               size_t i); /* in file order; NULL past the end */
const struct sl_gguf_tensor *sl_gguf_tensor_find(const struct sl_gguf *g,
                                                 const char *name); /* NULL when absent */

/* NULL for an id that ggml does not have (or no longer has). */
const struct sl_ggml_type *sl_ggml_type_info(uint32_t id);

#ifdef __cplusplus
}
#endif
#endif
