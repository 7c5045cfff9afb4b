/* common/sched/slack.h - how urgent a waiting prompt is: relative slack.
 *
 * Slack is the time left until its work should be done, per unit of that work; the smallest runs first. The due
 * time is SL_SLACK_STRETCH times its own work after it came, or when the first token is wanted, or the request's
 * deadline, whichever comes first. So short prompts overtake long ones soon after they came, also where both may
 * take their time, and a long one's slack falls as it waits until it is first. Progress does not count: of two equal
 * prompts the first one is finished before the other begins, instead of both being halfway. Source: LARS of Medha,
 * without its remaining work.
 *
 * Priority goes before slack, and ages with waiting. A wish for a first token later than that due time is patience:
 * so much of the waiting does not count, and who may wait for a minute lets the others go first until then. */
#ifndef SLUICE_COMMON_SCHED_SLACK_H
#define SLUICE_COMMON_SCHED_SLACK_H

#include <stdbool.h>
#include <stdint.h>

/* Of a prompt's own work on an idle node: below the 5 times that are the usual limit, so that some of it is left for
 * what prediction misses. Placement has the same due time (router/place/predict.c). */
#define SL_SLACK_STRETCH 4.0

struct sl_slack {
    int32_t priority; /* lower runs earlier */
    uint64_t arrived_us;
    uint64_t first_token_us; /* when it is wanted; 0 = no wish */
    uint64_t deadline_us;    /* 0 = none */
    double work_ms;          /* predicted, of the uncached tokens that it came with */
};

double sl_slack_relative(const struct sl_slack *s, uint64_t now_us);
/* Priority after ageing: every SL_SLACK_AGE_US of waiting counts as one level, so that nothing starves, and so much
 * patience as one level less. */
#define SL_SLACK_AGE_US UINT64_C(10000000)
int64_t sl_slack_level(const struct sl_slack *s, uint64_t now_us);
/* a runs before b: level, then relative slack, then arrival. */
bool sl_slack_before(const struct sl_slack *a, const struct sl_slack *b, uint64_t now_us);

#endif
