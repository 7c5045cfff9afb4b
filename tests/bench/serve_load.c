/* tests/bench/serve_load.c - see serve_load.h.
 *
 * A random prompt is text, as vLLM's client sends it. With a tokenizer it is made of tokens that are " word" in
 * ASCII: pre-tokenisers of all served families cut in front of the space, so the text is cut into the same tokens
 * again, and the length is exact. Without one, common words stand for tokens, and the server's own count (usage)
 * is what is reported. */
#include "tests/bench/serve_load.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/text/tokenizer.h"

#define MAX_PROMPT_BYTES (64u << 20)
#define MAX_LINE_BYTES   (16u << 20)
#define STREAM_TIMES     1u /* streams of the seed's numbers */
#define STREAM_LENGTHS   2u
#define STREAM_ORDER     3u
#define STREAM_PREFIX    4u
#define STREAM_TEXT      16u /* and those behind it: one a request */

/* One token each in the vocabularies of common models, with the space in front. */
static const char *const common_words[] = {
    " the",   " of",   " and",  " to",    " in",    " is",    " that", " for",   " it",   " was",  " on",
    " are",   " as",   " with", " his",   " they",  " at",    " be",   " this",  " have", " from", " or",
    " one",   " had",  " by",   " word",  " but",   " not",   " what", " all",   " were", " we",   " when",
    " your",  " can",  " said", " there", " use",   " an",    " each", " which", " she",  " do",   " how",
    " their", " if",   " will", " up",    " other", " about", " out",  " many",  " then", " them", " these",
    " so",    " some", " her",  " would", " make",  " like",  " him",  " into",  " time"};

struct maker {
    const struct sl_load_conf *c;
    struct sl_tokenizer *tokenizer; /* NULL = none */
    uint32_t *plain;                /* [n_plain] tokens that are " word" */
    size_t n_plain;
    char *prefix;
    size_t cap;
    struct sl_load *load;
};

/* ---- counting ---- */

static bool is_plain(const char *piece, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (!islower((unsigned char)piece[i]))
            return false;
    return n >= 3 && piece[0] == ' ';
}

static enum sl_err open_tokenizer(struct maker *m, struct sl_why *why)
{
    struct sl_vocab_src src;
    struct sl_model_info info;
    sl_vocab_src_init(&src);
    enum sl_err e = sl_vocab_load(m->c->tokenizer, &src, &info, why);
    if (!e)
        e = sl_tokenizer_open(&src, &m->tokenizer, why);
    sl_vocab_src_fini(&src);
    if (e)
        return e;
    uint32_t n_vocab = sl_tokenizer_n_vocab(m->tokenizer);
    m->plain = sl_xcalloc(n_vocab, sizeof *m->plain);
    for (uint32_t id = 0; id < n_vocab; id++) {
        size_t n;
        const char *piece = sl_tokenizer_piece(m->tokenizer, id, false, &n);
        if (is_plain(piece, n))
            m->plain[m->n_plain++] = id;
    }
    return SL_OK;
}

static uint32_t count(const struct maker *m, const char *text)
{
    if (!m->tokenizer) { /* four bytes of English are a token of most vocabularies */
        size_t n = (strlen(text) + 3) / 4;
        return n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
    }
    struct sl_encode_in in = {.text = text, .len = strlen(text), .max_tokens = UINT32_MAX};
    struct sl_why why;
    uint32_t *ids;
    size_t n;
    if (sl_tokenizer_encode(m->tokenizer, &in, &ids, &n, &why))
        return 0;
    sl_free(ids);
    return (uint32_t)n;
}

static void add(struct maker *m, char *prompt, uint32_t n_prompt, uint32_t n_output)
{
    struct sl_load *l = m->load;
    if (l->n == m->cap) {
        m->cap = m->cap ? 2 * m->cap : 64;
        l->requests = sl_xrealloc_array(l->requests, m->cap, sizeof *l->requests);
    }
    l->requests[l->n++] = (struct sl_load_request){prompt, n_prompt, n_output};
}

/* ---- random ---- */

static char *random_text(const struct maker *m, uint32_t n, uint32_t stream, const char *prefix)
{
    struct sl_draw d = {m->c->seed, stream, 0};
    struct sl_buf b;
    sl_buf_init(&b, MAX_PROMPT_BYTES);
    sl_buf_puts(&b, prefix);
    for (uint32_t i = 0; i < n; i++) {
        size_t len, n_words = m->n_plain ? m->n_plain : SL_COUNTOF(common_words);
        size_t k = (size_t)(sl_draw(&d) * (double)n_words);
        const char *piece =
            m->n_plain ? sl_tokenizer_piece(m->tokenizer, m->plain[k], false, &len) : common_words[k];
        sl_buf_append(&b, piece, m->n_plain ? len : strlen(piece));
    }
    return sl_buf_steal(&b);
}

static uint32_t around(struct sl_draw *d, uint32_t middle, double ratio)
{
    double lo = floor(middle * (1 - ratio)), hi = ceil(middle * (1 + ratio));
    return sl_draw_range(d, (struct sl_range){(uint32_t)fmax(lo, 1), (uint32_t)fmax(hi, 1)});
}

static enum sl_err make_random(struct maker *m, struct sl_why *why)
{
    const struct sl_load_conf *c = m->c;
    struct sl_draw d = {c->seed, STREAM_LENGTHS, 0};
    (void)why;
    char *prefix = random_text(m, c->prefix_tokens, STREAM_PREFIX, "");
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t n_prompt = around(&d, c->input_tokens, c->range_ratio),
                 n_output = around(&d, c->output_tokens, c->range_ratio);
        char *text = random_text(m, n_prompt, STREAM_TEXT + i, prefix);
        add(m, text, m->n_plain ? count(m, text) : n_prompt + c->prefix_tokens, n_output);
    }
    sl_free(prefix);
    return SL_OK;
}

/* ---- files ---- */

static void shuffle(struct maker *m)
{
    struct sl_draw d = {m->c->seed, STREAM_ORDER, 0};
    struct sl_load *l = m->load;
    for (size_t i = l->n; i > 1; i--) {
        size_t k = (size_t)(sl_draw(&d) * (double)i);
        struct sl_load_request q = l->requests[i - 1];
        l->requests[i - 1] = l->requests[k];
        l->requests[k] = q;
    }
}

/* As many as asked for: cut, or the same once more. */
static enum sl_err fit_number(struct maker *m, struct sl_why *why)
{
    struct sl_load *l = m->load;
    size_t n = l->n;
    if (n == 0)
        return sl_why_set(why, SL_EPARSE, "%s holds no request that can be used", m->c->path);
    shuffle(m);
    while (l->n > m->c->n)
        sl_free(l->requests[--l->n].prompt);
    for (size_t i = 0; l->n < m->c->n; i++) {
        struct sl_load_request q = l->requests[i % n];
        add(m, sl_xstrdup(q.prompt), q.n_prompt, q.n_output);
    }
    return SL_OK;
}

/* [{"conversations": [{"value"}, {"value"}, ..]}]: the first two turns are prompt and answer. Too short and too
 * long ones are left out, by vLLM's limits. */
static enum sl_err make_sharegpt(struct maker *m, struct sl_why *why)
{
    json_error_t error;
    json_t *doc = json_load_file(m->c->path, 0, &error), *talk;
    size_t i;
    if (!json_is_array(doc)) {
        json_decref(doc);
        return sl_why_set(why, SL_EPARSE, "%s is no ShareGPT file, an array of conversations: %s", m->c->path,
                          doc ? "something else" : error.text);
    }
    json_array_foreach (doc, i, talk) {
        json_t *turns = json_object_get(talk, "conversations");
        const char *prompt = json_string_value(json_object_get(json_array_get(turns, 0), "value")),
                   *answer = json_string_value(json_object_get(json_array_get(turns, 1), "value"));
        if (!prompt || !answer)
            continue;
        uint32_t n_prompt = count(m, prompt),
                 n_output = m->c->output_tokens ? m->c->output_tokens : count(m, answer);
        if (n_prompt < 4 || n_output < 4 || n_prompt > 1024 || n_prompt + n_output > 2048)
            continue;
        add(m, sl_xstrdup(prompt), n_prompt, n_output);
    }
    json_decref(doc);
    return fit_number(m, why);
}

/* Calls take() with each line of the file, its number from 1. */
static enum sl_err each_line(struct maker *m,
                             enum sl_err (*take)(struct maker *, const char *, size_t, struct sl_why *),
                             struct sl_why *why)
{
    FILE *f = fopen(m->c->path, "re");
    if (!f)
        return sl_why_set(why, SL_EIO, "cannot read %s: %s", m->c->path, strerror(errno));
    char *line = NULL;
    size_t cap = 0;
    enum sl_err e = SL_OK;
    for (size_t number = 1; !e && getline(&line, &cap, f) > 0; number++) {
        line[strcspn(line, "\r\n")] = 0;
        if (strlen(line) > MAX_LINE_BYTES)
            e = sl_why_set(why, SL_EPARSE, "%s:%zu: the line is longer than 16 MiB", m->c->path, number);
        else if (*line)
            e = take(m, line, number, why);
    }
    sl_free(line);
    fclose(f);
    return e;
}

static enum sl_err take_custom(struct maker *m, const char *line, size_t number, struct sl_why *why)
{
    json_t *doc = json_loads(line, 0, NULL);
    const char *prompt = json_string_value(json_object_get(doc, "prompt"));
    json_int_t n = json_integer_value(json_object_get(doc, "output_tokens"));
    uint32_t n_output = m->c->output_tokens ? m->c->output_tokens : n > 0 && n < UINT32_MAX ? (uint32_t)n : 0;
    enum sl_err e = SL_OK;
    if (!prompt || !n_output)
        e = sl_why_set(why, SL_EPARSE, "%s:%zu: expected {\"prompt\": TEXT%s} in every line%s", m->c->path,
                       number, m->c->output_tokens ? "" : ", \"output_tokens\": N",
                       m->c->output_tokens ? "" : ", or --custom-output-len N for all");
    else
        add(m, sl_xstrdup(prompt), count(m, prompt), n_output);
    json_decref(doc);
    return e;
}

static enum sl_err make_custom(struct maker *m, struct sl_why *why)
{
    enum sl_err e = each_line(m, take_custom, why);
    return e ? e : fit_number(m, why);
}

static enum sl_err take_sonnet(struct maker *m, const char *line, size_t number, struct sl_why *why)
{
    (void)number;
    (void)why;
    add(m, sl_xasprintf("%s\n", line), count(m, line), 0); /* a line, until make_sonnet() is done */
    return SL_OK;
}

/* Prompts of lines of a poem: the first ones for all, the others drawn. */
static enum sl_err make_sonnet(struct maker *m, struct sl_why *why)
{
    enum sl_err e = each_line(m, take_sonnet, why);
    struct sl_load lines = *m->load;
    *m->load = (struct sl_load){0};
    m->cap = 0;
    if (!e && lines.n == 0)
        e = sl_why_set(why, SL_EPARSE, "%s has no lines", m->c->path);
    for (uint32_t i = 0; !e && i < m->c->n; i++) {
        struct sl_draw d = {m->c->seed, STREAM_TEXT + i, 0};
        struct sl_buf b;
        uint32_t n = 0;
        sl_buf_init(&b, MAX_PROMPT_BYTES);
        sl_buf_puts(&b, "Pick as many lines as you can from these poem lines:\n");
        for (size_t k = 0; n < m->c->input_tokens; k++) {
            size_t which = n < m->c->prefix_tokens ? k % lines.n : (size_t)(sl_draw(&d) * (double)lines.n);
            sl_buf_puts(&b, lines.requests[which].prompt);
            n += lines.requests[which].n_prompt + 1;
        }
        char *text = sl_buf_steal(&b);
        add(m, text, count(m, text), m->c->output_tokens);
    }
    sl_load_close(&lines);
    return e;
}

enum sl_err sl_load_open(const struct sl_load_conf *c, struct sl_load *out, struct sl_why *why)
{
    static enum sl_err (*const make[])(struct maker *,
                                       struct sl_why *) = {[SL_DATASET_RANDOM] = make_random,
                                                           [SL_DATASET_SHAREGPT] = make_sharegpt,
                                                           [SL_DATASET_CUSTOM] = make_custom,
                                                           [SL_DATASET_SONNET] = make_sonnet};
    struct sl_load load = {0};
    struct maker m = {.c = c, .load = &load};
    if (!c->path != (c->dataset == SL_DATASET_RANDOM))
        return sl_why_set(why, SL_EINVAL,
                          c->path
                              ? "the random data set has no file: leave --dataset-path out, or name the data "
                                "set with --dataset-name"
                              : "this data set is a file; give --dataset-path FILE");
    enum sl_err e = c->tokenizer ? open_tokenizer(&m, why) : SL_OK;
    if (!e)
        e = make[c->dataset](&m, why);
    load.counted = m.tokenizer && (c->dataset != SL_DATASET_RANDOM || m.n_plain > 0);
    sl_tokenizer_close(m.tokenizer);
    sl_free(m.plain);
    if (e)
        sl_load_close(&load);
    else
        *out = load;
    return e;
}

void sl_load_close(struct sl_load *l)
{
    for (size_t i = 0; i < l->n; i++)
        sl_free(l->requests[i].prompt);
    sl_free(l->requests);
    *l = (struct sl_load){0};
}

/* ---- requests and their times ---- */

void sl_load_job(const struct sl_load_request *q, const char *path, const char *model, bool ignore_eos,
                 const json_t *extra, struct sl_job *j)
{
    bool chat = strstr(path, "chat/completions") != NULL;
    json_t *text = json_string(q->prompt);
    if (!text) /* bytes of a file that are no UTF-8 */
        text = json_string("?");
    json_t *body =
        json_pack("{s:s, s:b, s:{s:b}, s:i}", "model", model, "stream", 1, "stream_options", "include_usage",
                  1, chat ? "max_completion_tokens" : "max_tokens", (int)q->n_output);
    if (chat)
        json_object_set_new(body, "messages", json_pack("[{s:s, s:o}]", "role", "user", "content", text));
    else
        json_object_set_new(body, "prompt", text);
    if (ignore_eos)
        json_object_set_new(body, "ignore_eos", json_true());
    if (extra)
        json_object_update(body, (json_t *)extra);
    j->path = path;
    j->body = json_dumps(body, JSON_COMPACT);
    json_decref(body);
}

/* Gamma with that shape and mean 1: Marsaglia and Tsang (2000); below 1 by the usual power of a uniform. */
static double draw_gamma(struct sl_draw *d, double shape)
{
    if (shape == 1)
        return -log1p(-sl_draw(d));
    double boost = shape < 1 ? pow(1 - sl_draw(d), 1 / shape) : 1,
           a = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / sqrt(9 * a);
    for (;;) {
        double u = 1 - sl_draw(d), w = sl_draw(d);
        double x = sqrt(-2 * log(u)) * cos(2 * M_PI * w), v = pow(1 + c * x, 3);
        if (v > 0 && log(1 - sl_draw(d)) < x * x / 2 + a - a * v + a * log(v))
            return a * v * boost / shape;
    }
}

void sl_load_arrivals(const struct sl_arrivals *a, uint64_t seed, double *at_s, size_t n)
{
    struct sl_draw d = {seed, STREAM_TIMES, 0};
    double t = 0;
    for (size_t i = 0; i < n; i++) {
        double part = n > 1 ? (double)i / (double)(n - 1) : 0, rate = a->rate;
        if (a->ramp_to > 0)
            rate = a->exponential ? a->ramp_from * pow(a->ramp_to / a->ramp_from, part)
                                  : a->ramp_from + (a->ramp_to - a->ramp_from) * part;
        if (isfinite(rate))
            t += draw_gamma(&d, a->burstiness) / rate;
        at_s[i] = t;
    }
    double scale =
        a->exact_end && a->ramp_to <= 0 && isfinite(a->rate) && t > 0 ? (double)n / a->rate / t : 1;
    for (size_t i = 0; i < n; i++)
        at_s[i] *= scale;
}
