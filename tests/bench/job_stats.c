/* tests/bench/job_stats.c - see job_stats.h. */
#include "tests/bench/job_stats.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "common/base/mem.h"

static const char *const key[SL_N_FELT] = {"ttft_ms",    "second_token_ms", "tpot_ms",    "itl_ms",
                                           "gap_max_ms", "send_lag_ms",     "handover_ms"};
static const char *const name[SL_N_FELT] = {"TTFT",        "2nd token", "TPOT",    "ITL",
                                            "longest gap", "send lag",  "handover"};
#define CDF_STEP 5 /* percent between the quantiles that a report draws */

static const double percentiles[] = {50, 90, 99, 100};
static const char *const percentile_key[] = {"p50", "p90", "p99", "max"};

double sl_job_tpot_ms(const struct sl_job *j)
{
    size_t n = j->n_tokens;
    return n < 2 ? 0 : (j->token_s[n - 1] - j->token_s[0]) * 1e3 / (double)(n - 1);
}

double sl_job_gap_max_ms(const struct sl_job *j)
{
    double longest = 0;
    for (size_t i = 1; i < j->n_tokens; i++)
        longest = fmax(longest, j->token_s[i] - j->token_s[i - 1]);
    return longest * 1e3;
}

static void add_one(struct sl_job_stats *s, const struct sl_job *j)
{
    const double *t = j->token_s;
    s->tokens += j->n_tokens;
    s->cached_tokens += j->cached_tokens;
    sl_samples_add(&s->felt[SL_TTFT], (t[0] - j->at_s) * 1e3);
    sl_samples_add(&s->felt[SL_SEND_LAG], (j->sent_s - j->at_s) * 1e3);
    if (j->n_tokens < 2)
        return;
    sl_samples_add(&s->felt[SL_SECOND], (t[1] - j->at_s) * 1e3);
    sl_samples_add(&s->felt[SL_TPOT], sl_job_tpot_ms(j));
    sl_samples_add(&s->felt[SL_GAP_MAX], sl_job_gap_max_ms(j));
    for (size_t i = 1; i < j->n_tokens; i++)
        sl_samples_add(&s->felt[SL_ITL], (t[i] - t[i - 1]) * 1e3);
}

void sl_job_stats_add(struct sl_job_stats *s, const struct sl_job *jobs, size_t n)
{
    double end = 0;
    for (size_t i = 0; i < n; i++) {
        const struct sl_job *j = &jobs[i];
        s->requests++;
        if (sl_job_ok(j) && j->n_tokens > 0) {
            add_one(s, j);
            end = fmax(end, j->token_s[j->n_tokens - 1]);
        } else if (s->errors++ == 0) {
            snprintf(s->first_error, sizeof s->first_error, "%s",
                     j->error[0] ? j->error : "an answer without tokens");
        }
    }
    s->busy_s += n && end > jobs[0].at_s ? end - jobs[0].at_s : 0;
}

void sl_job_stats_fini(struct sl_job_stats *s)
{
    for (size_t k = 0; k < SL_N_FELT; k++)
        sl_samples_fini(&s->felt[k]);
}

static double tokens_per_s(const struct sl_job_stats *s)
{
    return s->busy_s > 0 ? (double)s->tokens / s->busy_s : 0;
}

void sl_job_stats_print_head(void)
{
    printf("%-18s %-12s %9s %9s %9s %9s\n", "arm", "ms", "P50", "P90", "P99", "max");
}

void sl_job_stats_print(struct sl_job_stats *s, const char *arm)
{
    for (size_t k = 0; k < SL_N_FELT; k++) {
        if (s->felt[k].n == 0)
            continue;
        printf("%-18s %-12s", k == 0 ? arm : "", name[k]);
        for (size_t q = 0; q < SL_COUNTOF(percentiles); q++)
            printf(" %9.1f", sl_samples_percentile(&s->felt[k], percentiles[q]));
        printf("\n");
    }
    printf("%-18s %.1f tokens/s, %" PRIu64 " requests, %" PRIu64 " errors, %" PRIu64
           " prompt tokens from cache\n",
           "", tokens_per_s(s), s->requests, s->errors, s->cached_tokens);
    if (s->errors)
        printf("%-18s first error: %s\n", "", s->first_error);
}

json_t *sl_job_stats_report(struct sl_job_stats *s)
{
    json_t *doc = json_object();
    for (size_t k = 0; k < SL_N_FELT; k++) {
        json_t *p = json_object();
        for (size_t q = 0; q < SL_COUNTOF(percentiles); q++) {
            double v = sl_samples_percentile(&s->felt[k], percentiles[q]);
            json_object_set_new(p, percentile_key[q], isnan(v) ? json_null() : json_real(v));
        }
        json_t *cdf = json_array();
        for (unsigned q = 0; q <= 100 && s->felt[k].n; q += CDF_STEP)
            json_array_append_new(cdf, json_real(sl_samples_percentile(&s->felt[k], q)));
        json_object_set_new(p, "cdf", cdf);
        json_object_set_new(doc, key[k], p);
    }
    json_object_set_new(doc, "tokens_per_s", json_real(tokens_per_s(s)));
    json_object_set_new(doc, "requests", json_integer((json_int_t)s->requests));
    json_object_set_new(doc, "errors", json_integer((json_int_t)s->errors));
    json_object_set_new(doc, "cached_tokens", json_integer((json_int_t)s->cached_tokens));
    return doc;
}
