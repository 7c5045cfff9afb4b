/* tests/fuzz/router/fuzz_headers.c - any values of the headers that say where and how fast a request is to run, before any
 * service classes and limits of a key. Input: lines; "Name: value" is a header, "class ..." a service class of the
 * config, "limits ..." those of the key, "weight ..." an entry of key_weights. */
#include <stdint.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/wire/wire_msg.h"
#include "router/api/key_limits.h"
#include "router/api/key_weights.h"
#include "router/api/slo_class.h"
#include "router/api/sluice_headers.h"

#define MAX_LINES 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct lines {
    char *of[MAX_LINES];
    size_t n;
};

static const char *behind(const char *line, const char *word)
{
    size_t n = strlen(word);
    return strncmp(line, word, n) == 0 ? line + n : NULL;
}

static const char *header(const void *arg, const char *name)
{
    const struct lines *l = arg;
    for (size_t i = 0; i < l->n; i++) {
        const char *s = behind(l->of[i], name);
        if (s && s[0] == ':' && s[1] == ' ')
            return s + 2;
    }
    return NULL;
}

/* The lines that begin with a word, without it. */
static struct sl_conf_list list_of(const struct lines *l, const char *word, char **items)
{
    struct sl_conf_list list = {items, 0};
    for (size_t i = 0; i < l->n; i++) {
        const char *s = behind(l->of[i], word);
        if (s)
            items[list.n++] = (char *)(uintptr_t)s;
    }
    return list;
}

static void check_account(const struct sl_key_limits *limits, const struct sl_gen_req *req)
{
    struct sl_key_account a;
    struct sl_why why = {{0}};
    uint32_t retry_s = 0;
    sl_key_account_init(&a);
    for (uint64_t now = 1; now < 4; now++) {
        enum sl_err err = sl_key_account_take(&a, limits, now * 1000000, req->ttft_ms, &retry_s, &why);
        SL_ASSERT(err == SL_OK || (why.text[0] && retry_s > 0));
        if (err == SL_OK && now == 2)
            sl_key_account_undo(&a, req->ttft_ms);
        else if (err == SL_OK)
            sl_key_account_give(&a, now * 1000000, now * 1000000 + req->tpot_ms, req->tpot_ms);
    }
    sl_key_account_fini(&a);
}

static void apply(const struct lines *l, struct sl_gen_req *req)
{
    char *items[MAX_LINES];
    struct sl_slo_classes classes = {0};
    struct sl_key_limits limits = {0};
    struct sl_fault fault = {0};
    struct sl_why why = {{0}};
    const char *asked = header(l, "X-Sluice-Class");
    const struct sl_conf_list class_list = list_of(l, "class ", items);
    if (sl_slo_classes_parse(&class_list, &classes, &why) != SL_OK) {
        SL_ASSERT(why.text[0]);
        return;
    }
    const struct sl_conf_list weights = list_of(l, "weight ", items);
    if (sl_key_weights_check(&weights, &why) == SL_OK) {
        double w = sl_key_weight(&weights, req->key_name);
        SL_ASSERT(w > 0 && w <= 100);
    }
    const struct sl_conf_list limit_list = list_of(l, "limits ", items);
    const char *text = limit_list.n ? limit_list.items[0] : "";
    if (sl_key_limits_parse(text, strlen(text), &limits, &why) != SL_OK) {
        SL_ASSERT(why.text[0]);
        return;
    }
    if (!sl_headers_read(header, l, req, &fault) || !sl_slo_apply(&classes, asked, req, &fault) ||
        !sl_key_limits_allow(&limits, req->key_name, asked, req, &fault)) {
        SL_ASSERT(fault.err && fault.message[0]);
    } else {
        SL_ASSERT(req->ttft_ms <= SL_WIRE_MAX_DEADLINE_MS && req->deadline_ms <= SL_WIRE_MAX_DEADLINE_MS &&
                  req->chunk >= -2);
        check_account(&limits, req);
    }
    sl_key_limits_fini(&limits);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct lines l = {.n = 0};
    char *text = sl_xstrndup((const char *)data, size), *rest = text;
    struct sl_arena *arena = sl_arena_new(1u << 20);
    struct sl_gen_req *req = sl_arena_alloc(arena, sizeof *req);
    req->arena = arena;
    req->deadline_ms = 1000;
    req->key_name = "key";
    while (rest && l.n < MAX_LINES)
        l.of[l.n++] = strsep(&rest, "\n");
    apply(&l, req);
    sl_arena_free(arena);
    sl_free(text);
    return 0;
}
