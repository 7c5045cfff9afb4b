/* router/place/decision.h - the decision record: what was asked, what was chosen and why, what really
 * happened. The last SL_DECISIONS requests are kept; `sluicectl explain ID` shows one.
 *
 * Threads: flow thread only. Times are the router's monotonic clock in microseconds, 0 = did not happen. */
#ifndef SLUICE_ROUTER_PLACE_DECISION_H
#define SLUICE_ROUTER_PLACE_DECISION_H

#include "common/base/hashmap.h"
#include "proto/sluice.pb-c.h"
#include "router/place/place.h"

#define SL_DECISIONS         4096
#define SL_DECISION_ATTEMPTS 8 /* placements of one request */
#define SL_DECISION_NAME     65
#define SL_DECISION_CHUNKS   64   /* prompt chunks of one leg; nodes tell no more */
#define SL_DECISION_TOKENS   1024 /* times between tokens that are kept when a request is over */

struct sl_decision_candidate {
    char p[SL_DECISION_NAME], d[SL_DECISION_NAME]; /* p "" = none */
    uint32_t split;
    bool degraded, tight;
    struct sl_place_prediction predicted;
};

struct sl_decision_attempt {
    uint32_t attempt;
    enum sl_place_mode mode;
    char p[SL_DECISION_NAME], d[SL_DECISION_NAME];
    uint32_t split, n_tokens;
    uint64_t at_us;
    char why[224];
    struct sl_place_prediction predicted;
};

struct sl_decision_chunk { /* times since the leg's command came to its node */
    uint32_t tokens, end_us, us;
};

struct sl_decision_leg { /* what the node reported; of the last attempt that used it */
    bool reported;
    Sluice__LegReport report;  /* plain values only */
    char end[32];              /* "prefilled", "stop", "error EPEER" ... */
    uint64_t sent_us, done_us; /* the command left, its end was heard of; 0 = not */
    struct sl_decision_chunk chunks[SL_DECISION_CHUNKS];
    uint32_t n_chunks;
};

struct sl_decision {
    char id[64], client_id[64];
    char asked_mode[16]; /* "pd", "hybrid" ... of the request, or "default pd" */
    int64_t asked_split;
    int32_t chunk;
    char slo_class[33];                /* "" = none */
    uint32_t slo_ttft_ms, slo_tpot_ms; /* wished; 0 = no wish */
    bool slo_predicted_miss, relegated;
    uint32_t n_prompt, n_generated;
    uint32_t n_attempts; /* placements made; the first SL_DECISION_ATTEMPTS - 1 and the last are kept */
    struct sl_decision_attempt attempts[SL_DECISION_ATTEMPTS];
    struct sl_decision_candidate candidates[SL_PLACE_KEEP]; /* of the first attempt */
    uint32_t n_candidates;
    struct sl_decision_leg p, d;
    uint32_t n_duplicates, n_resyncs, n_retries,
        n_recovered; /* tokens ignored, gaps asked for, commands sent again, faults */
    uint64_t arrived_us, placed_us, submitted_us, first_us, second_us, done_us;
    double itl_median_ms, gap_max_ms; /* of the tokens after the second; < 0 = too few tokens */
    uint32_t *gap_us; /* between token i - 1 and i, n_gaps of them once the request is over; owned */
    uint32_t n_gaps;
    double link_bytes_per_s; /* P -> D when it was placed; 0 = not measured */
    char finish[16];         /* "stop", "length", "canceled", "error"; "" while it runs */
    char error[256];
};

/* Handover of a request that came from P: the time between first and second token, less one decode step, less
 * the bytes that were unsent when the first token was sampled over the measured link. False when a part is
 * missing. */
bool sl_decision_handover_ms(const struct sl_decision *d, double *out);
/* |predicted - real| / real time from placement to the first token. False where the request was placed more
 * than once, or no token came. */
bool sl_decision_ttft_error(const struct sl_decision *d, double *out);
/* Of a finished request: it ended well, the first token came within ttft_ms of arrival and the others, on
 * average, tpot_ms after one another. True without wishes. */
bool sl_decision_slo_met(const struct sl_decision *d);
/* The placement that counts: the last one. NULL before any. */
const struct sl_decision_attempt *sl_decision_last(const struct sl_decision *d);

/* Keeps a copy of the first SL_DECISION_TOKENS. */
void sl_decision_keep_gaps(struct sl_decision *d, const uint32_t *gap_us, uint32_t n);
/* The end of a leg as its node told it. */
void sl_decision_leg_report(struct sl_decision_leg *leg, const Sluice__LegReport *report);

struct sl_decisions; /* opaque: the ring */
struct sl_decisions *sl_decisions_new(uint32_t max);
void sl_decisions_free(struct sl_decisions *r);
/* A zeroed record for a new request; the oldest finished one makes room. It stays until its finish is set.
 * Fewer than max requests may be open. */
struct sl_decision *sl_decisions_add(struct sl_decisions *r, const char *id);
struct sl_decision *sl_decisions_find(const struct sl_decisions *r, const char *id); /* NULL when forgotten */
/* Newest first: 0 is the last added. NULL past the end. */
const struct sl_decision *sl_decisions_nth(const struct sl_decisions *r, uint32_t n);

/* Takes down a choice. names of nodes are copied. */
void sl_decision_placed(struct sl_decision *d, const struct sl_place_state *state,
                        const struct sl_place_choice *choice, uint32_t attempt, uint32_t n_tokens,
                        const char *because, uint64_t now_us);

#endif
