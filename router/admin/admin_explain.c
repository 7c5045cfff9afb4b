/* router/admin/admin_explain.c - one request's decision record as a sentence and tables: what was asked, what
 * was chosen among what, and what really happened. */
#include "router/admin/admin_tables.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct sl_decision *find(const struct sl_decisions *r, const char *id)
{
    if (strcmp(id, "last") == 0)
        return sl_decisions_nth(r, 0);
    const struct sl_decision *d = sl_decisions_find(r, id);
    for (uint32_t i = 0; !d; i++) {
        const struct sl_decision *k = sl_decisions_nth(r, i);
        if (!k)
            return NULL;
        if (k->client_id[0] && strcmp(k->client_id, id) == 0)
            d = k;
    }
    return d;
}

static void ms_pair(struct sl_admin_out *o, const char *key, uint64_t from_us, uint64_t to_us)
{
    if (from_us && to_us >= from_us)
        sl_admin_pair(o, key, "%.3f", (double)(to_us - from_us) / 1e3);
    else
        sl_admin_pair(o, key, "-");
}

static void value_pair(struct sl_admin_out *o, const char *key, double v)
{
    if (v >= 0)
        sl_admin_pair(o, key, "%.3f", v);
    else
        sl_admin_pair(o, key, "-");
}

/* The legs' facts. A leg that did not take part counts 0; one that did and has not reported shows "-". */
struct fact {
    const char *key_p, *key_d; /* NULL: not shown for this duty */
    size_t offset;
};
#define FACT(key_p, key_d, field)                                                                            \
    {                                                                                                        \
        key_p, key_d, offsetof(Sluice__LegReport, field)                                                     \
    }
static const struct fact facts[] = {
    FACT("prefill_chunks_P", "prefill_chunks_D", chunks),
    FACT("largest_chunk_P", "largest_chunk_D", largest_chunk),
    FACT("prompt_tokens_computed_P", "prompt_tokens_computed_D", prompt_tokens_computed),
    FACT("cached_tokens_P", "cached_tokens_D", cached_tokens),
    FACT("pages_sent", NULL, pages_sent),
    FACT(NULL, "pages_received", pages_received),
    FACT(NULL, "recovered_tokens", recovered_tokens),
    FACT(NULL, "drafted_tokens", drafted_tokens),
    FACT(NULL, "accepted_tokens", accepted_tokens),
};

static uint32_t field(const struct sl_decision_leg *leg, size_t offset)
{
    uint32_t v;
    memcpy(&v, (const char *)&leg->report + offset, sizeof v);
    return leg->reported ? v : 0;
}

static void fact_pair(struct sl_admin_out *o, const char *key, bool part, const struct sl_decision_leg *leg,
                      size_t offset)
{
    if (part && !leg->reported)
        sl_admin_pair(o, key, "-");
    else
        sl_admin_pair(o, key, "%u", field(leg, offset));
}

static const char *wishes(const struct sl_decision *d)
{
    if (!d->slo_ttft_ms && !d->slo_tpot_ms)
        return "none";
    if (d->done_us)
        return sl_decision_slo_met(d) ? "met" : "missed";
    return d->relegated            ? "relegated"
           : d->slo_predicted_miss ? "predicted to be missed"
                                   : "predicted to be met";
}

static void record_table(struct sl_admin_out *o, const struct sl_decision *d, uint64_t now_us)
{
    const struct sl_decision_attempt *a = sl_decision_last(d);
    sl_admin_table(o, "record", "key,value");
    sl_admin_pair(o, "id", "%s", d->id);
    sl_admin_pair(o, "client_id", "%s", d->client_id);
    sl_admin_pair(o, "asked_mode", "%s", d->asked_mode);
    sl_admin_pair(o, "asked_split", "%" PRId64, d->asked_split);
    sl_admin_pair(o, "asked_chunk", "%d", d->chunk);
    sl_admin_pair(o, "class", "%s", d->slo_class);
    sl_admin_pair(o, "wished_ttft_ms", "%u", d->slo_ttft_ms);
    sl_admin_pair(o, "wished_tpot_ms", "%u", d->slo_tpot_ms);
    sl_admin_pair(o, "wishes", "%s", wishes(d));
    sl_admin_pair(o, "mode", "%s", a ? sl_place_mode_name(a->mode) : "-");
    sl_admin_pair(o, "P", "%s", a ? a->p : "");
    sl_admin_pair(o, "s", "%u", a ? a->split : 0);
    sl_admin_pair(o, "D", "%s", a ? a->d : "");
    sl_admin_pair(o, "attempts", "%u", d->n_attempts);
    sl_admin_pair(o, "prompt_tokens", "%u", d->n_prompt);
    sl_admin_pair(o, "tokens", "%u", d->n_generated);
    bool has_p = a && a->p[0];
    for (size_t i = 0; i < SL_COUNTOF(facts); i++) {
        if (facts[i].key_p)
            fact_pair(o, facts[i].key_p, has_p, &d->p, facts[i].offset);
        if (facts[i].key_d)
            fact_pair(o, facts[i].key_d, a != NULL, &d->d, facts[i].offset);
    }
    sl_admin_pair(o, "resends", "%u",
                  (d->p.reported ? d->p.report.resends : 0) + (d->d.reported ? d->d.report.resends : 0));
    sl_admin_pair(o, "preemptions", "%u",
                  (d->p.reported ? d->p.report.preemptions : 0) +
                      (d->d.reported ? d->d.report.preemptions : 0));
    sl_admin_pair(o, "bytes_after_first", "%" PRIu64,
                  d->p.reported ? d->p.report.bytes_after_first : UINT64_C(0));
    sl_admin_pair(o, "link_mb_per_s", "%.1f", d->link_bytes_per_s / 1e6);
    sl_admin_pair(o, "end_P", "%s", d->p.end);
    sl_admin_pair(o, "end_D", "%s", d->d.end);
    value_pair(o, "queue_P_ms",
               d->p.reported && d->p.report.has_queue_ms ? (double)d->p.report.queue_ms : -1);
    value_pair(o, "queue_D_ms",
               d->d.reported && d->d.report.has_queue_ms ? (double)d->d.report.queue_ms : -1);
    value_pair(o, "prefill_P_ms",
               d->p.reported && d->p.report.has_prefill_ms ? (double)d->p.report.prefill_ms : -1);
    value_pair(o, "prefill_D_ms",
               d->d.reported && d->d.report.has_prefill_ms ? (double)d->d.report.prefill_ms : -1);
    value_pair(o, "transfer_ms",
               d->p.reported && d->p.report.has_transfer_ms ? (double)d->p.report.transfer_ms : -1);
    ms_pair(o, "placed_ms", d->arrived_us, d->placed_us);
    ms_pair(o, "submitted_ms", d->arrived_us, d->submitted_us);
    ms_pair(o, "ttft_ms", d->arrived_us, d->first_us);
    ms_pair(o, "second_token_ms", d->arrived_us, d->second_us);
    ms_pair(o, "total_ms", d->arrived_us, d->done_us ? d->done_us : now_us);
    value_pair(o, "itl_median_ms", d->itl_median_ms);
    value_pair(o, "gap_max_ms", d->gap_max_ms);
    double handover;
    if (sl_decision_handover_ms(d, &handover))
        sl_admin_pair(o, "handover_ms", "%.3f", handover);
    else
        sl_admin_pair(o, "handover_ms", "-");
    sl_admin_pair(o, "duplicates", "%u", d->n_duplicates);
    sl_admin_pair(o, "resyncs", "%u", d->n_resyncs);
    sl_admin_pair(o, "command_retries", "%u", d->n_retries);
    sl_admin_pair(o, "faults", "%u", d->n_recovered);
    sl_admin_pair(o, "finish", "%s", d->finish[0] ? d->finish : "running");
    sl_admin_pair(o, "error", "%s", d->error);
}

static void placements_table(struct sl_admin_out *o, const struct sl_decision *d)
{
    sl_admin_table(o, "placements", "attempt,mode,P,s,D,tokens,ttft_ms,second_ms,why");
    for (uint32_t i = 0; i < d->n_attempts && i < SL_DECISION_ATTEMPTS; i++) {
        const struct sl_decision_attempt *a = &d->attempts[i];
        sl_admin_row(o);
        sl_admin_cell(o, "%u", a->attempt);
        sl_admin_cell(o, "%s", sl_place_mode_name(a->mode));
        sl_admin_cell(o, "%s", a->p);
        sl_admin_cell(o, "%u", a->split);
        sl_admin_cell(o, "%s", a->d);
        sl_admin_cell(o, "%u", a->n_tokens);
        sl_admin_cell(o, "%.1f", a->predicted.ttft_ms);
        sl_admin_cell(o, "%.1f", a->predicted.second_ms);
        sl_admin_cell(o, "%s", a->why);
    }
}

static void candidates_table(struct sl_admin_out *o, const struct sl_decision *d)
{
    sl_admin_table(o, "candidates", "P,s,D,ttft_ms,second_ms,damage_ms,cost_ms,note");
    for (uint32_t i = 0; i < d->n_candidates; i++) {
        const struct sl_decision_candidate *c = &d->candidates[i];
        sl_admin_row(o);
        sl_admin_cell(o, "%s", c->p);
        sl_admin_cell(o, "%u", c->split);
        sl_admin_cell(o, "%s", c->d);
        sl_admin_cell(o, "%.1f", c->predicted.ttft_ms);
        sl_admin_cell(o, "%.1f", c->predicted.second_ms);
        sl_admin_cell(o, "%.1f", c->predicted.damage_ms);
        sl_admin_cell(o, "%.1f", c->predicted.cost_ms);
        sl_admin_cell(o, "%s%s%s%s", i == 0 ? "chosen" : "", i == 0 && (c->tight || c->degraded) ? ", " : "",
                      c->tight ? "waits for pages" : "", c->degraded ? " degraded link" : "");
    }
}

/* "p0 32 of 48 tokens, d0 the rest", "all on d0". */
static void where(char *out, size_t size, const char *p, uint32_t split, uint32_t n_tokens, const char *d)
{
    if (!p[0])
        snprintf(out, size, "all on %s", d);
    else if (split == n_tokens)
        snprintf(out, size, "the prompt on %s for %s", p, d);
    else
        snprintf(out, size, "%u of %u prompt tokens on %s, the rest on %s", split, n_tokens, p, d);
}

#define WHERE_MAX (2 * SL_DECISION_NAME + 64)

/* Why this one: what it was thought to cost, and the next best. */
static void price(char *out, size_t size, const struct sl_decision *d)
{
    const struct sl_decision_candidate *c = d->candidates;
    char other[WHERE_MAX];
    if (d->n_attempts != 1 || d->n_candidates == 0) {
        out[0] = '\0';
        return;
    }
    if (d->n_candidates == 1) {
        snprintf(out, size, " It was the only way, for %.0f ms of delays.", c[0].predicted.cost_ms);
        return;
    }
    where(other, sizeof other, c[1].p, c[1].split, d->attempts[0].n_tokens, c[1].d);
    snprintf(out, size, " It was to cost %.0f ms of delays to all, the next best (%s) %.0f ms%s.",
             c[0].predicted.cost_ms, other, c[1].predicted.cost_ms,
             c[1].predicted.miss > c[0].predicted.miss ? " and miss what was wished" : "");
}

/* What was predicted, and what came. */
static void outcome(char *out, size_t size, const struct sl_decision *d, const struct sl_decision_attempt *a)
{
    double waited_ms = d->placed_us > d->arrived_us ? (double)(d->placed_us - d->arrived_us) / 1e3 : 0;
    double error;
    if (sl_decision_ttft_error(d, &error))
        snprintf(out, size,
                 " It waited %.0f ms for its turn; the first token was predicted %.0f ms after that and came "
                 "after %.0f ms.",
                 waited_ms, a->predicted.ttft_ms, (double)(d->first_us - d->placed_us) / 1e3);
    else if (d->n_attempts == 1)
        snprintf(out, size, " The first token is predicted %.0f ms after it was placed.",
                 a->predicted.ttft_ms);
    else
        snprintf(out, size, " It was placed %u times.", d->n_attempts);
}

static void explain(struct sl_admin_out *o, const struct sl_decision *d)
{
    const struct sl_decision_attempt *a = sl_decision_last(d);
    char place[WHERE_MAX], cost[WHERE_MAX + 160], came[192];
    if (!a) {
        sl_admin_say(o, "%s was not placed: %s", d->id, d->error[0] ? d->error : "it waits for its turn.");
        return;
    }
    where(place, sizeof place, a->p, a->split, a->n_tokens, a->d);
    price(cost, sizeof cost, d);
    outcome(came, sizeof came, d, a);
    sl_admin_say(o, "%s ran as %s: %s, %u tokens decoded. Why: %s.%s%s", d->id, sl_place_mode_name(a->mode),
                 place, d->n_generated, a->why, cost, came);
}

const struct sl_decision *sl_admin_find(struct sl_admin_out *o, const struct sl_admin_state *s,
                                        const char *id)
{
    const struct sl_decision *d = find(s->decisions, id);
    if (!d && strcmp(id, "last") == 0)
        sl_admin_refuse(o, SL_ENOTFOUND, "No request has been placed yet.");
    else if (!d)
        sl_admin_refuse(o, SL_ENOTFOUND, "No request '%.80s' among the last %d; `requests` lists them.", id,
                        SL_DECISIONS);
    return d;
}

void sl_admin_explain(struct sl_admin_out *o, const struct sl_admin_state *s, const char *id)
{
    const struct sl_decision *d = sl_admin_find(o, s, id);
    if (!d)
        return;
    explain(o, d);
    record_table(o, d, s->now_us);
    placements_table(o, d);
    candidates_table(o, d);
}
