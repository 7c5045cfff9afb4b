/* common/node/node_words.c - a thread that reads once; whoever needs the words first waits for its end. */
#include "common/node/node_words.h"

#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/text/tokenizer.h"

struct sl_node_words {
    const char *model;
    uint32_t n_vocab;
    struct sl_thread thread;
    bool joined; /* then the rest may be read */
    struct sl_token_bytes *bytes;
    enum sl_err err;
    struct sl_why why;
};

static const char *piece(const void *tokenizer, uint32_t id, size_t *n)
{
    return sl_tokenizer_piece(tokenizer, id, false, n);
}

static void read_words(void *arg)
{
    struct sl_node_words *w = arg;
    struct sl_vocab_src src;
    struct sl_model_info info;
    struct sl_tokenizer *t;
    w->err = sl_vocab_load(w->model, &src, &info, &w->why);
    if (w->err != SL_OK)
        return;
    w->err = sl_tokenizer_open(&src, &t, &w->why);
    sl_vocab_src_fini(&src);
    if (w->err != SL_OK)
        return;
    w->bytes = sl_token_bytes_new(w->n_vocab, piece, t);
    sl_tokenizer_close(t);
}

struct sl_node_words *sl_node_words_open(const char *model, uint32_t n_vocab)
{
    struct sl_node_words *w = sl_xcalloc(1, sizeof *w);
    w->model = model;
    w->n_vocab = n_vocab;
    if (sl_thread_start(&w->thread, "words", read_words, w) != SL_OK) {
        w->joined = true;
        w->err = sl_why_set(&w->why, SL_ENOMEM, "no thread could be started to read the vocabulary");
    }
    return w;
}

static void join(struct sl_node_words *w)
{
    if (!w->joined)
        sl_thread_join(&w->thread);
    w->joined = true;
}

void sl_node_words_close(struct sl_node_words *w)
{
    if (!w)
        return;
    join(w);
    sl_token_bytes_free(w->bytes);
    sl_free(w);
}

enum sl_err sl_node_words_get(struct sl_node_words *w, const struct sl_token_bytes **out, struct sl_why *why)
{
    join(w);
    *out = w->bytes;
    return w->err == SL_OK ? SL_OK : sl_why_set(why, w->err, "%s", w->why.text);
}
