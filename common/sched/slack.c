/* common/sched/slack.c - see slack.h. */
#include "common/sched/slack.h"

#include <math.h>

#define MIN_WORK_MS 0.01 /* of a prompt that is cached to its end */

static double work_ms(const struct sl_slack *s)
{
    return fmax(s->work_ms, MIN_WORK_MS);
}

static double due_by_work_ms(const struct sl_slack *s)
{
    return (double)s->arrived_us / 1e3 + SL_SLACK_STRETCH * work_ms(s);
}

double sl_slack_relative(const struct sl_slack *s, uint64_t now_us)
{
    double due = due_by_work_ms(s);
    if (s->first_token_us)
        due = fmin(due, (double)s->first_token_us / 1e3);
    if (s->deadline_us)
        due = fmin(due, (double)s->deadline_us / 1e3);
    return (due - (double)now_us / 1e3) / work_ms(s);
}

int64_t sl_slack_level(const struct sl_slack *s, uint64_t now_us)
{
    int64_t waited = now_us > s->arrived_us ? (int64_t)(now_us - s->arrived_us) : 0;
    double patience = s->first_token_us ? (double)s->first_token_us - due_by_work_ms(s) * 1e3 : 0;
    return s->priority - (waited - (int64_t)fmax(patience, 0)) / (int64_t)SL_SLACK_AGE_US;
}

bool sl_slack_before(const struct sl_slack *a, const struct sl_slack *b, uint64_t now_us)
{
    int64_t la = sl_slack_level(a, now_us), lb = sl_slack_level(b, now_us);
    if (la != lb)
        return la < lb;
    double sa = sl_slack_relative(a, now_us), sb = sl_slack_relative(b, now_us);
    if (sa < sb || sa > sb)
        return sa < sb;
    return a->arrived_us < b->arrived_us;
}
