/* tests/bench/paced_node.h - decode nodes that are not there: they register at a real router, say yes to every
 * request, send its first token at once and the others at a pace.
 *
 * What is late behind the pace is taken down where it is sent, so that a slow node is not taken for a slow
 * router. Threads: each node has one; the calls here are for one other. */
#ifndef SLUICE_TESTS_BENCH_PACED_NODE_H
#define SLUICE_TESTS_BENCH_PACED_NODE_H

#include <stdint.h>

#include "common/base/err.h"
#include "tests/bench/stats.h"

#define SL_PACED_FIRST_ID 1000u /* ids below may be control tokens */
#define SL_PACED_LETTERS  16u   /* answers are of the ids from SL_PACED_FIRST_ID on */

struct sl_paced; /* opaque: some nodes */

struct sl_paced_conf {
    const char *register_url;
    uint32_t n_nodes, n_vocab;
    double pace_ms; /* between two tokens of a stream */
};

struct sl_paced_report {
    struct sl_samples late_ms; /* of each token, behind its pace; the caller's to free */
    uint64_t n_resyncs;        /* times that the router asked what became of a stream */
};

/* The router knows all of them when it returns. On error *out is untouched. */
SL_MUST_CHECK enum sl_err sl_paced_open(const struct sl_paced_conf *conf, struct sl_paced **out,
                                        struct sl_why *why);
/* The next token of every stream that is open is its last one. */
void sl_paced_end_streams(struct sl_paced *p);
/* Nothing more is sent; what was is in *out. Once. */
void sl_paced_stop(struct sl_paced *p, struct sl_paced_report *out);
void sl_paced_close(struct sl_paced *p); /* takes NULL */

#endif
