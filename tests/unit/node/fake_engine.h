/* tests/unit/node/fake_engine.h - an engine and a transfer that compute and move nothing: tests of the duties
 * say what happens, in what order, and read which calls were made. Linked instead of the real ones. */
#ifndef SLUICE_TESTS_UNIT_NODE_FAKE_ENGINE_H
#define SLUICE_TESTS_UNIT_NODE_FAKE_ENGINE_H

#include "common/node/node_leg.h"
#include "tests/unit/node/fake_router.h"

struct fake {
    struct sl_node_conf conf;
    struct sl_node *node;
    struct fake_router router;
    enum sl_err seq_open_err, send_open_err, recv_open_err, cancel_err; /* what the next calls return */
    enum sl_seq_state seq_state;
    const char *json_schema; /* of the orders that are placed */
    uint32_t deadline_ms;    /* the same; 0 = a minute */
    uint32_t hit_tokens;     /* of the sequences' views */
    uint32_t have_pages;     /* of the transfers' events */
    uint32_t n_open_seqs;
    uint32_t n_quick_steps; /* steps there is work for; without an event */
    struct sl_leg *blocks;  /* its sequence holds pages that others wait for */
    bool stands_still;      /* a step in flight computes nothing */
    uint32_t n_looks;       /* of the node at these two */
    uint32_t n_progress;    /* times that the transfer was told that it computes */
};
extern struct fake fake;

/* A node with both duties, registered at a router. */
int fake_open(void **state);
int fake_close(void **state);

/* A decode or prefill order of n_tokens = 100 with this split; page_tokens is 16. */
struct sl_leg *fake_place(const struct sl_duty_ops *duty, const char *id, uint32_t split,
                          enum sl_err expected);
/* The node looks at what stands still, n times more. */
void fake_looks(uint32_t n);
/* One round of the node's loop. */
void fake_round(void);
/* The engine says; handled before it returns. */
void fake_engine_says(struct sl_leg *l, enum sl_engine_event_kind kind, uint32_t value);
/* The transfer says. */
void fake_xfer_says(struct sl_leg *l, enum sl_xfer_event_kind kind, enum sl_err err, uint32_t n_tokens,
                    bool has_first);
/* Compares the calls made since the last look, "pin 1; ready 32; ", and forgets them. */
#define fake_expect_calls(expected) assert_string_equal(fake_calls(), expected)
const char *fake_calls(void);

#endif
