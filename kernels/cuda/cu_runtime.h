/* kernels/cuda/cu_runtime.h - what the backend needs of a device: memory, one ordered stream, launches.
 * cu_runtime.c is CUDA's, emulation/cu_runtime_emulated.c runs on the CPU.
 *
 * Every call is checked. A device that fails cannot be repaired from inside the process and the ops have no
 * error to give back, so the process says why and ends: for the cluster that is a node that died, whose
 * requests go on elsewhere.
 *
 * Threads: all calls on a stream come from one thread. */
#ifndef SLUICE_KERNELS_CUDA_CU_RUNTIME_H
#define SLUICE_KERNELS_CUDA_CU_RUNTIME_H

#include <stddef.h>
#include <stdint.h>
#include "common/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cu_stream; /* opaque */

/* NULL when there is a device to open, else what is missing, as a clause: "no CUDA driver is loaded". */
const char *cu_missing(void);

SL_MUST_CHECK enum sl_err cu_stream_open(struct cu_stream **out, struct sl_why *why);
void cu_stream_close(struct cu_stream *s); /* takes NULL */
unsigned cu_multiprocessors(const struct cu_stream *s);
size_t cu_memory_free(const struct cu_stream *s); /* bytes of the device */
void *cu_native_stream(struct cu_stream *s);      /* CUDA's own, for libraries; NULL under emulation */

/* Device memory, zeroed in stream order; NULL when there is none. */
void *cu_alloc(struct cu_stream *s, size_t bytes);
/* Memory that the host and the device address alike, kept on the device while only it looks; zeroed. */
void *cu_alloc_shared(struct cu_stream *s, size_t bytes);
/* Host memory for cu_copy_pinned. */
void *cu_alloc_pinned(struct cu_stream *s, size_t bytes);
/* Of any of the three, after all that uses it: waits for the stream. Takes NULL. */
void cu_free(struct cu_stream *s, void *p);

/* Ordered. The host's bytes are taken at the call, and are there after cu_sync. */
void cu_upload(struct cu_stream *s, void *dst, const void *src, size_t bytes);
void cu_download(struct cu_stream *s, void *dst, const void *src, size_t bytes);
/* Ordered. src, of cu_alloc_pinned, stays as it is until cu_sync. */
void cu_copy_pinned(struct cu_stream *s, void *dst, const void *src, size_t bytes);

void cu_sync(struct cu_stream *s);

struct cu_launch {
    const char *name;
    const void *kernel; /* of a CU_KERNEL */
    unsigned grid_x, grid_y, n_threads;
    size_t shared_bytes;
    const void *args; /* the kernel's one struct, taken at the call */
    size_t args_bytes;
};
/* Nothing happens for a grid of no blocks. */
void cu_launch(struct cu_stream *s, const struct cu_launch *l);

#ifdef __cplusplus
}
#endif
#endif
