/* tests/unit/engine/engine_rig.h - an engine over the fake model (tests/sim/fake_model.h), stepped by hand,
 * and what it told. */
#ifndef SLUICE_TESTS_UNIT_ENGINE_RIG_H
#define SLUICE_TESTS_UNIT_ENGINE_RIG_H

#include "common/engine/engine.h"
#include "tests/sim/fake_model.h"

#define PT         16u
#define MAX_EVENTS 512

struct fixture {
    struct sl_engine *e;
    struct sl_engine_event ev[MAX_EVENTS];
    size_t n_ev;
};

extern const struct sl_sampling greedy;
extern int32_t text[FAKE_CONTEXT]; /* 1, 2, 3 .. */

struct sl_engine_conf conf_of(uint32_t n_pages);
struct fixture open_engine(const struct sl_engine_conf *conf);
void check(struct fixture *f);
void hear(struct fixture *f);
bool step(struct fixture *f);
void run(struct fixture *f);
uint32_t count(const struct fixture *f, const struct sl_seq *s, enum sl_engine_event_kind kind);
const struct sl_engine_event *last(const struct fixture *f, const struct sl_seq *s);
void close_engine(struct fixture *f);
struct sl_seq_spec spec_of(uint32_t n_tokens, uint32_t max_tokens);
struct sl_seq_spec prefill_spec(uint32_t n_tokens, uint32_t s);
struct sl_seq *open_seq(struct fixture *f, const struct sl_seq_spec *spec);
struct sl_seq_view view(const struct sl_seq *s);
void fill(struct fixture *f, const struct sl_seq *s, uint32_t from, uint32_t to);

#endif
