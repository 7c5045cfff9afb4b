/* common/model/model_digest.c - the digest of a model, and a memory for the part that takes long.
 *
 * Tensors are digested in chunks on all threads; the digest of a tensor is that of its chunks' digests. What
 * is remembered is the digest of all tensors only, under the id of the files (devices, inodes, sizes, times):
 * it depends on nothing but the files and DIGEST_VERSION, while numbers and vocabulary are cheap and are read
 * anew. */
#include "common/model/model_digest.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/cache_dir.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/parallel.h"

#define CHUNK_BYTES    ((size_t)4 << 20)
#define DIGEST_VERSION 2u /* raise when tensors_digest() makes other numbers */

struct digest_part {
    struct sl_digest128 digest;
    uint64_t a, b;
};

/* ---- tensors ---- */

struct chunk {
    const uint8_t *p;
    size_t n;
};

struct chunks {
    const struct sl_model_file *f;
    struct chunk *chunk;
    struct sl_digest128 *digest;
    size_t n;
};

static void chunk_digest(void *arg, size_t i)
{
    struct chunks *c = arg;
    c->digest[i] = sl_digest128(c->chunk[i].p, c->chunk[i].n, 0);
    sl_model_file_release(c->f, c->chunk[i].p, c->chunk[i].n);
}

static size_t n_chunks_of(const struct sl_model_tensor *t)
{
    return (t->bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
}

static struct chunks chunks_new(const struct sl_model_file *f)
{
    struct chunks c = {.f = f};
    for (size_t i = 0; i < sl_model_file_n_tensors(f); i++)
        c.n += n_chunks_of(sl_model_file_tensor_at(f, i));
    c.chunk = sl_xcalloc(c.n, sizeof *c.chunk);
    c.digest = sl_xcalloc(c.n, sizeof *c.digest);
    size_t at = 0;
    for (size_t i = 0; i < sl_model_file_n_tensors(f); i++) {
        const struct sl_model_tensor *t = sl_model_file_tensor_at(f, i);
        for (size_t done = 0; done < t->bytes; done += CHUNK_BYTES)
            c.chunk[at++] = (struct chunk){(const uint8_t *)t->view.data + done,
                                           t->bytes - done < CHUNK_BYTES ? t->bytes - done : CHUNK_BYTES};
    }
    return c;
}

static struct digest_part tensor_part(const struct sl_model_tensor *t, const struct sl_digest128 *chunks)
{
    uint64_t head[] = {sl_digest64(t->name, strlen(t->name), 0), t->view.type, t->view.n_rows, t->view.n_cols,
                       t->pair_heads};
    return (struct digest_part){sl_digest128(chunks, n_chunks_of(t) * sizeof *chunks, 0),
                                sl_digest64(head, sizeof head, 0), t->bytes};
}

static struct sl_digest128 tensors_digest(const struct sl_model_file *f, unsigned n_threads)
{
    struct chunks c = chunks_new(f);
    sl_parallel_run(n_threads, c.n, chunk_digest, &c);
    size_t n = sl_model_file_n_tensors(f), at = 0;
    struct digest_part *parts = sl_xcalloc(n, sizeof *parts);
    for (size_t i = 0; i < n; i++) {
        const struct sl_model_tensor *t = sl_model_file_tensor_at(f, i);
        parts[i] = tensor_part(t, c.digest + at);
        at += n_chunks_of(t);
    }
    struct sl_digest128 d = sl_digest128(parts, n * sizeof *parts, 0);
    sl_free(parts);
    sl_free(c.chunk);
    sl_free(c.digest);
    return d;
}

/* ---- the memory ---- */

struct record {
    struct sl_digest128 files, digest;
    uint64_t version;
};

static bool is_settled(const struct sl_model_file_id *id)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return id->newest_ns < (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - SL_DIGEST_SETTLED_NS;
}

static struct sl_digest128 tensors_digest_remembered(const struct sl_model_file *f, unsigned n_threads,
                                                     const char *cache_dir)
{
    struct record r = {.version = DIGEST_VERSION}, known;
    struct sl_model_file_id id;
    if (!cache_dir || !sl_model_file_id(f, &id) || !is_settled(&id))
        return tensors_digest(f, n_threads);
    r.files = id.digest;
    char name[32];
    snprintf(name, sizeof name, "%016" PRIx64 ".digest", id.digest.lo);
    if (sl_cache_get(cache_dir, name, &known, sizeof known) && known.version == r.version &&
        memcmp(&known.files, &r.files, sizeof r.files) == 0)
        return known.digest;
    r.digest = tensors_digest(f, n_threads);
    struct sl_why why = {{0}};
    if (sl_cache_put(cache_dir, name, &r, sizeof r, &why) != SL_OK)
        SL_WARN("the model's digest is not remembered: %s", why.text);
    return r.digest;
}

/* ---- all of it ---- */

static uint64_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static uint64_t attn_digest(const struct sl_attn_shape *a)
{
    const uint64_t numbers[] = {a->n_heads,     a->n_kv_heads,
                                a->head_dim,    a->rope_dim,
                                a->rope_layout, float_bits(a->rope_theta),
                                a->window,      float_bits(a->score_scale)};
    return sl_digest64(numbers, sizeof numbers, 0);
}

struct sl_digest128 sl_model_digest(const struct sl_model_file *f, const struct sl_model_conf *c,
                                    unsigned n_threads, const char *cache_dir)
{
    const uint64_t numbers[] = {sl_digest64(c->arch, strlen(c->arch), 0),
                                c->n_layers,
                                c->d_model,
                                c->d_ff,
                                c->n_vocab,
                                c->context_length,
                                attn_digest(&c->attn),
                                attn_digest(&c->attn_local),
                                c->global_every,
                                float_bits(c->embed_scale),
                                c->gated,
                                float_bits(c->rope_linear),
                                float_bits(c->rms_eps)};
    struct digest_part parts[] = {
        {.digest = sl_digest128(numbers, sizeof numbers, 0)},
        {.a = 0}, /* the vocabulary */
        {.digest = tensors_digest_remembered(f, n_threads, cache_dir)},
    };
    sl_model_file_vocab(f, &parts[1].a, &parts[1].digest);
    return sl_digest128(parts, sizeof parts, 0);
}
