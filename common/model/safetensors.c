/* common/model/safetensors.c - maps a .safetensors file and checks its header.
 *
 * The header is JSON of bounded size and is read by the JSON library (which refuses keys given twice); the
 * JSON is dropped again once its tensors are copied out. Sorted by where they begin, each tensor must begin
 * where the one before ends and the last must end where the file does: that is the format's own rule, and it
 * makes overlaps, holes and truncated files one check.
 *
 * Invariant after open: data[0 .. bytes) of every tensor lies in the file. */
#include "common/model/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hashmap.h"
#include "common/base/mem.h"
#include "kernels/tensor.h"

#define LENGTH_BYTES 8 /* in front of the header */
#define DAMAGED      "the file is damaged or incomplete; download or save it again"

static const struct sl_safetensors_dtype dtypes[] = {
    {"BF16", 2, SL_BF16}, {"F16", 2, SL_F16}, {"F32", 4, SL_F32}, {"F64", 8, -1},
    {"I64", 8, -1},       {"U64", 8, -1},     {"I32", 4, -1},     {"U32", 4, -1},
    {"I16", 2, -1},       {"U16", 2, -1},     {"I8", 1, -1},      {"U8", 1, -1},
    {"BOOL", 1, -1},      {"F8_E4M3", 1, -1}, {"F8_E5M2", 1, -1}, {"F8_E8M0", 1, -1},
};

struct sl_safetensors {
    char *path;
    const uint8_t *base;
    size_t size;
    struct sl_file_map map; /* not open when the bytes are the caller's */
    struct sl_arena *names; /* NULL when the file has no tensors */
    struct sl_safetensor *tensors;
    size_t n;
    struct sl_hashmap *by_name;
};

struct reader {
    struct sl_safetensors *s;
    struct sl_why *why;
    const uint8_t *data; /* where offset 0 lies */
    size_t data_bytes;
};

static enum sl_err bad_tensor(const struct reader *r, const char *name, const char *what)
{
    char buf[SL_SHOWN_BYTES];
    return sl_why_set(r->why, SL_EPARSE, "%s: tensor %s %s; " DAMAGED, r->s->path,
                      sl_shown(buf, name, strlen(name)), what);
}

static enum sl_err read_dtype(const struct reader *r, const char *name, const json_t *info,
                              struct sl_safetensor *t)
{
    char buf[SL_SHOWN_BYTES], buf2[SL_SHOWN_BYTES];
    const char *dtype = json_string_value(json_object_get(info, "dtype"));
    if (dtype == NULL)
        return bad_tensor(r, name, "has no dtype");
    for (size_t i = 0; i < SL_COUNTOF(dtypes); i++) {
        if (strcmp(dtypes[i].name, dtype) == 0) {
            t->dtype = &dtypes[i];
            return SL_OK;
        }
    }
    return sl_why_set(r->why, SL_EUNSUPPORTED,
                      "%s: tensor %s has the type %s, which is not known; take a model in BF16, F16 or F32",
                      r->s->path, sl_shown(buf, name, strlen(name)), sl_shown(buf2, dtype, strlen(dtype)));
}

/* dims, and the bytes they make. */
static enum sl_err read_shape(const struct reader *r, const char *name, const json_t *info,
                              struct sl_safetensor *t)
{
    const json_t *shape = json_object_get(info, "shape");
    uint64_t bytes = t->dtype->bytes;
    if (!json_is_array(shape) || json_array_size(shape) > SL_SAFETENSORS_MAX_DIMS)
        return bad_tensor(r, name, "has no shape of at most 8 sides");
    t->n_dims = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < t->n_dims; i++) {
        const json_t *side = json_array_get(shape, i);
        if (!json_is_integer(side) || json_integer_value(side) < 0)
            return bad_tensor(r, name, "has a side that is no whole number of 0 or more");
        t->dims[i] = (uint64_t)json_integer_value(side);
        if (__builtin_mul_overflow(bytes, t->dims[i], &bytes))
            return bad_tensor(r, name, "is larger than any file");
    }
    t->bytes = (size_t)bytes;
    return SL_OK;
}

static enum sl_err read_place(const struct reader *r, const char *name, const json_t *info,
                              struct sl_safetensor *t)
{
    char buf[SL_SHOWN_BYTES];
    const json_t *offsets = json_object_get(info, "data_offsets"), *begin = json_array_get(offsets, 0),
                 *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return bad_tensor(r, name, "has no data_offsets [begin, end]");
    uint64_t from = (uint64_t)json_integer_value(begin), to = (uint64_t)json_integer_value(end);
    if (to > r->data_bytes)
        return sl_why_set(r->why, SL_EPARSE,
                          "%s: tensor %s ends at byte %llu of the data, which has %zu; " DAMAGED, r->s->path,
                          sl_shown(buf, name, strlen(name)), (unsigned long long)to, r->data_bytes);
    if (to - from != t->bytes)
        return sl_why_set(r->why, SL_EPARSE,
                          "%s: tensor %s has %llu bytes, its shape and type %s ask for %zu; " DAMAGED,
                          r->s->path, sl_shown(buf, name, strlen(name)), (unsigned long long)(to - from),
                          t->dtype->name, t->bytes);
    t->data = r->data + from;
    if ((uintptr_t)t->data % t->dtype->bytes != 0)
        return sl_why_set(r->why, SL_EUNSUPPORTED,
                          "%s: tensor %s begins at an address that is no multiple of %u; save the model "
                          "again with a current tool",
                          r->s->path, sl_shown(buf, name, strlen(name)), t->dtype->bytes);
    return SL_OK;
}

static enum sl_err read_tensor(const struct reader *r, const char *name, size_t name_bytes,
                               const json_t *info)
{
    struct sl_safetensor *t = &r->s->tensors[r->s->n];
    enum sl_err e;
    if (name_bytes == 0 || name_bytes > SL_SAFETENSORS_MAX_NAME_BYTES) {
        char buf[SL_SHOWN_BYTES];
        return sl_why_set(r->why, SL_ETOOBIG, "%s: tensor name %s has %zu bytes, expected 1 to %d; " DAMAGED,
                          r->s->path, sl_shown(buf, name, strlen(name)), name_bytes,
                          SL_SAFETENSORS_MAX_NAME_BYTES);
    }
    if (!json_is_object(info) || json_object_size(info) != 3)
        return bad_tensor(r, name, "is not described by dtype, shape and data_offsets");
    if ((e = read_dtype(r, name, info, t)) != SL_OK || (e = read_shape(r, name, info, t)) != SL_OK ||
        (e = read_place(r, name, info, t)) != SL_OK)
        return e;
    t->name = sl_arena_strndup(r->s->names, name, name_bytes);
    r->s->n++;
    return SL_OK;
}

/* Empty ones before those that begin at the same place. */
static int place_cmp(const void *a, const void *b)
{
    const struct sl_safetensor *x = a, *y = b;
    if (x->data != y->data)
        return (const uint8_t *)x->data < (const uint8_t *)y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static enum sl_err check_places(const struct reader *r)
{
    struct sl_safetensors *s = r->s;
    const uint8_t *at = r->data, *end = r->data + r->data_bytes;
    if (s->n > 0)
        qsort(s->tensors, s->n, sizeof *s->tensors, place_cmp);
    for (size_t i = 0; i < s->n; i++) {
        const struct sl_safetensor *t = &s->tensors[i];
        if (t->data != at)
            return bad_tensor(r, t->name, "does not begin where the one before ends");
        at += t->bytes;
    }
    if (at != end)
        return sl_why_set(r->why, SL_EPARSE, "%s: %zu bytes behind the last tensor; " DAMAGED, s->path,
                          (size_t)(end - at));
    return SL_OK;
}

static enum sl_err read_tensors(const struct reader *r, const json_t *header)
{
    struct sl_safetensors *s = r->s;
    size_t n = json_object_size(header);
    enum sl_err e = SL_OK;
    if (n > SL_SAFETENSORS_MAX_TENSORS)
        return sl_why_set(r->why, SL_ETOOBIG, "%s: %zu tensors, at most %d are allowed; " DAMAGED, s->path, n,
                          SL_SAFETENSORS_MAX_TENSORS);
    if (n > 0)
        s->names = sl_arena_new(n * (SL_SAFETENSORS_MAX_NAME_BYTES + 32));
    s->tensors = sl_xcalloc(n, sizeof *s->tensors);
    for (void *it = json_object_iter((json_t *)header); it && !e;
         it = json_object_iter_next((json_t *)header, it)) {
        const char *name = json_object_iter_key(it);
        if (strcmp(name, "__metadata__") != 0) /* words for people */
            e = read_tensor(r, name, json_object_iter_key_len(it), json_object_iter_value(it));
    }
    if (!e)
        e = check_places(r);
    s->by_name = sl_hashmap_new();
    for (size_t i = 0; i < s->n; i++)
        sl_hashmap_put(s->by_name, s->tensors[i].name, strlen(s->tensors[i].name), &s->tensors[i]);
    return e;
}

static uint64_t load_u64(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static enum sl_err parse(struct sl_safetensors *s, struct sl_why *why)
{
    json_error_t err;
    uint64_t n = s->size >= LENGTH_BYTES ? load_u64(s->base) : 0;
    if (n < 2 || s->size < LENGTH_BYTES + 1 || s->base[LENGTH_BYTES] != '{')
        return sl_why_set(why, SL_EPARSE,
                          "%s: not a safetensors file (it does not start with a length and a JSON header); "
                          "give a folder with a Hugging Face model",
                          s->path);
    if (n > s->size - LENGTH_BYTES)
        return sl_why_set(why, SL_EPARSE, "%s: the header says %llu bytes, %zu are there; " DAMAGED, s->path,
                          (unsigned long long)n, s->size - LENGTH_BYTES);
    if (n > SL_SAFETENSORS_MAX_HEADER_BYTES)
        return sl_why_set(why, SL_ETOOBIG, "%s: a header of %llu bytes, at most %u are allowed; " DAMAGED,
                          s->path, (unsigned long long)n, SL_SAFETENSORS_MAX_HEADER_BYTES);
    json_t *header =
        json_loadb((const char *)s->base + LENGTH_BYTES, (size_t)n, JSON_REJECT_DUPLICATES, &err);
    if (header == NULL) {
        char buf[SL_SHOWN_BYTES];
        return sl_why_set(why, SL_EPARSE, "%s: the header is no JSON object (%s at byte %d); " DAMAGED,
                          s->path, sl_shown(buf, err.text, strlen(err.text)), err.position);
    }
    struct reader r = {s, why, s->base + LENGTH_BYTES + n, s->size - LENGTH_BYTES - (size_t)n};
    enum sl_err e = read_tensors(&r, header);
    json_decref(header);
    return e;
}

enum sl_err sl_safetensors_open_memory(const void *bytes, size_t n, const char *name,
                                       struct sl_safetensors **out, struct sl_why *why)
{
    struct sl_safetensors *s = sl_xcalloc(1, sizeof *s);
    s->path = sl_xstrdup(name);
    s->base = bytes;
    s->size = n;
    enum sl_err e = parse(s, why);
    if (e) {
        sl_safetensors_close(s);
        return e;
    }
    *out = s;
    return SL_OK;
}

enum sl_err sl_safetensors_open(const char *path, struct sl_safetensors **out, struct sl_why *why)
{
    struct sl_file_map map;
    enum sl_err e = sl_file_map_open(path, &map, why);
    if (e)
        return e;
    e = sl_safetensors_open_memory(map.base, map.size, path, out, why);
    if (e)
        sl_file_map_close(&map);
    else
        (*out)->map = map;
    return e;
}

void sl_safetensors_close(struct sl_safetensors *s)
{
    if (!s)
        return;
    sl_hashmap_free(s->by_name);
    sl_free(s->tensors);
    sl_arena_free(s->names);
    sl_free(s->path);
    sl_file_map_close(&s->map);
    sl_free(s);
}

const struct sl_file_map *sl_safetensors_map(const struct sl_safetensors *s)
{
    return &s->map;
}

const char *sl_safetensors_path(const struct sl_safetensors *s)
{
    return s->path;
}

size_t sl_safetensors_n(const struct sl_safetensors *s)
{
    return s->n;
}

const struct sl_safetensor *sl_safetensors_at(const struct sl_safetensors *s, size_t i)
{
    return i < s->n ? &s->tensors[i] : NULL;
}

const struct sl_safetensor *sl_safetensors_find(const struct sl_safetensors *s, const char *name)
{
    return sl_hashmap_get(s->by_name, name, strlen(name));
}
