/* tests/bench/trace.c - traces as published, read whole; or drawn.
 *
 * A trace that is too short is repeated end to end with block numbers of its own, so that a repetition shares
 * nothing with the one before it. */
#include "tests/bench/trace_build.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/mem.h"
#include "common/base/philox.h"

#define LINE_MAX_BYTES (1u << 20) /* a prompt of 128 thousand tokens names 250 blocks */
#define BLOCKS_COLUMN  ",blocks"  /* and how many tokens a block has */
#define MOONCAKE_BLOCK 512u       /* tokens of a block in Mooncake's traces */
#define MAX_BLOCKS     (1u << 26) /* of a file: 512 MiB of numbers */
#define MAX_AT_S                                                                                             \
    1e12 /* either way: times in microseconds, since any year, and far from what a double cannot tell apart */
#define DRAWN_PROMPT_LOG 5.0 /* prompts of e^5 (148) to e^8 (2981) tokens */
#define DRAWN_PROMPT_OCT 3.0
#define DRAWN_OUTPUT_LOG 3.0 /* outputs of e^3 (20) to e^6 (403) tokens */
#define DRAWN_OUTPUT_OCT 3.0

enum format { FORMAT_NORM, FORMAT_AZURE, FORMAT_LENGTHS, FORMAT_MOONCAKE, FORMAT_FITTED };

struct reader {
    const struct sl_trace_conf *c;
    struct sl_trace *t;
    struct sl_trace_build build;
    enum format format;
    double first_s; /* Azure: the first time stamp */
    uint64_t line;
};

static double draw(uint64_t seed, uint32_t stream, uint64_t i)
{
    return sl_philox_uniform(seed, stream, i);
}

void sl_trace_add(struct sl_trace_build *b, double at_s, uint64_t n_prompt, uint64_t n_output)
{
    struct sl_trace *t = b->t;
    if (t->n == b->cap) {
        b->cap = b->cap ? 2 * b->cap : 4096;
        t->requests = sl_xrealloc_array(t->requests, b->cap, sizeof *t->requests);
    }
    t->requests[t->n++] = (struct sl_trace_request){
        .at_s = at_s, .n_prompt = (uint32_t)n_prompt, .n_output = (uint32_t)n_output};
}

void sl_trace_add_block(struct sl_trace_build *b, uint64_t id)
{
    struct sl_trace *t = b->t;
    if (t->n_blocks == b->cap_blocks) {
        b->cap_blocks = b->cap_blocks ? 2 * b->cap_blocks : 65536;
        t->blocks = sl_xrealloc_array(t->blocks, b->cap_blocks, sizeof *t->blocks);
    }
    struct sl_trace_request *q = &t->requests[t->n - 1];
    if (q->n_blocks++ == 0)
        q->first_block = (uint32_t)t->n_blocks;
    t->blocks[t->n_blocks++] = id;
}

/* False: no request is like that. */
static bool add(struct reader *r, double at_s, double n_prompt, double n_output)
{
    if (!(fabs(at_s) <= MAX_AT_S) || !(n_prompt >= 0 && n_prompt <= SL_TRACE_MAX_TOKENS) ||
        !(n_output >= 0 && n_output <= SL_TRACE_MAX_TOKENS))
        return false;
    sl_trace_add(&r->build, at_s, (uint64_t)n_prompt, (uint64_t)n_output);
    return true;
}

/* "0-13 27 30-31" */
static bool read_blocks(struct reader *r, char *text)
{
    for (char *word = strtok_r(text, " ", &text); word; word = strtok_r(NULL, " ", &text)) {
        char *end;
        if (!isdigit((unsigned char)*word)) /* strtoull() would take a sign */
            return false;
        uint64_t a = strtoull(word, &end, 10), b = *end == '-' ? strtoull(end + 1, &end, 10) : a;
        if (*end || b < a || b - a >= MAX_BLOCKS - r->t->n_blocks)
            return false;
        for (uint64_t n = b - a + 1; n; n--)
            sl_trace_add_block(&r->build, b - n + 1);
    }
    return true;
}

static bool read_norm(struct reader *r, char *line)
{
    uint64_t us, p, o;
    int at = 0;
    if (sscanf(line, "%" SCNu64 ",%" SCNu64 ",%" SCNu64 "%n", &us, &p, &o, &at) != 3)
        return false;
    return add(r, (double)us / 1e6, (double)p, (double)o) &&
           (line[at] != ',' || !r->t->block_tokens || read_blocks(r, line + at + 1));
}

static bool read_azure(struct reader *r, char *line)
{
    struct tm tm = {0};
    double second;
    uint64_t p, o;
    if (sscanf(line, "%d-%d-%d %d:%d:%lf,%" SCNu64 ",%" SCNu64, &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
               &tm.tm_hour, &tm.tm_min, &second, &p, &o) != 8)
        return false;
    if (tm.tm_year < 1900 || tm.tm_year > 9999)
        return false;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    double at = (double)timegm(&tm) + second;
    if (r->t->n == 0)
        r->first_s = at;
    return add(r, at - r->first_s, (double)p, (double)o);
}

static bool read_lengths(struct reader *r, char *line)
{
    double p, o;
    if (sscanf(line, "%lf,%lf", &p, &o) != 2)
        return false;
    return add(r, 0, p, o);
}

/* One flat object a line; its four members in any order. */
static bool read_mooncake(struct reader *r, char *line)
{
    const char *ts = strstr(line, "\"timestamp\":"), *in = strstr(line, "\"input_length\":"),
               *out = strstr(line, "\"output_length\":"), *ids = strstr(line, "\"hash_ids\":");
    if (!ts || !in || !out || !ids || !(ids = strchr(ids, '[')))
        return false;
    if (!add(r, strtod(strchr(ts, ':') + 1, NULL) / 1e3, strtod(strchr(in, ':') + 1, NULL),
             strtod(strchr(out, ':') + 1, NULL)))
        return false;
    for (const char *p = ids + 1; *p && *p != ']';) {
        char *end;
        uint64_t id = strtoull(p, &end, 10);
        if (end == p)
            return false;
        sl_trace_add_block(&r->build, id);
        p = end + strspn(end, ", ");
    }
    return true;
}

static bool (*const readers[])(struct reader *r, char *line) = {
    [FORMAT_NORM] = read_norm,
    [FORMAT_AZURE] = read_azure,
    [FORMAT_LENGTHS] = read_lengths,
    [FORMAT_MOONCAKE] = read_mooncake,
};

/* The first line says the format; true when it is data already. */
static bool find_format(struct reader *r, const char *line, bool *is_data)
{
    static const struct {
        const char *begin;
        enum format format;
    } known[] = {{"arrival_us,prompt_tokens,output_tokens", FORMAT_NORM},
                 {"TIMESTAMP,ContextTokens,GeneratedTokens", FORMAT_AZURE},
                 {"num_prefill_tokens,num_decode_tokens", FORMAT_LENGTHS},
                 {"[trace]", FORMAT_FITTED},
                 {"{", FORMAT_MOONCAKE}};
    for (size_t i = 0; i < SL_COUNTOF(known); i++)
        if (strncmp(line, known[i].begin, strlen(known[i].begin)) == 0) {
            r->format = known[i].format;
            *is_data = r->format == FORMAT_MOONCAKE;
            const char *blocks = strstr(line, BLOCKS_COLUMN);
            r->t->block_tokens = *is_data ? MOONCAKE_BLOCK
                                 : blocks ? (uint32_t)strtoul(blocks + strlen(BLOCKS_COLUMN), NULL, 10)
                                          : 0;
            return true;
        }
    return false;
}

static enum sl_err read_lines(struct reader *r, FILE *f, char *line, struct sl_why *why)
{
    bool is_data = false;
    while (fgets(line, LINE_MAX_BYTES, f)) {
        line[strcspn(line, "\r\n")] = '\0';
        if (r->line++ == 0) {
            if (!find_format(r, line, &is_data))
                return sl_why_set(why, SL_EPARSE,
                                  "%s: the first line is \"%.60s\"; expected a header arrival_us,.. or "
                                  "TIMESTAMP,.. or num_prefill_tokens,.. or JSON lines or [trace]",
                                  r->c->path, line);
            if (r->format == FORMAT_FITTED)
                return sl_trace_fit_draw(&r->build, r->c->path, r->c->n, r->c->seed, why);
            if (!is_data)
                continue;
        }
        if (line[0] && !readers[r->format](r, line))
            return sl_why_set(why, SL_EPARSE, "%s:%" PRIu64 ": \"%.60s\" is not a request of this format",
                              r->c->path, r->line, line);
    }
    if (r->t->n == 0)
        return sl_why_set(why, SL_EPARSE, "%s holds no request", r->c->path);
    if (r->format == FORMAT_LENGTHS && r->c->rate <= 0)
        return sl_why_set(why, SL_EINVAL, "%s has lengths and no times; give a rate", r->c->path);
    return SL_OK;
}

static enum sl_err read_file(struct reader *r, struct sl_why *why)
{
    FILE *f = fopen(r->c->path, "r");
    if (!f)
        return sl_why_set(why, SL_EIO, "cannot read %s: %s", r->c->path, strerror(errno));
    char *line = sl_xalloc(LINE_MAX_BYTES);
    enum sl_err e = read_lines(r, f, line, why);
    sl_free(line);
    fclose(f);
    return e;
}

static void draw_all(struct reader *r)
{
    for (size_t i = 0; i < r->c->n; i++)
        sl_trace_add(&r->build, 0,
                     (uint64_t)exp(DRAWN_PROMPT_LOG + DRAWN_PROMPT_OCT * draw(r->c->seed, 0, i)),
                     (uint64_t)exp(DRAWN_OUTPUT_LOG + DRAWN_OUTPUT_OCT * draw(r->c->seed, 1, i)));
}

/* To n requests: cut, or repeated. */
static void fit_count(struct reader *r)
{
    struct sl_trace *t = r->t;
    size_t have = t->n, want = r->c->n ? r->c->n : have;
    if (want <= have) {
        t->n = want;
        return;
    }
    double span = t->requests[have - 1].at_s, gap = have > 1 ? span / (double)(have - 1) : 1;
    uint64_t most = 0;
    for (size_t i = 0; i < t->n_blocks; i++)
        most = t->blocks[i] > most ? t->blocks[i] : most;
    for (size_t i = have; i < want; i++) {
        struct sl_trace_request q = t->requests[i % have];
        uint64_t turn = i / have;
        sl_trace_add(&r->build, q.at_s + (double)turn * (span + gap), q.n_prompt, q.n_output);
        for (uint32_t b = 0; b < q.n_blocks; b++)
            sl_trace_add_block(&r->build, t->blocks[q.first_block + b] + turn * (most + 1));
    }
}

static int by_time(const void *a, const void *b)
{
    double x = ((const struct sl_trace_request *)a)->at_s, y = ((const struct sl_trace_request *)b)->at_s;
    return (x > y) - (x < y);
}

static uint32_t scaled(uint32_t tokens, double scale)
{
    double n = round(tokens * scale);
    return n >= 1 ? (uint32_t)fmin(n, UINT32_MAX) : 1;
}

static void fit_requests(struct reader *r)
{
    struct sl_trace *t = r->t;
    double at = 0, speed = r->c->speed > 0 ? r->c->speed : 1;
    double scale = r->c->token_scale > 0 ? r->c->token_scale : 1;
    if (t->block_tokens)
        t->block_tokens = scaled(t->block_tokens, scale);
    for (size_t i = 0; i < t->n; i++) {
        struct sl_trace_request *q = &t->requests[i];
        if (r->c->rate > 0) {
            at += -log1p(-draw(r->c->seed, 2, i)) / r->c->rate;
            q->at_s = at;
        } else {
            q->at_s /= speed;
        }
        q->n_output = scaled(q->n_output, scale);
        q->n_prompt = scaled(q->n_prompt, scale);
        if (r->c->max_total) {
            uint32_t room = q->n_output < r->c->max_total ? r->c->max_total - q->n_output : 1;
            q->n_prompt = q->n_prompt < room ? q->n_prompt : room;
            q->n_output = q->n_output < r->c->max_total ? q->n_output : r->c->max_total - 1;
        }
        uint32_t full = t->block_tokens ? q->n_prompt / t->block_tokens : 0;
        q->n_blocks = q->n_blocks < full ? q->n_blocks : full; /* a partial block is not shared */
    }
    qsort(t->requests, t->n, sizeof *t->requests, by_time);
}

enum sl_err sl_trace_open(const struct sl_trace_conf *c, struct sl_trace *out, struct sl_why *why)
{
    *out = (struct sl_trace){0};
    struct reader r = {.c = c, .t = out, .build = {.t = out}};
    if (!c->path && (c->rate <= 0 || c->n == 0))
        return sl_why_set(
            why, SL_EINVAL,
            "no load is given; name a trace with --trace, or draw one with --rate and --requests");
    if (c->path) {
        enum sl_err e = read_file(&r, why);
        if (e) {
            sl_trace_close(out);
            return e;
        }
        fit_count(&r);
    } else {
        draw_all(&r);
    }
    fit_requests(&r);
    return SL_OK;
}

void sl_trace_close(struct sl_trace *t)
{
    sl_free(t->requests);
    sl_free(t->blocks);
    *t = (struct sl_trace){0};
}
