/* common/text/hf_vocab.c - the files of a model folder: what each adds to tokenizer.json.
 *
 * Special tokens are named in several files; the order is transformers': tokenizer_config.json before
 * special_tokens_map.json, then the ids in config.json. Whether a text gets a bos is tokenizer_config.json's
 * word (add_bos_token) before the post-processor's. The chat template is chat_template.jinja, or stands in
 * tokenizer_config.json. All tokens that generation_config.json and config.json call eos end a generation. */
#include "common/text/hf_vocab.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/text/hf_files.h"
#include "common/text/template.h"

/* What transformers takes for Gemma 3 where config.json does not say: those of the released models do not. */
#define GEMMA3_CONTEXT 131072

struct folder {
    const char *path;
    struct sl_vocab_src *src;
    struct sl_model_info *info;
    struct sl_why *why;
    json_t *config, *tokenizer_config, *special_map, *generation; /* NULL when absent */
};

static enum sl_err read_json(const struct folder *f, const char *name, bool optional, json_t **out)
{
    return sl_hf_read_json(f->path, name, optional, out, f->why);
}

/* --- config.json --- */

/* A number of the model, or of its text part when it has others too. 0 when it says none. */
static uint32_t config_number(const struct folder *f, const char *key)
{
    const json_t *text = json_object_get(f->config, "text_config");
    const json_t *j = json_object_get(text ? text : f->config, key);
    json_int_t v = json_is_integer(j) ? json_integer_value(j) : 0;
    return v > 0 && v < UINT32_MAX ? (uint32_t)v : 0;
}

static void read_info(struct folder *f)
{
    struct sl_model_info *info = f->info;
    const char *type = json_string_value(json_object_get(f->config, "model_type"));
    const char *end = f->path + strlen(f->path), *name;
    while (end > f->path + 1 && end[-1] == '/')
        end--;
    for (name = end; name > f->path && name[-1] != '/'; name--)
        ;
    *info = (struct sl_model_info){.context_length = config_number(f, "max_position_embeddings")};
    if (!info->context_length)
        info->context_length = config_number(f, "n_positions");
    if (!info->context_length && type && strncmp(type, "gemma3", 6) == 0)
        info->context_length = GEMMA3_CONTEXT;
    snprintf(info->architecture, sizeof info->architecture, "%s", type ? type : "");
    snprintf(info->name, sizeof info->name, "%.*s", (int)(end - name), name);
    DIR *d = opendir(f->path);
    for (struct dirent *entry; d && (entry = readdir(d));) {
        struct stat st;
        size_t n = strlen(entry->d_name);
        if (n > 12 && strcmp(entry->d_name + n - 12, ".safetensors") == 0 &&
            fstatat(dirfd(d), entry->d_name, &st, 0) == 0 && st.st_size > 0)
            info->file_bytes += (size_t)st.st_size;
    }
    if (d)
        closedir(d);
}

/* --- special tokens --- */

static uint32_t find_token(const struct sl_vocab_src *v, const char *s, size_t n)
{
    for (uint32_t i = 0; i < v->n_tokens && n; i++)
        if (v->tokens[i].n == n && memcmp(v->tokens[i].p, s, n) == 0)
            return i;
    return SL_VOCAB_NO_ID;
}

/* "text" or {"content": "text", ...} */
static uint32_t named_token(const struct folder *f, const json_t *j)
{
    if (json_is_object(j))
        j = json_object_get(j, "content");
    return json_is_string(j) ? find_token(f->src, json_string_value(j), json_string_length(j))
                             : SL_VOCAB_NO_ID;
}

static uint32_t id_token(const struct folder *f, const json_t *j)
{
    json_int_t id = json_is_integer(j) ? json_integer_value(j) : -1;
    return id >= 0 && id < f->src->n_tokens ? (uint32_t)id : SL_VOCAB_NO_ID;
}

/* key: "bos_token". Stays as it is when no file names one. */
static void read_special(const struct folder *f, const char *key, const char *id_key, uint32_t *id)
{
    uint32_t found = named_token(f, json_object_get(f->tokenizer_config, key));
    if (found == SL_VOCAB_NO_ID)
        found = named_token(f, json_object_get(f->special_map, key));
    if (found == SL_VOCAB_NO_ID && *id == SL_VOCAB_NO_ID)
        found = id_token(f, json_object_get(f->config, id_key));
    if (found != SL_VOCAB_NO_ID)
        *id = found;
}

static enum sl_err add_ends(const struct folder *f, const json_t *ids)
{
    struct sl_vocab_src *v = f->src;
    size_t n = json_is_array(ids) ? json_array_size(ids) : json_is_integer(ids) ? 1 : 0;
    if (n > SL_VOCAB_MAX_EOG - v->n_eog)
        return sl_why_set(f->why, SL_ETOOBIG, "%s: more than %d tokens end a generation (eos_token_id)",
                          f->path, SL_VOCAB_MAX_EOG);
    for (size_t i = 0; i < n; i++) {
        uint32_t id = id_token(f, json_is_array(ids) ? json_array_get(ids, i) : ids);
        if (id != SL_VOCAB_NO_ID)
            v->eog_ids[v->n_eog++] = id;
    }
    return SL_OK;
}

static enum sl_err read_specials(const struct folder *f)
{
    struct sl_vocab_src *v = f->src;
    const json_t *add_bos = json_object_get(f->tokenizer_config, "add_bos_token"),
                 *add_eos = json_object_get(f->tokenizer_config, "add_eos_token");
    bool bos_by_template = v->add_bos, eos_by_template = v->add_eos;
    if (!bos_by_template)
        read_special(f, "bos_token", "bos_token_id", &v->bos_id);
    if (!eos_by_template)
        read_special(f, "eos_token", "eos_token_id", &v->eos_id);
    if (json_is_boolean(add_bos))
        v->add_bos = json_is_true(add_bos);
    if (json_is_boolean(add_eos))
        v->add_eos = json_is_true(add_eos);
    v->eog_ids = sl_arena_alloc(v->arena, SL_VOCAB_MAX_EOG * sizeof *v->eog_ids);
    if (!v->eog_ids)
        return sl_why_set(f->why, SL_ENOMEM, "%s: no memory for the vocabulary", f->path);
    enum sl_err e = add_ends(f, json_object_get(f->generation, "eos_token_id"));
    return e ? e : add_ends(f, json_object_get(f->config, "eos_token_id"));
}

/* transformers adds the tokens that only tokenizer_config.json has; folders are saved with both alike. */
static enum sl_err check_added(const struct folder *f)
{
    const json_t *added = json_object_get(f->tokenizer_config, "added_tokens_decoder");
    for (void *it = json_object_iter((json_t *)added); it; it = json_object_iter_next((json_t *)added, it)) {
        const json_t *content = json_object_get(json_object_iter_value(it), "content");
        unsigned long id = strtoul(json_object_iter_key(it), NULL, 10);
        if (id >= f->src->n_tokens)
            continue;
        const struct sl_vocab_str *t = &f->src->tokens[id];
        if (!json_is_string(content) || t->n != json_string_length(content) ||
            memcmp(t->p, json_string_value(content), t->n) != 0)
            return sl_why_set(
                f->why, SL_EINVAL,
                "%s: token %lu of tokenizer_config.json (added_tokens_decoder) is another one in "
                "tokenizer.json",
                f->path, id);
    }
    return SL_OK;
}

/* --- chat template --- */

/* The template in tokenizer_config.json: one, or a list of named ones of which "default" counts. */
static const json_t *config_template(const struct folder *f)
{
    const json_t *t = json_object_get(f->tokenizer_config, "chat_template");
    for (size_t i = 0; i < json_array_size(t); i++) {
        const json_t *one = json_array_get(t, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && strcmp(name, "default") == 0)
            return json_object_get(one, "template");
    }
    return t;
}

static enum sl_err read_template(const struct folder *f)
{
    char *file = NULL;
    size_t n = 0;
    enum sl_err e = sl_hf_read_file(f->path, "chat_template.jinja", SL_TEMPLATE_MAX_SOURCE_BYTES, true, &file,
                                    &n, f->why);
    if (e)
        return e;
    const json_t *inside = file ? NULL : config_template(f);
    const char *text = file ? file : json_string_value(inside);
    if (!file)
        n = json_string_length(inside);
    if (n > SL_TEMPLATE_MAX_SOURCE_BYTES)
        e = sl_why_set(f->why, SL_ETOOBIG, "%s: the chat template has %zu bytes, at most %u are allowed",
                       f->path, n, SL_TEMPLATE_MAX_SOURCE_BYTES);
    if (!e && text) {
        f->src->chat_template = sl_arena_strndup(f->src->arena, text, n);
        f->src->chat_template_bytes = n;
        if (!f->src->chat_template)
            e = sl_why_set(f->why, SL_ENOMEM, "%s: no memory for the chat template", f->path);
    }
    sl_free(file);
    return e;
}

static enum sl_err read_folder(struct folder *f)
{
    char *text = NULL;
    size_t n = 0;
    enum sl_err e = read_json(f, "config.json", false, &f->config);
    if (!e)
        e = read_json(f, "tokenizer_config.json", true, &f->tokenizer_config);
    if (!e)
        e = read_json(f, "special_tokens_map.json", true, &f->special_map);
    if (!e)
        e = read_json(f, "generation_config.json", true, &f->generation);
    if (!e)
        e = sl_hf_read_file(f->path, "tokenizer.json", SL_HF_MAX_TOKENIZER_BYTES, false, &text, &n, f->why);
    if (e)
        return e;
    char *name = sl_xasprintf("%s/tokenizer.json", f->path);
    e = sl_hf_tokenizer_parse(text, n, name, config_number(f, "vocab_size"), f->src, f->why);
    sl_free(name);
    sl_free(text);
    if (!e)
        e = check_added(f);
    if (!e)
        e = read_specials(f);
    if (!e)
        e = read_template(f);
    if (!e) {
        read_info(f);
        f->info->n_vocab = f->src->n_tokens;
    }
    return e;
}

enum sl_err sl_hf_vocab_load(const char *folder, struct sl_vocab_src *src, struct sl_model_info *info,
                             struct sl_why *why)
{
    struct folder f = {.path = folder, .src = src, .info = info, .why = why};
    sl_vocab_src_init(src);
    enum sl_err e = read_folder(&f);
    if (e)
        sl_vocab_src_fini(src);
    json_decref(f.config);
    json_decref(f.tokenizer_config);
    json_decref(f.special_map);
    json_decref(f.generation);
    return e;
}
