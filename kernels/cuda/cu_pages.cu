/* kernels/cuda/cu_pages.cu - pages between the pool and consecutive slots: all blocks of a row of the grid copy
 * one page. */
#include "kernels/cuda/cu_block.h"

#define THREADS   256
#define PER_BLOCK (THREADS * 16u * 16u) /* bytes: 16 loads of 16 bytes by each thread */
#define MAX_GRID  64u                   /* blocks for a page */

struct sixteen {
    uint32_t x[4];
};

CU_KERNEL(move_pages_kernel, struct cu_move_args, THREADS, 1)
{
    uint8_t *page = a->pool + a->pages[blockIdx.y] * a->page_bytes;
    uint8_t *slot = a->slots + blockIdx.y * a->page_bytes;
    const uint8_t *from = a->to_pool ? slot : page;
    uint8_t *to = a->to_pool ? page : slot;
    uint64_t first = (uint64_t)blockIdx.x * THREADS + threadIdx.x, step = (uint64_t)gridDim.x * THREADS;
    if (a->page_bytes % sizeof(struct sixteen) == 0) {
        for (uint64_t i = first; i < a->page_bytes / sizeof(struct sixteen); i += step)
            ((struct sixteen *)to)[i] = ((const struct sixteen *)from)[i];
        return;
    }
    for (uint64_t i = first; i < a->page_bytes; i += step) /* of models of a few numbers, in tests */
        to[i] = from[i];
}

void cu_move_pages(struct cu_stream *s, uint32_t n, const struct cu_move_args *a)
{
    uint64_t blocks = (a->page_bytes + PER_BLOCK - 1) / PER_BLOCK;
    struct cu_launch l = {"move_pages",
                          (const void *)move_pages_kernel,
                          blocks < MAX_GRID ? (unsigned)blocks : MAX_GRID,
                          n,
                          THREADS,
                          0,
                          a,
                          sizeof *a};
    cu_launch(s, &l);
}
