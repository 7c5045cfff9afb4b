/* common/model/model_file.c - answers common to every kind of model file: typed values, tensors by name. */
#include "common/model/model_file.h"

#include "common/base/mem.h"
#include "common/model/model_file_impl.h"
#include <string.h>
#include <sys/stat.h>

struct sl_model_file *sl_model_file_new(void *impl, const char *path, struct sl_model_tensor *tensors,
                                        size_t n_tensors)
{
    struct sl_model_file *f = sl_xcalloc(1, sizeof *f);
    f->impl = impl;
    f->path = sl_xstrdup(path);
    f->tensors = tensors;
    f->n_tensors = n_tensors;
    f->by_name = sl_hashmap_new();
    for (size_t i = 0; i < n_tensors; i++)
        sl_hashmap_put(f->by_name, tensors[i].name, strlen(tensors[i].name), &tensors[i]);
    return f;
}

enum sl_err sl_model_file_open(const char *path, struct sl_model_file **out, struct sl_why *why)
{
    struct sl_gguf *g;
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return sl_model_file_open_folder(path, out, why);
    enum sl_err e = sl_gguf_open(path, &g, why);
    if (e == SL_OK)
        *out = sl_model_file_of_gguf(g);
    return e;
}

void sl_model_file_close(struct sl_model_file *f)
{
    if (f == NULL)
        return;
    sl_hashmap_free(f->by_name);
    sl_free(f->tensors);
    sl_free(f->path);
    f->close(f->impl);
    sl_free(f);
}

const char *sl_model_file_path(const struct sl_model_file *f)
{
    return f->path;
}

bool sl_model_file_id(const struct sl_model_file *f, struct sl_model_file_id *out)
{
    *out = f->id;
    return f->id.newest_ns != 0;
}

void sl_model_file_release(const struct sl_model_file *f, const void *p, size_t n)
{
    if (f->release)
        f->release(f->impl, p, n);
}

bool sl_model_file_has(const struct sl_model_file *f, const char *key)
{
    struct sl_model_value v;
    return f->get(f->impl, key, &v);
}

enum sl_err sl_model_file_u32(const struct sl_model_file *f, const char *key, uint32_t *out)
{
    struct sl_model_value v;
    if (!f->get(f->impl, key, &v))
        return SL_ENOTFOUND;
    if (v.kind != SL_MODEL_VALUE_COUNT || v.count > UINT32_MAX)
        return SL_EINVAL;
    *out = (uint32_t)v.count;
    return SL_OK;
}

enum sl_err sl_model_file_f32(const struct sl_model_file *f, const char *key, float *out)
{
    struct sl_model_value v;
    if (!f->get(f->impl, key, &v))
        return SL_ENOTFOUND;
    if (v.kind != SL_MODEL_VALUE_COUNT && v.kind != SL_MODEL_VALUE_REAL)
        return SL_EINVAL;
    *out = (float)v.real;
    return SL_OK;
}

enum sl_err sl_model_file_str(const struct sl_model_file *f, const char *key, struct sl_gguf_str *out)
{
    struct sl_model_value v;
    if (!f->get(f->impl, key, &v))
        return SL_ENOTFOUND;
    if (v.kind != SL_MODEL_VALUE_TEXT)
        return SL_EINVAL;
    *out = v.text;
    return SL_OK;
}

size_t sl_model_file_n_tensors(const struct sl_model_file *f)
{
    return f->n_tensors;
}

const struct sl_model_tensor *sl_model_file_tensor_at(const struct sl_model_file *f, size_t i)
{
    return i < f->n_tensors ? &f->tensors[i] : NULL;
}

const struct sl_model_tensor *sl_model_file_tensor_find(const struct sl_model_file *f, const char *name)
{
    return sl_hashmap_get(f->by_name, name, strlen(name));
}

void sl_model_tensor_to_pairs(const struct sl_model_tensor *t, void *out)
{
    bool vector = t->view.n_rows == 1;
    uint64_t n_rows = vector ? t->view.n_cols : t->view.n_rows, dim = n_rows / t->pair_heads;
    size_t row = t->bytes / n_rows;
    const uint8_t *from = t->view.data;
    uint8_t *to = out;
    SL_ASSERT(dim * t->pair_heads == n_rows && dim % 2 == 0);
    for (uint64_t head = 0; head < n_rows; head += dim)
        for (uint64_t i = 0; i < dim; i++, to += row)
            memcpy(to, from + (head + i % 2 * (dim / 2) + i / 2) * row, row);
}

void sl_model_file_vocab(const struct sl_model_file *f, uint64_t *n_tokens, struct sl_digest128 *digest)
{
    *n_tokens = f->n_tokens;
    *digest = f->vocab_digest;
}
