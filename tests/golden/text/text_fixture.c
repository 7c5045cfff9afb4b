/* tests/golden/text/text_fixture.c - see the header. */
#include "tests/golden/text/text_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/support.h"

static struct sl_vocab_str *copy_list(struct sl_arena *arena, const json_t *list, uint32_t *n)
{
    *n = (uint32_t)json_array_size(list);
    struct sl_vocab_str *out = sl_arena_alloc(arena, *n * sizeof *out);
    assert_non_null(out);
    for (uint32_t i = 0; i < *n; i++) {
        const json_t *s = json_array_get(list, i);
        assert_true(json_is_string(s));
        out[i].n = (uint32_t)json_string_length(s);
        out[i].p = sl_arena_strndup(arena, json_string_value(s), out[i].n);
    }
    return out;
}

static json_t *load(const char *path)
{
    json_error_t err;
    json_t *j = json_load_file(path, 0, &err);
    if (!j)
        fail_msg("%s: %s", path, err.text);
    return j;
}

static void copy_scores(struct sl_vocab_src *out, const json_t *list)
{
    assert_int_equal(json_array_size(list), out->n_tokens);
    out->scores = sl_arena_alloc(out->arena, out->n_tokens * sizeof *out->scores);
    for (uint32_t i = 0; i < out->n_tokens; i++)
        out->scores[i] = (float)json_number_value(json_array_get(list, i));
}

void text_fixture_tiny_vocab(const char *pre, struct sl_vocab_src *out)
{
    bool spm = pre && strncmp(pre, "spm", 3) == 0;
    json_t *j =
        load(spm ? SL_TEST_DATA "/golden/text/tiny_spm.json" : SL_TEST_DATA "/golden/text/tiny_vocab.json");
    const json_t *odd = json_object_get(j, "odd"), *types = json_object_get(j, "types"), *lists = j;
    if (spm && (strcmp(pre, "spm-odd") == 0 || strcmp(pre, "spm-unk") == 0))
        lists = odd;
    sl_vocab_src_init(out);
    out->arena = sl_arena_new(4u << 20);
    out->model = sl_arena_strndup(out->arena, spm ? "llama" : "gpt2", spm ? 5 : 4);
    out->pre = pre ? sl_arena_strndup(out->arena, pre, strlen(pre)) : NULL;
    out->tokens = copy_list(out->arena, json_object_get(lists, "tokens"), &out->n_tokens);
    if (spm)
        copy_scores(out, json_object_get(lists, "scores"));
    else
        out->merges = copy_list(out->arena, json_object_get(j, "merges"), &out->n_merges);
    assert_int_equal(json_array_size(types), out->n_tokens);
    out->types = sl_arena_alloc(out->arena, out->n_tokens);
    for (uint32_t i = 0; i < out->n_tokens; i++) {
        out->types[i] = (uint8_t)json_integer_value(json_array_get(types, i));
        if (out->types[i] == SL_TOKEN_BYTE && strcmp(pre, "spm-unk") == 0)
            out->types[i] = SL_TOKEN_UNUSED;
    }
    out->add_space_prefix = spm && strcmp(pre, "spm") == 0;
    out->bos_id = (uint32_t)json_integer_value(json_object_get(j, "bos_id"));
    out->eos_id = (uint32_t)json_integer_value(json_object_get(j, "eos_id"));
    out->unk_id = (uint32_t)json_integer_value(json_object_get(j, "unk_id"));
    json_decref(j);
}

int text_fixture_lines(const char *path, text_fixture_line_fn *fn, void *arg)
{
    size_t len = 0;
    char *file = sl_test_read_file(path, &len);
    if (!file)
        return -1;
    int n = 0;
    for (char *line = file, *end; line < file + len; line = end + 1) {
        end = strchr(line, '\n');
        if (!end)
            end = file + len;
        json_error_t err;
        json_t *j = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL | JSON_DECODE_ANY, &err);
        if (!j)
            fail_msg("%s line %d: %s", path, n + 1, err.text);
        fn(arg, j, ++n);
        json_decref(j);
    }
    sl_free(file);
    return n;
}

void text_fixture_check(const struct sl_tokenizer *t, const struct text_fixture_vector *v, const char *where,
                        int number)
{
    const json_t *want = json_object_get(v->fields, "ids"), *decoded = json_object_get(v->fields, "decoded");
    struct sl_encode_in in = {.text = v->text, .len = v->len, .flags = v->flags, .max_tokens = 100000};
    struct sl_why why = {0};
    const char *text = json_is_string(decoded) ? json_string_value(decoded) : v->text;
    size_t len = json_is_string(decoded) ? json_string_length(decoded) : v->len, n = 0;
    uint32_t *ids = NULL;
    if (sl_tokenizer_encode(t, &in, &ids, &n, &why))
        fail_msg("%s line %d: %s", where, number, why.text);
    for (size_t i = 0; i < n || i < json_array_size(want); i++) {
        json_int_t expected = i < json_array_size(want) ? json_integer_value(json_array_get(want, i)) : -1;
        long long got = i < n ? (long long)ids[i] : -1;
        if (got != expected)
            fail_msg("%s line %d: \"%s\": token %zu is %lld, expected %lld", where, number, v->text, i, got,
                     (long long)expected);
    }
    struct sl_buf out;
    sl_buf_init(&out, SIZE_MAX);
    assert_true(sl_tokenizer_decode(t, ids, n, v->flags & SL_TOK_PARSE_SPECIAL, &out));
    if (!json_is_null(decoded) && (out.len != len || (len && memcmp(out.data, text, len) != 0)))
        fail_msg("%s line %d: decoded to \"%s\", expected \"%s\"", where, number, out.data ? out.data : "",
                 text);
    sl_buf_fini(&out);
    sl_free(ids);
}

/* Texts separated by a line; one line of ids for each in another file. */
int text_fixture_llama_vectors(const struct sl_tokenizer *t, const char *name)
{
    const char *const mark = "\n__ggml_vocab_test__\n";
    char *inp_path = sl_xasprintf(SL_SHARED_DATA "/fixtures/tokenizer/ggml-vocab-%s.gguf.inp", name),
         *out_path = sl_xasprintf(SL_SHARED_DATA "/fixtures/tokenizer/ggml-vocab-%s.gguf.out", name);
    char *inp = sl_test_read_file(inp_path, NULL), *out = sl_test_read_file(out_path, NULL), *line = out;
    int number = 0;
    for (char *text = inp, *end; text && line; text = end) {
        end = strstr(text, mark);
        size_t len = end ? (size_t)(end - text) : strlen(text);
        if (end)
            end += strlen(mark);
        char *stop = strchr(line, '\n');
        if (!stop)
            break;
        json_t *want = json_array(), *fields = json_pack("{s:o}", "ids", want);
        for (char *at = line; at < stop;) {
            char *after = at;
            long v = strtol(at, &after, 10);
            if (after == at || after > stop)
                break;
            json_array_append_new(want, json_integer(v));
            at = after;
        }
        char *copy = sl_xstrndup(text, len);
        text_fixture_check(t, &(struct text_fixture_vector){copy, len, 0, fields}, name, ++number);
        sl_free(copy);
        json_decref(fields);
        line = stop + 1;
    }
    sl_free(inp);
    sl_free(out);
    sl_free(inp_path);
    sl_free(out_path);
    return number;
}

char *text_fixture_smollm2_path(void)
{
    const char *given = getenv("SLUICE_TEST_MODEL"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    char *path;
    if (given && *given)
        path = sl_xstrdup(given);
    else if (cache && *cache)
        path = sl_xasprintf("%s/sluice/models/SmolLM2-135M-Instruct.Q4_1.gguf", cache);
    else
        path = sl_xasprintf("%s/.cache/sluice/models/SmolLM2-135M-Instruct.Q4_1.gguf", home ? home : "");
    if (access(path, R_OK) == 0)
        return path;
    sl_free(path);
    return NULL;
}
