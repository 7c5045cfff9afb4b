/* router/api/key_limits.h - what one API key may use, and the account of what it does.
 *
 * Limits stand behind a key in its file, each optional:
 *   max_requests=N         open at once
 *   requests_per_minute=N
 *   tokens_per_minute=N    of prompts when a request comes, of answers when it ends: those may run into debt
 *   min_priority=N         the most urgent priority it may ask for (smaller goes first)
 *   classes=A|B            the service classes it may ask for by X-Sluice-Class
 *   admin=yes              it may read /metrics and use /sluice, as no other hashed key may
 *
 * What is per minute is a bucket that holds one minute's worth and refills evenly. The account is pure
 * arithmetic over the caller's clock, under a lock of its own: any thread. */
#ifndef SLUICE_ROUTER_API_KEY_LIMITS_H
#define SLUICE_ROUTER_API_KEY_LIMITS_H

#include <pthread.h>
#include <stdint.h>

#include "common/base/err.h"
#include "router/api/json_field.h"
#include "router/flow/gen_req.h"

struct sl_key_limits {
    uint32_t max_requests, requests_per_minute, tokens_per_minute; /* 0 = no limit */
    bool admin;
    bool has_min_priority;
    int32_t min_priority;
    char *classes; /* "|a|b|", owned; NULL = all */
};

/* Reads n bytes of LIMIT=VALUE words. SL_ECONFIG: the sentence names the word. */
SL_MUST_CHECK enum sl_err sl_key_limits_parse(const char *text, size_t n, struct sl_key_limits *out,
                                              struct sl_why *why);
void sl_key_limits_fini(struct sl_key_limits *l);
/* False with the fault (403) set when the request asks for more than its key may; asked: X-Sluice-Class or
 * NULL. */
bool sl_key_limits_allow(const struct sl_key_limits *l, const char *key_name, const char *asked,
                         const struct sl_gen_req *req, struct sl_fault *fault);

struct sl_key_account {
    pthread_mutex_t lock;
    uint32_t n_open;
    double requests, tokens; /* left in the buckets; negative = debt; infinite where there is no limit */
    uint64_t filled_us;      /* when they were last refilled */
    double mean_us;          /* how long its requests take; 0 = none has ended yet */
};
void sl_key_account_init(struct sl_key_account *a);
void sl_key_account_fini(struct sl_key_account *a);
/* One more request with so many prompt tokens. SL_EAGAIN: why says which limit, *retry_after_s when it will
 * let such a request through: exactly for what is per minute, as its requests take on average for those open
 * at once. */
SL_MUST_CHECK enum sl_err sl_key_account_take(struct sl_key_account *a, const struct sl_key_limits *l,
                                              uint64_t now_us, uint64_t prompt_tokens,
                                              uint32_t *retry_after_s, struct sl_why *why);
/* It was not let in after all: as if it had not been taken. */
void sl_key_account_undo(struct sl_key_account *a, uint64_t prompt_tokens);
/* It is over, since_us being when it was taken. */
void sl_key_account_give(struct sl_key_account *a, uint64_t since_us, uint64_t now_us,
                         uint64_t answer_tokens);

#endif
