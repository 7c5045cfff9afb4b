/* tests/gpu/read_roof.cu - how fast the device's memory can be read: all blocks sum over a large buffer. */
#include "kernels/cuda/cu_block.h"
#include "tests/gpu/read_roof.h"

#define THREADS 512

struct read_args {
    const uint32_t *x;
    uint64_t n; /* in groups of 4 */
    uint32_t *out;
};

struct group {
    uint32_t x[4];
};

CU_KERNEL(read_kernel, struct read_args, THREADS, 2)
{
    const struct group *x = (const struct group *)a->x;
    uint32_t sum = 0;
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < a->n;
         i += (uint64_t)gridDim.x * THREADS) {
        struct group g = x[i];
        sum += g.x[0] + g.x[1] + g.x[2] + g.x[3];
    }
    if (sum == 1) /* never of zeros, and nothing may be left out */
        a->out[0] = sum;
}

void gpu_read(struct cu_stream *s, const void *p, size_t bytes, uint32_t *out)
{
    struct read_args a = {(const uint32_t *)p, bytes / sizeof(struct group), out};
    struct cu_launch l = {"read",  (const void *)read_kernel, 8 * cu_multiprocessors(s), 1, THREADS, 0, &a,
                          sizeof a};
    cu_launch(s, &l);
}
