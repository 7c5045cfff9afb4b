/* tests/sim/fake_model.c - see fake_model.h. */
#include "tests/sim/fake_model.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "common/base/mem.h"

struct sl_model {
    struct sl_model_conf conf;
    struct sl_kv_geometry geometry;
    uint32_t max_rows;
    uint64_t *out; /* [max_rows] what the logits of the last pass come from */
};
struct sl_kv {
    unsigned char *base;
    size_t bytes;
    struct sl_kv_geometry geometry;
    uint32_t n_pages;
};
struct sl_dev {
    int unused;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t released = PTHREAD_COND_INITIALIZER;
static bool held;
static uint32_t largest_rows;
static uint64_t all_rows;
static atomic_uint_fast32_t alphabet = FAKE_VOCAB;
static atomic_uint_fast64_t clock_us = 1000;

void fake_alphabet(uint32_t n)
{
    atomic_store(&alphabet, n);
}

uint64_t fake_clock_us(void)
{
    return atomic_load(&clock_us);
}

uint64_t fake_tick_us(void)
{
    return atomic_fetch_add(&clock_us, 1000) + 1000;
}

void fake_hold(void)
{
    pthread_mutex_lock(&lock);
    held = true;
    pthread_mutex_unlock(&lock);
}

void fake_release(void)
{
    pthread_mutex_lock(&lock);
    held = false;
    pthread_cond_broadcast(&released);
    pthread_mutex_unlock(&lock);
}

void fake_rows(uint32_t *largest, uint64_t *all)
{
    pthread_mutex_lock(&lock);
    *largest = largest_rows;
    *all = all_rows;
    largest_rows = 0;
    all_rows = 0;
    pthread_mutex_unlock(&lock);
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* From the token and three earlier positions. */
static uint64_t kv_of(int32_t token, uint32_t pos, uint64_t last, uint64_t half, uint64_t third)
{
    return mix(mix(mix(last + pos) + half) + third) + mix((uint64_t)token + 1);
}

void fake_kv(const int32_t *tokens, uint32_t n, uint64_t *kv)
{
    for (uint32_t i = 0; i < n; i++)
        kv[i] = kv_of(tokens[i], i, i ? kv[i - 1] : 0, i ? kv[i / 2] : 0, i ? kv[i / 3] : 0);
}

static void logits_of(uint64_t kv, float *logits)
{
    uint32_t n = (uint32_t)atomic_load(&alphabet);
    for (uint32_t i = 0; i < FAKE_VOCAB; i++)
        logits[i] = i < n ? (float)(mix(kv + i) >> 40) / 1048576.0F : -1;
}

int32_t fake_next_token(uint64_t kv)
{
    float logits[FAKE_VOCAB];
    logits_of(kv, logits);
    int32_t best = 0;
    for (uint32_t i = 1; i < FAKE_VOCAB; i++)
        if (logits[i] > logits[best])
            best = (int32_t)i;
    return best;
}

static struct sl_kv_geometry geometry_of(uint32_t page_tokens)
{
    return (struct sl_kv_geometry){
        .n_layers = 1, .n_kv_heads = 1, .page_tokens = page_tokens, .head_dim = 2, .dtype = SL_F32};
}

size_t fake_page_bytes(uint32_t page_tokens)
{
    struct sl_kv_geometry g = geometry_of(page_tokens);
    return sl_kv_page_bytes(&g);
}

uint64_t fake_page_get(const void *base, uint32_t page_tokens, uint32_t page, uint32_t slot)
{
    uint64_t kv;
    memcpy(&kv, (const char *)base + page * fake_page_bytes(page_tokens) + slot * sizeof kv, sizeof kv);
    return kv;
}

void fake_page_set(void *base, uint32_t page_tokens, uint32_t page, uint32_t slot, uint64_t kv)
{
    memcpy((char *)base + page * fake_page_bytes(page_tokens) + slot * sizeof kv, &kv, sizeof kv);
}

/* ---- backend ---- */

static enum sl_err dev_open(const struct sl_dev_conf *conf, struct sl_dev **out, struct sl_why *why)
{
    (void)conf;
    (void)why;
    *out = sl_xcalloc(1, sizeof **out);
    return SL_OK;
}

static void dev_close(struct sl_dev *d)
{
    sl_free(d);
}

static enum sl_err kv_open(struct sl_dev *d, const struct sl_kv_geometry *g, uint32_t n_pages,
                           struct sl_kv **out, struct sl_why *why)
{
    (void)d;
    (void)why;
    struct sl_kv *kv = sl_xcalloc(1, sizeof *kv);
    kv->geometry = *g;
    kv->n_pages = n_pages;
    kv->bytes = sl_kv_page_bytes(g) * n_pages;
    kv->base = sl_xcalloc(1, kv->bytes);
    *out = kv;
    return SL_OK;
}

static void kv_close(struct sl_dev *d, struct sl_kv *kv)
{
    (void)d;
    if (kv)
        sl_free(kv->base);
    sl_free(kv);
}

static void *kv_host_base(struct sl_kv *kv)
{
    return kv->base;
}

enum sl_err sl_backend_find(const char *name, const struct sl_backend_ops **out, struct sl_why *why)
{
    static const struct sl_backend_ops fake = {.name = "fake",
                                               .open = dev_open,
                                               .close = dev_close,
                                               .kv_open = kv_open,
                                               .kv_close = kv_close,
                                               .kv_host_base = kv_host_base};
    if (strcmp(name, "fake") != 0)
        return sl_why_set(why, SL_ENOTFOUND, "backend \"%s\" is not known; there is: fake", name);
    *out = &fake;
    return SL_OK;
}

/* ---- model ---- */

enum sl_err sl_model_open(const struct sl_model_open *o, struct sl_model **out, struct sl_why *why)
{
    (void)why;
    struct sl_model *m = sl_xcalloc(1, sizeof *m);
    m->geometry = geometry_of(o->page_tokens);
    m->max_rows = o->max_rows;
    m->out = sl_xcalloc(o->max_rows, sizeof *m->out);
    m->conf = (struct sl_model_conf){.arch = "fake",
                                     .n_layers = 1,
                                     .d_model = 8,
                                     .d_ff = 16,
                                     .n_vocab = FAKE_VOCAB,
                                     .context_length = FAKE_CONTEXT,
                                     .attn = {.n_heads = 2, .n_kv_heads = 1, .head_dim = 2, .rope_dim = 2},
                                     .digest = {.lo = 1, .hi = 2}};
    *out = m;
    return SL_OK;
}

void sl_model_close(struct sl_model *m)
{
    if (m)
        sl_free(m->out);
    sl_free(m);
}

const struct sl_model_times *sl_model_times(const struct sl_model *m)
{
    static const struct sl_model_times none;
    (void)m;
    return &none;
}

size_t sl_model_weight_bytes(const struct sl_model *m)
{
    (void)m;
    return 0;
}

void sl_model_save_packed(struct sl_model *m)
{
    (void)m;
}

const struct sl_model_conf *sl_model_conf(const struct sl_model *m)
{
    return &m->conf;
}

struct sl_kv_geometry sl_model_kv_geometry(const struct sl_model *m)
{
    return m->geometry;
}

enum sl_err sl_model_open_kv(struct sl_model *m, uint32_t n_pages, struct sl_kv **out, struct sl_why *why)
{
    return kv_open(NULL, &m->geometry, n_pages, out, why);
}

void sl_model_stall(struct sl_model *m)
{
    (void)m;
}

uint64_t sl_model_numerics_id(struct sl_model *m)
{
    (void)m;
    return 42;
}

static uint64_t at(const struct sl_kv *kv, const struct sl_batch_run *r, uint32_t pos)
{
    uint32_t pt = kv->geometry.page_tokens;
    SL_ASSERT(pos / pt < r->n_pages && r->pages[pos / pt] < kv->n_pages);
    return fake_page_get(kv->base, pt, r->pages[pos / pt], pos % pt);
}

void sl_model_forward(struct sl_model *m, struct sl_kv *kv, const struct sl_batch *b, float *logits,
                      atomic_uint_fast64_t *progress)
{
    pthread_mutex_lock(&lock);
    while (held)
        pthread_cond_wait(&released, &lock);
    largest_rows = b->n_rows > largest_rows ? b->n_rows : largest_rows;
    all_rows += b->n_rows;
    pthread_mutex_unlock(&lock);
    SL_ASSERT(b->n_rows > 0 && b->n_rows <= m->max_rows);
    uint32_t pt = kv->geometry.page_tokens, row = 0, out = 0;
    for (uint32_t i = 0; i < b->n_runs; i++) {
        const struct sl_batch_run *r = &b->runs[i];
        SL_ASSERT(r->first_row == row && r->n_rows > 0);
        for (uint32_t k = 0; k < r->n_rows; k++, row++) {
            uint32_t pos = r->first_pos + k;
            uint64_t v = kv_of(b->tokens[row], pos, pos ? at(kv, r, pos - 1) : 0,
                               pos ? at(kv, r, pos / 2) : 0, pos ? at(kv, r, pos / 3) : 0);
            fake_page_set(kv->base, pt, r->pages[pos / pt], pos % pt, v);
            if (out < b->n_out && b->out_rows[out] == row)
                m->out[out++] = v;
        }
    }
    SL_ASSERT(row == b->n_rows && out == b->n_out);
    atomic_fetch_add(progress, 1);
    if (logits)
        sl_model_logits(m, b, 0, b->n_out, logits);
}

float *sl_model_logits_on_device(struct sl_model *m, const struct sl_batch *b, uint32_t first, uint32_t n)
{
    (void)m, (void)b, (void)first, (void)n;
    return NULL; /* of devices that sample; this one does not */
}

void sl_model_logits(struct sl_model *m, const struct sl_batch *b, uint32_t first, uint32_t n, float *logits)
{
    SL_ASSERT(first + n <= b->n_out);
    for (uint32_t i = 0; i < n; i++)
        logits_of(m->out[first + i], &logits[(size_t)i * FAKE_VOCAB]);
}
