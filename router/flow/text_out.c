/* router/flow/text_out.c - detokeniser, then stop matcher; the order of the two decides that a stop string
 * may cross token borders and characters.
 *
 * Text of the first min_tokens tokens cannot stop the generation (vLLM's rule): it goes around the matcher.
 */
#include "router/flow/text_out.h"

#include <string.h>

#include "common/text/detok.h"
#include "common/text/stop_match.h"

#define MAX_PIECE_BYTES (64u << 10) /* of one step: a token and what was held back */

struct sl_text_out {
    const struct sl_tokenizer *tok;
    const struct sl_gen_req *req;
    struct sl_detok detok;
    struct sl_stop *stop; /* NULL: no stop strings */
    struct sl_buf raw, out;
};

enum sl_err sl_text_out_new(const struct sl_tokenizer *tok, const struct sl_gen_req *req,
                            struct sl_text_out **out, struct sl_why *why)
{
    struct sl_stop *stop = NULL;
    if (req->n_stop) {
        size_t lens[SL_MAX_STOP_STRINGS];
        for (uint32_t i = 0; i < req->n_stop; i++)
            lens[i] = strlen(req->stop[i]);
        enum sl_err err = sl_stop_new(req->stop, lens, req->n_stop, &stop, why);
        if (err)
            return err;
    }
    struct sl_text_out *t = sl_xcalloc(1, sizeof *t);
    t->tok = tok;
    t->req = req;
    t->stop = stop;
    sl_detok_init(&t->detok, tok, !req->skip_special);
    sl_buf_init(&t->raw, MAX_PIECE_BYTES);
    sl_buf_init(&t->out, MAX_PIECE_BYTES);
    *out = t;
    return SL_OK;
}

void sl_text_out_free(struct sl_text_out *t)
{
    if (!t)
        return;
    sl_stop_free(t->stop);
    sl_buf_fini(&t->raw);
    sl_buf_fini(&t->out);
    sl_free(t);
}

bool sl_text_out_is_last(const struct sl_text_out *t, int32_t token, uint32_t index)
{
    const Sluice__Sampling *s = &t->req->sampling;
    if (s->ignore_eos || index < s->min_tokens)
        return false;
    for (size_t i = 0; i < s->n_stop_ids; i++)
        if (s->stop_ids[i] == token)
            return true;
    return false; /* the model's end ids stand among the stop ids, unless the client took them out */
}

static void give(struct sl_text_out *t, struct sl_text_piece *out, const char *stopped_by)
{
    out->text = t->out.data ? t->out.data : "";
    out->len = t->out.len;
    out->stopped_by = stopped_by;
}

static const char *match(struct sl_text_out *t, uint32_t index)
{
    if (!t->stop || index < t->req->sampling.min_tokens) {
        sl_buf_append(&t->out, t->raw.data, t->raw.len);
        return NULL;
    }
    int hit = sl_stop_push(t->stop, t->raw.data, t->raw.len, t->req->include_stop, &t->out);
    return hit < 0 ? NULL : t->req->stop[hit];
}

void sl_text_out_push(struct sl_text_out *t, int32_t token, uint32_t index, struct sl_text_piece *out)
{
    sl_buf_clear(&t->raw);
    sl_buf_clear(&t->out);
    const char *stopped_by = NULL;
    if (!sl_text_out_is_last(t, token, index) || t->req->include_stop) {
        sl_detok_push(&t->detok, (uint32_t)token, &t->raw);
        if (t->raw.len)
            stopped_by = match(t, index);
    }
    give(t, out, stopped_by);
}

void sl_text_out_end(struct sl_text_out *t, struct sl_text_piece *out)
{
    sl_buf_clear(&t->raw);
    sl_buf_clear(&t->out);
    const char *stopped_by = NULL;
    sl_detok_end(&t->detok, &t->raw);
    if (t->raw.len)
        stopped_by = match(t, UINT32_MAX);
    if (!stopped_by && t->stop)
        sl_stop_end(t->stop, &t->out);
    give(t, out, stopped_by);
}
