/* tests/bench/workload.c - see workload.h. */
#include "tests/bench/workload.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "common/base/philox.h"

#define MAX_BODY_BYTES (16u << 20)

enum sl_err sl_range_parse(const char *text, struct sl_range *out, struct sl_why *why)
{
    char *end;
    errno = 0;
    unsigned long lo = strtoul(text, &end, 10), hi = lo;
    if (end != text && *end == ':') {
        char *from = end + 1;
        hi = strtoul(from, &end, 10);
        if (end == from)
            end = NULL;
    }
    if (errno || !end || end == text || *end || lo == 0 || hi < lo || hi > UINT32_MAX)
        return sl_why_set(why, SL_EINVAL, "\"%s\" is no range: write N, or LOW:HIGH with 1 <= LOW <= HIGH",
                          text);
    *out = (struct sl_range){(uint32_t)lo, (uint32_t)hi};
    return SL_OK;
}

double sl_draw(struct sl_draw *d)
{
    return sl_philox_uniform(d->seed, d->stream, d->n++);
}

uint32_t sl_draw_range(struct sl_draw *d, struct sl_range r)
{
    return r.lo + (uint32_t)(sl_draw(d) * (double)(r.hi - r.lo + 1));
}

void sl_prompt_random(struct sl_draw *d, uint32_t n, uint32_t first_id, uint32_t n_vocab,
                      struct sl_prompt *out)
{
    out->tokens = sl_xalloc(n * sizeof *out->tokens);
    out->n = n;
    for (uint32_t i = 0; i < n; i++)
        out->tokens[i] = (int32_t)sl_draw_range(d, (struct sl_range){first_id, n_vocab - 1});
}

void sl_job_completion(struct sl_job *j, const struct sl_prompt *p, const struct sl_completion_opts *o)
{
    struct sl_buf b;
    sl_buf_init(&b, MAX_BODY_BYTES);
    sl_buf_printf(&b, "{\"model\":\"%s\",\"stream\":true,\"stream_options\":{\"include_usage\":true},",
                  o->model);
    sl_buf_printf(
        &b,
        "\"max_tokens\":%u,\"min_tokens\":%u,\"ignore_eos\":true,\"temperature\":%g,\"seed\":%" PRIu64 ",",
        o->max_tokens, o->max_tokens, o->temperature, o->seed);
    if (o->cache_salt)
        sl_buf_printf(&b, "\"cache_salt\":\"%s\",", o->cache_salt);
    if (o->token_ids)
        sl_buf_puts(&b, "\"return_token_ids\":true,");
    sl_buf_puts(&b, "\"prompt\":[");
    for (uint32_t i = 0; i < p->n; i++)
        sl_buf_printf(&b, "%s%" PRId32, i ? "," : "", p->tokens[i]);
    sl_buf_puts(&b, "]}");
    SL_ASSERT(!sl_buf_failed(&b));
    j->path = "/v1/completions";
    j->body = sl_buf_steal(&b);
    if (o->want_digest)
        sl_job_header(j, "X-Sluice-Digest", "1");
}
