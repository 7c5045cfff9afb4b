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
    uint8_t *slot = a->slots + blockIdx.y * a->slot_bytes;
    uint32_t first = blockIdx.x * THREADS + threadIdx.x, step = gridDim.x * THREADS;
    if (a->run_bytes % sizeof(struct sixteen) == 0 && a->run_stride % sizeof(struct sixteen) == 0) {
        /* 32 bits: a division of 64 would cost more than the load; 64 GiB is no page */
        uint32_t n = (uint32_t)(a->page_bytes / sizeof(struct sixteen));
        uint32_t run = (uint32_t)(a->run_bytes / sizeof(struct sixteen));
        uint32_t gap = (uint32_t)((a->run_stride - a->run_bytes) / sizeof(struct sixteen));
        struct sixteen *of_page = (struct sixteen *)page, *of_slot = (struct sixteen *)slot;
        for (uint32_t i = first; i < n; i += step) {
            uint64_t at = i + (uint64_t)(i / run) * gap;
            if (a->to_pool)
                of_page[i] = of_slot[at];
            else
                of_slot[at] = of_page[i];
        }
        return;
    }
    for (uint64_t i = first; i < a->page_bytes; i += step) { /* of models of a few numbers, in tests */
        uint64_t at = i / a->run_bytes * a->run_stride + i % a->run_bytes;
        if (a->to_pool)
            page[i] = slot[at];
        else
            slot[at] = page[i];
    }
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
