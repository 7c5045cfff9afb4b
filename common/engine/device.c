/* common/engine/device.c - the device thread: opens backend, model and KV memory, then runs steps (steps 6
 * and 9 of the request path).
 *
 * It is worker 0 of the compute pool and, with tensor parallelism, rank 0: the other ranks are threads of the
 * model. Work is handed over under a mutex; while a step runs, the step and the sequences in it are the device's
 * to read and the engine thread keeps its hands off (sl_seq.in_step). The results are published by clearing
 * `busy` and then raising the eventfd. */
#include "common/engine/engine_impl.h"

#include <errno.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/memory_info.h"
#include "common/base/thread.h"
#include "common/model/share.h"
#include "kernels/rank_group.h"

/* Of logits at a time; a head's matrix is read once per group of rows, which costs little beside that. */
#define LOGITS_BYTES   (32u << 20)
#define LOGIT_ROWS_MIN 16u
/* A paced node further behind than that stood still: it does not make up for it. */
#define PACE_LATE_US 2000000u

struct sl_device {
    const struct sl_engine_conf *conf; /* until opened */
    uint64_t (*clock_us)(void);
    uint32_t max_rows, max_outs, steps_to_wedge;
    int fd;
    struct sl_thread thread;
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    struct sl_step *step; /* under lock: to run */
    bool quit;            /* under lock */
    atomic_bool busy;
    atomic_uint_fast64_t progress;

    /* the device thread's */
    const struct sl_backend_ops *ops;
    struct sl_dev *dev;
    uint32_t n_ranks;
    struct sl_rank_group *group; /* NULL = the model's own, or one rank */
    struct sl_model *model;
    struct sl_kv *kv;
    struct sl_samplers *samplers;
    uint64_t pace_due_us; /* when the last paced step was over on the other machine */
    float *logits;        /* [logit_rows, n_vocab] */
    uint32_t logit_rows;
    size_t logits_bytes;

    /* written before open returns */
    enum sl_err open_err;
    struct sl_why why;
    uint32_t n_pages;
    uint64_t numerics_id;
    struct sl_cost_model cost, pace; /* pace: no points = none */
    double cost_doubt;               /* relative */
    char *cache_dir;                 /* NULL = no cache */
    struct sl_cost_key cost_key;
    struct sl_engine_memory memory;
};

static enum sl_err open_kv(struct sl_device *d)
{
    struct sl_kv_geometry g = sl_model_kv_geometry(d->model);
    size_t page_bytes = sl_kv_page_bytes(&g);
    uint64_t n = d->conf->kv_memory_bytes / page_bytes;
    if (n == 0)
        return sl_why_set(
            &d->why, SL_ETOOBIG,
            "kv_memory of %llu bytes holds no KV page of %zu bytes (%u tokens); set at least that",
            (unsigned long long)d->conf->kv_memory_bytes, page_bytes, g.page_tokens);
    if (n > INT32_MAX)
        n = INT32_MAX;
    d->n_pages = (uint32_t)n;
    return sl_model_open_kv(d->model, d->n_pages, &d->kv, &d->why);
}

static void profile(struct sl_device *d)
{
    const struct sl_model_conf *m = sl_model_conf(d->model);
    sl_profile_guess(m, &d->cost);
    d->cost_doubt = SL_COST_DOUBT_GUESSED;
    if (d->pace.n_points) {
        d->cost = d->pace;
        d->cost_doubt = SL_COST_DOUBT_MEASURED;
        return;
    }
    if (d->conf->skip_profile)
        return;
    d->cache_dir = d->conf->cache_dir ? sl_xstrdup(d->conf->cache_dir) : NULL;
    d->cost_key = (struct sl_cost_key){.model = m->digest,
                                       .backend = d->ops->name,
                                       .n_threads = d->conf->n_threads,
                                       .tensor_parallel = d->n_ranks,
                                       .max_rows = d->max_rows,
                                       .kv_dtype = d->conf->kv_dtype,
                                       .no_graphs = d->conf->no_graphs};
    struct sl_profile_target t = {
        .model = d->model,
        .kv = d->kv,
        .samplers = d->samplers,
        .logits = d->logits,
        .n_pages = d->n_pages,
        .page_tokens = d->conf->page_tokens,
        .max_rows = d->max_rows,
        .max_out = d->logit_rows,
        .progress = &d->progress,
    };
    d->cost_doubt = SL_COST_DOUBT_MEASURED;
    if (sl_cost_cache_get(d->cache_dir, &d->cost_key, &d->cost) && sl_profile_fits(&t, &d->cost)) {
        SL_INFO("cost model kept from a former start ms_1=%.3f error=%.2f", d->cost.ms[0], d->cost.error);
        return;
    }
    sl_profile_run(&t, &d->cost);
    sl_device_keep_cost(d, &d->cost);
}

static void tell_times(const struct sl_device *d, uint64_t start, double kv_ms, double numerics_ms,
                       double profile_ms)
{
    const struct sl_model_times *t = sl_model_times(d->model);
    SL_INFO("engine is open ms=%.0f file_ms=%.0f digest_ms=%.0f weights_ms=%.0f weights_from=%s "
            "buffers_ms=%.0f kv_ms=%.0f numerics_ms=%.0f profile_ms=%.0f",
            sl_lap_ms(&start), t->file_ms, t->digest_ms, t->weights_ms, t->from_cache ? "cache" : "file",
            t->buffers_ms, kv_ms, numerics_ms, profile_ms);
}

/* Rows whose logits are there together: as many as LOGITS_BYTES hold, and enough to keep threads busy. */
static uint32_t logit_rows(uint32_t n_vocab, uint32_t max_outs)
{
    uint32_t n = (uint32_t)(LOGITS_BYTES / (n_vocab * sizeof(float)));
    n = n > LOGIT_ROWS_MIN ? n : LOGIT_ROWS_MIN;
    return n < max_outs ? n : max_outs;
}

static void count_memory(struct sl_device *d, size_t before)
{
    struct sl_kv_geometry g = sl_model_kv_geometry(d->model);
    struct sl_engine_memory *m = &d->memory;
    m->weights = sl_model_weight_bytes(d->model);
    m->kv = sl_kv_page_bytes(&g) * d->n_pages;
    uint64_t all = sl_huge_total() - before;
    m->scratch = all > m->weights + m->kv ? all - m->weights - m->kv : 0;
    SL_INFO("memory of the engine mb=%llu weights_mb=%llu kv_mb=%llu scratch_mb=%llu resident_mb=%llu",
            (unsigned long long)(all / 1000000), (unsigned long long)(m->weights / 1000000),
            (unsigned long long)(m->kv / 1000000), (unsigned long long)(m->scratch / 1000000),
            (unsigned long long)(sl_memory_resident() / 1000000));
}

/* Ranks whose memory is not the host's are joined by what the engine's owner has for it. */
static enum sl_err join_ranks(struct sl_device *d)
{
    const struct sl_engine_conf *c = d->conf;
    if (d->n_ranks == 1 || d->ops->host_memory || !c->open_group)
        return SL_OK;
    return c->open_group(c->device, d->n_ranks, &d->group, &d->why);
}

static enum sl_err open_all(struct sl_device *d)
{
    size_t memory_before = sl_huge_total();
    const struct sl_engine_conf *c = d->conf;
    uint64_t start = sl_now_ns(), at = start;
    enum sl_err err = sl_backend_find(c->backend ? c->backend : "auto", &d->ops, &d->why);
    if (err != SL_OK)
        return err;
    const struct sl_share first = {0, d->n_ranks};
    if ((err = sl_share_check_devices(d->ops, c->device, d->n_ranks, &d->why)) != SL_OK ||
        (err = join_ranks(d)) != SL_OK)
        return err;
    const struct sl_dev_conf node = {.n_threads = c->n_threads,
                                     .device = c->device,
                                     .no_graphs = c->no_graphs,
                                     .cpus = c->cpus,
                                     .n_cpus = c->n_cpus,
                                     .max_rows = d->max_rows < SL_MODEL_SLICE_ROWS ? d->max_rows
                                                                                   : SL_MODEL_SLICE_ROWS},
                             own = sl_share_dev(&first, &node);
    if ((err = d->ops->open(&own, &d->dev, &d->why)) != SL_OK)
        return err;
    struct sl_model_open mo = {.path = c->model_path,
                               .ops = d->ops,
                               .dev = d->dev,
                               .tensor_parallel = d->n_ranks,
                               .node = &node,
                               .group = d->group,
                               .kv_dtype = c->kv_dtype,
                               .page_tokens = c->page_tokens,
                               .max_rows = d->max_rows,
                               .n_threads = c->n_threads,
                               .cache_dir = c->cache_dir,
                               .other_bytes = c->kv_memory_bytes,
                               .available_bytes = sl_memory_available(),
                               .progress = c->progress,
                               .progress_arg = c->progress_arg};
    if ((err = sl_model_open(&mo, &d->model, &d->why)) != SL_OK)
        return err;
    sl_lap_ms(&at);
    if ((err = open_kv(d)) != SL_OK)
        return err;
    double kv_ms = sl_lap_ms(&at);
    const struct sl_model_conf *m = sl_model_conf(d->model);
    d->samplers = sl_samplers_new(d->ops, d->dev, own.n_threads, m->n_vocab);
    d->logit_rows = logit_rows(m->n_vocab, d->max_outs);
    d->logits_bytes = (size_t)d->logit_rows * m->n_vocab * sizeof *d->logits;
    d->logits = sl_huge_alloc(d->logits_bytes, false);
    if (!d->logits)
        return sl_why_set(&d->why, SL_ENOMEM, "no memory for the logits of %u rows (%zu bytes)",
                          d->logit_rows, d->logits_bytes);
    d->numerics_id = sl_model_numerics_id(d->model);
    double numerics_ms = sl_lap_ms(&at);
    profile(d);
    tell_times(d, start, kv_ms, numerics_ms, sl_lap_ms(&at));
    count_memory(d, memory_before);
    sl_model_save_packed(d->model);
    return SL_OK;
}

static void close_all(struct sl_device *d)
{
    sl_huge_free(d->logits, d->logits_bytes);
    sl_samplers_free(d->samplers);
    if (d->kv)
        d->ops->kv_close(d->dev, d->kv);
    sl_model_close(d->model);
    if (d->group)
        d->group->close(d->group);
    if (d->dev)
        d->ops->close(d->dev);
}

uint64_t sl_pace_start_us(uint64_t due_us, uint64_t ready_us, uint64_t now_us)
{
    uint64_t start_us = due_us > ready_us ? due_us : ready_us;
    return start_us < now_us && now_us - start_us < PACE_LATE_US ? start_us : now_us;
}

/* Another machine's step, which began at began_us: sleeps until it would be over there. That this thread then wakes
 * late is no part of it. Returns how long it took. */
static uint64_t keep_pace(struct sl_device *d, const struct sl_step *st, uint64_t began_us)
{
    uint64_t pace_us = (uint64_t)(1e3 * sl_cost_predict_ms(&d->pace, &st->load)), now = d->clock_us();
    d->pace_due_us = sl_pace_start_us(d->pace_due_us, st->ready_us, began_us) + pace_us;
    if (now >= d->pace_due_us)
        return now - began_us > pace_us ? now - began_us : pace_us;
    uint64_t left_us = d->pace_due_us - now;
    struct timespec t = {.tv_sec = (time_t)(left_us / 1000000), .tv_nsec = (long)(left_us % 1000000 * 1000)};
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
    return pace_us;
}

static void run(struct sl_device *d, struct sl_step *st)
{
    uint64_t began = d->clock_us();
    if (d->steps_to_wedge && --d->steps_to_wedge == 0)
        sl_model_stall(d->model);
    sl_alloc_guard_on("step");
    sl_model_forward(d->model, d->kv, &st->batch, NULL, &d->progress);
    for (uint32_t first = 0; first < st->batch.n_out; first += d->logit_rows) {
        uint32_t left = st->batch.n_out - first, n = left < d->logit_rows ? left : d->logit_rows;
        sl_sample_pass(d->samplers, d->model, &st->batch, first, d->logits, st->samples + first, n,
                       st->sampled + first);
    }
    sl_alloc_guard_off();
    uint64_t took_us = d->pace.n_points ? keep_pace(d, st, began) : d->clock_us() - began;
    st->actual_ms = (double)took_us / 1e3;
}

static void set_idle(struct sl_device *d)
{
    pthread_mutex_lock(&d->lock);
    atomic_store_explicit(&d->busy, false, memory_order_release);
    pthread_cond_broadcast(&d->idle);
    pthread_mutex_unlock(&d->lock);
}

static void thread_main(void *arg)
{
    struct sl_device *d = arg;
    d->open_err = open_all(d);
    set_idle(d);
    for (;;) {
        pthread_mutex_lock(&d->lock);
        while (!d->step && !d->quit)
            pthread_cond_wait(&d->wake, &d->lock);
        struct sl_step *st = d->step;
        d->step = NULL;
        pthread_mutex_unlock(&d->lock);
        if (!st)
            break;
        run(d, st);
        set_idle(d);
        (void)eventfd_write(d->fd, 1);
    }
    close_all(d);
}

enum sl_err sl_device_open(const struct sl_engine_conf *conf, uint32_t max_rows, uint32_t max_outs, int fd,
                           struct sl_device **out, struct sl_why *why)
{
    struct sl_device *d = sl_xcalloc(1, sizeof *d);
    d->conf = conf;
    d->clock_us = conf->clock_us;
    d->max_rows = max_rows;
    d->max_outs = max_outs;
    d->n_ranks = conf->tensor_parallel > 1 ? conf->tensor_parallel : 1;
    d->steps_to_wedge = conf->fault_wedge_step;
    if (conf->pace)
        d->pace = *conf->pace;
    d->fd = fd;
    atomic_init(&d->busy, true);
    atomic_init(&d->progress, 0);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->wake, NULL);
    pthread_cond_init(&d->idle, NULL);
    enum sl_err err = sl_thread_start(&d->thread, "sl-device", thread_main, d);
    if (err != SL_OK) {
        sl_why_set(why, err, "cannot start the device thread: %s", sl_err_name(err));
        sl_device_close(d);
        return err;
    }
    sl_device_wait(d);
    d->conf = NULL;
    err = d->open_err;
    if (err != SL_OK) {
        if (why)
            *why = d->why;
        sl_device_close(d);
        return err;
    }
    *out = d;
    return SL_OK;
}

void sl_device_close(struct sl_device *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->quit = true;
    pthread_cond_signal(&d->wake);
    pthread_mutex_unlock(&d->lock);
    sl_thread_join(&d->thread);
    pthread_cond_destroy(&d->idle);
    pthread_cond_destroy(&d->wake);
    pthread_mutex_destroy(&d->lock);
    sl_free(d->cache_dir);
    sl_free(d);
}

void sl_device_start(struct sl_device *d, struct sl_step *step)
{
    pthread_mutex_lock(&d->lock);
    SL_ASSERT(!atomic_load_explicit(&d->busy, memory_order_relaxed));
    atomic_store_explicit(&d->busy, true, memory_order_relaxed);
    d->step = step;
    pthread_cond_signal(&d->wake);
    pthread_mutex_unlock(&d->lock);
}

bool sl_device_busy(const struct sl_device *d)
{
    return atomic_load_explicit(&d->busy, memory_order_acquire);
}

void sl_device_wait(struct sl_device *d)
{
    pthread_mutex_lock(&d->lock);
    while (atomic_load_explicit(&d->busy, memory_order_acquire))
        pthread_cond_wait(&d->idle, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

const struct sl_model_conf *sl_device_model(const struct sl_device *d)
{
    return sl_model_conf(d->model);
}

struct sl_kv_geometry sl_device_geometry(const struct sl_device *d)
{
    return sl_model_kv_geometry(d->model);
}

uint32_t sl_device_n_pages(const struct sl_device *d)
{
    return d->n_pages;
}

uint64_t sl_device_numerics_id(const struct sl_device *d)
{
    return d->numerics_id;
}

void *sl_device_page_base(const struct sl_device *d)
{
    return d->ops->kv_host_base(d->kv);
}

struct sl_kv_on_device sl_device_kv(const struct sl_device *d)
{
    return (struct sl_kv_on_device){d->ops->mover, d->dev, d->kv};
}

const struct sl_engine_memory *sl_device_memory(const struct sl_device *d)
{
    return &d->memory;
}

const char *sl_device_backend(const struct sl_device *d)
{
    return d->ops->name;
}

const struct sl_cost_model *sl_device_first_cost(const struct sl_device *d, double *doubt)
{
    *doubt = d->cost_doubt;
    return &d->cost;
}

void sl_device_keep_cost(const struct sl_device *d, const struct sl_cost_model *m)
{
    if (d->cache_dir)
        sl_cost_cache_put(d->cache_dir, &d->cost_key, m);
}

uint64_t sl_device_progress(const struct sl_device *d)
{
    return atomic_load_explicit(&d->progress, memory_order_relaxed);
}
