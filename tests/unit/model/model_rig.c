/* tests/unit/model/model_rig.c - see model_rig.h. */
#include "tests/unit/model/model_rig.h"

#include "common/base/mem.h"
#include "common/model/share.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void must(enum sl_err e, const struct sl_why *why)
{
    if (e == SL_OK)
        return;
    fprintf(stderr, "%s: %s\n", sl_err_name(e), why->text);
    abort();
}

char *rig_model_file(const struct sl_make_model *m)
{
    const char *dir = getenv("TMPDIR");
    char *path = sl_xasprintf("%s/sluice-test-XXXXXX", dir != NULL ? dir : "/tmp");
    int fd = mkstemp(path);
    SL_ASSERT(fd >= 0);
    close(fd);
    struct sl_why why = {{0}};
    must(sl_make_model_write(m, path, &why), &why);
    return path;
}

bool rig_backend_available(const char *name)
{
    const struct sl_backend_ops *ops;
    return sl_backend_find(name, &ops, NULL) == SL_OK;
}

void rig_open(struct rig *r, const struct rig_conf *c)
{
    struct sl_why why = {{0}};
    *r = (struct rig){.conf = *c};
    must(sl_backend_find(c->backend, &r->ops, &why), &why);
    struct sl_dev_conf dc = {
        .n_threads = c->n_threads, .max_rows = c->max_rows, .no_graphs = c->no_graphs, .device = c->device};
    const struct sl_share first = {0, c->tensor_parallel ? c->tensor_parallel : 1};
    const struct sl_dev_conf own = sl_share_dev(&first, &dc);
    must(r->ops->open(&own, &r->dev, &why), &why);
    struct sl_model_open mo = {.path = c->path,
                               .ops = r->ops,
                               .dev = r->dev,
                               .tensor_parallel = c->tensor_parallel,
                               .node = &dc,
                               .group = c->group,
                               .kv_dtype = c->kv_dtype,
                               .page_tokens = c->page_tokens,
                               .max_rows = c->max_rows};
    must(sl_model_open(&mo, &r->model, &why), &why);
    must(sl_model_open_kv(r->model, c->n_pages, &r->kv, &why), &why);
    r->logits = sl_xcalloc((size_t)c->max_rows * sl_model_conf(r->model)->n_vocab, sizeof *r->logits);
}

void rig_close(struct rig *r)
{
    sl_free(r->logits);
    r->ops->kv_close(r->dev, r->kv);
    sl_model_close(r->model);
    r->ops->close(r->dev);
}

void rig_pages_poison(struct rig *r)
{
    struct sl_kv_geometry g = sl_model_kv_geometry(r->model);
    size_t bytes = sl_kv_page_bytes(&g);
    void *page = sl_xalloc(bytes);
    memset(page, 0xff, bytes);
    for (uint32_t i = 0; i < r->conf.n_pages; i++)
        r->ops->kv_write(r->dev, r->kv, i, page);
    sl_free(page);
}

float *rig_prompt_logits(struct rig *r, uint32_t n_tokens, uint32_t chunk)
{
    uint32_t n_vocab = sl_model_conf(r->model)->n_vocab, n_pages = r->conf.n_pages;
    float *all = sl_xcalloc((size_t)n_tokens * n_vocab, sizeof *all);
    int32_t *tokens = sl_xcalloc(n_tokens, sizeof *tokens);
    uint32_t *out_rows = sl_xcalloc(n_tokens, sizeof *out_rows), *pages = sl_xcalloc(n_pages, sizeof *pages);
    rig_pages_poison(r);
    for (uint32_t i = 0; i < n_pages; i++)
        pages[i] = (i + n_pages - 1) % n_pages;
    for (uint32_t i = 0; i < n_tokens; i++) {
        tokens[i] = (int32_t)(i * 97 % n_vocab);
        out_rows[i] = i;
    }
    for (uint32_t at = 0, n; at < n_tokens; at += n) {
        uint32_t left = n_tokens - 1 - at;
        n = left == 0 ? 1 : left < chunk ? left : chunk;
        struct sl_batch_run run = {0, n, at, pages, n_pages};
        struct sl_batch b = {n, 1, n, tokens + at, &run, out_rows};
        sl_model_forward(r->model, r->kv, &b, all + (size_t)at * n_vocab, &r->progress);
    }
    sl_free(pages);
    sl_free(out_rows);
    sl_free(tokens);
    return all;
}
