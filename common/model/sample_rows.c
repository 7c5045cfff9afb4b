/* common/model/sample_rows.c - see sample_rows.h. A row is an item: the threads take them as they come. */
#include "common/model/sample_rows.h"

#include "common/base/mem.h"

struct sl_samplers {
    const struct sl_backend_ops *ops;
    struct sl_dev *dev;
    uint32_t n_threads, n_vocab;
    struct sl_sampler **of_thread; /* [n_threads] */
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
    return s;
}

void sl_samplers_free(struct sl_samplers *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->n_threads; i++)
        sl_sampler_free(s->of_thread[i]);
    sl_free(s->of_thread);
    sl_free(s);
}

static void sample_item(void *arg, uint32_t i, unsigned worker)
{
    const struct job *j = arg;
    const struct sl_sample_row *r = &j->rows[i];
    sl_sample(j->s->of_thread[worker], &j->logits[(size_t)i * j->s->n_vocab], r->sampling, r->history,
              r->n_history, r->n_prompt, r->want_digest, &j->out[i]);
}

void sl_sample_rows(struct sl_samplers *s, float *logits, const struct sl_sample_row *rows, uint32_t n_rows,
                    struct sl_sampled *out)
{
    struct job j = {s, logits, rows, out};
    if (s->ops->parallel && n_rows > 1) {
        s->ops->parallel(s->dev, n_rows, sample_item, &j);
        return;
    }
    for (uint32_t i = 0; i < n_rows; i++)
        sample_item(&j, i, 0);
}
