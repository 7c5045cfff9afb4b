/* kernels/cuda/cuda_sample.c - sampling: sends what the rows' picks point to and queues the kernels. */
#include "kernels/cuda/cuda_dev.h"

#include <string.h>

/* Room for the rows that edits change, and for results; made when the first rows come. */
static void fit_rows(struct sl_dev *d, uint32_t n_vocab)
{
    struct cuda_sampling *s = &d->sampling;
    if (n_vocab <= s->n_vocab)
        return;
    cu_free(d->stream, s->edited);
    cu_free(d->stream, s->picked);
    s->edited = cu_alloc(d->stream, (size_t)SL_PICK_MAX_ROWS * n_vocab * sizeof *s->edited);
    s->picked = cu_alloc(d->stream, SL_PICK_MAX_ROWS * sizeof *s->picked);
    SL_ASSERT(s->edited && s->picked); /* megabytes, where gigabytes were had at start */
    s->n_vocab = n_vocab;
}

void sl_cuda_sampling_close(struct sl_dev *d)
{
    cu_free(d->stream, d->sampling.edited);
    cu_free(d->stream, d->sampling.picked);
}

/* What a row points to. */
enum { PART_MASK, PART_EDITS, N_ROW_PARTS };

void sl_cuda_sample(struct sl_dev *d, const float *logits, uint32_t n_vocab, const struct sl_pick *picks,
                    uint32_t n_rows, struct sl_picked *out)
{
    struct cu_sample_row rows[SL_PICK_MAX_ROWS];
    struct cu_digest_item items[SL_PICK_MAX_ROWS];
    struct cuda_part parts[N_ROW_PARTS * SL_PICK_MAX_ROWS];
    uint32_t n_items = 0;
    size_t bytes = sizeof rows + sizeof items;
    SL_ASSERT(n_rows <= SL_PICK_MAX_ROWS && n_vocab <= SL_PICK_MAX_VOCAB);
    fit_rows(d, n_vocab);
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct sl_pick *p = &picks[i];
        size_t mask_bytes = p->allowed ? (n_vocab + 63) / 64 * sizeof *p->allowed : 0;
        parts[N_ROW_PARTS * i + PART_MASK] = (struct cuda_part){.src = p->allowed, .bytes = mask_bytes};
        parts[N_ROW_PARTS * i + PART_EDITS] =
            (struct cuda_part){.src = p->edits, .bytes = p->n_edits * sizeof *p->edits};
        bytes += mask_bytes + p->n_edits * sizeof *p->edits;
    }
    sl_cuda_send_room(d, bytes, SL_COUNTOF(parts) + 2);
    sl_cuda_send_parts(d, parts, N_ROW_PARTS * (size_t)n_rows);
    for (uint32_t i = 0; i < n_rows; i++) {
        const float *raw = logits + (size_t)i * n_vocab;
        rows[i] = (struct cu_sample_row){.pick = picks[i], .raw = raw};
        if (picks[i].allowed || picks[i].n_edits > 0)
            rows[i].edited = d->sampling.edited + (size_t)i * n_vocab;
        rows[i].pick.allowed = picks[i].allowed ? parts[N_ROW_PARTS * i + PART_MASK].sent : NULL;
        rows[i].pick.edits = parts[N_ROW_PARTS * i + PART_EDITS].sent;
        if (picks[i].want_digest)
            items[n_items++] = (struct cu_digest_item){.p = raw,
                                                       .part_bytes = {n_vocab * sizeof *raw},
                                                       .n_strips = 1,
                                                       .n_parts = 1,
                                                       .out = &d->sampling.picked[i].digest};
    }
    struct cuda_part lists[] = {{.src = rows, .bytes = n_rows * sizeof *rows},
                                {.src = items, .bytes = n_items * sizeof *items}};
    sl_cuda_send_parts(d, lists, SL_COUNTOF(lists));
    struct cu_sample_args a = {.rows = lists[0].sent, .out = d->sampling.picked, .n_vocab = n_vocab};
    struct cu_digest_args da = {.items = lists[1].sent};
    cu_sample(d->stream, n_rows, &a);
    cu_digest(d->stream, n_items, &da);
    cu_download(d->stream, out, d->sampling.picked, n_rows * sizeof *out);
}
