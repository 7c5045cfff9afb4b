/* router/api/sluice_headers.c - unlike unknown body members, a wrong value here is always refused: who sends
 * these headers compares modes, and a wish that was dropped silently would make the comparison a lie. */
#include "router/api/sluice_headers.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/mem.h"
#include "common/sched/speculate.h"
#include "common/wire/wire_msg.h"

struct reader {
    sl_header_fn *get;
    const void *arg;
    struct sl_fault *fault;
};

static void bad(const struct reader *r, const char *name, const char *value, const char *expected)
{
    sl_fault_set(r->fault, SL_EINVAL, name, "The header %s is \"%.60s\"; expected %s.", name, value,
                 expected);
}

static int64_t read_number(const struct reader *r, const char *name, int64_t max, int64_t dflt,
                           const char *expected)
{
    const char *s = r->get(r->arg, name);
    if (!s)
        return dflt;
    size_t n = strlen(s);
    int64_t v = n && n <= 10 && strspn(s, "0123456789") == n ? strtoll(s, NULL, 10) : -1;
    if (v < 0 || v > max) {
        bad(r, name, s, expected);
        return dflt;
    }
    return v;
}

static uint32_t read_ms(const struct reader *r, const char *name, uint32_t dflt)
{
    static const char expected[] = "milliseconds, 1 to 86400000";
    int64_t ms = read_number(r, name, SL_WIRE_MAX_DEADLINE_MS, -1, expected);
    if (ms == 0)
        bad(r, name, "0", expected);
    return ms > 0 ? (uint32_t)ms : dflt;
}

static bool read_flag(const struct reader *r, const char *name)
{
    const char *s = r->get(r->arg, name);
    if (!s || strcmp(s, "0") == 0 || strcasecmp(s, "false") == 0)
        return false;
    if (strcmp(s, "1") != 0 && strcasecmp(s, "true") != 0)
        bad(r, name, s, "1 or 0");
    return true;
}

static const char *read_name(const struct reader *r, const char *name, struct sl_arena *arena)
{
    const char *s = r->get(r->arg, name);
    if (!s)
        return NULL;
    size_t n = strlen(s);
    if (n == 0 || n > SL_WIRE_MAX_NAME)
        bad(r, name, s, "the name of a node");
    return sl_arena_strndup(arena, s, n);
}

static enum sl_mode_override read_mode(const struct reader *r)
{
    static const char name[] = "X-Sluice-Mode";
    const char *s = r->get(r->arg, name);
    if (!s)
        return SL_MODE_DEFAULT;
    if (strcmp(s, "pd") == 0)
        return SL_MODE_PD;
    if (strcmp(s, "colocated") == 0)
        return SL_MODE_COLOCATED;
    if (strcmp(s, "hybrid") != 0)
        bad(r, name, s, "pd, colocated or hybrid");
    return SL_MODE_HYBRID;
}

static int32_t read_speculation(const struct reader *r)
{
    static const char name[] = "X-Sluice-Speculation";
    const char *s = r->get(r->arg, name);
    if (s && strcmp(s, "auto") == 0)
        return SL_SPEC_AUTO;
    if (s && strcmp(s, "off") == 0)
        return SL_SPEC_OFF;
    return (int32_t)read_number(r, name, SL_SPEC_MAX, SL_SPEC_DEFAULT,
                                "auto, off, or a number of tokens up to 31");
}

bool sl_headers_read(sl_header_fn *get, const void *arg, struct sl_gen_req *req, struct sl_fault *fault)
{
    const struct reader r = {get, arg, fault};
    const char *chunk = get(arg, "X-Sluice-Chunk");
    req->mode = read_mode(&r);
    req->split = read_number(&r, "X-Sluice-Split", INT32_MAX, -1, "a number of tokens");
    if (chunk && strcmp(chunk, "auto") == 0)
        req->chunk = -1;
    else
        req->chunk = (int32_t)read_number(&r, "X-Sluice-Chunk", INT32_MAX, -2,
                                          "a number of tokens, 0 for whole prompts, or auto");
    req->speculation = read_speculation(&r);
    req->want_prefill_node = read_name(&r, "X-Sluice-Prefill-Node", req->arena);
    req->want_decode_node = read_name(&r, "X-Sluice-Decode-Node", req->arena);
    req->want_digest = read_flag(&r, "X-Sluice-Digest");
    req->no_prefix_cache = read_flag(&r, "X-Sluice-No-Cache");
    req->deadline_ms = read_ms(&r, "X-Sluice-Deadline-Ms", req->deadline_ms);
    req->ttft_ms = read_ms(&r, "X-Sluice-Ttft-Ms", 0);
    req->tpot_ms = read_ms(&r, "X-Sluice-Tpot-Ms", 0);
    return fault->err == SL_OK;
}
