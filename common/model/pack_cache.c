/* common/model/pack_cache.c - the file of packed matrices: format, reading, writing.
 *
 *     header | table: one record per matrix | numbers, each matrix at a multiple of ALIGN
 *
 * Numbers are read with pread into huge pages, in chunks, on all threads, each chunk digested while it is in
 * the caches: mapped pages would be small ones, and could be taken away. A matrix's digest is the digest of
 * its chunks' digests. Header and table are guarded by digests of their own, so whatever is damaged is seen
 * before it is believed; nothing is synced to the disk for the same reason. Native byte order: the folder is
 * one machine's. */
#include "common/model/pack_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/base/cache_dir.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/parallel.h"

#define FORMAT_VERSION 1u
#define SUFFIX         ".packed"
#define ALIGN          UINT64_C(4096)
#define CHUNK_BYTES    ((size_t)2 << 20) /* a huge page, so that no two threads touch the same */
#define MAX_RECORDS    16384u            /* far more matrices than 1024 layers have */

static const char magic[8] = "SLPACKED";
/* All kinds of files in the folder share the bound. */
static const char *const suffixes[] = {SUFFIX, ".digest", ".cost", NULL};

struct header {
    char magic[8];
    uint32_t version, n_records;
    uint64_t file_bytes, table_digest;
    char key[SL_PACK_KEY_MAX];
    uint64_t digest; /* of all before */
};

struct record {
    char name[SL_PACK_NAME_MAX];
    uint8_t head[SL_WEIGHT_HEAD_MAX];
    uint32_t head_bytes, unused;
    uint64_t offset, bytes, digest;
};

struct taken {
    const struct record *record;
    struct sl_weight_image image;
};

struct sl_pack_cache {
    int fd;
    char *path;
    struct header header;
    struct record *records;
    size_t next; /* record to look at first: they are asked for in their order */
    struct taken *taken;
    size_t n_taken;
};

void sl_pack_key_of(const struct sl_digest128 *model, const struct sl_backend_ops *ops,
                    uint32_t stack_version, struct sl_pack_key *out)
{
    memset(out, 0, sizeof *out);
    snprintf(out->text, sizeof out->text, "model=%016" PRIx64 "%016" PRIx64 " backend=%s pack=%u stack=%u",
             model->hi, model->lo, ops->name, ops->pack_version, stack_version);
}

static void file_name(const struct sl_pack_key *key, char name[40])
{
    snprintf(name, 40, "%016" PRIx64 SUFFIX, sl_digest64(key->text, sizeof key->text, FORMAT_VERSION));
}

static uint64_t aligned(uint64_t n)
{
    return (n + ALIGN - 1) & ~(ALIGN - 1);
}

static uint64_t table_bytes(size_t n_records)
{
    return n_records * sizeof(struct record);
}

static size_t n_chunks_of(const struct sl_weight_image *image)
{
    size_t n = 0;
    for (uint32_t i = 0; i < image->n_parts; i++)
        n += (image->parts[i].bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
    return n;
}

static uint64_t image_bytes(const struct sl_weight_image *image)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < image->n_parts; i++)
        n += image->parts[i].bytes;
    return n;
}

/* ---- reading ---- */

static bool read_at(int fd, void *to, size_t n, uint64_t offset)
{
    uint8_t *at = to;
    while (n > 0) {
        ssize_t got = pread(fd, at, n, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return true;
}

static void tell_damage(const struct sl_pack_cache *c, const char *what)
{
    SL_WARN("the packed weights in %s are damaged (%s); they are removed and packed again", c->path, what);
    unlink(c->path);
}

static bool record_is_sane(const struct record *r, uint64_t file_bytes)
{
    return memchr(r->name, 0, sizeof r->name) != NULL && r->head_bytes <= sizeof r->head &&
           r->offset % ALIGN == 0 && r->bytes > 0 && r->offset <= file_bytes &&
           r->bytes <= file_bytes - r->offset;
}

/* What is wrong with the file behind the header, or NULL. */
static const char *read_table(struct sl_pack_cache *c)
{
    const struct header *h = &c->header;
    struct stat st;
    if (fstat(c->fd, &st) != 0 || (uint64_t)st.st_size != h->file_bytes)
        return "not its size";
    if (h->n_records > MAX_RECORDS)
        return "its table";
    c->records = sl_xcalloc(h->n_records, sizeof *c->records);
    if (!read_at(c->fd, c->records, table_bytes(h->n_records), sizeof *h) ||
        sl_digest64(c->records, table_bytes(h->n_records), 0) != h->table_digest)
        return "its table";
    for (uint32_t i = 0; i < h->n_records; i++) {
        if (!record_is_sane(&c->records[i], h->file_bytes))
            return "its table";
    }
    c->taken = sl_xcalloc(h->n_records, sizeof *c->taken);
    return NULL;
}

struct sl_pack_cache *sl_pack_cache_open(const char *dir, const struct sl_pack_key *key)
{
    char name[40];
    file_name(key, name);
    struct sl_pack_cache *c = sl_xcalloc(1, sizeof *c);
    c->path = sl_xasprintf("%s/%s", dir, name);
    c->fd = open(c->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (c->fd < 0)
        goto none;
    const struct header *h = &c->header;
    if (!read_at(c->fd, &c->header, sizeof c->header, 0) || memcmp(h->magic, magic, sizeof magic) != 0 ||
        sl_digest64(h, offsetof(struct header, digest), 0) != h->digest) {
        tell_damage(c, "its header");
        goto none;
    }
    if (h->version != FORMAT_VERSION || memcmp(h->key, key->text, sizeof h->key) != 0)
        goto none; /* another's: it will be overwritten */
    const char *wrong = read_table(c);
    if (wrong) {
        tell_damage(c, wrong);
        goto none;
    }
    sl_cache_used(c->fd);
    return c;
none:
    sl_pack_cache_close(c);
    return NULL;
}

void sl_pack_cache_close(struct sl_pack_cache *c)
{
    if (!c)
        return;
    if (c->fd >= 0)
        close(c->fd);
    sl_free(c->path);
    sl_free(c->records);
    sl_free(c->taken);
    sl_free(c);
}

static const struct record *find(struct sl_pack_cache *c, const char *name)
{
    size_t n = c->header.n_records;
    for (size_t i = 0; i < n; i++) {
        size_t at = (c->next + i) % n;
        if (strcmp(c->records[at].name, name) == 0) {
            c->next = at + 1;
            return &c->records[at];
        }
    }
    return NULL;
}

enum sl_err sl_pack_cache_take(struct sl_pack_cache *c, const char *name, uint64_t n_rows, uint64_t n_cols,
                               const struct sl_backend_ops *ops, struct sl_dev *dev, struct sl_weight **out,
                               struct sl_why *why)
{
    const struct record *r = find(c, name);
    if (!r || c->n_taken == c->header.n_records)
        return sl_why_set(why, SL_ENOTFOUND, "there is no matrix %s", name);
    struct sl_weight *w;
    enum sl_err e = ops->weight_restore(dev, r->head, r->head_bytes, n_rows, n_cols, &w, why);
    if (e != SL_OK)
        return e;
    struct taken *t = &c->taken[c->n_taken];
    t->record = r;
    ops->weight_image(w, &t->image);
    if (image_bytes(&t->image) != r->bytes) {
        ops->weight_free(dev, w);
        return sl_why_set(why, SL_EINVAL, "matrix %s has %llu bytes; expected %llu", name,
                          (unsigned long long)r->bytes, (unsigned long long)image_bytes(&t->image));
    }
    c->n_taken++;
    *out = w;
    return SL_OK;
}

struct chunk {
    uint8_t *p;
    size_t n;
    uint64_t offset, digest;
    bool read;
};

struct reading {
    int fd;
    struct chunk *chunks;
};

static void read_chunk(void *arg, size_t i)
{
    struct reading *r = arg;
    struct chunk *k = &r->chunks[i];
    k->read = read_at(r->fd, k->p, k->n, k->offset);
    k->digest = k->read ? sl_digest64(k->p, k->n, 0) : 0;
}

/* Appends the chunks of an image that lies at offset; returns how many. */
static size_t chunks_of(const struct sl_weight_image *image, uint64_t offset, struct chunk *out)
{
    size_t n = 0;
    for (uint32_t p = 0; p < image->n_parts; p++) {
        for (size_t at = 0; at < image->parts[p].bytes; at += CHUNK_BYTES) {
            size_t left = image->parts[p].bytes - at;
            out[n] = (struct chunk){.p = (uint8_t *)image->parts[p].p + at,
                                    .n = left < CHUNK_BYTES ? left : CHUNK_BYTES,
                                    .offset = offset};
            offset += out[n++].n;
        }
    }
    return n;
}

static uint64_t digest_of(const struct chunk *chunks, size_t n)
{
    struct sl_digest64_stream *s = sl_digest64_new(0);
    for (size_t i = 0; i < n; i++)
        sl_digest64_update(s, &chunks[i].digest, sizeof chunks[i].digest);
    return sl_digest64_end(s);
}

bool sl_pack_cache_read(struct sl_pack_cache *c, unsigned n_threads)
{
    size_t n = 0, at = 0;
    for (size_t i = 0; i < c->n_taken; i++)
        n += n_chunks_of(&c->taken[i].image);
    struct reading r = {c->fd, sl_xcalloc(n, sizeof *r.chunks)};
    for (size_t i = 0; i < c->n_taken; i++)
        at += chunks_of(&c->taken[i].image, c->taken[i].record->offset, r.chunks + at);
    sl_parallel_run(n_threads, n, read_chunk, &r);
    const char *wrong = NULL;
    at = 0;
    for (size_t i = 0; i < c->n_taken && !wrong; i++) {
        size_t own = n_chunks_of(&c->taken[i].image);
        for (size_t k = at; k < at + own; k++)
            wrong = r.chunks[k].read ? wrong : "it cannot be read";
        if (!wrong && digest_of(r.chunks + at, own) != c->taken[i].record->digest)
            wrong = c->taken[i].record->name;
        at += own;
    }
    sl_free(r.chunks);
    if (wrong)
        tell_damage(c, wrong);
    return wrong == NULL;
}

/* ---- writing ---- */

static enum sl_err write_at(int fd, const void *from, size_t n, uint64_t offset, struct sl_why *why)
{
    const uint8_t *at = from;
    while (n > 0) {
        ssize_t put = pwrite(fd, at, n, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return sl_why_set(why, SL_EIO, "%zu bytes at %llu cannot be written: %s", n,
                              (unsigned long long)offset, put < 0 ? strerror(errno) : "no space");
        at += put;
        offset += (uint64_t)put;
        n -= (size_t)put;
    }
    return SL_OK;
}

/* Digests and writes the numbers of one matrix. */
static enum sl_err write_image(int fd, const struct sl_weight_image *image, const atomic_bool *stop,
                               struct record *r, struct sl_why *why)
{
    size_t n = n_chunks_of(image);
    struct chunk *chunks = sl_xcalloc(n, sizeof *chunks);
    enum sl_err e = SL_OK;
    chunks_of(image, r->offset, chunks);
    for (size_t i = 0; i < n && e == SL_OK; i++) {
        if (stop && atomic_load_explicit(stop, memory_order_relaxed))
            e = sl_why_set(why, SL_EAGAIN, "it was stopped");
        else
            e = write_at(fd, chunks[i].p, chunks[i].n, chunks[i].offset, why);
        chunks[i].digest = sl_digest64(chunks[i].p, chunks[i].n, 0);
    }
    r->digest = digest_of(chunks, n);
    sl_free(chunks);
    return e;
}

/* Fills records and header but for the digests; returns the size of the file. */
static uint64_t plan(const struct sl_pack_save *s, struct header *h, struct record *records)
{
    uint64_t at = aligned(sizeof *h + table_bytes(s->n_items));
    for (size_t i = 0; i < s->n_items; i++) {
        struct sl_weight_image image;
        s->ops->weight_image(s->items[i].weight, &image);
        struct record *r = &records[i];
        memcpy(r->name, s->items[i].name, sizeof r->name);
        memcpy(r->head, image.head, image.head_bytes);
        r->head_bytes = image.head_bytes;
        r->offset = at;
        r->bytes = image_bytes(&image);
        h->file_bytes = at + r->bytes;
        at = aligned(h->file_bytes);
    }
    memcpy(h->magic, magic, sizeof magic);
    h->version = FORMAT_VERSION;
    h->n_records = (uint32_t)s->n_items;
    memcpy(h->key, s->key.text, sizeof h->key);
    return h->file_bytes;
}

/* For n entries of so many bytes together. */
static enum sl_err make_room(const struct sl_pack_save *s, size_t n, uint64_t bytes, struct sl_why *why)
{
    if (bytes > s->max_bytes)
        return sl_why_set(why, SL_ETOOBIG, "%zu files need %llu MiB and the cache may have %llu MiB", n,
                          (unsigned long long)(bytes >> 20), (unsigned long long)(s->max_bytes >> 20));
    size_t removed = sl_cache_trim(s->dir, suffixes, s->max_bytes - bytes);
    if (removed > 0)
        SL_INFO("the longest unused files of the cache made room dir=%s files=%zu", s->dir, removed);
    struct statvfs fs;
    if (statvfs(s->dir, &fs) != 0)
        return SL_OK;
    uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (free_bytes < bytes || free_bytes - bytes < s->keep_free_bytes)
        return sl_why_set(why, SL_ETOOBIG,
                          "%zu files need %llu MiB, the disk has %llu MiB free and %llu MiB are to stay free",
                          n, (unsigned long long)(bytes >> 20), (unsigned long long)(free_bytes >> 20),
                          (unsigned long long)(s->keep_free_bytes >> 20));
    return SL_OK;
}

static enum sl_err write_all(const struct sl_pack_save *s, int fd, struct header *h, struct record *records,
                             const atomic_bool *stop, struct sl_why *why)
{
    enum sl_err e = SL_OK;
    for (size_t i = 0; i < s->n_items && e == SL_OK; i++) {
        struct sl_weight_image image;
        s->ops->weight_image(s->items[i].weight, &image);
        e = write_image(fd, &image, stop, &records[i], why);
    }
    if (e != SL_OK)
        return e;
    h->table_digest = sl_digest64(records, table_bytes(s->n_items), 0);
    h->digest = sl_digest64(h, offsetof(struct header, digest), 0);
    if ((e = write_at(fd, records, table_bytes(s->n_items), sizeof *h, why)) != SL_OK)
        return e;
    return write_at(fd, h, sizeof *h, 0, why);
}

struct entry {
    struct header header;
    struct record *records;
};

static enum sl_err save_entry(const struct sl_pack_save *s, struct entry *entry, const atomic_bool *stop,
                              struct sl_why *why)
{
    struct sl_cache_temp t;
    char name[40];
    enum sl_err e = sl_cache_temp_open(s->dir, &t, why);
    if (e != SL_OK)
        return e;
    e = write_all(s, t.fd, &entry->header, entry->records, stop, why);
    file_name(&s->key, name);
    struct sl_why end_why = {{0}};
    enum sl_err end = sl_cache_temp_end(&t, s->dir, name, e == SL_OK, &end_why);
    if (e == SL_OK && end != SL_OK) {
        e = end;
        if (why)
            *why = end_why;
    }
    return e;
}

enum sl_err sl_pack_cache_save(const struct sl_pack_save *s, size_t n, const atomic_bool *stop,
                               struct sl_why *why)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        if (s[i].n_items > MAX_RECORDS)
            return sl_why_set(why, SL_ETOOBIG, "they are %zu matrices; at most %u are kept", s[i].n_items,
                              MAX_RECORDS);
    enum sl_err e = sl_cache_dir_make(s->dir, why);
    if (e != SL_OK)
        return e;
    struct entry *entries = sl_xcalloc(n, sizeof *entries);
    for (size_t i = 0; i < n; i++) {
        entries[i].records = sl_xcalloc(s[i].n_items, sizeof *entries[i].records);
        bytes += plan(&s[i], &entries[i].header, entries[i].records);
    }
    e = make_room(s, n, bytes, why);
    for (size_t i = 0; i < n; i++) {
        if (e == SL_OK)
            e = save_entry(&s[i], &entries[i], stop, why);
        sl_free(entries[i].records);
    }
    sl_free(entries);
    return e;
}
