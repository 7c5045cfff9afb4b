/* common/base/gguf.c - maps a GGUF file, checks every byte that has a meaning, indexes keys and tensors.
 *
 * One pass with a cursor that can only move inside the file; a length is compared with the bytes left before
 * anything is allocated or skipped, so the work and the memory of a hostile file are bounded by its own size.
 * Keys are kept as pointers into the map and sorted once: lookups are binary searches, and equal neighbours
 * are the duplicates.
 *
 * Invariant after open: every struct kv has a value that was walked to its end inside the file, so the
 * getters and the array cursors need no further bounds checks. */
#include "common/base/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

#define DEFAULT_ALIGNMENT 32
#define MAX_ALIGNMENT     65536
#define DAMAGED           "the file is damaged or incomplete; download or convert it again"

struct kv {
    struct sl_gguf_str key;
    uint32_t type;
    const uint8_t *value; /* first byte of the value; for arrays the element type */
};

struct sl_gguf {
    char *path;
    const uint8_t *base;
    size_t size;
    struct sl_file_map map; /* not open when the bytes are the caller's */
    struct kv *kvs;         /* sorted by key */
    size_t n_kv;
    struct sl_gguf_tensor *tensors; /* file order */
    struct sl_gguf_tensor **by_name;
    size_t n_tensors;
    struct sl_arena *names;
};

struct cursor {
    const struct sl_gguf *g;
    const uint8_t *at, *end;
    struct sl_why *why;
};

static size_t element_bytes(uint32_t type)
{
    switch (type) {
    case SL_GGUF_U8:
    case SL_GGUF_I8:
    case SL_GGUF_BOOL:
        return 1;
    case SL_GGUF_U16:
    case SL_GGUF_I16:
        return 2;
    case SL_GGUF_U32:
    case SL_GGUF_I32:
    case SL_GGUF_F32:
        return 4;
    case SL_GGUF_U64:
    case SL_GGUF_I64:
    case SL_GGUF_F64:
        return 8;
    default:
        return 0;
    }
}

static uint32_t load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t load_u64(const uint8_t *p)
{
    return (uint64_t)load_u32(p) | (uint64_t)load_u32(p + 4) << 32;
}

static enum sl_err truncated(const struct cursor *c, const char *what, uint64_t need)
{
    return sl_why_set(
        c->why, SL_EPARSE, "%s: %s at byte %zu needs %llu bytes but the file ends %zu bytes later; " DAMAGED,
        c->g->path, what, (size_t)(c->at - c->g->base), (unsigned long long)need, (size_t)(c->end - c->at));
}

static enum sl_err take_u32(struct cursor *c, const char *what, uint32_t *out)
{
    if (c->end - c->at < 4)
        return truncated(c, what, 4);
    *out = load_u32(c->at);
    c->at += 4;
    return SL_OK;
}

static enum sl_err take_u64(struct cursor *c, const char *what, uint64_t *out)
{
    if (c->end - c->at < 8)
        return truncated(c, what, 8);
    *out = load_u64(c->at);
    c->at += 8;
    return SL_OK;
}

static enum sl_err take_str(struct cursor *c, const char *what, size_t max, struct sl_gguf_str *out)
{
    uint64_t n = 0;
    enum sl_err e = take_u64(c, what, &n);
    if (e)
        return e;
    if (n > (uint64_t)(c->end - c->at))
        return truncated(c, what, n);
    if (n > max)
        return sl_why_set(c->why, SL_ETOOBIG,
                          "%s: %s at byte %zu has %llu bytes, at most %zu are allowed; " DAMAGED, c->g->path,
                          what, (size_t)(c->at - c->g->base), (unsigned long long)n, max);
    *out = (struct sl_gguf_str){(const char *)c->at, (size_t)n};
    c->at += n;
    return SL_OK;
}

/* Walks over one value of the given type. depth counts the arrays around it. */
static enum sl_err skip_value(struct cursor *c, uint32_t type, unsigned depth)
{
    struct sl_gguf_str s;
    size_t bytes = element_bytes(type);
    if (bytes) {
        if ((size_t)(c->end - c->at) < bytes)
            return truncated(c, "a value", bytes);
        if (type == SL_GGUF_BOOL && *c->at > 1)
            return sl_why_set(c->why, SL_EPARSE, "%s: the bool at byte %zu is %u, expected 0 or 1; " DAMAGED,
                              c->g->path, (size_t)(c->at - c->g->base), *c->at);
        c->at += bytes;
        return SL_OK;
    }
    if (type == SL_GGUF_STRING)
        return take_str(c, "a string", SL_GGUF_MAX_STRING_BYTES, &s);
    if (type != SL_GGUF_ARRAY)
        return sl_why_set(c->why, SL_EPARSE, "%s: value type %u before byte %zu, expected 0 to 12; " DAMAGED,
                          c->g->path, type, (size_t)(c->at - c->g->base));
    if (depth >= SL_GGUF_MAX_ARRAY_DEPTH)
        return sl_why_set(c->why, SL_ETOOBIG, "%s: arrays are nested more than %d deep at byte %zu; " DAMAGED,
                          c->g->path, SL_GGUF_MAX_ARRAY_DEPTH, (size_t)(c->at - c->g->base));
    uint32_t element = 0;
    uint64_t n = 0;
    enum sl_err e = take_u32(c, "an array's element type", &element);
    if (!e)
        e = take_u64(c, "an array's length", &n);
    if (e)
        return e;
    bytes = element_bytes(element);
    if (bytes && element != SL_GGUF_BOOL) {
        if (n > (uint64_t)(c->end - c->at) / bytes)
            return truncated(c, "an array", n > UINT64_MAX / bytes ? UINT64_MAX : n * bytes);
        c->at += n * bytes;
        return SL_OK;
    }
    if (n == 0) /* the element type is still checked, so that no cursor meets an unknown one */
        return bytes || element == SL_GGUF_STRING || element == SL_GGUF_ARRAY
                   ? SL_OK
                   : skip_value(c, element, depth + 1);
    for (uint64_t i = 0; i < n; i++) { /* ends inside the file: every element takes at least one byte */
        e = skip_value(c, element, depth + 1);
        if (e)
            return e;
    }
    return SL_OK;
}

static int str_cmp(struct sl_gguf_str a, struct sl_gguf_str b)
{
    size_t n = a.n < b.n ? a.n : b.n;
    int d = n ? memcmp(a.p, b.p, n) : 0;
    return d ? d : (a.n > b.n) - (a.n < b.n);
}

static int kv_cmp(const void *a, const void *b)
{
    return str_cmp(((const struct kv *)a)->key, ((const struct kv *)b)->key);
}

static int tensor_cmp(const void *a, const void *b)
{
    return strcmp((*(struct sl_gguf_tensor *const *)a)->name, (*(struct sl_gguf_tensor *const *)b)->name);
}

static const struct kv *find(const struct sl_gguf *g, const char *key)
{
    struct kv want = {.key = {key, strlen(key)}};
    return g->n_kv ? bsearch(&want, g->kvs, g->n_kv, sizeof *g->kvs, kv_cmp) : NULL;
}

static enum sl_err read_kvs(struct sl_gguf *g, struct cursor *c, uint64_t n)
{
    const size_t least = 8 + 1 + 4 + 1; /* key length, key, type, value */
    if (n > SL_GGUF_MAX_KV)
        return sl_why_set(c->why, SL_ETOOBIG, "%s: %llu metadata keys, at most %d are allowed; " DAMAGED,
                          g->path, (unsigned long long)n, SL_GGUF_MAX_KV);
    if (n > (uint64_t)(c->end - c->at) / least)
        return truncated(c, "the metadata", n * least);
    if (n && !(g->kvs = sl_try_alloc((size_t)n * sizeof *g->kvs)))
        return sl_why_set(c->why, SL_ENOMEM, "%s: no memory for %llu metadata keys", g->path,
                          (unsigned long long)n);
    for (; g->n_kv < n; g->n_kv++) {
        struct kv *kv = &g->kvs[g->n_kv];
        enum sl_err e = take_str(c, "a metadata key", SL_GGUF_MAX_KEY_BYTES, &kv->key);
        if (!e)
            e = take_u32(c, "a value type", &kv->type);
        if (e)
            return e;
        kv->value = c->at;
        e = skip_value(c, kv->type, 0);
        if (e)
            return e;
    }
    if (n)
        qsort(g->kvs, (size_t)n, sizeof *g->kvs, kv_cmp);
    for (size_t i = 1; i < n; i++) {
        char buf[SL_SHOWN_BYTES];
        if (kv_cmp(&g->kvs[i - 1], &g->kvs[i]) == 0)
            return sl_why_set(c->why, SL_EPARSE,
                              "%s: metadata key %s is there twice, expected once; " DAMAGED, g->path,
                              sl_shown(buf, g->kvs[i].key.p, g->kvs[i].key.n));
    }
    return SL_OK;
}

/* Reads one tensor info; the offset becomes a pointer in place_tensors(). */
static enum sl_err read_tensor(struct sl_gguf *g, struct cursor *c, struct sl_gguf_tensor *t,
                               uint64_t *offset)
{
    struct sl_gguf_str name = {0};
    char buf[SL_SHOWN_BYTES];
    enum sl_err e = take_str(c, "a tensor name", SL_GGUF_MAX_NAME_BYTES, &name);
    if (!e)
        e = take_u32(c, "a tensor's number of dims", &t->n_dims);
    if (e)
        return e;
    if (name.n == 0 || memchr(name.p, 0, name.n))
        return sl_why_set(c->why, SL_EPARSE,
                          "%s: a tensor name before byte %zu is empty or has a zero byte; " DAMAGED, g->path,
                          (size_t)(c->at - g->base));
    if (!(t->name = sl_arena_strndup(g->names, name.p, name.n)))
        return sl_why_set(c->why, SL_ENOMEM, "%s: no memory for tensor names", g->path);
    if (t->n_dims < 1 || t->n_dims > SL_GGUF_MAX_DIMS)
        return sl_why_set(c->why, SL_EPARSE, "%s: tensor %s has %u dims, expected 1 to %d; " DAMAGED, g->path,
                          sl_shown(buf, name.p, name.n), t->n_dims, SL_GGUF_MAX_DIMS);
    uint64_t n_values = 1;
    for (uint32_t d = 0; d < SL_GGUF_MAX_DIMS; d++) {
        t->dims[d] = 1;
        if (d >= t->n_dims)
            continue;
        e = take_u64(c, "a tensor dim", &t->dims[d]);
        if (e)
            return e;
        if (t->dims[d] == 0 || __builtin_mul_overflow(n_values, t->dims[d], &n_values))
            return sl_why_set(c->why, SL_EPARSE,
                              "%s: dim %u of tensor %s is %llu: zero or far too big; " DAMAGED, g->path, d,
                              sl_shown(buf, name.p, name.n), (unsigned long long)t->dims[d]);
    }
    e = take_u32(c, "a tensor type", &t->type);
    if (!e)
        e = take_u64(c, "a tensor offset", offset);
    if (e)
        return e;
    const struct sl_ggml_type *type = sl_ggml_type_info(t->type);
    if (!type)
        return sl_why_set(
            c->why, SL_EUNSUPPORTED,
            "%s: tensor %s has type id %u, which is unknown; use a file with F32, F16, BF16, Q8_0, Q4_0 "
            "or Q4_1 tensors",
            g->path, sl_shown(buf, name.p, name.n), t->type);
    if (t->dims[0] % type->block_values)
        return sl_why_set(c->why, SL_EPARSE,
                          "%s: tensor %s has rows of %llu values, expected a multiple of %u for %s; " DAMAGED,
                          g->path, sl_shown(buf, name.p, name.n), (unsigned long long)t->dims[0],
                          type->block_values, type->name);
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(n_values / type->block_values, (uint64_t)type->block_bytes, &bytes) ||
        bytes > g->size)
        return sl_why_set(c->why, SL_EPARSE,
                          "%s: tensor %s is bigger than the whole file (%zu bytes); " DAMAGED, g->path,
                          sl_shown(buf, name.p, name.n), g->size);
    t->bytes = (size_t)bytes;
    return SL_OK;
}

/* With the size of the header known, turns offsets into pointers. */
static enum sl_err place_tensors(struct sl_gguf *g, struct cursor *c, const uint64_t *offsets)
{
    uint64_t align = DEFAULT_ALIGNMENT;
    enum sl_err e = sl_gguf_u64(g, "general.alignment", &align, c->why);
    if (e && e != SL_ENOTFOUND)
        return e;
    if (align < 8 || align > MAX_ALIGNMENT || (align & (align - 1)))
        return sl_why_set(c->why, SL_EPARSE,
                          "%s: general.alignment is %llu, expected a power of two from 8 to %d; " DAMAGED,
                          g->path, (unsigned long long)align, MAX_ALIGNMENT);
    if (g->n_tensors == 0)
        return SL_OK;
    uint64_t header = (uint64_t)(c->at - g->base);
    uint64_t start = (header + align - 1) & ~(align - 1);
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct sl_gguf_tensor *t = &g->tensors[i];
        if (offsets[i] % align)
            return sl_why_set(c->why, SL_EPARSE,
                              "%s: tensor %s starts at %llu, expected a multiple of %llu; " DAMAGED, g->path,
                              t->name, (unsigned long long)offsets[i], (unsigned long long)align);
        if (start > g->size || offsets[i] > g->size - start || t->bytes > g->size - start - offsets[i])
            return sl_why_set(
                c->why, SL_EPARSE,
                "%s: tensor %s (%zu bytes at %llu) reaches past the end of the file (%zu bytes); " DAMAGED,
                g->path, t->name, t->bytes, (unsigned long long)offsets[i], g->size);
        t->data = g->base + start + offsets[i];
    }
    return SL_OK;
}

static enum sl_err read_tensors(struct sl_gguf *g, struct cursor *c, uint64_t n)
{
    const size_t least = 8 + 1 + 4 + 8 + 4 + 8; /* name, n_dims, one dim, type, offset */
    if (n > SL_GGUF_MAX_TENSORS)
        return sl_why_set(c->why, SL_ETOOBIG, "%s: %llu tensors, at most %d are allowed; " DAMAGED, g->path,
                          (unsigned long long)n, SL_GGUF_MAX_TENSORS);
    if (n > (uint64_t)(c->end - c->at) / least)
        return truncated(c, "the tensor list", n * least);
    uint64_t *offsets = NULL;
    enum sl_err e = SL_OK;
    if (n) {
        offsets = sl_try_alloc((size_t)n * sizeof *offsets);
        g->tensors = sl_try_alloc((size_t)n * sizeof *g->tensors);
        g->by_name = sl_try_alloc((size_t)n * sizeof *g->by_name);
        g->names = sl_arena_new((size_t)n * (SL_GGUF_MAX_NAME_BYTES + 32));
        if (!offsets || !g->tensors || !g->by_name) {
            e = sl_why_set(c->why, SL_ENOMEM, "%s: no memory for %llu tensors", g->path,
                           (unsigned long long)n);
            goto free_offsets;
        }
    }
    for (; g->n_tensors < n; g->n_tensors++) {
        g->tensors[g->n_tensors] = (struct sl_gguf_tensor){0};
        e = read_tensor(g, c, &g->tensors[g->n_tensors], &offsets[g->n_tensors]);
        if (e)
            goto free_offsets;
        g->by_name[g->n_tensors] = &g->tensors[g->n_tensors];
    }
    if (n)
        qsort(g->by_name, (size_t)n, sizeof *g->by_name, tensor_cmp);
    for (size_t i = 1; i < n; i++)
        if (strcmp(g->by_name[i - 1]->name, g->by_name[i]->name) == 0) {
            e = sl_why_set(c->why, SL_EPARSE, "%s: tensor %s is there twice, expected once; " DAMAGED,
                           g->path, g->by_name[i]->name);
            goto free_offsets;
        }
    e = place_tensors(g, c, offsets);
free_offsets:
    sl_free(offsets);
    return e;
}

static enum sl_err parse(struct sl_gguf *g, struct sl_why *why)
{
    struct cursor c = {g, g->base, g->base + g->size, why};
    if (g->size < 4 || memcmp(g->base, "GGUF", 4) != 0)
        return sl_why_set(
            why, SL_EPARSE,
            "%s: not a GGUF file (it does not start with the letters GGUF); give the path of a .gguf file",
            g->path);
    c.at += 4;
    uint32_t version = 0;
    enum sl_err e = take_u32(&c, "the version", &version);
    if (e)
        return e;
    if ((version & 0xffff) == 0)
        return sl_why_set(why, SL_EUNSUPPORTED,
                          "%s: big-endian GGUF, expected little-endian; convert the model again", g->path);
    if (version != 2 && version != 3)
        return sl_why_set(
            why, SL_EUNSUPPORTED,
            "%s: GGUF version %u, supported are 2 and 3; convert the model again with a current tool",
            g->path, version);
    uint64_t n_tensors = 0, n_kv = 0;
    e = take_u64(&c, "the tensor count", &n_tensors);
    if (!e)
        e = take_u64(&c, "the metadata count", &n_kv);
    if (!e)
        e = read_kvs(g, &c, n_kv);
    if (!e)
        e = read_tensors(g, &c, n_tensors);
    return e;
}

enum sl_err sl_gguf_open_memory(const void *bytes, size_t n, const char *name, struct sl_gguf **out,
                                struct sl_why *why)
{
    struct sl_gguf *g = sl_xcalloc(1, sizeof *g);
    g->path = sl_xstrdup(name);
    g->base = bytes;
    g->size = n;
    enum sl_err e = parse(g, why);
    if (e) {
        sl_gguf_close(g);
        return e;
    }
    *out = g;
    return SL_OK;
}

bool sl_gguf_file_id(const struct sl_gguf *g, struct sl_file_id *out)
{
    if (g->map.base)
        *out = g->map.id;
    return g->map.base != NULL;
}

void sl_gguf_release(const struct sl_gguf *g, const void *p, size_t n)
{
    sl_file_map_release(&g->map, p, n);
}

enum sl_err sl_gguf_open(const char *path, struct sl_gguf **out, struct sl_why *why)
{
    struct sl_file_map map;
    enum sl_err e = sl_file_map_open(path, &map, why);
    if (e)
        return e;
    e = sl_gguf_open_memory(map.base, map.size, path, out, why);
    if (e)
        sl_file_map_close(&map);
    else
        (*out)->map = map;
    return e;
}

void sl_gguf_close(struct sl_gguf *g)
{
    if (!g)
        return;
    sl_arena_free(g->names);
    sl_free(g->by_name);
    sl_free(g->tensors);
    sl_free(g->kvs);
    sl_free(g->path);
    sl_file_map_close(&g->map);
    sl_free(g);
}

const char *sl_gguf_path(const struct sl_gguf *g)
{
    return g->path;
}

size_t sl_gguf_file_bytes(const struct sl_gguf *g)
{
    return g->size;
}

bool sl_gguf_has(const struct sl_gguf *g, const char *key)
{
    return find(g, key) != NULL;
}

static enum sl_err absent(const struct sl_gguf *g, const char *key, struct sl_why *why)
{
    return sl_why_set(why, SL_ENOTFOUND,
                      "%s: metadata key %s is missing; convert the model again with a current tool", g->path,
                      key);
}

static enum sl_err wrong(const struct sl_gguf *g, const char *key, const char *expected, struct sl_why *why)
{
    return sl_why_set(why, SL_EINVAL,
                      "%s: metadata key %s has a value of another kind or out of range, expected %s", g->path,
                      key, expected);
}

/* An integer value widened; sign tells how to read bits. False for other types. */
static bool load_int(uint32_t type, const uint8_t *p, uint64_t *bits, bool *negative)
{
    int64_t v;
    switch (type) {
    case SL_GGUF_U8:
    case SL_GGUF_BOOL:
        *bits = *p;
        break;
    case SL_GGUF_U16:
        *bits = (uint64_t)p[0] | (uint64_t)p[1] << 8;
        break;
    case SL_GGUF_U32:
        *bits = load_u32(p);
        break;
    case SL_GGUF_U64:
        *bits = load_u64(p);
        break;
    case SL_GGUF_I8:
    case SL_GGUF_I16:
    case SL_GGUF_I32:
    case SL_GGUF_I64:
        if (type == SL_GGUF_I8)
            v = (int8_t)*p;
        else if (type == SL_GGUF_I16)
            v = (int16_t)(uint16_t)(p[0] | p[1] << 8);
        else if (type == SL_GGUF_I32)
            v = (int32_t)load_u32(p);
        else
            v = (int64_t)load_u64(p);
        *bits = (uint64_t)v;
        *negative = v < 0;
        return true;
    default:
        return false;
    }
    *negative = false;
    return true;
}

static bool load_float(uint32_t type, const uint8_t *p, double *out)
{
    if (type == SL_GGUF_F32) {
        uint32_t bits = load_u32(p);
        float f;
        memcpy(&f, &bits, sizeof f);
        *out = f;
    } else if (type == SL_GGUF_F64) {
        uint64_t bits = load_u64(p);
        memcpy(out, &bits, sizeof *out);
    } else {
        return false;
    }
    return true;
}

enum sl_err sl_gguf_u64(const struct sl_gguf *g, const char *key, uint64_t *out, struct sl_why *why)
{
    const struct kv *kv = find(g, key);
    if (!kv)
        return absent(g, key, why);
    uint64_t bits = 0;
    bool negative = false;
    if (kv->type == SL_GGUF_BOOL || !load_int(kv->type, kv->value, &bits, &negative) || negative)
        return wrong(g, key, "a whole number of 0 or more", why);
    *out = bits;
    return SL_OK;
}

enum sl_err sl_gguf_u32(const struct sl_gguf *g, const char *key, uint32_t *out, struct sl_why *why)
{
    uint64_t v = 0;
    enum sl_err e = sl_gguf_u64(g, key, &v, why);
    if (e)
        return e;
    if (v > UINT32_MAX)
        return wrong(g, key, "a number below 2^32", why);
    *out = (uint32_t)v;
    return SL_OK;
}

enum sl_err sl_gguf_f32(const struct sl_gguf *g, const char *key, float *out, struct sl_why *why)
{
    const struct kv *kv = find(g, key);
    if (!kv)
        return absent(g, key, why);
    double v = 0;
    uint64_t bits = 0;
    bool negative = false;
    if (!load_float(kv->type, kv->value, &v)) {
        if (kv->type == SL_GGUF_BOOL || !load_int(kv->type, kv->value, &bits, &negative))
            return wrong(g, key, "a number", why);
        v = negative ? (double)(int64_t)bits : (double)bits;
    }
    /* also refuses NaN, and what would overflow a float */
    if (!(v >= -3.4028234663852886e38 && v <= 3.4028234663852886e38))
        return wrong(g, key, "a finite number", why);
    *out = (float)v;
    return SL_OK;
}

enum sl_err sl_gguf_bool(const struct sl_gguf *g, const char *key, bool *out, struct sl_why *why)
{
    const struct kv *kv = find(g, key);
    if (!kv)
        return absent(g, key, why);
    if (kv->type != SL_GGUF_BOOL)
        return wrong(g, key, "true or false", why);
    *out = *kv->value != 0;
    return SL_OK;
}

enum sl_err sl_gguf_str(const struct sl_gguf *g, const char *key, struct sl_gguf_str *out, struct sl_why *why)
{
    const struct kv *kv = find(g, key);
    if (!kv)
        return absent(g, key, why);
    if (kv->type != SL_GGUF_STRING)
        return wrong(g, key, "a string", why);
    *out = (struct sl_gguf_str){(const char *)kv->value + 8, (size_t)load_u64(kv->value)};
    return SL_OK;
}

enum sl_err sl_gguf_array(const struct sl_gguf *g, const char *key, struct sl_gguf_array *out,
                          struct sl_why *why)
{
    const struct kv *kv = find(g, key);
    if (!kv)
        return absent(g, key, why);
    if (kv->type != SL_GGUF_ARRAY)
        return wrong(g, key, "a list", why);
    *out = (struct sl_gguf_array){load_u32(kv->value), load_u64(kv->value + 4), kv->value + 12};
    return SL_OK;
}

bool sl_gguf_array_next_str(struct sl_gguf_array *a, struct sl_gguf_str *out)
{
    if (a->n == 0 || a->type != SL_GGUF_STRING)
        return false;
    *out = (struct sl_gguf_str){(const char *)a->at + 8, (size_t)load_u64(a->at)};
    a->at += 8 + out->n;
    a->n--;
    return true;
}

bool sl_gguf_array_next_i64(struct sl_gguf_array *a, int64_t *out)
{
    uint64_t bits = 0;
    bool negative = false;
    if (a->n == 0 || !load_int(a->type, a->at, &bits, &negative) || (!negative && bits > INT64_MAX))
        return false;
    *out = (int64_t)bits;
    a->at += element_bytes(a->type);
    a->n--;
    return true;
}

bool sl_gguf_array_next_f32(struct sl_gguf_array *a, float *out)
{
    double v = 0;
    if (a->n == 0 || !load_float(a->type, a->at, &v))
        return false;
    *out = (float)v;
    a->at += element_bytes(a->type);
    a->n--;
    return true;
}

size_t sl_gguf_n_tensors(const struct sl_gguf *g)
{
    return g->n_tensors;
}

const struct sl_gguf_tensor *sl_gguf_tensor_at(const struct sl_gguf *g, size_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const struct sl_gguf_tensor *sl_gguf_tensor_find(const struct sl_gguf *g, const char *name)
{
    size_t lo = 0, hi = g->n_tensors;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int d = strcmp(g->by_name[mid]->name, name);
        if (d == 0)
            return g->by_name[mid];
        if (d < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}
