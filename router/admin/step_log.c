/* router/admin/step_log.c - one ring for steps and one for transfers, both numbered by one count, so that a reader
 * needs to remember a single number. Lanes are names by index; when there are too many of them, all begins anew:
 * a cluster that saw a thousand node names is not worth a smarter way. */
#include "router/admin/step_log.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/fleet/node_table.h"

#define DRIFT_PART      1024u /* of a delay beyond the least one: a clock that runs 0.1 % slower is followed */
#define SL_STEP_REQUEST 64    /* as sl_decision.id */

struct step {
    uint64_t number, start_us;
    uint32_t lane, took_us, predicted_us, decode_rows, draft_rows, prompt_tokens, prompts;
};

struct transfer {
    uint64_t number, start_us, end_us;
    uint32_t from, to, pages;
    char request[SL_STEP_REQUEST];
};

struct lane {
    char node[SL_NODE_NAME];
    uint64_t boot_id, started_us; /* of this life, on the router's clock */
    uint64_t prompt_tokens, decode_tokens, uptime_us, told_us;
};

struct sl_step_log {
    pthread_mutex_t lock;
    uint64_t opened_us;
    uint64_t last; /* number given out */
    uint64_t cut;  /* numbers up to this one are gone */
    struct step *steps;
    struct transfer *transfers;
    uint64_t n_steps, n_transfers; /* ever */
    struct lane *lanes;
    uint32_t n_lanes;
};

struct sl_step_log *sl_step_log_new(uint64_t now_us)
{
    struct sl_step_log *l = sl_xcalloc(1, sizeof *l);
    SL_ASSERT(pthread_mutex_init(&l->lock, NULL) == 0);
    l->opened_us = now_us;
    l->steps = sl_xcalloc(SL_STEP_LOG, sizeof *l->steps);
    l->transfers = sl_xcalloc(SL_TRANSFER_LOG, sizeof *l->transfers);
    l->lanes = sl_xcalloc(SL_STEP_LANES, sizeof *l->lanes);
    return l;
}

void sl_step_log_free(struct sl_step_log *l)
{
    if (!l)
        return;
    pthread_mutex_destroy(&l->lock);
    sl_free(l->lanes);
    sl_free(l->transfers);
    sl_free(l->steps);
    sl_free(l);
}

/* Index; under the lock. */
static uint32_t lane_of(struct sl_step_log *l, const char *node)
{
    for (uint32_t i = 0; i < l->n_lanes; i++)
        if (strcmp(l->lanes[i].node, node) == 0)
            return i;
    if (l->n_lanes == SL_STEP_LANES) {
        l->n_lanes = 0;
        l->n_steps = l->n_transfers = 0;
        l->cut = l->last;
    }
    struct lane *n = &l->lanes[l->n_lanes];
    *n = (struct lane){0};
    snprintf(n->node, sizeof n->node, "%s", node);
    return l->n_lanes++;
}

/* When this life of the node began, at the earliest; moves with each message. */
static void place_on_clock(struct lane *n, uint64_t boot_id, uint64_t uptime_us, uint64_t now_us)
{
    uint64_t started = now_us > uptime_us ? now_us - uptime_us : 0;
    if (n->boot_id != boot_id || started < n->started_us)
        n->started_us = started;
    else
        n->started_us += (started - n->started_us) / DRIFT_PART;
    n->boot_id = boot_id;
    n->uptime_us = uptime_us;
}

/* Columns that a node left short count as 0. */
static uint32_t at(const uint32_t *column, size_t n, size_t i)
{
    return i < n ? column[i] : 0;
}

uint64_t sl_step_log_take(struct sl_step_log *l, const char *node, uint64_t boot_id,
                          const Sluice__StepLog *told, uint64_t after, uint64_t now_us)
{
    pthread_mutex_lock(&l->lock);
    uint32_t lane = lane_of(l, node);
    struct lane *n = &l->lanes[lane];
    place_on_clock(n, boot_id, told->uptime_us, now_us);
    n->prompt_tokens = told->prompt_tokens;
    n->decode_tokens = told->decode_tokens;
    n->told_us = now_us - l->opened_us;
    for (size_t i = 0; i < told->n_ended_us; i++) {
        uint32_t took_us = at(told->took_us, told->n_took_us, i);
        uint64_t ended_us = n->started_us + told->ended_us[i], shift = l->opened_us + took_us;
        if (told->ended_us[i] > told->uptime_us)
            continue;
        l->steps[l->n_steps++ % SL_STEP_LOG] = (struct step){
            .number = ++l->last,
            .start_us = ended_us > shift ? ended_us - shift : 0,
            .lane = lane,
            .took_us = took_us,
            .predicted_us = at(told->predicted_us, told->n_predicted_us, i),
            .decode_rows = at(told->decode_rows, told->n_decode_rows, i),
            .draft_rows = at(told->draft_rows, told->n_draft_rows, i),
            .prompt_tokens = at(told->prompt_rows, told->n_prompt_rows, i),
            .prompts = at(told->prompts, told->n_prompts, i),
        };
    }
    pthread_mutex_unlock(&l->lock);
    return told->n_ended_us ? told->first_step + told->n_ended_us - 1 : after;
}

void sl_step_log_transfer(struct sl_step_log *l, const struct sl_step_transfer *t)
{
    pthread_mutex_lock(&l->lock);
    lane_of(l, t->from); /* may begin all anew, so that no index before it holds */
    uint32_t to = lane_of(l, t->to), from = lane_of(l, t->from);
    struct transfer *x = &l->transfers[l->n_transfers++ % SL_TRANSFER_LOG];
    *x = (struct transfer){.number = ++l->last,
                           .start_us = t->start_us > l->opened_us ? t->start_us - l->opened_us : 0,
                           .end_us = t->end_us > l->opened_us ? t->end_us - l->opened_us : 0,
                           .from = from,
                           .to = to,
                           .pages = t->pages};
    snprintf(x->request, sizeof x->request, "%s", t->request);
    pthread_mutex_unlock(&l->lock);
}

/* What a reader gets, taken out under the lock so that writing it down keeps nobody waiting. */
struct answer {
    struct lane *lanes;
    struct step *steps;
    struct transfer *transfers;
    uint32_t n_lanes, n_steps, n_transfers;
    uint64_t next;
    bool lost, more;
};

/* The oldest of the n ever written to a ring of size. */
static uint64_t oldest(uint64_t n, uint64_t size)
{
    return n > size ? n - size : 0;
}

/* Under the lock. */
static void take_out(const struct sl_step_log *l, uint64_t after, struct answer *a)
{
    if (after > l->last)
        after = 0; /* of another router's life */
    uint64_t first = l->n_steps > SL_STEP_LOG ? l->steps[l->n_steps % SL_STEP_LOG].number : 0;
    a->lost = after && (after < l->cut || after + 1 < first);
    a->next = l->last;
    for (uint64_t i = oldest(l->n_steps, SL_STEP_LOG); i < l->n_steps && !a->more; i++) {
        const struct step *s = &l->steps[i % SL_STEP_LOG];
        if (s->number <= after)
            continue;
        a->more = a->n_steps == SL_STEP_READ_MAX;
        if (a->more)
            a->next = a->steps[a->n_steps - 1].number;
        else
            a->steps[a->n_steps++] = *s;
    }
    for (uint64_t i = oldest(l->n_transfers, SL_TRANSFER_LOG); i < l->n_transfers; i++) {
        const struct transfer *t = &l->transfers[i % SL_TRANSFER_LOG];
        if (t->number > after && t->number <= a->next)
            a->transfers[a->n_transfers++] = *t;
    }
    memcpy(a->lanes, l->lanes, l->n_lanes * sizeof *a->lanes);
    a->n_lanes = l->n_lanes;
}

static void put_string(struct sl_buf *out, const char *s)
{
    sl_buf_putc(out, '"');
    sl_buf_json_escape(out, s, strlen(s));
    sl_buf_putc(out, '"');
}

static void put_answer(const struct answer *a, struct sl_buf *out)
{
    sl_buf_printf(out, "\"next\":%" PRIu64 ",\"lost\":%s,\"more\":%s,\"lanes\":[", a->next,
                  a->lost ? "true" : "false", a->more ? "true" : "false");
    for (uint32_t i = 0; i < a->n_lanes; i++) {
        const struct lane *n = &a->lanes[i];
        sl_buf_puts(out, i ? ",{\"node\":" : "{\"node\":");
        put_string(out, n->node);
        sl_buf_printf(out,
                      ",\"prompt_tokens\":%" PRIu64 ",\"decode_tokens\":%" PRIu64 ",\"uptime_us\":%" PRIu64
                      ",\"told_us\":%" PRIu64 "}",
                      n->prompt_tokens, n->decode_tokens, n->uptime_us, n->told_us);
    }
    sl_buf_puts(out, "],\"steps\":[");
    for (uint32_t i = 0; i < a->n_steps; i++) {
        const struct step *s = &a->steps[i];
        sl_buf_printf(out, "%s[%u,%" PRIu64 ",%u,%u,%u,%u,%u,%u]", i ? "," : "", s->lane, s->start_us,
                      s->took_us, s->predicted_us, s->decode_rows, s->draft_rows, s->prompt_tokens,
                      s->prompts);
    }
    sl_buf_puts(out, "],\"transfers\":[");
    for (uint32_t i = 0; i < a->n_transfers; i++) {
        const struct transfer *t = &a->transfers[i];
        sl_buf_printf(out, "%s[%u,%u,%" PRIu64 ",%" PRIu64 ",%u,", i ? "," : "", t->from, t->to, t->start_us,
                      t->end_us, t->pages);
        put_string(out, t->request);
        sl_buf_putc(out, ']');
    }
    sl_buf_putc(out, ']');
}

void sl_step_log_json(struct sl_step_log *l, uint64_t after, uint64_t now_us, struct sl_buf *out)
{
    struct answer a = {.lanes = sl_xcalloc(SL_STEP_LANES, sizeof *a.lanes),
                       .steps = sl_xcalloc(SL_STEP_READ_MAX, sizeof *a.steps),
                       .transfers = sl_xcalloc(SL_TRANSFER_LOG, sizeof *a.transfers)};
    pthread_mutex_lock(&l->lock);
    take_out(l, after, &a);
    pthread_mutex_unlock(&l->lock);
    sl_buf_printf(out, "{\"now_us\":%" PRIu64 ",", now_us - l->opened_us);
    put_answer(&a, out);
    sl_buf_putc(out, '}');
    sl_free(a.transfers);
    sl_free(a.steps);
    sl_free(a.lanes);
}
