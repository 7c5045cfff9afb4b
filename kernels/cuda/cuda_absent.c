/* kernels/cuda/cuda_absent.c - the CUDA tables of a build without CUDA. */
#include "kernels/cuda/cuda_backends.h"

static int available(void)
{
    return 0;
}

static const char *missing(void)
{
    return "this build has no CUDA; install the CUDA toolkit, so that nvcc is in PATH, and build again";
}

const struct sl_backend_ops sl_backend_cuda = {.name = "cuda", .available = available, .missing = missing};
const struct sl_backend_ops sl_backend_cuda_plain = {
    .name = "cuda-plain", .available = available, .missing = missing};
