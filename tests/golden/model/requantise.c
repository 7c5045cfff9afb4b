/* tests/golden/model/requantise.c - see requantise.h. */
#include "tests/golden/model/requantise.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/model/model_file.h"
#include "tests/support/make_model/make_model.h"

#define ALIGNMENT       32
#define MAX_HEAD_BYTES  (1u << 20)
#define PADDED(n_bytes) (((n_bytes) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT)

static const char *const counts[] = {"block_count",         "context_length",       "embedding_length",
                                     "feed_forward_length", "attention.head_count", "attention.head_count_kv",
                                     "rope.dimension_count"};
static const char *const reals[] = {"rope.freq_base", "attention.layer_norm_rms_epsilon"};

static enum sl_dtype type_of(const struct sl_model_tensor *t, enum sl_dtype type)
{
    return t->view.n_rows == 1 ? SL_F32 : type;
}

static uint64_t keys_append(const struct sl_model_file *f, struct sl_buf *b)
{
    char key[96];
    sl_make_kv_str(b, "general.architecture", "llama");
    for (size_t i = 0; i < SL_COUNTOF(counts); i++) {
        uint32_t v = 0;
        snprintf(key, sizeof key, "llama.%s", counts[i]);
        SL_ASSERT(sl_model_file_u32(f, key, &v) == SL_OK);
        sl_make_kv_u32(b, key, v);
    }
    for (size_t i = 0; i < SL_COUNTOF(reals); i++) {
        float v = 0;
        snprintf(key, sizeof key, "llama.%s", reals[i]);
        SL_ASSERT(sl_model_file_f32(f, key, &v) == SL_OK);
        sl_make_kv_f32(b, key, v);
    }
    return 1 + SL_COUNTOF(counts) + SL_COUNTOF(reals);
}

static void head_write(const struct sl_model_file *f, enum sl_dtype type, FILE *out)
{
    struct sl_buf keys, head;
    sl_buf_init(&keys, MAX_HEAD_BYTES);
    sl_buf_init(&head, MAX_HEAD_BYTES);
    uint64_t n_keys = keys_append(f, &keys), offset = 0;
    sl_buf_append(&head, "GGUF", 4);
    sl_make_u32(&head, 3);
    sl_make_u64(&head, sl_model_file_n_tensors(f));
    sl_make_u64(&head, n_keys);
    sl_buf_append(&head, keys.data, keys.len);
    for (size_t i = 0; i < sl_model_file_n_tensors(f); i++) {
        const struct sl_model_tensor *t = sl_model_file_tensor_at(f, i);
        sl_make_str(&head, t->name, strlen(t->name));
        sl_make_u32(&head, t->view.n_rows == 1 ? 1 : 2);
        sl_make_u64(&head, t->view.n_cols);
        if (t->view.n_rows > 1)
            sl_make_u64(&head, t->view.n_rows);
        sl_make_u32(&head, (uint32_t)type_of(t, type));
        sl_make_u64(&head, offset);
        offset += PADDED(t->view.n_rows * sl_quantise_row_bytes(type_of(t, type), t->view.n_cols));
    }
    while (head.len % ALIGNMENT != 0)
        sl_buf_putc(&head, 0);
    SL_ASSERT(!sl_buf_failed(&head) && fwrite(head.data, head.len, 1, out) == 1);
    sl_buf_fini(&keys);
    sl_buf_fini(&head);
}

static void tensor_write(const struct sl_tensor_view *v, enum sl_dtype type, FILE *out)
{
    static const uint8_t zeros[ALIGNMENT];
    size_t from_bytes = sl_dtype_row_bytes(v->type, v->n_cols),
           to_bytes = sl_quantise_row_bytes(type, v->n_cols);
    float *row = sl_xalloc(v->n_cols * sizeof *row);
    void *packed = sl_xalloc(to_bytes);
    for (uint64_t r = 0; r < v->n_rows; r++) {
        sl_dequant_row(v->type, (const uint8_t *)v->data + r * from_bytes, v->n_cols, row);
        sl_quantise_row(type, row, v->n_cols, packed);
        SL_ASSERT(fwrite(packed, to_bytes, 1, out) == 1);
    }
    size_t bytes = v->n_rows * to_bytes, pad = PADDED(bytes) - bytes;
    SL_ASSERT(fwrite(zeros, 1, pad, out) == pad);
    sl_free(row);
    sl_free(packed);
}

char *requantised_file(const char *path, enum sl_dtype type)
{
    const char *dir = getenv("TMPDIR");
    char *out_path = sl_xasprintf("%s/sluice-test-XXXXXX", dir != NULL ? dir : "/tmp");
    struct sl_model_file *f;
    SL_ASSERT(sl_model_file_open(path, &f, NULL) == SL_OK);
    int fd = mkstemp(out_path);
    FILE *out = fd >= 0 ? fdopen(fd, "wb") : NULL;
    SL_ASSERT(out != NULL);
    head_write(f, type, out);
    for (size_t i = 0; i < sl_model_file_n_tensors(f); i++) {
        const struct sl_model_tensor *t = sl_model_file_tensor_at(f, i);
        tensor_write(&t->view, type_of(t, type), out);
    }
    SL_ASSERT(fclose(out) == 0);
    sl_model_file_close(f);
    return out_path;
}
