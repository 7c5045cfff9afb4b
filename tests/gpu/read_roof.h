/* tests/gpu/read_roof.h - see read_roof.cu. */
#ifndef SLUICE_TESTS_GPU_READ_ROOF_H
#define SLUICE_TESTS_GPU_READ_ROOF_H

#include "kernels/cuda/cu_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Queues one reading of all bytes, zeros of the device; out is device memory too. */
void gpu_read(struct cu_stream *s, const void *p, size_t bytes, uint32_t *out);

#ifdef __cplusplus
}
#endif
#endif
