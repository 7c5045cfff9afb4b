/* common/model/model_file_gguf.c - a GGUF file behind the door of model_file.h: the words are its own. */
#include "common/base/mem.h"
#include "common/model/model_file_impl.h"

static bool get(const void *impl, const char *key, struct sl_model_value *out)
{
    const struct sl_gguf *g = impl;
    struct sl_model_value v = {.kind = SL_MODEL_VALUE_OTHER};
    float real;
    if (!sl_gguf_has(g, key))
        return false;
    if (sl_gguf_u64(g, key, &v.count, NULL) == SL_OK) {
        v.kind = SL_MODEL_VALUE_COUNT;
        v.real = (double)v.count;
    } else if (sl_gguf_f32(g, key, &real, NULL) == SL_OK) {
        v.kind = SL_MODEL_VALUE_REAL;
        v.real = (double)real;
    } else if (sl_gguf_str(g, key, &v.text, NULL) == SL_OK) {
        v.kind = SL_MODEL_VALUE_TEXT;
    }
    *out = v;
    return true;
}

static void close_gguf(void *impl)
{
    sl_gguf_close(impl);
}

static void release(const void *impl, const void *p, size_t n)
{
    sl_gguf_release(impl, p, n);
}

static struct sl_model_file_id id_of(const struct sl_gguf *g)
{
    struct sl_file_id id;
    if (!sl_gguf_file_id(g, &id))
        return (struct sl_model_file_id){0};
    return (struct sl_model_file_id){sl_digest128(&id, sizeof id, 0), sl_file_id_newest_ns(&id)};
}

struct vocab_part {
    struct sl_digest128 digest;
    uint64_t n, type;
};

/* The bytes of an array of the vocabulary, as they lie in the file. */
static struct vocab_part array_part(const struct sl_gguf *g, const char *key)
{
    struct vocab_part part = {{0, 0}, 0, 0};
    struct sl_gguf_array start, end;
    if (sl_gguf_array(g, key, &start, NULL) != SL_OK)
        return part;
    end = start;
    struct sl_gguf_str s;
    int64_t v;
    float f;
    while (sl_gguf_array_next_str(&end, &s) || sl_gguf_array_next_i64(&end, &v) ||
           sl_gguf_array_next_f32(&end, &f))
        ;
    part.digest = sl_digest128(start.at, (size_t)(end.at - start.at), 0);
    part.n = start.n;
    part.type = start.type;
    return part;
}

struct sl_model_file *sl_model_file_of_gguf(struct sl_gguf *g)
{
    size_t n = sl_gguf_n_tensors(g);
    struct sl_model_tensor *tensors = sl_xcalloc(n, sizeof *tensors);
    for (size_t i = 0; i < n; i++) {
        const struct sl_gguf_tensor *t = sl_gguf_tensor_at(g, i);
        tensors[i] = (struct sl_model_tensor){
            .name = t->name,
            .view = {(enum sl_dtype)t->type, t->dims[1] * t->dims[2] * t->dims[3], t->dims[0], t->data},
            .bytes = t->bytes};
    }
    struct sl_model_file *f = sl_model_file_new(g, sl_gguf_path(g), tensors, n);
    f->get = get;
    f->close = close_gguf;
    f->release = release;
    f->id = id_of(g);
    struct vocab_part parts[] = {
        array_part(g, "tokenizer.ggml.tokens"), array_part(g, "tokenizer.ggml.token_type"),
        array_part(g, "tokenizer.ggml.scores"), array_part(g, "tokenizer.ggml.merges")};
    f->n_tokens = parts[0].n;
    f->vocab_digest = sl_digest128(parts, sizeof parts, 0);
    return f;
}
