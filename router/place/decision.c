/* router/place/decision.c - a ring of records, found by id through a map. A record is about 10 KB and its memory
 * comes, all of it, when it is first used, so an idle router pays for the map alone, and one whose ring was filled
 * grows no more. All are in one piece: lying about in the heap for long they would keep what comes and goes around
 * them from being given back. */
#include "router/place/decision.h"

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"

struct sl_decisions {
    uint32_t max, n; /* n: records in use */
    uint64_t added;
    struct sl_decision *records;
    struct sl_decision **ring; /* of records; NULL = not used yet */
    struct sl_hashmap *by_id;
};

struct sl_decisions *sl_decisions_new(uint32_t max)
{
    SL_ASSERT(max > 0);
    struct sl_decisions *r = sl_xcalloc(1, sizeof *r);
    r->max = max;
    r->records = sl_xcalloc(max, sizeof *r->records);
    r->ring = sl_xcalloc(max, sizeof *r->ring);
    r->by_id = sl_hashmap_new();
    sl_hashmap_reserve(r->by_id, max);
    return r;
}

void sl_decisions_free(struct sl_decisions *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->max; i++)
        sl_free(r->records[i].gap_us);
    sl_free(r->records);
    sl_free(r->ring);
    sl_hashmap_free(r->by_id);
    sl_free(r);
}

struct sl_decision *sl_decisions_add(struct sl_decisions *r, const char *id)
{
    struct sl_decision **slot = &r->ring[r->added % r->max];
    for (uint32_t i = 0; i < r->max && *slot && !(*slot)->finish[0];
         i++) /* its request still writes into it */
        slot = &r->ring[++r->added % r->max];
    SL_ASSERT(!*slot || (*slot)->finish[0]);
    if (*slot) {
        if (sl_hashmap_get(r->by_id, (*slot)->id, strlen((*slot)->id)) == *slot)
            sl_hashmap_del(r->by_id, (*slot)->id, strlen((*slot)->id));
        sl_free((*slot)->gap_us);
    } else {
        *slot = &r->records[slot - r->ring];
        r->n++;
    }
    memset(*slot, 0, sizeof **slot); /* the first time too: all of its memory comes now, and none later */
    r->added++;
    struct sl_decision *d = *slot;
    snprintf(d->id, sizeof d->id, "%s", id);
    d->itl_median_ms = d->gap_max_ms = -1;
    d->asked_split = -1;
    sl_hashmap_put(r->by_id, d->id, strlen(d->id), d);
    return d;
}

struct sl_decision *sl_decisions_find(const struct sl_decisions *r, const char *id)
{
    return sl_hashmap_get(r->by_id, id, strlen(id));
}

const struct sl_decision *sl_decisions_nth(const struct sl_decisions *r, uint32_t n)
{
    return n < r->n && n < r->added ? r->ring[(r->added - 1 - n) % r->max] : NULL;
}

bool sl_decision_ttft_error(const struct sl_decision *d, double *out)
{
    const struct sl_decision_attempt *a = sl_decision_last(d);
    if (!a || d->n_attempts > 1 || d->first_us <= d->placed_us)
        return false;
    double real_ms = (double)(d->first_us - d->placed_us) / 1e3, diff = a->predicted.ttft_ms - real_ms;
    *out = (diff < 0 ? -diff : diff) / real_ms;
    return true;
}

bool sl_decision_slo_met(const struct sl_decision *d)
{
    bool ended_well = strcmp(d->finish, "stop") == 0 || strcmp(d->finish, "length") == 0;
    if (!d->slo_ttft_ms && !d->slo_tpot_ms)
        return true;
    if (!ended_well || !d->first_us)
        return false;
    double ttft_ms = (double)(d->first_us - d->arrived_us) / 1e3;
    double tpot_ms = d->n_generated > 1 ? (double)(d->done_us - d->first_us) / 1e3 / (d->n_generated - 1) : 0;
    return (!d->slo_ttft_ms || ttft_ms <= d->slo_ttft_ms) && (!d->slo_tpot_ms || tpot_ms <= d->slo_tpot_ms);
}

const struct sl_decision_attempt *sl_decision_last(const struct sl_decision *d)
{
    if (d->n_attempts == 0)
        return NULL;
    uint32_t n = d->n_attempts < SL_DECISION_ATTEMPTS ? d->n_attempts : SL_DECISION_ATTEMPTS;
    return &d->attempts[n - 1];
}

bool sl_decision_handover_ms(const struct sl_decision *d, double *out)
{
    const struct sl_decision_attempt *a = sl_decision_last(d);
    if (!a || a->mode != SL_PLACE_PD || !d->first_us || !d->second_us || d->itl_median_ms < 0)
        return false;
    double unsent_ms = 0;
    uint64_t bytes = d->p.reported && d->p.report.has_bytes_after_first ? d->p.report.bytes_after_first : 0;
    if (bytes) {
        if (d->link_bytes_per_s <= 0)
            return false;
        unsent_ms = (double)bytes / d->link_bytes_per_s * 1e3;
    }
    *out = (double)(d->second_us - d->first_us) / 1e3 - d->itl_median_ms - unsent_ms;
    return true;
}

static void name_of(char out[SL_DECISION_NAME], const struct sl_place_state *s, int i)
{
    snprintf(out, SL_DECISION_NAME, "%s", i < 0 ? "" : s->nodes[i].name);
}

void sl_decision_placed(struct sl_decision *d, const struct sl_place_state *state,
                        const struct sl_place_choice *choice, uint32_t attempt, uint32_t n_tokens,
                        const char *because, uint64_t now_us)
{
    uint32_t at = d->n_attempts < SL_DECISION_ATTEMPTS ? d->n_attempts : SL_DECISION_ATTEMPTS - 1;
    d->n_attempts++;
    struct sl_decision_attempt *a = &d->attempts[at];
    *a = (struct sl_decision_attempt){.attempt = attempt,
                                      .mode = choice->mode,
                                      .split = choice->best.split,
                                      .n_tokens = n_tokens,
                                      .at_us = now_us,
                                      .predicted = choice->best.predicted};
    name_of(a->p, state, choice->best.p);
    name_of(a->d, state, choice->best.d);
    snprintf(a->why, sizeof a->why, "%s%s%s", because ? because : "", because ? "; " : "", choice->reason);
    memset(&d->p, 0, sizeof d->p);
    memset(&d->d, 0, sizeof d->d);
    const struct sl_place_link *link =
        choice->best.p < 0 ? NULL : sl_place_find_link(state, choice->best.p, choice->best.d);
    d->link_bytes_per_s = link ? link->bytes_per_s : 0;
    if (attempt > 1)
        return;
    d->n_candidates = choice->n_kept;
    for (uint32_t i = 0; i < choice->n_kept; i++) {
        const struct sl_place_candidate *k = &choice->kept[i];
        struct sl_decision_candidate *c = &d->candidates[i];
        name_of(c->p, state, k->p);
        name_of(c->d, state, k->d);
        c->split = k->split;
        c->degraded = k->degraded;
        c->tight = k->tight;
        c->predicted = k->predicted;
    }
}

void sl_decision_keep_gaps(struct sl_decision *d, const uint32_t *gap_us, uint32_t n)
{
    d->n_gaps = n < SL_DECISION_TOKENS ? n : SL_DECISION_TOKENS;
    sl_free(d->gap_us);
    d->gap_us = d->n_gaps ? sl_xmemdup(gap_us, d->n_gaps * sizeof *gap_us) : NULL;
}

void sl_decision_leg_report(struct sl_decision_leg *leg, const Sluice__LegReport *report)
{
    leg->reported = true;
    leg->report = *report;
    leg->n_chunks = 0;
    for (size_t i = 0; i < report->n_chunk_tokens && i < report->n_chunk_end_us && i < report->n_chunk_us &&
                       i < SL_DECISION_CHUNKS;
         i++)
        leg->chunks[leg->n_chunks++] = (struct sl_decision_chunk){
            .tokens = report->chunk_tokens[i], .end_us = report->chunk_end_us[i], .us = report->chunk_us[i]};
    /* what it points to is the message's */
    leg->report.chunk_tokens = leg->report.chunk_end_us = leg->report.chunk_us = NULL;
    leg->report.n_chunk_tokens = leg->report.n_chunk_end_us = leg->report.n_chunk_us = 0;
    leg->report.base.n_unknown_fields = 0;
    leg->report.base.unknown_fields = NULL;
}
