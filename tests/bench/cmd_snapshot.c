/* tests/bench/cmd_snapshot.c - a running cluster as a cluster file of the simulator.
 *
 * Every node says what it has learnt its steps to cost and with which settings it runs; links are those
 * measured. Some short requests, one at a time, tell what a request spends outside of the nodes: in the
 * client, on the wire, in the router. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/bench/bench.h"
#include "tests/bench/cluster_info.h"
#include "tests/bench/stats.h"
#include "tests/bench/workload.h"

#define FIRST_TEXT_ID   16 /* control tokens lie below it in the vocabularies served here */
#define PROBE_PROMPT    16u
#define PROBE_OUTPUT    2u
#define PROBE_TIMEOUT_S 60.0
#define WAIT_S          30.0
#define COST_PREFIX     "cost_"
#define COST_AT         "cost_ms_at_" /* and N_rows: a point of the table */

struct options {
    char *url, *api_key, *out;
    uint32_t nodes, probes;
};

#define AT(m) offsetof(struct options, m)
static const struct sl_conf_opt option_table[] = {
    {"url", SL_CONF_STRING, AT(url), "http://127.0.0.1:8000", "the router", 0, 0, NULL},
    {"api_key", SL_CONF_STRING, AT(api_key), NULL, "bearer key", 0, 0, NULL},
    {"out", SL_CONF_STRING, AT(out), NULL, "write the cluster file there; none = to stdout", 0, 0, NULL},
    {"nodes", SL_CONF_U32, AT(nodes), "1", "wait for that many nodes", 1, 1000, NULL},
    {"probes", SL_CONF_U32, AT(probes), "20", "requests that tell the time outside of the nodes", 1, 10000,
     NULL},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL}};

/* ---- time outside of the nodes ---- */

/* Client's TTFT less what the decode node reports, or NaN. */
static double outside_ms(const struct sl_router_ref *r, const struct sl_job *j)
{
    struct sl_why why;
    json_t *record;
    double ms = NAN;
    if (!sl_job_ok(j) || !j->n_tokens || !j->request_id[0])
        return ms;
    char *op = sl_xasprintf("explain/%s", j->request_id);
    if (sl_info_tables(r, op, &record, &why) == SL_OK) {
        const char *queue = sl_info_value(record, "record", "queue_D_ms"),
                   *prefill = sl_info_value(record, "record", "prefill_D_ms");
        if (queue && prefill)
            ms = (j->token_s[0] - j->sent_s) * 1e3 - strtod(queue, NULL) - strtod(prefill, NULL);
        json_decref(record);
    }
    sl_free(op);
    return ms;
}

static enum sl_err measure_router(const struct options *o, const struct sl_router_ref *r,
                                  const struct sl_model_ref *m, double *out, struct sl_why *why)
{
    struct sl_samples s = {0};
    enum sl_err e = SL_OK;
    for (uint32_t i = 0; i < o->probes && !e; i++) {
        struct sl_draw d = {i + 1, 0, 0};
        struct sl_prompt p;
        struct sl_job j = {.at_s = 0};
        sl_prompt_random(&d, PROBE_PROMPT, FIRST_TEXT_ID, m->n_vocab, &p);
        sl_job_completion(
            &j, &p,
            &(struct sl_completion_opts){.model = m->id, .max_tokens = PROBE_OUTPUT, .token_ids = true});
        sl_job_header(&j, "X-Sluice-Mode", "colocated");
        e = sl_client_run(o->url, o->api_key, &j, 1, PROBE_TIMEOUT_S, NULL);
        double ms = outside_ms(r, &j);
        if (!isnan(ms))
            sl_samples_add(&s, ms);
        if (e || !sl_job_ok(&j))
            e = sl_why_set(why, SL_EPEER, "a request to the cluster failed: %.200s", j.error);
        sl_job_fini(&j);
        sl_free(p.tokens);
    }
    *out = s.n ? fmax(sl_samples_percentile(&s, 50), 0) : 0;
    sl_samples_fini(&s);
    return e;
}

/* ---- the file ---- */

static double counter(json_t *node, const char *key)
{
    const char *v = sl_info_value(node, "counters", key);
    return v ? strtod(v, NULL) : 0;
}

static void write_table(FILE *f, json_t *node)
{
    const char *key;
    fputs("cost_rows =", f);
    for (size_t i = 0; (key = sl_info_cell(node, "counters", i, "key")); i++)
        if (strncmp(key, COST_AT, strlen(COST_AT)) == 0)
            fprintf(f, " %lu", strtoul(key + strlen(COST_AT), NULL, 10));
    fputs("\ncost_ms =", f);
    for (size_t i = 0; (key = sl_info_cell(node, "counters", i, "key")); i++)
        if (strncmp(key, COST_AT, strlen(COST_AT)) == 0)
            fprintf(f, " %.4g",
                    strtod(sl_info_cell(node, "counters", i, "value"), NULL)); /* INI lines are short */
    fputc('\n', f);
    for (size_t i = 0; (key = sl_info_cell(node, "counters", i, "key")); i++)
        if (strncmp(key, COST_PREFIX, strlen(COST_PREFIX)) == 0 &&
            strncmp(key, COST_AT, strlen(COST_AT)) != 0)
            fprintf(f, "%s = %s\n", key, sl_info_cell(node, "counters", i, "value"));
}

static void write_group(FILE *f, json_t *nodes, size_t row, json_t *node)
{
    static const char *const same[] = {"ungranted_pages", "chunk_tokens",   "max_batch_tokens",
                                       "max_sequences",   "tpot_target_ms", "chunk_stretch"};
    const char *permits = sl_info_cell(nodes, "nodes", row, "permits");
    fprintf(f, "\n[group %s]\nprefers = %s\npermits = %s\n", sl_info_cell(nodes, "nodes", row, "node"),
            sl_info_cell(nodes, "nodes", row, "prefers"), strchr(permits, '+') ? "both" : permits);
    write_table(f, node);
    fprintf(f, "kv_bytes_per_token = %.0f\nkv_memory_bytes = %.0f\n",
            counter(node, "page_bytes") / counter(node, "page_tokens"),
            counter(node, "page_bytes") * counter(node, "pages_total"));
    for (size_t i = 0; i < SL_COUNTOF(same); i++)
        fprintf(f, "%s = %.10g\n", same[i], counter(node, same[i]));
}

static void write_links(FILE *f, json_t *links)
{
    double rate = 0, latency = 0, n = 0;
    const char *mb;
    for (size_t i = 0; (mb = sl_info_cell(links, "links", i, "mb_per_s")); i++) {
        if (strtod(mb, NULL) <= 0)
            continue;
        rate += strtod(mb, NULL) * 1e6;
        latency += strtod(sl_info_cell(links, "links", i, "latency_us"), NULL);
        n++;
    }
    if (n > 0)
        fprintf(f, "link_bytes_per_s = %.0f\nlink_latency_us = %.1f\n", rate / n, latency / n);
    else
        fputs("; no link was used yet: the defaults of the simulator count\n", f);
}

static enum sl_err write_file(const struct sl_router_ref *r, const struct sl_model_ref *m, double router_ms,
                              FILE *f, struct sl_why *why)
{
    json_t *nodes = NULL, *links = NULL;
    enum sl_err e = sl_info_tables(r, "nodes", &nodes, why);
    if (e == SL_OK)
        e = sl_info_tables(r, "links", &links, why);
    if (e == SL_OK) {
        fprintf(f, "[cluster]\npage_tokens = %u\nrouter_ms = %.3f\n", m->page_tokens, router_ms);
        write_links(f, links);
    }
    const char *name;
    for (size_t i = 0; e == SL_OK && (name = sl_info_cell(nodes, "nodes", i, "node")); i++) {
        json_t *node;
        char *op = sl_xasprintf("nodes/%s", name);
        e = sl_info_tables(r, op, &node, why);
        sl_free(op);
        if (e == SL_OK) {
            write_group(f, nodes, i, node);
            json_decref(node);
        }
    }
    json_decref(nodes);
    json_decref(links);
    return e;
}

static int run(const void *options, struct sl_why *why)
{
    const struct options *o = options;
    struct sl_router_ref r = {o->url, o->api_key};
    struct sl_model_ref m = {0};
    double router_ms;
    char *nodes = sl_info_model(&r, &m, why) ? NULL : sl_info_fingerprint(&r, o->nodes, WAIT_S, why);
    sl_free(nodes);
    if (!nodes || measure_router(o, &r, &m, &router_ms, why))
        return SL_BENCH_UNREACHABLE;
    if (sl_info_model(&r, &m, why)) /* page_tokens are known once a node is there */
        return SL_BENCH_UNREACHABLE;
    FILE *f = o->out ? fopen(o->out, "w") : stdout;
    if (!f) {
        sl_why_set(why, SL_EIO, "cannot write %s", o->out);
        return SL_BENCH_USAGE;
    }
    enum sl_err e = write_file(&r, &m, router_ms, f, why);
    if (ferror(f) || (o->out && fclose(f) != 0))
        e = sl_why_set(why, SL_EIO, "cannot write all of %s", o->out ? o->out : "the cluster file");
    return e ? SL_BENCH_FAILED : SL_BENCH_OK;
}

const struct sl_bench_command sl_bench_snapshot = {
    .name = "snapshot",
    .usage = "--url URL [--out FILE]",
    .help = "a running cluster as a cluster file of simulate: what its nodes have learnt, its links, its "
            "settings",
    .options = option_table,
    .options_bytes = sizeof(struct options),
    .run = run,
};
