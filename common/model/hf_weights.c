/* common/model/hf_weights.c - opens the weight files of a folder and merges their tensors.
 *
 * As transformers does, model.safetensors comes before an index. An index is held against the files: each
 * tensor must lie in the file that the index names for it, and a file holds no other tensors. So a folder
 * with the parts of two downloads in it is refused here and not computed with. File names come from outside:
 * they are names inside the folder, never paths. */
#include "common/model/hf_weights.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/hashmap.h"
#include "common/base/mem.h"
#include "common/text/hf_files.h"

#define ONE_FILE "model.safetensors"
#define INDEX    "model.safetensors.index.json"
#define SUFFIX   ".safetensors"
#define AGAIN    "the folder is incomplete or mixed up; download or save the model again"

struct sl_hf_weights {
    struct sl_safetensors **files;
    size_t n_files;
    const struct sl_safetensor **tensors; /* by name */
    size_t n;
};

struct opener {
    const char *folder;
    struct sl_hf_weights *w;
    struct sl_why *why;
    struct sl_hashmap *by_file; /* file name -> struct sl_safetensors */
};

static bool exists(const char *folder, const char *name)
{
    struct stat st;
    char *path = sl_xasprintf("%s/%s", folder, name);
    bool found = stat(path, &st) == 0;
    sl_free(path);
    return found;
}

static enum sl_err open_file(struct opener *o, const char *name, struct sl_safetensors **out)
{
    char *path = sl_xasprintf("%s/%s", o->folder, name);
    enum sl_err e = sl_safetensors_open(path, out, o->why);
    sl_free(path);
    if (e) /* what is not there will not be there after a restart either */
        return e == SL_EIO && !exists(o->folder, name) ? SL_ENOTFOUND : e;
    o->w->files = sl_xrealloc_array(o->w->files, o->w->n_files + 1, sizeof(struct sl_safetensors *));
    o->w->files[o->w->n_files++] = *out;
    return SL_OK;
}

/* A name of the index, fit to be joined to the folder's. */
static bool is_file_name(const char *name)
{
    size_t n = name ? strlen(name) : 0, suffix = sizeof SUFFIX - 1;
    return n > suffix && n < 256 && name[0] != '.' && !strchr(name, '/') &&
           strcmp(name + n - suffix, SUFFIX) == 0;
}

/* The open file of that name, opened when it is met first. */
static enum sl_err indexed_file(struct opener *o, const char *name, struct sl_safetensors **out)
{
    *out = sl_hashmap_get(o->by_file, name, strlen(name));
    if (*out != NULL)
        return SL_OK;
    if (o->w->n_files == SL_HF_MAX_WEIGHT_FILES)
        return sl_why_set(o->why, SL_ETOOBIG, "%s/" INDEX " names more than %d files", o->folder,
                          SL_HF_MAX_WEIGHT_FILES);
    enum sl_err e = open_file(o, name, out);
    if (!e)
        sl_hashmap_put(o->by_file, name, strlen(name), *out);
    return e;
}

static enum sl_err open_indexed(struct opener *o, const json_t *index)
{
    const json_t *map = json_object_get(index, "weight_map");
    size_t n_indexed = json_object_size(map), n_held = 0;
    if (n_indexed == 0 || n_indexed > SL_SAFETENSORS_MAX_TENSORS)
        return sl_why_set(o->why, SL_EPARSE, "%s/" INDEX " has a weight_map of %zu tensors, expected 1 to %d",
                          o->folder, n_indexed, SL_SAFETENSORS_MAX_TENSORS);
    for (void *it = json_object_iter((json_t *)map); it; it = json_object_iter_next((json_t *)map, it)) {
        const char *tensor = json_object_iter_key(it), *name = json_string_value(json_object_iter_value(it));
        struct sl_safetensors *file;
        char buf[SL_SHOWN_BYTES];
        if (!is_file_name(name))
            return sl_why_set(o->why, SL_EPARSE,
                              "%s/" INDEX
                              ": tensor %s is in no file of the folder whose name ends with " SUFFIX,
                              o->folder, sl_shown(buf, tensor, strlen(tensor)));
        enum sl_err e = indexed_file(o, name, &file);
        if (e)
            return e;
        if (sl_safetensors_find(file, tensor) == NULL)
            return sl_why_set(o->why, SL_EPARSE, "%s has no tensor %s, which " INDEX " places there; " AGAIN,
                              sl_safetensors_path(file), sl_shown(buf, tensor, strlen(tensor)));
    }
    for (size_t i = 0; i < o->w->n_files; i++)
        n_held += sl_safetensors_n(o->w->files[i]);
    if (n_held != n_indexed)
        return sl_why_set(o->why, SL_EPARSE, "%s: " INDEX " names %zu tensors, its files have %zu; " AGAIN,
                          o->folder, n_indexed, n_held);
    return SL_OK;
}

static enum sl_err open_files(struct opener *o)
{
    struct sl_safetensors *file;
    if (exists(o->folder, ONE_FILE))
        return open_file(o, ONE_FILE, &file);
    json_t *index = NULL;
    enum sl_err e = sl_hf_read_json(o->folder, INDEX, true, &index, o->why);
    if (!e && index == NULL)
        e = sl_why_set(o->why, SL_EUNSUPPORTED,
                       "%s has neither " ONE_FILE " nor " INDEX "; give a GGUF file or a folder with a model "
                       "saved as safetensors",
                       o->folder);
    if (!e)
        e = open_indexed(o, index);
    json_decref(index);
    return e;
}

static int name_cmp(const void *a, const void *b)
{
    return strcmp((*(const struct sl_safetensor *const *)a)->name,
                  (*(const struct sl_safetensor *const *)b)->name);
}

/* No name comes twice: an index has each once, and the files hold no more than the index names. */
static void merge(struct sl_hf_weights *w)
{
    for (size_t i = 0; i < w->n_files; i++)
        w->n += sl_safetensors_n(w->files[i]);
    w->tensors = sl_xcalloc(w->n, sizeof *w->tensors);
    size_t at = 0;
    for (size_t i = 0; i < w->n_files; i++)
        for (size_t j = 0; j < sl_safetensors_n(w->files[i]); j++)
            w->tensors[at++] = sl_safetensors_at(w->files[i], j);
    if (w->n > 0)
        qsort(w->tensors, w->n, sizeof *w->tensors, name_cmp);
}

enum sl_err sl_hf_weights_open(const char *folder, struct sl_hf_weights **out, struct sl_why *why)
{
    struct sl_hf_weights *w = sl_xcalloc(1, sizeof *w);
    struct opener o = {.folder = folder, .w = w, .why = why, .by_file = sl_hashmap_new()};
    enum sl_err e = open_files(&o);
    sl_hashmap_free(o.by_file);
    if (e) {
        sl_hf_weights_close(w);
        return e;
    }
    merge(w);
    *out = w;
    return SL_OK;
}

void sl_hf_weights_close(struct sl_hf_weights *w)
{
    if (w == NULL)
        return;
    for (size_t i = 0; i < w->n_files; i++)
        sl_safetensors_close(w->files[i]);
    sl_free(w->files);
    sl_free(w->tensors);
    sl_free(w);
}

void sl_hf_weights_id(const struct sl_hf_weights *w, struct sl_digest128 *digest, int64_t *newest_ns)
{
    struct sl_file_id *ids = sl_xcalloc(w->n_files, sizeof *ids);
    for (size_t i = 0; i < w->n_files; i++) {
        ids[i] = sl_safetensors_map(w->files[i])->id;
        int64_t newest = sl_file_id_newest_ns(&ids[i]);
        *newest_ns = newest > *newest_ns ? newest : *newest_ns;
    }
    *digest = sl_digest128(ids, w->n_files * sizeof *ids, 0);
    sl_free(ids);
}

void sl_hf_weights_release(const struct sl_hf_weights *w, const void *p, size_t n)
{
    for (size_t i = 0; i < w->n_files; i++)
        sl_file_map_release(sl_safetensors_map(w->files[i]), p, n);
}

size_t sl_hf_weights_n(const struct sl_hf_weights *w)
{
    return w->n;
}

const struct sl_safetensor *sl_hf_weights_at(const struct sl_hf_weights *w, size_t i)
{
    return w->tensors[i];
}
