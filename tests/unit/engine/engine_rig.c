/* tests/unit/engine/engine_rig.c - see engine_rig.h. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/engine/engine_rig.h"

#include <string.h>

struct sl_engine_conf conf_of(uint32_t n_pages)
{
    return (struct sl_engine_conf){.model_path = "none",
                                   .backend = "fake",
                                   .kv_dtype = SL_F32,
                                   .page_tokens = PT,
                                   .kv_memory_bytes = fake_page_bytes(PT) * n_pages,
                                   .max_batch_tokens = 128,
                                   .max_sequences = 8,
                                   .max_waiting = 4,
                                   .chunk_tokens = SL_CHUNK_AUTO,
                                   .ungranted_pages = 8,
                                   .clock_us = fake_clock_us,
                                   .skip_profile = true};
}

struct fixture open_engine(const struct sl_engine_conf *conf)
{
    struct fixture f = {0};
    struct sl_why why = {0};
    if (sl_engine_open(conf, &f.e, &why) != SL_OK)
        fail_msg("%s", why.text);
    return f;
}

void check(struct fixture *f)
{
    struct sl_why why = {0};
    if (sl_engine_check_pages(f->e, &why) != SL_OK)
        fail_msg("%s", why.text);
}

void hear(struct fixture *f)
{
    size_t n;
    while ((n = sl_engine_poll(f->e, &f->ev[f->n_ev], MAX_EVENTS - f->n_ev)) > 0)
        f->n_ev += n;
    check(f);
}

/* One step, its events appended to f->ev. False when there was nothing to do. */
bool step(struct fixture *f)
{
    bool ran = sl_engine_step(f->e, fake_tick_us());
    sl_engine_wait(f->e);
    hear(f);
    return ran;
}

void run(struct fixture *f)
{
    while (step(f))
        continue;
}

uint32_t count(const struct fixture *f, const struct sl_seq *s, enum sl_engine_event_kind kind)
{
    uint32_t n = 0;
    for (size_t i = 0; i < f->n_ev; i++)
        n += f->ev[i].seq == s && f->ev[i].kind == kind;
    return n;
}

const struct sl_engine_event *last(const struct fixture *f, const struct sl_seq *s)
{
    for (size_t i = f->n_ev; i-- > 0;)
        if (f->ev[i].seq == s)
            return &f->ev[i];
    fail_msg("no event");
    return NULL;
}

void close_engine(struct fixture *f)
{
    sl_engine_close(f->e);
}

const struct sl_sampling greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .ignore_eos = true};
int32_t text[FAKE_CONTEXT]; /* 1, 2, 3 .. */

struct sl_seq_spec spec_of(uint32_t n_tokens, uint32_t max_tokens)
{
    for (uint32_t i = 0; i < FAKE_CONTEXT; i++)
        text[i] = (int32_t)(i % FAKE_VOCAB);
    return (struct sl_seq_spec){.owner = text,
                                .tokens = text,
                                .n_tokens = n_tokens,
                                .n_prompt = n_tokens,
                                .max_tokens = max_tokens,
                                .sampling = &greedy,
                                .use_prefix_cache = true,
                                .compute_to = n_tokens,
                                .sample = true,
                                .decode = true,
                                .granted = true,
                                .chunk_tokens = SL_CHUNK_DEFAULT};
}

struct sl_seq_spec prefill_spec(uint32_t n_tokens, uint32_t s)
{
    struct sl_seq_spec spec = spec_of(n_tokens, 4);
    spec.decode = false;
    spec.compute_to = s;
    return spec;
}

struct sl_seq *open_seq(struct fixture *f, const struct sl_seq_spec *spec)
{
    struct sl_seq *s = NULL;
    struct sl_why why = {0};
    if (sl_engine_seq_open(f->e, spec, &s, &why) != SL_OK)
        fail_msg("%s", why.text);
    return s;
}

struct sl_seq_view view(const struct sl_seq *s)
{
    struct sl_seq_view v;
    sl_seq_view(s, &v);
    return v;
}

void fill(struct fixture *f, const struct sl_seq *s, uint32_t from, uint32_t to)
{
    uint64_t kv[FAKE_CONTEXT];
    struct sl_seq_view v = view(s);
    fake_kv(v.tokens, to, kv);
    for (uint32_t i = from; i < to; i++)
        fake_page_set(sl_engine_page_base(f->e), PT, v.pages[i / PT], i % PT, kv[i]);
}
