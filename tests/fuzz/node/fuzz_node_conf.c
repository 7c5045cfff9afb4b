/* tests/fuzz/node/fuzz_node_conf.c - any bytes as a node's config file, command line, secret and keys set while it runs.
 * Input, between zero bytes: the file; words of the command line, a line each; the secret; "KEY VALUE" lines to set. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/node/node_conf.h"
#include "tests/fuzz/input_file.h"

#define MAX_WORDS 32

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum part { PART_FILE, PART_WORDS, PART_SECRET, PART_SET, N_PARTS };

struct parts {
    char *of[N_PARTS]; /* each ends with a zero byte */
    size_t n[N_PARTS];
};

static char *split(const uint8_t *data, size_t size, struct parts *p)
{
    char *text = sl_xalloc(size + 1), *at = text;
    memcpy(text, data, size);
    text[size] = '\0';
    for (int i = 0; i < N_PARTS; i++) {
        p->of[i] = at;
        p->n[i] = strlen(at);
        at += p->n[i];
        at += at < text + size;
    }
    return text;
}

/* Every value is printed as it can be given again. */
static void check_options(const struct sl_node_conf *c)
{
    for (const struct sl_conf_opt *o = sl_node_opts; o->key; o++) {
        char text[4096];
        struct sl_node_conf other = {0};
        struct sl_why why = {{0}};
        sl_conf_print(o, c, text, sizeof text);
        if (strlen(text) + 1 == sizeof text)
            continue; /* cut */
        SL_ASSERT(sl_conf_set(sl_node_opts, o->key, text, &other, &why) == SL_OK || o->type == SL_CONF_F64);
        if (o->type != SL_CONF_STRING && o->type != SL_CONF_F64)
            SL_ASSERT(sl_conf_same(o, c, &other));
        sl_conf_fini(sl_node_opts, &other);
    }
}

static void set_keys(struct sl_node_conf *c, char *lines)
{
    while (lines && *lines) {
        char *value = strsep(&lines, "\n"), *key = strsep(&value, " ");
        struct sl_why why = {{0}};
        if (sl_node_conf_set(c, key, value ? value : "", &why) != SL_OK)
            SL_ASSERT(why.text[0]);
        SL_ASSERT(c->may_prefill || c->may_decode);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct parts p;
    struct sl_node_conf c;
    struct sl_why why = {{0}};
    char *text = split(data, size, &p), *rest = p.of[PART_WORDS];
    char *argv[MAX_WORDS + 8] = {(char *)"sluice-prefill", (char *)"--model", (char *)"/dev/null",
                                 (char *)"--config",
                                 (char *)(uintptr_t)sl_input_file(0, p.of[PART_FILE], p.n[PART_FILE])};
    int argc = 5;
    while (rest && *rest && argc < MAX_WORDS + 5)
        argv[argc++] = strsep(&rest, "\n");
    if (p.n[PART_SECRET]) {
        argv[argc++] = (char *)"--cluster-secret-file";
        argv[argc++] = (char *)(uintptr_t)sl_input_file(1, p.of[PART_SECRET], p.n[PART_SECRET]);
    }
    if (sl_node_conf_load(argc, argv, SLUICE__ROLE__ROLE_PREFILL, &c, &why) != SL_OK) {
        SL_ASSERT(why.text[0]);
    } else {
        SL_ASSERT(c.threads > 0 && c.threads % c.tensor_parallel == 0 &&
                  c.has_secret == (p.n[PART_SECRET] > 0));
        check_options(&c);
        set_keys(&c, p.of[PART_SET]);
    }
    sl_node_conf_fini(&c);
    sl_free(text);
    return 0;
}
