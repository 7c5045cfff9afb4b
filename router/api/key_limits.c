/* router/api/key_limits.c - see key_limits.h. Nothing is taken from one bucket when another refuses. */
#include "router/api/key_limits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

#define MINUTE_US   60e6
#define MAX_RETRY_S 3600.0
#define TINY        1e-6 /* of rounding: a bucket is as full as it was said to be */
#define MEAN_WEIGHT 0.2  /* of the latest request in how long they take */

static bool read_number(const char *text, long long min, long long max, long long *out)
{
    char *end;
    *out = strtoll(text, &end, 10);
    return end != text && *end == '\0' && *out >= min && *out <= max;
}

enum sl_err sl_key_limits_parse(const char *text, size_t n, struct sl_key_limits *out, struct sl_why *why)
{
    char *copy = sl_xstrndup(text, n), *rest = copy;
    enum sl_err err = SL_OK;
    *out = (struct sl_key_limits){0};
    for (char *word; !err && (word = strtok_r(rest, " \t", &rest));) {
        const struct {
            const char *name;
            uint32_t *value;
        } numbers[] = {{"max_requests", &out->max_requests},
                       {"requests_per_minute", &out->requests_per_minute},
                       {"tokens_per_minute", &out->tokens_per_minute}};
        char *equals = strchr(word, '=');
        const char *value = equals ? equals + 1 : "";
        long long v;
        bool known = false, good = false;
        size_t n_name = equals ? (size_t)(equals - word) : strlen(word);
        for (size_t i = 0; i < SL_COUNTOF(numbers); i++)
            if (strlen(numbers[i].name) == n_name && memcmp(numbers[i].name, word, n_name) == 0) {
                known = true;
                if ((good = read_number(value, 1, UINT32_MAX, &v)))
                    *numbers[i].value = (uint32_t)v;
            }
        if (n_name == 12 && memcmp(word, "min_priority", n_name) == 0) {
            known = true;
            if ((good = read_number(value, INT32_MIN, INT32_MAX, &v)))
                out->min_priority = (int32_t)v;
            out->has_min_priority = good;
        } else if (n_name == 5 && memcmp(word, "admin", n_name) == 0) {
            known = true;
            out->admin = strcmp(value, "yes") == 0;
            good = out->admin || strcmp(value, "no") == 0;
        } else if (n_name == 7 && memcmp(word, "classes", n_name) == 0) {
            known = true;
            if ((good = *value != '\0')) {
                sl_free(out->classes);
                out->classes = sl_xasprintf("|%s|", value);
            }
        }
        if (!known)
            err = sl_why_set(why, SL_ECONFIG,
                             "there is no limit \"%.40s\"; known are max_requests, requests_per_minute, "
                             "tokens_per_minute, min_priority, classes and admin",
                             word);
        else if (!good)
            err = sl_why_set(why, SL_ECONFIG, "the limit \"%.60s\" has no value that fits", word);
    }
    if (err)
        sl_key_limits_fini(out);
    sl_free(copy);
    return err;
}

void sl_key_limits_fini(struct sl_key_limits *l)
{
    sl_free(l->classes);
    l->classes = NULL;
}

bool sl_key_limits_allow(const struct sl_key_limits *l, const char *key_name, const char *asked,
                         const struct sl_gen_req *req, struct sl_fault *fault)
{
    bool ok = true;
    if (l->classes && asked) {
        char word[64];
        int n = snprintf(word, sizeof word, "|%s|", asked);
        if (n >= (int)sizeof word || strchr(asked, '|') || !strstr(l->classes, word))
            ok = sl_fault_set(fault, SL_EDENIED, "X-Sluice-Class",
                              "The key \"%.60s\" may not ask for this service class.", key_name);
    }
    if (ok && l->has_min_priority && req->priority < l->min_priority)
        ok = sl_fault_set(fault, SL_EDENIED, "priority",
                          "The key \"%.60s\" may not ask for a priority below %d.", key_name,
                          (int)l->min_priority);
    if (!ok)
        fault->status = 403; /* the key is right */
    return ok;
}

void sl_key_account_init(struct sl_key_account *a)
{
    *a = (struct sl_key_account){.requests = HUGE_VAL, .tokens = HUGE_VAL};
    SL_ASSERT(pthread_mutex_init(&a->lock, NULL) == 0);
}

void sl_key_account_fini(struct sl_key_account *a)
{
    pthread_mutex_destroy(&a->lock);
}

static double refilled(double level, double per_minute, double minutes)
{
    double now = level + per_minute * minutes;
    return now < per_minute ? now : per_minute;
}

static uint32_t seconds(double s)
{
    return s < 1 ? 1 : s > MAX_RETRY_S ? (uint32_t)MAX_RETRY_S : (uint32_t)ceil(s - TINY);
}

enum sl_err sl_key_account_take(struct sl_key_account *a, const struct sl_key_limits *l, uint64_t now_us,
                                uint64_t prompt_tokens, uint32_t *retry_after_s, struct sl_why *why)
{
    enum sl_err err = SL_OK;
    pthread_mutex_lock(&a->lock);
    if (now_us < a->filled_us) /* the clock was read before the lock: another thread was faster */
        now_us = a->filled_us;
    double minutes = (double)(now_us - a->filled_us) / MINUTE_US;
    /* a prompt larger than a minute's worth goes when the bucket is full */
    double tokens =
        (double)prompt_tokens < l->tokens_per_minute ? (double)prompt_tokens : l->tokens_per_minute;
    a->requests = l->requests_per_minute ? refilled(a->requests, l->requests_per_minute, minutes) : HUGE_VAL;
    a->tokens = l->tokens_per_minute ? refilled(a->tokens, l->tokens_per_minute, minutes) : HUGE_VAL;
    a->filled_us = now_us;
    if (l->max_requests && a->n_open >= l->max_requests) {
        *retry_after_s = seconds(a->mean_us / 1e6 / l->max_requests);
        err = sl_why_set(why, SL_EAGAIN, "This key has %u requests open, as many as it may.", a->n_open);
    } else if (l->requests_per_minute && a->requests < 1 - TINY) {
        *retry_after_s = seconds((1 - a->requests) * 60 / l->requests_per_minute);
        err = sl_why_set(why, SL_EAGAIN, "This key may make %u requests a minute.", l->requests_per_minute);
    } else if (l->tokens_per_minute && (a->tokens < tokens - TINY || a->tokens <= 0)) {
        double missing = tokens > 1 ? tokens - a->tokens : 1 - a->tokens;
        *retry_after_s = seconds(missing * 60 / l->tokens_per_minute);
        err = sl_why_set(why, SL_EAGAIN, "This key may use %u tokens a minute.", l->tokens_per_minute);
    } else {
        a->n_open++;
        a->requests -= 1;
        a->tokens -= (double)prompt_tokens;
    }
    pthread_mutex_unlock(&a->lock);
    return err;
}

void sl_key_account_undo(struct sl_key_account *a, uint64_t prompt_tokens)
{
    pthread_mutex_lock(&a->lock);
    a->n_open--;
    a->requests += 1;
    a->tokens += (double)prompt_tokens;
    pthread_mutex_unlock(&a->lock);
}

void sl_key_account_give(struct sl_key_account *a, uint64_t since_us, uint64_t now_us, uint64_t answer_tokens)
{
    double us = (double)(now_us - since_us);
    pthread_mutex_lock(&a->lock);
    a->n_open--;
    a->tokens -= (double)answer_tokens;
    a->mean_us = a->mean_us > 0 ? a->mean_us + MEAN_WEIGHT * (us - a->mean_us) : us;
    pthread_mutex_unlock(&a->lock);
}
