/* common/engine/engine.c - opening and closing, events, counts.
 *
 * The engine thread owns everything in struct sl_engine; only the step in flight is lent to the device thread
 * (device.c). */
#include "common/engine/engine_impl.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"

#define KEEP_STEPS               200u /* a cost model that saw so many real steps.. */
#define KEEP_ERROR               0.25 /* ..and predicts them so well is kept for the next start */
#define SETTLE_LOOK_MS           1    /* between looks at a step that a stop waits for */
#define DEFAULT_MAX_BATCH_TOKENS 512u
#define DEFAULT_MAX_SEQUENCES    64u
#define DEFAULT_MAX_WAITING      1024u

static void step_arrays_new(struct sl_engine *e)
{
    struct sl_step *st = &e->step;
    uint32_t n = e->max_sequences;
    st->tokens = sl_xcalloc(e->max_rows, sizeof *st->tokens);
    st->runs = sl_xcalloc(n, sizeof *st->runs);
    st->out_rows = sl_xcalloc(e->max_outs, sizeof *st->out_rows);
    st->seqs = sl_xcalloc(n, sizeof(struct sl_seq *));
    st->outs = sl_xcalloc(n, sizeof *st->outs);
    st->samples = sl_xcalloc(e->max_outs, sizeof *st->samples);
    st->sampled = sl_xcalloc(e->max_outs, sizeof *st->sampled);
    e->prompts = sl_xcalloc(n, sizeof *e->prompts);
    e->chunks = sl_xcalloc(n, sizeof *e->chunks);
    e->prompt_seqs = sl_xcalloc(n, sizeof(struct sl_seq *));
    e->decode_seqs = sl_xcalloc(n, sizeof(struct sl_seq *));
    e->spec_seqs = sl_xcalloc(n, sizeof *e->spec_seqs);
    e->n_drafts = sl_xcalloc(n, sizeof *e->n_drafts);
    e->expected = sl_xcalloc((size_t)n + 1, sizeof *e->expected);
    e->records = sl_xcalloc(SL_STEP_RECORDS, sizeof *e->records);
    e->scratch_pages = sl_xcalloc(sl_pages_of(e, e->context_length) + 1, sizeof *e->scratch_pages);
}

static void step_arrays_free(struct sl_engine *e)
{
    struct sl_step *st = &e->step;
    sl_free(e->scratch_pages);
    sl_free(e->records);
    sl_free(e->expected);
    sl_free(e->n_drafts);
    sl_free(e->spec_seqs);
    sl_free(e->decode_seqs);
    sl_free(e->prompt_seqs);
    sl_free(e->chunks);
    sl_free(e->prompts);
    sl_free(st->sampled);
    sl_free(st->samples);
    sl_free(st->outs);
    sl_free(st->seqs);
    sl_free(st->out_rows);
    sl_free(st->runs);
    sl_free(st->tokens);
}

enum sl_err sl_engine_open(const struct sl_engine_conf *conf, struct sl_engine **out, struct sl_why *why)
{
    struct sl_engine_conf c = *conf;
    c.max_batch_tokens = c.max_batch_tokens ? c.max_batch_tokens : DEFAULT_MAX_BATCH_TOKENS;
    c.max_sequences = c.max_sequences ? c.max_sequences : DEFAULT_MAX_SEQUENCES;
    if (c.page_tokens == 0 || c.page_tokens > 4096)
        return sl_why_set(why, SL_EINVAL, "page_tokens is %u: expected 1..4096", c.page_tokens);
    if (c.max_batch_tokens > (1u << 20) || c.max_sequences > (1u << 16))
        return sl_why_set(why, SL_EINVAL, "max_batch_tokens %u, max_sequences %u: at most %u and %u",
                          c.max_batch_tokens, c.max_sequences, 1u << 20, 1u << 16);
    if (c.chunk_tokens == SL_CHUNK_DEFAULT)
        c.chunk_tokens = SL_CHUNK_AUTO;
    if (c.chunk_tokens < SL_CHUNK_AUTO)
        return sl_why_set(why, SL_EINVAL,
                          "chunk_tokens is %d: expected a number of tokens, 0 or SL_CHUNK_AUTO",
                          c.chunk_tokens);

    if (c.speculation < SL_SPEC_AUTO || c.speculation > (int32_t)SL_SPEC_MAX)
        return sl_why_set(why, SL_EINVAL, "speculation is %d: expected SL_SPEC_AUTO, or 0 to %u drafts",
                          c.speculation, SL_SPEC_MAX);

    struct sl_engine *e = sl_xcalloc(1, sizeof *e);
    sl_list_init(&e->waiting);
    sl_list_init(&e->running);
    sl_list_init(&e->done);
    e->max_sequences = c.max_sequences;
    e->max_waiting = c.max_waiting ? c.max_waiting : DEFAULT_MAX_WAITING;
    e->ungranted_pages = c.ungranted_pages;
    e->chunk_tokens = c.chunk_tokens;
    e->speculation = c.speculation;
    e->tpot_target_ms = c.tpot_target_ms;
    e->chunk_stretch = c.chunk_stretch > 0 ? c.chunk_stretch : SL_PLAN_STRETCH;
    e->page_tokens = c.page_tokens;
    /* a full house of decode rows still leaves a tile for a prompt */
    e->max_rows = c.max_batch_tokens;
    if (e->max_rows < c.max_sequences + SL_PLAN_ALIGN)
        e->max_rows = c.max_sequences + SL_PLAN_ALIGN;

    e->clock_us = c.clock_us = c.clock_us ? c.clock_us : sl_now_us;
    e->max_outs = c.max_sequences + SL_SPEC_STEP_MAX;

    enum sl_err err = SL_EIO;
    e->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (e->fd < 0) {
        sl_why_set(why, err, "no eventfd (errno %d); raise the limit of open files", errno);
        goto free_engine;
    }
    err = sl_device_open(&c, e->max_rows, e->max_outs, e->fd, &e->dev, why);
    if (err != SL_OK)
        goto close_fd;
    err = sl_kv_pool_open(sl_device_n_pages(e->dev), &e->pool);
    if (err != SL_OK) {
        sl_why_set(why, err, "no memory to keep account of %u KV pages", sl_device_n_pages(e->dev));
        goto close_device;
    }
    e->prefix = sl_kv_prefix_new(e->pool, e->page_tokens);
    const struct sl_model_conf *m = sl_device_model(e->dev);
    e->model_digest = m->digest;
    e->n_vocab = m->n_vocab;
    e->context_length = m->context_length;
    double doubt;
    e->cost = *sl_device_first_cost(e->dev, &doubt);
    sl_plan_pace_init(&e->pace, &e->cost);
    sl_cost_learner_init(&e->learner, &e->cost, doubt);
    step_arrays_new(e);
    e->opened_us = e->clock_us();
    *out = e;
    return SL_OK;

close_device:
    sl_device_close(e->dev);
close_fd:
    close(e->fd);
free_engine:
    sl_free(e);
    return err;
}

static void free_list(struct sl_list *list)
{
    SL_LIST_FOREACH_SAFE (pos, next, list) {
        sl_seq_free(SL_CONTAINER_OF(pos, struct sl_seq, link));
    }
}

void sl_engine_close(struct sl_engine *e)
{
    if (!e)
        return;
    sl_device_wait(e->dev);
    if (e->total.steps >= KEEP_STEPS && e->cost.error < KEEP_ERROR)
        sl_device_keep_cost(e->dev, &e->cost);
    sl_device_close(e->dev);
    free_list(&e->waiting);
    free_list(&e->running);
    free_list(&e->done);
    step_arrays_free(e);
    sl_kv_prefix_free(e->prefix);
    sl_kv_pool_close(e->pool);
    close(e->fd);
    sl_free(e->events);
    sl_free(e->victims);
    sl_free(e->victim_seqs);
    sl_free(e);
}

const struct sl_model_conf *sl_engine_model(const struct sl_engine *e)
{
    return sl_device_model(e->dev);
}

struct sl_kv_geometry sl_engine_geometry(const struct sl_engine *e)
{
    return sl_device_geometry(e->dev);
}

uint64_t sl_engine_numerics_id(const struct sl_engine *e)
{
    return sl_device_numerics_id(e->dev);
}

uint32_t sl_engine_n_pages(const struct sl_engine *e)
{
    return sl_kv_pool_total_pages(e->pool);
}

void *sl_engine_page_base(struct sl_engine *e)
{
    return sl_device_page_base(e->dev);
}

struct sl_kv_on_device sl_engine_kv_on_device(struct sl_engine *e)
{
    return sl_device_kv(e->dev);
}

const struct sl_engine_memory *sl_engine_memory(const struct sl_engine *e)
{
    return sl_device_memory(e->dev);
}

const char *sl_engine_backend(const struct sl_engine *e)
{
    return sl_device_backend(e->dev);
}

const struct sl_cost_model *sl_engine_cost(const struct sl_engine *e)
{
    return &e->cost;
}

struct sl_engine_limits sl_engine_limits(const struct sl_engine *e)
{
    return (struct sl_engine_limits){.max_batch_tokens = e->max_rows,
                                     .max_sequences = e->max_sequences,
                                     .ungranted_pages = e->ungranted_pages,
                                     .chunk_tokens = e->chunk_tokens,
                                     .tpot_target_ms = e->tpot_target_ms,
                                     .chunk_stretch = e->chunk_stretch};
}

void sl_engine_set_pace(struct sl_engine *e, int32_t chunk_tokens, int32_t speculation, double tpot_target_ms,
                        double chunk_stretch)
{
    e->chunk_tokens = chunk_tokens == SL_CHUNK_DEFAULT ? SL_CHUNK_AUTO : chunk_tokens;
    e->speculation = speculation;
    e->tpot_target_ms = tpot_target_ms;
    e->chunk_stretch = chunk_stretch > 0 ? chunk_stretch : SL_PLAN_STRETCH;
}

uint64_t sl_engine_progress(const struct sl_engine *e)
{
    return sl_device_progress(e->dev);
}

bool sl_engine_settles(const struct sl_engine *e, uint32_t stuck_ms, int end_fd)
{
    uint64_t layers = sl_device_progress(e->dev), since_ms = sl_now_ms();
    while (sl_device_busy(e->dev)) {
        uint64_t now = sl_device_progress(e->dev), now_ms = sl_now_ms();
        if (now != layers)
            since_ms = now_ms;
        else if (now_ms - since_ms >= stuck_ms)
            return false;
        layers = now;
        if (poll(&(struct pollfd){.fd = end_fd, .events = POLLIN}, 1, SETTLE_LOOK_MS) == 1)
            return false;
    }
    return true;
}

bool sl_engine_in_flight(const struct sl_engine *e)
{
    return e->in_flight;
}

int sl_engine_fd(const struct sl_engine *e)
{
    return e->fd;
}

/* ---- events ---- */

void sl_engine_events_reserve(struct sl_engine *e, size_t n)
{
    if (e->events_head) {
        memmove(e->events, &e->events[e->events_head], e->n_events * sizeof *e->events);
        e->events_head = 0;
    }
    if (e->n_events + n <= e->events_cap)
        return;
    e->events_cap = 2 * (e->n_events + n);
    e->events = sl_xrealloc_array(e->events, e->events_cap, sizeof *e->events);
}

/* The fd is raised too: an event may come from a call of the owner, with no step to end. */
void sl_engine_event_push(struct sl_engine *e, const struct sl_engine_event *ev)
{
    if (e->events_head + e->n_events >= e->events_cap)
        sl_engine_events_reserve(e, 1);
    if (e->n_events == 0)
        (void)eventfd_write(e->fd, 1);
    e->events[e->events_head + e->n_events++] = *ev;
}

void sl_engine_events_drop(struct sl_engine *e, const struct sl_seq *s)
{
    struct sl_engine_event *ev = &e->events[e->events_head];
    size_t kept = 0;
    for (size_t i = 0; i < e->n_events; i++)
        if (ev[i].seq != s)
            ev[kept++] = ev[i];
    e->n_events = kept;
}

/* ---- counts ---- */

/* The middle of the percent that part of all steps lie below. */
static double step_error_at(const struct sl_engine *e, double part)
{
    double below = part * (double)e->total.steps;
    for (unsigned i = 0; i <= SL_STEP_ERROR_MAX_PERCENT && e->total.steps; i++) {
        below -= (double)e->step_errors[i];
        if (below <= 0)
            return (i + 0.5) / 100;
    }
    return 0;
}

void sl_engine_stats(const struct sl_engine *e, struct sl_engine_stats *out)
{
    *out = e->total;
    out->step_error_p50 = step_error_at(e, 0.5);
    out->step_error_p90 = step_error_at(e, 0.9);
    out->total_pages = sl_kv_pool_total_pages(e->pool);
    out->free_pages = sl_kv_pool_free_pages(e->pool);
    out->evictable_pages = sl_kv_prefix_evictable_pages(e->prefix);
    out->cached_pages = sl_kv_prefix_cached_pages(e->prefix);
    out->waiting = e->n_waiting;
    out->running = e->n_running;
    SL_LIST_FOREACH (pos, &e->waiting)
        out->queued_prompt_tokens += sl_seq_goal(SL_CONTAINER_OF(pos, struct sl_seq, link));
    SL_LIST_FOREACH (pos, &e->running) {
        const struct sl_seq *s = SL_CONTAINER_OF(pos, struct sl_seq, link);
        if (s->state == SL_SEQ_PREFILL)
            out->queued_prompt_tokens += sl_seq_goal(s) - s->computed;
        if (s->state == SL_SEQ_DECODE) {
            out->decode_rows++;
            out->decode_context_tokens += s->n_tokens;
            out->rows_without_wish += s->tpot_ms <= 0;
            if (s->tpot_ms > 0 && (out->tpot_wish_ms <= 0 || s->tpot_ms < out->tpot_wish_ms))
                out->tpot_wish_ms = s->tpot_ms;
        }
    }
}

struct sl_seq *sl_engine_blocking(const struct sl_engine *e)
{
    bool work_waits = false;
    struct sl_seq *youngest = NULL;
    SL_LIST_FOREACH (pos, &e->waiting) {
        const struct sl_seq *s = SL_CONTAINER_OF(pos, struct sl_seq, link);
        work_waits |= s->granted && !s->decode;
    }
    if (e->in_flight || !work_waits)
        return NULL;
    SL_LIST_FOREACH (pos, &e->running) {
        struct sl_seq *s = SL_CONTAINER_OF(pos, struct sl_seq, link);
        if (s->state != SL_SEQ_REMOTE)
            return NULL;
        if (!youngest || s->order > youngest->order)
            youngest = s;
    }
    return youngest;
}

size_t sl_engine_prefix_hashes(const struct sl_engine *e, uint64_t *out, size_t n)
{
    return sl_kv_prefix_newest(e->prefix, out, n);
}

static void count_holders(const struct sl_list *list, uint32_t *holders)
{
    SL_LIST_FOREACH (pos, list) {
        const struct sl_seq *s = SL_CONTAINER_OF(pos, struct sl_seq, link);
        for (uint32_t i = 0; i < s->n_pages; i++)
            holders[s->pages[i]]++;
    }
}

enum sl_err sl_engine_check_pages(const struct sl_engine *e, struct sl_why *why)
{
    uint32_t total = sl_kv_pool_total_pages(e->pool), n_free = 0;
    uint32_t *holders = sl_xcalloc(total, sizeof *holders);
    count_holders(&e->waiting, holders);
    count_holders(&e->running, holders);
    count_holders(&e->done, holders);
    enum sl_err err = SL_OK;
    for (uint32_t i = 0; i < total && err == SL_OK; i++) {
        uint32_t refs = sl_kv_pool_refs(e->pool, i);
        uint32_t found = holders[i] + sl_kv_prefix_cached(e->prefix, i);
        n_free += refs == 0;
        if (refs != found)
            err = sl_why_set(why, SL_EBUG, "page %u has %u references and %u holders", i, refs, found);
    }
    if (err == SL_OK && n_free != sl_kv_pool_free_pages(e->pool))
        err = sl_why_set(why, SL_EBUG, "%u pages are free, the pool counts %u", n_free,
                         sl_kv_pool_free_pages(e->pool));
    if (err == SL_OK)
        err = sl_kv_prefix_check(e->prefix, why);
    sl_free(holders);
    return err;
}
