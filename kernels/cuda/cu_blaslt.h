/* kernels/cuda/cu_blaslt.h - products by cuBLASLt, which is looked for when a device is opened. */
#ifndef SLUICE_KERNELS_CUDA_CU_BLASLT_H
#define SLUICE_KERNELS_CUDA_CU_BLASLT_H

#include "kernels/cuda/cu_kernels.h"

struct cu_blaslt; /* opaque */

/* NULL when the library is not there or does not start, which is logged once. */
struct cu_blaslt *cu_blaslt_open(struct cu_stream *s);
void cu_blaslt_close(struct cu_blaslt *b); /* takes NULL */
/* Queues the product; false, with nothing queued, when the library has no way to do it. Which sum a row gets
 * may depend on n_rows. */
bool cu_blaslt_matmul(struct cu_blaslt *b, const struct cu_matmul_args *a);

#endif
