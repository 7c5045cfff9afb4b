/* common/base/clock.c - CLOCK_MONOTONIC, which the vDSO serves without a system call. */
#include "common/base/clock.h"

uint64_t sl_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t sl_now_us(void)
{
    return sl_now_ns() / 1000;
}

uint64_t sl_now_ms(void)
{
    return sl_now_ns() / 1000000;
}

uint64_t sl_heard_ms(uint64_t heard_ms, uint64_t late_ms, uint64_t now_ms)
{
    return heard_ms >= now_ms || late_ms >= now_ms - heard_ms ? now_ms : heard_ms + late_ms;
}

struct timespec sl_in_ms(uint32_t ms)
{
    uint64_t ns = sl_now_ns() + ms * UINT64_C(1000000);
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
}

double sl_lap_ms(uint64_t *at_ns)
{
    uint64_t now = sl_now_ns(), before = *at_ns;
    *at_ns = now;
    return (double)(now - before) / 1e6;
}

int64_t sl_wall_s(void)
{
    return (int64_t)time(NULL);
}
