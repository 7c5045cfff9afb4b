/* tests/bench/simulate/sim_events.h - what happens next: a heap of events by time, then by order of adding,
 * so that equal runs are equal. */
#ifndef SLUICE_TESTS_BENCH_SIMULATE_SIM_EVENTS_H
#define SLUICE_TESTS_BENCH_SIMULATE_SIM_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sim_event_kind { SIM_ARRIVAL, SIM_STEP_END, SIM_PAGES, SIM_GRANT, SIM_HEARTBEAT };

struct sim_event {
    double at_s;
    uint64_t order;
    enum sim_event_kind kind;
    uint32_t amount; /* SIM_PAGES: tokens in place now */
    void *what;      /* request number, node or job, by kind */
};

struct sim_events {
    struct sim_event *heap;
    size_t n, cap;
    uint64_t next_order;
};

void sim_events_add(struct sim_events *q, double at_s, enum sim_event_kind kind, void *what, uint32_t amount);
bool sim_events_next(struct sim_events *q, struct sim_event *out);
void sim_events_fini(struct sim_events *q);

#endif
