/* tests/support/make_hf/make_hf_weights.c - the weight files: names, order of rows, header, index.
 *
 * The inverse of common/model/model_file_hf.c, written apart from it on purpose: a test that holds the two
 * against each other would not see a mistake that both share. */
#include "tests/support/make_hf/make_hf_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/support/make_model/make_model.h"

#define MAX_SHARDS 999

static const char *const layer_names[][2] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
    {"post_attention_norm", "post_attention_layernorm"},
};

struct tensor {
    char name[128];
    const struct sl_gguf_tensor *t;
    enum sl_dtype type;
    size_t bytes;
};

struct shard {
    size_t first, n, bytes;
    char name[64];
};

static bool is_gemma(const struct sl_make_hf_run *r)
{
    return strcmp(r->arch, "gemma3") == 0;
}

static bool hf_name(const struct sl_make_hf_run *r, const char *name, char out[96])
{
    static const char *const global[][2] = {{"token_embd.weight", "model.embed_tokens.weight"},
                                            {"output_norm.weight", "model.norm.weight"},
                                            {"output.weight", "lm_head.weight"}};
    for (size_t i = 0; i < SL_COUNTOF(global); i++)
        if (strcmp(global[i][0], name) == 0)
            return snprintf(out, 96, "%s", global[i][1]) > 0;
    char part[64], kind[16];
    unsigned layer;
    if (sscanf(name, "blk.%u.%63[^.].%15s", &layer, part, kind) != 3)
        return false;
    const char *found = strcmp(part, "ffn_norm") != 0 ? NULL
                        : is_gemma(r)                 ? "pre_feedforward_layernorm"
                                                      : "post_attention_layernorm";
    for (size_t i = 0; i < SL_COUNTOF(layer_names) && !found; i++)
        if (strcmp(layer_names[i][0], part) == 0)
            found = layer_names[i][1];
    return found && snprintf(out, 96, "model.layers.%u.%s.%s", layer, found, kind) > 0;
}

/* The heads whose rows the converter to GGUF put into pairs; 0 = none. */
static uint32_t paired_heads(const struct sl_make_hf_run *r, const char *name)
{
    uint32_t heads = 0;
    if (strcmp(r->arch, "llama") != 0)
        return 0;
    const char *key = strstr(name, ".attn_q.")   ? "llama.attention.head_count"
                      : strstr(name, ".attn_k.") ? "llama.attention.head_count_kv"
                                                 : NULL;
    return key && sl_gguf_u32(r->g, key, &heads, NULL) == SL_OK ? heads : 0;
}

/* Where row `to` of the folder's matrix of n rows is in the file's. */
static uint64_t row_in_gguf(uint32_t heads, uint64_t n, uint64_t to)
{
    if (heads == 0)
        return to;
    uint64_t dim = n / heads, head = to / dim, i = to % dim;
    return head * dim + (i < dim / 2 ? 2 * i : 2 * (i - dim / 2) + 1);
}

static bool write_tensor(const struct sl_make_hf_run *r, const struct tensor *x, FILE *f)
{
    const struct sl_gguf_tensor *t = x->t;
    bool vector = t->n_dims == 1;
    uint64_t n_cols = vector ? 1 : t->dims[0], n_rows = vector ? t->dims[0] : t->dims[1];
    uint32_t heads = paired_heads(r, t->name);
    size_t row_bytes = sl_dtype_row_bytes((enum sl_dtype)t->type, n_cols), to_bytes = x->bytes / n_rows;
    float *values = sl_xalloc(n_cols * sizeof *values);
    uint8_t *to = sl_xalloc(to_bytes);
    bool good = true, one_less = is_gemma(r) && strstr(t->name, "norm");
    for (uint64_t i = 0; i < n_rows && good; i++) {
        const uint8_t *row = (const uint8_t *)t->data + row_in_gguf(heads, n_rows, i) * row_bytes;
        sl_dequant_row((enum sl_dtype)t->type, row, n_cols, values);
        for (uint64_t j = 0; j < n_cols && one_less; j++)
            values[j] -= 1.0f;
        if ((enum sl_dtype)t->type == x->type && !one_less)
            memcpy(to, row, to_bytes);
        else
            sl_quantise_row(x->type, values, n_cols, to);
        good = fwrite(to, 1, to_bytes, f) == to_bytes;
    }
    sl_free(values);
    sl_free(to);
    return good;
}

static json_t *header_of(const struct tensor *x, size_t n)
{
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    size_t at = 0;
    for (size_t i = 0; i < n; at += x[i++].bytes) {
        const struct sl_gguf_tensor *t = x[i].t;
        const char *type = x[i].type == SL_F32 ? "F32" : x[i].type == SL_F16 ? "F16" : "BF16";
        json_t *shape = t->n_dims == 1 ? json_pack("[I]", (json_int_t)t->dims[0])
                                       : json_pack("[I,I]", (json_int_t)t->dims[1], (json_int_t)t->dims[0]);
        json_object_set_new(header, x[i].name,
                            json_pack("{s:s, s:o, s:[I,I]}", "dtype", type, "shape", shape, "data_offsets",
                                      (json_int_t)at, (json_int_t)(at + x[i].bytes)));
    }
    return header;
}

static enum sl_err write_shard(const struct sl_make_hf_run *r, const struct tensor *x, const struct shard *s)
{
    char *path = sl_xasprintf("%s/%s", r->m->folder, s->name);
    json_t *header = header_of(x, s->n);
    size_t n = json_dumpb(header, NULL, 0, JSON_COMPACT), padded = (n + 7) / 8 * 8;
    uint8_t *head = sl_xalloc(8 + padded);
    memset(head, ' ', 8 + padded);
    (void)json_dumpb(header, (char *)head + 8, n, JSON_COMPACT);
    for (int i = 0; i < 8; i++)
        head[i] = (uint8_t)((uint64_t)padded >> 8 * i);
    FILE *f = fopen(path, "wb");
    bool good = f && fwrite(head, 1, 8 + padded, f) == 8 + padded;
    for (size_t i = 0; i < s->n && good; i++)
        good = write_tensor(r, &x[i], f);
    if (f && fclose(f) != 0)
        good = false;
    enum sl_err e = good ? SL_OK : sl_why_set(r->why, SL_EIO, "%s: cannot be written", path);
    json_decref(header);
    sl_free(head);
    sl_free(path);
    return e;
}

static enum sl_err list_tensors(const struct sl_make_hf_run *r, struct tensor *x)
{
    for (size_t i = 0; i < sl_gguf_n_tensors(r->g); i++) {
        const struct sl_gguf_tensor *t = sl_gguf_tensor_at(r->g, i);
        enum sl_dtype type = (enum sl_dtype)t->type;
        char name[96];
        if (!hf_name(r, t->name, name))
            return sl_why_set(r->why, SL_EUNSUPPORTED, "%s: tensor %s has no name in a folder", r->m->gguf,
                              t->name);
        snprintf(x[i].name, sizeof x[i].name, "%s%s", r->m->nested ? "language_model." : "", name);
        x[i].t = t;
        x[i].type = type == SL_F32 || type == SL_F16 || type == SL_BF16 ? type : r->m->type;
        x[i].bytes = sl_quantise_row_bytes(x[i].type, t->dims[0]) * t->dims[1];
    }
    return SL_OK;
}

static size_t cut(const struct sl_make_hf_run *r, const struct tensor *x, struct shard *shards)
{
    size_t n = 1, n_tensors = sl_gguf_n_tensors(r->g);
    memset(shards, 0, MAX_SHARDS * sizeof *shards);
    for (size_t i = 0; i < n_tensors; i++) {
        struct shard *s = &shards[n - 1];
        if (r->m->shard_bytes && s->n > 0 && s->bytes + x[i].bytes > r->m->shard_bytes && n < MAX_SHARDS) {
            s = &shards[n++];
            s->first = i;
        }
        s->n++;
        s->bytes += x[i].bytes;
    }
    for (size_t k = 0; k < n; k++)
        if (r->m->shard_bytes)
            snprintf(shards[k].name, sizeof shards[k].name, "model-%05zu-of-%05zu.safetensors", k + 1, n);
        else
            snprintf(shards[k].name, sizeof shards[k].name, "model.safetensors");
    return n;
}

enum sl_err sl_make_hf_weights(const struct sl_make_hf_run *r)
{
    struct tensor *x = sl_xcalloc(sl_gguf_n_tensors(r->g), sizeof *x);
    struct shard *shards = sl_xcalloc(MAX_SHARDS, sizeof *shards);
    json_t *map = json_object();
    enum sl_err e = list_tensors(r, x);
    size_t n = e ? 0 : cut(r, x, shards);
    for (size_t k = 0; k < n && !e; k++) {
        for (size_t i = 0; i < shards[k].n; i++)
            json_object_set_new(map, x[shards[k].first + i].name, json_string(shards[k].name));
        e = write_shard(r, x + shards[k].first, &shards[k]);
    }
    if (!e && r->m->shard_bytes)
        e = sl_make_hf_put(r, "model.safetensors.index.json", json_pack("{s:O}", "weight_map", map));
    json_decref(map);
    sl_free(shards);
    sl_free(x);
    return e;
}
