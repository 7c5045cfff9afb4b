/* common/model/safetensors.h - maps one .safetensors file, checks all of its header, then answers by name.
 *
 * The format: 8 bytes of length (little endian), a JSON header {name: {dtype, shape, data_offsets}}, then the
 * bytes of the tensors, without holes. After open every tensor lies inside the file, is as long as its shape
 * and type say and aligned for its elements; no two overlap, names are unique. Tensors point into the map and
 * are valid until close. Read-only after open: any thread. A file that is truncated while it is open ends the
 * process by SIGBUS: replace model files by rename, never in place. */
#ifndef SLUICE_COMMON_MODEL_SAFETENSORS_H
#define SLUICE_COMMON_MODEL_SAFETENSORS_H

#include <stdint.h>
#include "common/base/file_map.h"

#define SL_SAFETENSORS_MAX_HEADER_BYTES (16u << 20) /* real ones: about 150 bytes a tensor */
#define SL_SAFETENSORS_MAX_TENSORS      65536
#define SL_SAFETENSORS_MAX_NAME_BYTES   256
#define SL_SAFETENSORS_MAX_DIMS         8

struct sl_safetensors; /* opaque */

struct sl_safetensors_dtype {
    const char *name; /* "BF16" */
    uint32_t bytes;   /* of an element */
    int gguf_type;    /* enum sl_dtype of the same elements; -1 when the kernels read none */
};

struct sl_safetensor {
    const char *name; /* NUL-terminated */
    const struct sl_safetensors_dtype *dtype;
    uint32_t n_dims;                        /* 0 = one number */
    uint64_t dims[SL_SAFETENSORS_MAX_DIMS]; /* dims[n_dims - 1] is the row length (fastest) */
    const void *data;
    size_t bytes; /* 0 when one of dims is 0 */
};

/* On SL_OK *out is the caller's, closed with sl_safetensors_close(); else *out is untouched and *why says
 * what was found, what was expected and what to do. Errors: SL_EIO (no such file, not readable), SL_EPARSE
 * (not this format, truncated, inconsistent), SL_EUNSUPPORTED (an element type that is not known), SL_ETOOBIG
 * (over a limit above). */
SL_MUST_CHECK enum sl_err sl_safetensors_open(const char *path, struct sl_safetensors **out,
                                              struct sl_why *why);
/* The same over bytes that the caller keeps until close, aligned to 8; name is for messages. */
SL_MUST_CHECK enum sl_err sl_safetensors_open_memory(const void *bytes, size_t n, const char *name,
                                                     struct sl_safetensors **out, struct sl_why *why);
void sl_safetensors_close(struct sl_safetensors *s); /* takes NULL */

/* Not open for bytes of the caller's. */
const struct sl_file_map *sl_safetensors_map(const struct sl_safetensors *s);
const char *sl_safetensors_path(const struct sl_safetensors *s);
size_t sl_safetensors_n(const struct sl_safetensors *s);
/* In the order of their bytes; NULL past the end. */
const struct sl_safetensor *sl_safetensors_at(const struct sl_safetensors *s, size_t i);
const struct sl_safetensor *sl_safetensors_find(const struct sl_safetensors *s, const char *name);

#endif
