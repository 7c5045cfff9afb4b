/* tests/bench/client.h - sends completion requests to an OpenAI-compatible server at planned times and takes
 * down when each token came.
 *
 * One thread, libcurl's multi interface over epoll. Times are seconds from the start of the run on this process's
 * monotonic clock. */
#ifndef SLUICE_TESTS_BENCH_CLIENT_H
#define SLUICE_TESTS_BENCH_CLIENT_H

#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"

#define SL_CLIENT_MAX_ANSWER (64u << 20) /* bytes of one answer */

/* One request to send, and what came back. Zero-initialise; sl_job_fini() frees both halves. */
struct sl_job {
    /* to send */
    double at_s;      /* planned send time */
    const char *path; /* "/v1/completions"; static, or own_path */
    char *own_path;   /* (optional) freed with the job */
    char *body;       /* JSON, owned */
    char **headers;   /* "Name: value", owned */
    size_t n_headers;
    double stop_after_s; /* leave after this long (0 = stay to the end): a client that goes away */
    bool ends_run;       /* when this one has its answer, the others leave */

    /* came back */
    double
        ready_s; /* at_s, or later when as many as may run at a time did so: sent_s less this is send lag */
    double sent_s, done_s;
    long status;       /* HTTP status, 0 = no answer */
    double *token_s;   /* arrival time of each token */
    int32_t *token_id; /* -1 when the server does not send ids */
    uint64_t *digest;  /* 0 when not asked for */
    size_t n_tokens, cap_tokens;
    struct sl_buf text;  /* of all tokens */
    char finish[16];     /* "stop", "length", "" */
    char request_id[80]; /* X-Request-Id of the answer */
    char error[256];     /* one sentence when it failed */
    uint32_t prompt_tokens, cached_tokens;
    uint32_t completion_tokens; /* as the server counts; 0 = it does not say */

    /* inside */
    struct sl_buf raw;
    void *easy, *header_list;
    bool started, finished, done_seen;
};

/* A token of the answer; digest 0 and id -1 when not known. */
void sl_job_add_token(struct sl_job *j, double at_s, int32_t id, uint64_t digest);
/* What came at that time: the whole lines of raw, which are taken out of it; one frame, or the answer of a request that does not
 * stream. */
void sl_job_take_stream(struct sl_job *j, double at_s);
void sl_job_take_answer(struct sl_job *j, const char *json, size_t n, double at_s);
void sl_job_header(struct sl_job *j, const char *name, const char *value);
void sl_job_fini(struct sl_job *j);
static inline bool sl_job_ok(const struct sl_job *j)
{
    return j->status == 200 && j->error[0] == 0 && j->finish[0] != 0;
}

struct sl_client_conf {
    const char *base_url; /* "http://127.0.0.1:8000" */
    const char *api_key;  /* (optional) */
    const char *progress; /* (optional) names the run on stderr: live on a terminal, else a line at its end */
    double timeout_s;     /* of the whole run; who has no answer then gets an error */
    size_t max_running;   /* requests at a time, the others wait for a free place; 0 = any number */
    bool insecure;        /* take any TLS certificate */
};

/* Runs all jobs and returns when every one has ended. SL_EPEER when not one could connect. */
SL_MUST_CHECK enum sl_err sl_client_run_conf(const struct sl_client_conf *conf, struct sl_job *jobs,
                                             size_t n);
/* The same with what most callers need of it. */
SL_MUST_CHECK enum sl_err sl_client_run(const char *base_url, const char *api_key, struct sl_job *jobs,
                                        size_t n, double timeout_s, const char *progress);

/* GET (body NULL) or POST; the answer's bytes in out. Returns the HTTP status, 0 when there was no answer. */
long sl_client_fetch(const char *base_url, const char *api_key, const char *path, const char *body,
                     struct sl_buf *out);

#endif
