/* kernels/cuda/emulation/cu_blaslt_emulated.c - a device without cuBLASLt: the plain product stands in. */
#include "kernels/cuda/cu_blaslt.h"

struct cu_blaslt *cu_blaslt_open(struct cu_stream *s)
{
    (void)s;
    return NULL;
}

void cu_blaslt_close(struct cu_blaslt *b)
{
    (void)b;
}

bool cu_blaslt_matmul(struct cu_blaslt *b, const struct cu_matmul_args *a)
{
    (void)b, (void)a;
    return false;
}
