/* kernels/cpu/cpu_backends.h - the op tables of the CPU, for kernels/backend.c. */
#ifndef SLUICE_KERNELS_CPU_CPU_BACKENDS_H
#define SLUICE_KERNELS_CPU_CPU_BACKENDS_H

#include "kernels/backend.h"

extern const struct sl_backend_ops sl_backend_reference; /* plain float32 loops: the judge */
extern const struct sl_backend_ops sl_backend_portable;  /* C without intrinsics, the arithmetic of avx512 */
extern const struct sl_backend_ops sl_backend_avx2;
extern const struct sl_backend_ops sl_backend_avx512;

#endif
