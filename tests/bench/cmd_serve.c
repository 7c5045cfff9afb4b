/* tests/bench/cmd_serve.c - what one load feels at any OpenAI-compatible server, by the options, layout and
 * result file of `vllm bench serve`.
 *
 * What differs on purpose: prompts of the random data set are counted by the server (usage) where no tokenizer
 * is given; a chunk that only tells the role is not the first token; a request that ends early is planned at
 * its time, not when the event loop comes to it, and how late it was sent is told. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/bench/bench.h"
#include "tests/bench/serve_load.h"
#include "tests/bench/serve_stats.h"

#define FIRST_AT_S 0.02 /* of the first request: the load is set up by then */

struct options {
    char *base_url, *host, *endpoint, *model, *served_model_name, *tokenizer, *api_key;
    char *dataset_path, *request_rate, *extra_body, *label, *result_dir, *result_filename;
    int backend, dataset, ramp_up_strategy;
    uint32_t port, num_prompts, random_input_len, random_output_len, random_prefix_len, input_len, output_len;
    uint32_t sharegpt_output_len, custom_output_len, sonnet_input_len, sonnet_output_len, sonnet_prefix_len;
    uint32_t max_concurrency, num_warmups, ready_check_timeout_sec;
    double random_range_ratio, burstiness, ramp_up_start_rps, ramp_up_end_rps, timeout_s;
    uint64_t seed;
    struct sl_conf_list percentile_metrics, metric_percentiles, goodput, metadata, header;
    char *temperature, *top_p, *top_k, *min_p, *frequency_penalty, *presence_penalty, *repetition_penalty;
    bool ignore_eos, save_result, save_detailed, append_result, insecure, disable_tqdm;
};

static const char *const backends[] = {"openai", "vllm", "sglang", "llama.cpp", "openai-chat", NULL};
#define BACKEND_CHAT 4
static const char *const datasets[] = {"random", "sharegpt", "custom", "sonnet", NULL};
static const char *const ramps[] = {"none", "linear", "exponential", NULL};

#define AT(m) offsetof(struct options, m)
#define TEXT(m, h)                                                                                           \
    {                                                                                                        \
#m, SL_CONF_STRING, AT(m), NULL, h, 0, 0, NULL                                                       \
    }
#define TEXTD(m, d, h)                                                                                       \
    {                                                                                                        \
#m, SL_CONF_STRING, AT(m), d, h, 0, 0, NULL                                                          \
    }
#define SWITCH(m, h)                                                                                         \
    {                                                                                                        \
#m, SL_CONF_BOOL, AT(m), "false", h, 0, 0, NULL                                                      \
    }
#define NUMBER(m, d, lo, hi, h)                                                                              \
    {                                                                                                        \
#m, SL_CONF_U32, AT(m), d, h, lo, hi, NULL                                                           \
    }
#define LIST(m, d, h)                                                                                        \
    {                                                                                                        \
#m, SL_CONF_LIST, AT(m), d, h, 0, 0, NULL                                                            \
    }
static const struct sl_conf_opt option_table[] = {
    {"backend", SL_CONF_ENUM, AT(backend), "openai",
     "kind of server: openai-chat sends chats, all others completions", 0, 0, backends},
    TEXT(base_url, "http://HOST:PORT of the server, in place of host and port"),
    TEXTD(host, "127.0.0.1", "the server's host"),
    NUMBER(port, "8000", 1, 65535, "the server's port"),
    TEXT(endpoint, "path; none = /v1/completions, for openai-chat /v1/chat/completions"),
    TEXT(model, "model to ask for; none = the first that the server lists"),
    TEXT(served_model_name, "the model's name in requests, where it is another than --model"),
    TEXT(tokenizer,
         "GGUF file or Hugging Face folder to count prompts with; none = the server counts (usage)"),
    TEXT(api_key, "bearer key; none = $OPENAI_API_KEY"),
    LIST(header, NULL, "KEY=VALUE headers of every request"),
    {"dataset_name", SL_CONF_ENUM, AT(dataset), "random",
     "where prompts come from: random words; a ShareGPT file; custom JSON lines {\"prompt\", "
     "\"output_tokens\"}; sonnet: prompts of lines of a text",
     0, 0, datasets},
    TEXT(dataset_path, "file of the data set"),
    NUMBER(num_prompts, "1000", 1, 1e7, "requests"),
    {"seed", SL_CONF_U64, AT(seed), "0", "of lengths, texts and times", 0, 0, NULL},
    NUMBER(input_len, "0", 0, 1e7, "random_input_len or sonnet_input_len; 0 = theirs"),
    NUMBER(output_len, "0", 0, 1e7, "output length of the data set; 0 = its own option"),
    NUMBER(random_input_len, "1024", 1, 1e7, "tokens of a random prompt"),
    NUMBER(random_output_len, "128", 1, 1e7, "tokens of the answers to random prompts"),
    {"random_range_ratio", SL_CONF_F64, AT(random_range_ratio), "0",
     "random lengths are uniform within (1 - ratio) to (1 + ratio) times those", 0, 0.999, NULL},
    NUMBER(random_prefix_len, "0", 0, 1e7, "tokens in front of every random prompt, the same for all"),
    NUMBER(sharegpt_output_len, "0", 0, 1e7, "tokens of answers; 0 = as long as those in the file"),
    NUMBER(custom_output_len, "256", 0, 1e7, "tokens of answers; 0 = output_tokens of each line"),
    NUMBER(sonnet_input_len, "550", 1, 1e7, "tokens of a sonnet prompt, about"),
    NUMBER(sonnet_output_len, "150", 1, 1e7, "tokens of answers"),
    NUMBER(sonnet_prefix_len, "200", 0, 1e7, "tokens of it that all prompts share, about"),
    TEXTD(request_rate, "inf", "requests a second; inf = all at once"),
    {"burstiness", SL_CONF_F64, AT(burstiness), "1",
     "shape of the gamma distribution of gaps: 1 = Poisson, below burstier, above more even", 1e-3, 1e6,
     NULL},
    NUMBER(max_concurrency, "0", 0, 1e6, "requests at a time, the others wait at the client; 0 = any number"),
    {"ramp_up_strategy", SL_CONF_ENUM, AT(ramp_up_strategy), "none",
     "how the rate goes from ramp_up_start_rps to ramp_up_end_rps, in place of request_rate", 0, 0, ramps},
    {"ramp_up_start_rps", SL_CONF_F64, AT(ramp_up_start_rps), "0", "requests a second at the start", 0, 1e6,
     NULL},
    {"ramp_up_end_rps", SL_CONF_F64, AT(ramp_up_end_rps), "0", "and at the end", 0, 1e6, NULL},
    LIST(percentile_metrics, "ttft,tpot,itl",
         "what is told: ttft, tpot, itl, e2el, client_queue_time, e2el_including_client_queue"),
    LIST(metric_percentiles, "99", "percentiles that are told beside mean and median"),
    LIST(goodput, NULL, "objectives ttft:MS tpot:MS e2el:MS; goodput counts requests that meet all of them"),
    SWITCH(ignore_eos, "answers run to their length; always so with random prompts"),
    TEXT(temperature, "of the sampling; none = the server's, so for the others"),
    TEXT(top_p, "sampling"),
    TEXT(top_k, "sampling"),
    TEXT(min_p, "sampling"),
    TEXT(frequency_penalty, "sampling"),
    TEXT(presence_penalty, "sampling"),
    TEXT(repetition_penalty, "sampling"),
    TEXT(extra_body, "JSON object that is merged into every request"),
    NUMBER(num_warmups, "0", 0, 1e6, "requests before, which do not count"),
    NUMBER(ready_check_timeout_sec, "0", 0, 1e6, "wait that long for the server to answer a first request"),
    {"timeout_s", SL_CONF_F64, AT(timeout_s), "21600", "limit of the whole run, seconds", 1, 1e6, NULL},
    SWITCH(insecure, "take any TLS certificate"),
    SWITCH(disable_tqdm, "no progress on stderr"),
    SWITCH(save_result, "write the result as JSON"),
    SWITCH(save_detailed, "write every request too"),
    SWITCH(append_result, "append to the file"),
    TEXT(label, "first part of the file's name; none = the backend"),
    TEXT(result_dir, "folder of the file; made when it is not there"),
    TEXT(result_filename, "name of the file; none = LABEL-RATEqps-MODEL-TIME.json"),
    LIST(metadata, NULL, "KEY=VALUE members of the file"),
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

struct serve {
    const struct options *o;
    char *base_url, *model_id, *model_name;
    const char *endpoint, *api_key;
    double rate;
    json_t *extra;
    struct sl_slo slo;
    struct sl_load load;
};

/* ---- what to do ---- */

static enum sl_err read_rate(const struct options *o, double *out, struct sl_why *why)
{
    char *end;
    double v = strtod(o->request_rate, &end);
    if (end == o->request_rate || *end || isnan(v) || v <= 0)
        return sl_why_set(why, SL_EINVAL, "request_rate is \"%.40s\"; expected a number above 0, or inf",
                          o->request_rate);
    if (o->ramp_up_strategy && isfinite(v))
        return sl_why_set(why, SL_EINVAL, "both --request-rate and a ramp are given; leave one out");
    if (o->ramp_up_strategy && (o->ramp_up_end_rps <= 0 || o->ramp_up_start_rps <= 0))
        return sl_why_set(why, SL_EINVAL,
                          "a ramp needs --ramp-up-start-rps and --ramp-up-end-rps, both above 0");
    *out = v;
    return SL_OK;
}

/* The sampling options and --extra-body as members of every request. */
static enum sl_err read_extra(const struct options *o, json_t **out, struct sl_why *why)
{
    const struct {
        const char *name, *text;
    } numbers[] = {{"temperature", o->temperature},
                   {"top_p", o->top_p},
                   {"top_k", o->top_k},
                   {"min_p", o->min_p},
                   {"frequency_penalty", o->frequency_penalty},
                   {"presence_penalty", o->presence_penalty},
                   {"repetition_penalty", o->repetition_penalty}};
    json_t *extra = json_object();
    for (size_t i = 0; i < SL_COUNTOF(numbers); i++) {
        json_t *v = numbers[i].text ? json_loads(numbers[i].text, JSON_DECODE_ANY, NULL) : NULL;
        if (numbers[i].text && !json_is_number(v)) {
            json_decref(v);
            json_decref(extra);
            return sl_why_set(why, SL_EINVAL, "%s is \"%.40s\"; expected a number", numbers[i].name,
                              numbers[i].text);
        }
        if (v)
            json_object_set_new(extra, numbers[i].name, v);
    }
    json_error_t error = {0};
    json_t *more = o->extra_body ? json_loads(o->extra_body, 0, &error) : NULL;
    if (o->extra_body && !json_is_object(more)) {
        json_decref(more);
        json_decref(extra);
        return sl_why_set(why, SL_EINVAL, "--extra-body is no JSON object: %s",
                          more ? "another value" : error.text);
    }
    if (more)
        json_object_update(extra, more);
    json_decref(more);
    *out = extra;
    return SL_OK;
}

static enum sl_err check_lists(const struct options *o, struct sl_why *why)
{
    for (size_t i = 0; i < o->metric_percentiles.n; i++) {
        char *end;
        double q = strtod(o->metric_percentiles.items[i], &end);
        if (*end || end == o->metric_percentiles.items[i] || !(q >= 0 && q <= 100))
            return sl_why_set(why, SL_EINVAL, "\"%.40s\" is no percentile; expected numbers from 0 to 100",
                              o->metric_percentiles.items[i]);
    }
    const struct sl_conf_list *pairs[] = {&o->header, &o->metadata};
    for (size_t k = 0; k < SL_COUNTOF(pairs); k++)
        for (size_t i = 0; i < pairs[k]->n; i++)
            if (!strchr(pairs[k]->items[i], '=') || strpbrk(pairs[k]->items[i], "\r\n"))
                return sl_why_set(why, SL_EINVAL, "\"%.80s\" is not of the form KEY=VALUE",
                                  pairs[k]->items[i]);
    return SL_OK;
}

static enum sl_err find_model(struct serve *s, struct sl_why *why)
{
    const struct options *o = s->o;
    if (o->model) {
        s->model_id = sl_xstrdup(o->model);
        s->model_name = sl_xstrdup(o->served_model_name ? o->served_model_name : o->model);
        return SL_OK;
    }
    struct sl_buf b;
    sl_buf_init(&b, 8u << 20);
    long status = sl_client_fetch(s->base_url, s->api_key, "/v1/models", NULL, &b);
    json_t *doc = status == 200 ? json_loadb(b.data, b.len, 0, NULL) : NULL;
    json_t *first = json_array_get(json_object_get(doc, "data"), 0);
    const char *id = json_string_value(json_object_get(first, "id")),
               *root = json_string_value(json_object_get(first, "root"));
    enum sl_err e = SL_OK;
    if (id) {
        s->model_name = sl_xstrdup(id);
        s->model_id = sl_xstrdup(root ? root : id);
    } else if (status == 0) {
        e = sl_why_set(why, SL_EPEER,
                       "no server answers at %s; start one, or give its address with --base-url",
                       s->base_url);
    } else {
        e = sl_why_set(why, SL_EPROTO, "%s/v1/models answered %ld and lists no model; name one with --model",
                       s->base_url, status);
    }
    json_decref(doc);
    sl_buf_fini(&b);
    return e;
}

static enum sl_err make_load(struct serve *s, struct sl_why *why)
{
    const struct options *o = s->o;
    const uint32_t input[] = {o->random_input_len, 0, 0, o->sonnet_input_len},
                   output[] = {o->random_output_len, o->sharegpt_output_len, o->custom_output_len,
                               o->sonnet_output_len},
                   prefix[] = {o->random_prefix_len, 0, 0, o->sonnet_prefix_len};
    const struct sl_load_conf c = {.dataset = (enum sl_dataset)o->dataset,
                                   .path = o->dataset_path,
                                   .tokenizer = o->tokenizer,
                                   .n = o->num_prompts,
                                   .seed = o->seed,
                                   .input_tokens = o->input_len ? o->input_len : input[o->dataset],
                                   .output_tokens = o->output_len ? o->output_len : output[o->dataset],
                                   .range_ratio = o->random_range_ratio,
                                   .prefix_tokens = prefix[o->dataset]};
    return sl_load_open(&c, &s->load, why);
}

/* ---- the runs ---- */

static void make_job(const struct serve *s, const struct sl_load_request *q, struct sl_job *j)
{
    sl_load_job(q, s->endpoint, s->model_name, s->o->ignore_eos || s->o->dataset == SL_DATASET_RANDOM,
                s->extra, j);
    for (size_t i = 0; i < s->o->header.n; i++) {
        char *name = sl_xstrdup(s->o->header.items[i]), *value = strchr(name, '=');
        *value = 0;
        sl_job_header(j, name, value + 1);
        sl_free(name);
    }
}

static enum sl_err run_once(const struct serve *s, struct sl_job *jobs, size_t n, const char *progress)
{
    const struct sl_client_conf c = {.base_url = s->base_url,
                                     .api_key = s->api_key,
                                     .progress = s->o->disable_tqdm ? NULL : progress,
                                     .timeout_s = s->o->timeout_s,
                                     .max_running = s->o->max_concurrency,
                                     .insecure = s->o->insecure};
    return sl_client_run_conf(&c, jobs, n);
}

/* The first prompt n times at once; false with why when one failed. */
static bool try_first(const struct serve *s, uint32_t n, const char *progress, struct sl_why *why)
{
    struct sl_job *jobs = sl_xcalloc(n, sizeof *jobs);
    bool ok = true;
    for (uint32_t i = 0; i < n; i++)
        make_job(s, &s->load.requests[0], &jobs[i]);
    ok = run_once(s, jobs, n, progress) == SL_OK;
    for (uint32_t i = 0; i < n; i++) {
        if (!sl_job_ok(&jobs[i])) {
            ok = false;
            sl_why_set(why, SL_EPEER, "a first request to %s%s failed: %.200s", s->base_url, s->endpoint,
                       jobs[i].error);
        }
        sl_job_fini(&jobs[i]);
    }
    sl_free(jobs);
    return ok;
}

static bool get_ready(const struct serve *s, struct sl_why *why)
{
    const struct options *o = s->o;
    uint64_t end_ms = sl_now_ms() + (uint64_t)o->ready_check_timeout_sec * 1000;
    while (o->ready_check_timeout_sec && !try_first(s, 1, NULL, why)) {
        if (sl_now_ms() >= end_ms)
            return false;
        usleep(500 * 1000);
    }
    return o->num_warmups == 0 || try_first(s, o->num_warmups, "warm-up", why);
}

static double cpu_now_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* ---- the file ---- */

/* As Python writes a float: 4.0, inf. */
static void rate_text(const struct options *o, double rate, char *text, size_t size)
{
    if (o->ramp_up_strategy)
        snprintf(text, size, "ramp-up-%s-%gqps-%g", ramps[o->ramp_up_strategy], o->ramp_up_start_rps,
                 o->ramp_up_end_rps);
    else
        snprintf(text, size, rate == floor(rate) && isfinite(rate) ? "%.1f" : "%g", rate);
}

static char *file_name(const struct serve *s, const char *date)
{
    const struct options *o = s->o;
    char rate[96], limit[40] = "";
    const char *model = strrchr(s->model_id, '/');
    rate_text(o, s->rate, rate, sizeof rate);
    if (o->max_concurrency)
        snprintf(limit, sizeof limit, "-concurrency%u", o->max_concurrency);
    char *name = o->result_filename
                     ? sl_xstrdup(o->result_filename)
                     : sl_xasprintf("%s-%sqps%s-%s-%s.json", o->label ? o->label : backends[o->backend], rate,
                                    limit, model ? model + 1 : s->model_id, date);
    char *path = o->result_dir ? sl_xasprintf("%s/%s", o->result_dir, name) : sl_xstrdup(name);
    sl_free(name);
    return path;
}

static void set_text(json_t *doc, const char *key, const char *text)
{
    json_object_set_new(doc, key, text ? json_string(text) : json_null());
}

/* Takes result. */
static json_t *whole_result(const struct serve *s, const char *date, json_t *result)
{
    const struct options *o = s->o;
    json_t *doc = json_object();
    set_text(doc, "date", date);
    set_text(doc, "endpoint_type", backends[o->backend]);
    set_text(doc, "backend", backends[o->backend]);
    set_text(doc, "label", o->label);
    set_text(doc, "model_id", s->model_id);
    set_text(doc, "tokenizer_id", o->tokenizer ? o->tokenizer : s->model_id);
    json_object_set_new(doc, "num_prompts", json_integer(o->num_prompts));
    for (size_t i = 0; i < o->metadata.n; i++) {
        char *key = sl_xstrdup(o->metadata.items[i]), *value = strchr(key, '=');
        *value = 0;
        set_text(doc, key, value + 1);
        sl_free(key);
    }
    json_object_set_new(doc, "request_rate", isfinite(s->rate) ? json_real(s->rate) : json_string("inf"));
    json_object_set_new(doc, "burstiness", json_real(o->burstiness));
    json_object_set_new(doc, "max_concurrency",
                        o->max_concurrency ? json_integer(o->max_concurrency) : json_null());
    if (o->ramp_up_strategy) {
        set_text(doc, "ramp_up_strategy", ramps[o->ramp_up_strategy]);
        json_object_set_new(doc, "ramp_up_start_rps", json_real(o->ramp_up_start_rps));
        json_object_set_new(doc, "ramp_up_end_rps", json_real(o->ramp_up_end_rps));
    }
    json_object_update(doc, result);
    json_decref(result);
    for (const char *const *key = sl_serve_details; *key && !o->save_detailed; key++)
        json_object_del(doc, *key);
    return doc;
}

static enum sl_err save(const struct serve *s, json_t *doc, const char *date, struct sl_why *why)
{
    enum sl_err e = SL_OK;
    char *path = file_name(s, date);
    if (s->o->result_dir)
        mkdir(s->o->result_dir, 0777); /* what is wrong with it shows when the file is opened */
    FILE *f = fopen(path, s->o->append_result ? "ae" : "we");
    if (!f || (s->o->append_result && ftell(f) > 0 && fputc('\n', f) == EOF) || json_dumpf(doc, f, 0) != 0)
        e = sl_why_set(why, SL_EIO, "cannot write %s: %s", path, strerror(errno));
    if (f && fclose(f) != 0 && !e)
        e = sl_why_set(why, SL_EIO, "cannot write %s: %s", path, strerror(errno));
    if (!e)
        printf("Result: %s\n", path);
    sl_free(path);
    return e;
}

/* ---- the command ---- */

static enum sl_err prepare(struct serve *s, struct sl_why *why)
{
    const struct options *o = s->o;
    enum sl_err e = read_rate(o, &s->rate, why);
    if (!e)
        e = read_extra(o, &s->extra, why);
    if (!e)
        e = check_lists(o, why);
    if (!e)
        e = sl_slo_parse(&o->goodput, &s->slo, why);
    s->base_url = o->base_url ? sl_xstrdup(o->base_url) : sl_xasprintf("http://%s:%u", o->host, o->port);
    s->endpoint = o->endpoint                  ? o->endpoint
                  : o->backend == BACKEND_CHAT ? "/v1/chat/completions"
                                               : "/v1/completions";
    s->api_key = o->api_key ? o->api_key : getenv("OPENAI_API_KEY");
    return e ? e : make_load(s, why);
}

static int drive(struct serve *s, struct sl_why *why)
{
    const struct options *o = s->o;
    size_t n = s->load.n;
    struct sl_job *jobs = sl_xcalloc(n, sizeof *jobs);
    double *at_s = sl_xcalloc(n, sizeof *at_s);
    uint32_t *n_prompt = sl_xcalloc(n, sizeof *n_prompt);
    const struct sl_arrivals arrivals = {.rate = s->rate,
                                         .burstiness = o->burstiness,
                                         .ramp_from = o->ramp_up_start_rps,
                                         .ramp_to = o->ramp_up_strategy ? o->ramp_up_end_rps : 0,
                                         .exponential = o->ramp_up_strategy == 2,
                                         .exact_end = true};
    sl_load_arrivals(&arrivals, o->seed, at_s, n);
    for (size_t i = 0; i < n; i++) {
        make_job(s, &s->load.requests[i], &jobs[i]);
        jobs[i].at_s = FIRST_AT_S + at_s[i];
        n_prompt[i] = s->load.requests[i].n_prompt;
    }
    double cpu_s = cpu_now_s();
    int rc = SL_BENCH_UNREACHABLE;
    if (run_once(s, jobs, n, "serve") != SL_OK) {
        sl_why_set(why, SL_EPEER, "no request to %s%s was answered: %.200s", s->base_url, s->endpoint,
                   jobs[0].error);
    } else {
        const struct sl_serve_conf c = {.metrics = o->percentile_metrics,
                                        .percentiles = o->metric_percentiles,
                                        .slo = s->slo,
                                        .rate = s->rate,
                                        .max_concurrency = o->max_concurrency,
                                        .n_prompt = n_prompt};
        char date[32];
        time_t now = time(NULL);
        struct tm tm;
        strftime(date, sizeof date, "%Y%m%d-%H%M%S", localtime_r(&now, &tm));
        json_t *result = sl_serve_tell(&c, jobs, n, cpu_now_s() - cpu_s);
        bool failed = json_integer_value(json_object_get(result, "failed")) > 0;
        json_t *doc = whole_result(s, date, result);
        rc = failed ? SL_BENCH_FAILED : SL_BENCH_OK;
        if ((o->save_result || o->append_result) && save(s, doc, date, why))
            rc = SL_BENCH_FAILED;
        json_decref(doc);
    }
    for (size_t i = 0; i < n; i++)
        sl_job_fini(&jobs[i]);
    sl_free(jobs);
    sl_free(at_s);
    sl_free(n_prompt);
    return rc;
}

static int run(const void *options, struct sl_why *why)
{
    struct serve s = {.o = options};
    int rc = SL_BENCH_USAGE;
    if (prepare(&s, why) == SL_OK) {
        rc = SL_BENCH_UNREACHABLE;
        if (find_model(&s, why) == SL_OK && get_ready(&s, why))
            rc = drive(&s, why);
    }
    sl_load_close(&s.load);
    json_decref(s.extra);
    sl_free(s.base_url);
    sl_free(s.model_id);
    sl_free(s.model_name);
    return rc;
}

const struct sl_bench_command sl_bench_serve = {
    .name = "serve",
    .usage = "[options]",
    .help = "a load on any OpenAI-compatible server: options, table and result file of vllm bench serve",
    .options = option_table,
    .options_bytes = sizeof(struct options),
    .run = run,
};
