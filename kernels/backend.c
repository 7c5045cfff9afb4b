/* kernels/backend.c - the tables of this build, and the choice among them: "auto" is the first that can run.
 * The CUDA ones stand behind, so that they are taken by name only. */
#include "kernels/backend.h"

#include <stdio.h>
#include <string.h>
#include "kernels/cpu/cpu_backends.h"
#include "kernels/cuda/cuda_backends.h"

static const struct sl_backend_ops *const tables[] = {
    &sl_backend_avx512,    &sl_backend_avx2, &sl_backend_portable,
    &sl_backend_reference, &sl_backend_cuda, &sl_backend_cuda_plain,
};

/* The name of the first op a table lacks, or NULL. */
static const char *missing_op(const struct sl_backend_ops *t)
{
    const struct {
        int set;
        const char *name;
    } ops[] = {
        {t->open != NULL, "open"},
        {t->close != NULL, "close"},
        {t->buf_alloc != NULL, "buf_alloc"},
        {t->buf_free != NULL, "buf_free"},
        {t->upload != NULL, "upload"},
        {t->download != NULL, "download"},
        {t->weight_pack != NULL, "weight_pack"},
        {t->weight_free != NULL, "weight_free"},
        {t->weight_bytes != NULL, "weight_bytes"},
        {t->kv_open != NULL, "kv_open"},
        {t->kv_close != NULL, "kv_close"},
        {t->kv_host_base != NULL, "kv_host_base"},
        {t->kv_read != NULL, "kv_read"},
        {t->kv_write != NULL, "kv_write"},
        {t->embed != NULL, "embed"},
        {t->linear != NULL, "linear"},
        {t->norm_add != NULL, "norm_add"},
        {t->rope_kv != NULL, "rope_kv"},
        {t->attention != NULL, "attention"},
        {t->sync != NULL, "sync"},
    };
    for (size_t i = 0; i < SL_COUNTOF(ops); i++)
        if (!ops[i].set)
            return ops[i].name;
    return NULL;
}

static void list_names(char *out, size_t size)
{
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < SL_COUNTOF(tables) && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%s", i ? ", " : "", tables[i]->name);
}

enum sl_err sl_backend_find(const char *name, const struct sl_backend_ops **out, struct sl_why *why)
{
    int any = !name || !*name || strcmp(name, "auto") == 0;
    for (size_t i = 0; i < SL_COUNTOF(tables); i++) {
        const struct sl_backend_ops *t = tables[i];
        if (!any && strcmp(name, t->name) != 0)
            continue;
        if (t->available()) {
            const char *op = missing_op(t);
            if (op)
                return sl_why_set(why, SL_EBUG, "Backend \"%s\" has no %s.", t->name, op);
            *out = t;
            return SL_OK;
        }
        if (!any)
            return sl_why_set(why, SL_EUNSUPPORTED,
                              "This machine cannot run backend \"%s\" (%s); use \"auto\".", name,
                              t->missing ? t->missing() : "an instruction set is missing");
    }
    char names[128];
    list_names(names, sizeof names);
    return sl_why_set(why, SL_ENOTFOUND, "There is no backend \"%s\"; known: auto, %s.", name, names);
}
