/* common/model/sample_rows.c - see sample_rows.h. A row is an item: the threads take them as they come. */
#include "common/model/sample_rows.h"

#include "common/base/mem.h"

_Static_assert(SL_HEAD_ROWS <= SL_PICK_MAX_ROWS, "a device samples the rows of one head in one call");

struct sl_samplers {
    const struct sl_backend_ops *ops;
    struct sl_dev *dev;
    uint32_t n_threads, n_vocab;
    struct sl_sampler **of_thread; /* [n_threads] */
    /* of a device that samples, else NULL; [SL_PICK_MAX_ROWS] each */
    struct sl_pick *picks;
    struct sl_picked *picked;
    bool *left;                  /* to the host */
    struct sl_logit_edit *edits; /* [., SL_SAMPLE_MAX_EDITS] */
};

struct job {
    const struct sl_samplers *s;
    float *logits;
    const struct sl_sample_row *rows;
    struct sl_sampled *out;
};

struct sl_samplers *sl_samplers_new(const struct sl_backend_ops *ops, struct sl_dev *dev, uint32_t n_threads,
                                    uint32_t n_vocab)
{
    struct sl_samplers *s = sl_xcalloc(1, sizeof *s);
    s->ops = ops;
    s->dev = dev;
    s->n_threads = ops->parallel && n_threads ? n_threads : 1;
    s->n_vocab = n_vocab;
    s->of_thread = sl_xcalloc(s->n_threads, sizeof(struct sl_sampler *));
    for (uint32_t i = 0; i < s->n_threads; i++)
        s->of_thread[i] = sl_sampler_new(n_vocab);
    if (!ops->sample)
        return s;
    s->picks = sl_xcalloc(SL_PICK_MAX_ROWS, sizeof *s->picks);
    s->picked = sl_xcalloc(SL_PICK_MAX_ROWS, sizeof *s->picked);
    s->left = sl_xcalloc(SL_PICK_MAX_ROWS, sizeof *s->left);
    s->edits = sl_xcalloc((size_t)SL_PICK_MAX_ROWS * SL_SAMPLE_MAX_EDITS, sizeof *s->edits);
    return s;
}

void sl_samplers_free(struct sl_samplers *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->n_threads; i++)
        sl_sampler_free(s->of_thread[i]);
    sl_free(s->of_thread);
    sl_free(s->picks);
    sl_free(s->picked);
    sl_free(s->left);
    sl_free(s->edits);
    sl_free(s);
}

static void sample_item(void *arg, uint32_t i, unsigned worker)
{
    const struct job *j = arg;
    const struct sl_sample_row *r = &j->rows[i];
    sl_sample(j->s->of_thread[worker], &j->logits[(size_t)i * j->s->n_vocab], r->sampling, r->history,
              r->n_history, r->n_prompt, r->want_digest, &j->out[i]);
}

static void each_row(struct sl_samplers *s, uint32_t n_rows, sl_parallel_fn *fn, void *arg)
{
    if (s->ops->parallel && n_rows > 1) {
        s->ops->parallel(s->dev, n_rows, fn, arg);
        return;
    }
    for (uint32_t i = 0; i < n_rows; i++)
        fn(arg, i, 0);
}

void sl_sample_rows(struct sl_samplers *s, float *logits, const struct sl_sample_row *rows, uint32_t n_rows,
                    struct sl_sampled *out)
{
    each_row(s, n_rows, sample_item, &(struct job){s, logits, rows, out});
}

static void pick_item(void *arg, uint32_t i, unsigned worker)
{
    const struct job *j = arg;
    const struct sl_sample_row *r = &j->rows[i];
    struct sl_pick *pick = &j->s->picks[i];
    j->s->left[i] = !sl_sampler_pick(
        j->s->of_thread[worker], r->sampling, r->history, r->n_history, r->n_prompt, r->want_digest,
        j->s->edits + (size_t)i * SL_SAMPLE_MAX_EDITS, SL_SAMPLE_MAX_EDITS, pick);
    if (j->s->left[i])
        *pick = (struct sl_pick){.top_p = 1}; /* greedy, for nobody */
}

static void left_item(void *arg, uint32_t i, unsigned worker)
{
    const struct job *j = arg;
    if (j->s->left[i])
        sample_item(arg, i, worker);
    else
        sl_sampled_from_pick(&j->s->picks[i], &j->s->picked[i], &j->out[i]);
}

void sl_sample_rows_on_device(struct sl_samplers *s, const float *logits, float *scratch,
                              const struct sl_sample_row *rows, uint32_t n_rows, struct sl_sampled *out)
{
    struct job j = {s, scratch, rows, out};
    bool any = false;
    each_row(s, n_rows, pick_item, &j);
    s->ops->sample(s->dev, logits, s->n_vocab, s->picks, n_rows, s->picked);
    s->ops->sync(s->dev);
    for (uint32_t i = 0; i < n_rows; i++) {
        s->left[i] |= s->picked[i].token == SL_PICK_LEFT;
        if (s->left[i])
            s->ops->download(s->dev, scratch + (size_t)i * s->n_vocab, logits + (size_t)i * s->n_vocab,
                             s->n_vocab * sizeof *logits);
        any |= s->left[i];
    }
    if (any)
        s->ops->sync(s->dev);
    each_row(s, n_rows, left_item, &j);
}

void sl_sample_pass(struct sl_samplers *s, struct sl_model *m, const struct sl_batch *b, uint32_t first,
                    float *scratch, const struct sl_sample_row *rows, uint32_t n_rows, struct sl_sampled *out)
{
    if (!s->ops->sample || s->n_vocab > SL_PICK_MAX_VOCAB) {
        sl_model_logits(m, b, first, n_rows, scratch);
        sl_sample_rows(s, scratch, rows, n_rows, out);
        return;
    }
    for (uint32_t at = 0, n; at < n_rows; at += n) {
        n = n_rows - at < SL_HEAD_ROWS ? n_rows - at : SL_HEAD_ROWS;
        const float *logits = sl_model_logits_on_device(m, b, first + at, n);
        sl_sample_rows_on_device(s, logits, scratch, rows + at, n, out + at);
    }
}
