/* tests/fuzz/text/fuzz_gguf.c - any bytes as a model file: reader, vocabulary, tokenizer. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/gguf_vocab.h"
#include "common/text/template.h"
#include "common/text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads the first and last byte of everything the reader says is there. */
static unsigned touch(const struct sl_gguf *g)
{
    unsigned sum = 0;
    for (size_t i = 0; i < sl_gguf_n_tensors(g); i++) {
        const struct sl_gguf_tensor *t = sl_gguf_tensor_at(g, i);
        const uint8_t *bytes = t->data;
        sum += bytes[0] + bytes[t->bytes - 1];
        SL_ASSERT(sl_gguf_tensor_find(g, t->name) == t);
    }
    struct sl_gguf_array a;
    struct sl_gguf_str s;
    int64_t i64 = 0;
    float f = 0;
    if (sl_gguf_array(g, "tokenizer.ggml.scores", &a, NULL) == SL_OK)
        while (sl_gguf_array_next_f32(&a, &f) || sl_gguf_array_next_i64(&a, &i64) ||
               sl_gguf_array_next_str(&a, &s))
            sum += i64 & 1;
    return sum;
}

static void use(const struct sl_vocab_src *src)
{
    struct sl_tokenizer *t = NULL;
    struct sl_template *chat = NULL;
    uint32_t *ids = NULL;
    size_t n = 0;
    if (src->chat_template &&
        sl_template_compile(src->chat_template, src->chat_template_bytes, &chat, NULL) == SL_OK)
        sl_template_free(chat);
    if (sl_tokenizer_open(src, &t, NULL))
        return;
    struct sl_encode_in in = {.text = "Hello <|im_end|> 12", .len = 19, .flags = 3, .max_tokens = 100};
    if (sl_tokenizer_encode(t, &in, &ids, &n, NULL) == SL_OK) {
        for (size_t i = 0; i < n; i++)
            SL_ASSERT(ids[i] < sl_tokenizer_n_vocab(t));
        sl_free(ids);
    }
    sl_tokenizer_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_gguf *g = NULL;
    struct sl_why why = {0};
    if (sl_gguf_open_memory(data, size, "input.gguf", &g, &why)) {
        SL_ASSERT(why.text[0]);
        return 0;
    }
    volatile unsigned sum = touch(g);
    (void)sum;
    struct sl_vocab_src src;
    struct sl_model_info info;
    if (sl_gguf_vocab_read(g, &src, &info, &why) == SL_OK) {
        sl_gguf_close(g);
        g = NULL; /* nothing may point into the file any more */
        use(&src);
    } else {
        SL_ASSERT(why.text[0]);
    }
    sl_vocab_src_fini(&src);
    sl_gguf_close(g);
    return 0;
}
