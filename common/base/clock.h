/* common/base/clock.h - monotonic time of this process. Never sent to another one: messages carry remaining
 * time. */
#ifndef SLUICE_COMMON_BASE_CLOCK_H
#define SLUICE_COMMON_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

uint64_t sl_now_ns(void);
uint64_t sl_now_us(void);
uint64_t sl_now_ms(void);
/* When somebody was heard last, for a listener that was away itself for late_ms until now_ms: the silence of
 * that time is not theirs. Never after now_ms. */
uint64_t sl_heard_ms(uint64_t heard_ms, uint64_t late_ms, uint64_t now_ms);
struct timespec sl_in_ms(uint32_t ms); /* so long from now, for waits that go by CLOCK_MONOTONIC */
double sl_lap_ms(uint64_t *at_ns);     /* milliseconds since *at_ns, which becomes now */
int64_t sl_wall_s(void);               /* seconds since 1970, for "created" fields and logs only */

#endif
