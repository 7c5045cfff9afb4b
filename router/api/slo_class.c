/* router/api/slo_class.c - see slo_class.h. */
#include "router/api/slo_class.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names stand in labels of metrics. */
#define NAME_LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"

static const struct sl_slo_class *find(const struct sl_slo_classes *c, const char *name)
{
    for (uint32_t i = 0; name && i < c->n; i++)
        if (strcmp(c->of[i].name, name) == 0)
            return &c->of[i];
    return NULL;
}

static bool read_number(const char *text, long min, long max, long *out)
{
    char *end;
    *out = strtol(text, &end, 10);
    return end != text && *end == '\0' && *out >= min && *out <= max;
}

/* One word "key=value" behind the name. */
static bool read_part(const char *word, struct sl_slo_class *c)
{
    static const char ttft[] = "ttft_ms=", tpot[] = "tpot_ms=", priority[] = "priority=";
    long v;
    if (strncmp(word, ttft, sizeof ttft - 1) == 0 &&
        read_number(word + sizeof ttft - 1, 1, SL_SLO_MAX_MS, &v)) {
        c->ttft_ms = (uint32_t)v;
        return true;
    }
    if (strncmp(word, tpot, sizeof tpot - 1) == 0 &&
        read_number(word + sizeof tpot - 1, 1, SL_SLO_MAX_MS, &v)) {
        c->tpot_ms = (uint32_t)v;
        return true;
    }
    if (strncmp(word, priority, sizeof priority - 1) == 0 &&
        read_number(word + sizeof priority - 1, -SL_SLO_PRIORITY, SL_SLO_PRIORITY, &v)) {
        c->priority = (int32_t)v;
        return true;
    }
    return false;
}

static enum sl_err read_class(const char *text, struct sl_slo_classes *out, struct sl_why *why)
{
    struct sl_slo_class c = {0};
    char words[256], *at = words;
    if (out->n == SL_SLO_CLASSES)
        return sl_why_set(why, SL_ECONFIG, "slo_classes names more than %u classes", SL_SLO_CLASSES);
    if ((size_t)snprintf(words, sizeof words, "%s", text) >= sizeof words)
        return sl_why_set(why, SL_ECONFIG, "a class of slo_classes is longer than %zu characters",
                          sizeof words - 1);
    char *word = strtok_r(words, " ", &at);
    if (!word || strlen(word) >= sizeof c.name || word[strspn(word, NAME_LETTERS)])
        return sl_why_set(
            why, SL_ECONFIG,
            "slo_classes has \"%s\"; expected a name of at most %u of A-Z a-z 0-9 . _ -, then ttft_ms=N, "
            "tpot_ms=N or priority=N",
            text, SL_SLO_NAME - 1);
    snprintf(c.name, sizeof c.name, "%s", word);
    if (find(out, c.name))
        return sl_why_set(why, SL_ECONFIG, "slo_classes names the class \"%s\" twice", c.name);
    while ((word = strtok_r(NULL, " ", &at)))
        if (!read_part(word, &c))
            return sl_why_set(
                why, SL_ECONFIG,
                "class \"%s\" of slo_classes has \"%s\"; expected ttft_ms=N or tpot_ms=N with N from 1 "
                "to %u milliseconds, or priority=N from %d to %d",
                c.name, word, SL_SLO_MAX_MS, -SL_SLO_PRIORITY, SL_SLO_PRIORITY);
    out->of[out->n++] = c;
    return SL_OK;
}

enum sl_err sl_slo_classes_parse(const struct sl_conf_list *list, struct sl_slo_classes *out,
                                 struct sl_why *why)
{
    *out = (struct sl_slo_classes){0};
    for (size_t i = 0; i < list->n; i++) {
        enum sl_err err = read_class(list->items[i], out, why);
        if (err)
            return err;
    }
    return SL_OK;
}

bool sl_slo_apply(const struct sl_slo_classes *c, const char *asked, struct sl_gen_req *req,
                  struct sl_fault *fault)
{
    const struct sl_slo_class *k = find(c, asked);
    if (asked && !k) {
        char known[256] = "";
        size_t n = 0;
        for (uint32_t i = 0; i < c->n && n < sizeof known; i++) {
            int w = snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", c->of[i].name);
            n += w > 0 ? (size_t)w : 0;
        }
        return sl_fault_set(fault, SL_EINVAL, "X-Sluice-Class",
                            "The header X-Sluice-Class is \"%.60s\"; this router knows %s.", asked,
                            c->n ? known : "no classes");
    }
    if (!k)
        k = find(c, req->key_name);
    if (!k)
        k = find(c, "default");
    if (!k)
        return true;
    req->slo_class = k->name;
    req->ttft_ms = req->ttft_ms ? req->ttft_ms : k->ttft_ms;
    req->tpot_ms = req->tpot_ms ? req->tpot_ms : k->tpot_ms;
    req->priority = req->priority ? req->priority : k->priority;
    return true;
}
