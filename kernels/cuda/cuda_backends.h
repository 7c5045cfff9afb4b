/* kernels/cuda/cuda_backends.h - the CUDA op tables; without CUDA in the build they say that it is missing.
 */
#ifndef SLUICE_KERNELS_CUDA_CUDA_BACKENDS_H
#define SLUICE_KERNELS_CUDA_CUDA_BACKENDS_H

#include "kernels/backend.h"

extern const struct sl_backend_ops sl_backend_cuda;       /* the fast kernels: inexact */
extern const struct sl_backend_ops sl_backend_cuda_plain; /* the plain ones: exact */

#endif
