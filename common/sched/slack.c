/* common/sched/slack.c - see slack.h. */
#include "common/sched/slack.h"

#define MIN_WORK_MS 0.01 /* of a prompt that is cached to its end */

double sl_slack_relative(const struct sl_slack *s, uint64_t now_us)
{
    double work = s->work_ms > MIN_WORK_MS ? s->work_ms : MIN_WORK_MS;
    double due = s->first_token_us ? (double)s->first_token_us / 1e3
                                   : (double)s->arrived_us / 1e3 + SL_SLACK_STRETCH * work;
    if (s->deadline_us && (double)s->deadline_us / 1e3 < due)
        due = (double)s->deadline_us / 1e3;
    return (due - (double)now_us / 1e3) / work;
}

int64_t sl_slack_level(const struct sl_slack *s, uint64_t now_us)
{
    uint64_t waited = now_us > s->arrived_us ? now_us - s->arrived_us : 0;
    return s->priority - (int64_t)(waited / SL_SLACK_AGE_US);
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
