/* tests/fuzz/text/fuzz_hf_tokenizer.c - any bytes as a tokenizer.json: reader, patterns, tokenizer. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/hf_vocab.h"
#include "common/text/tokenizer.h"
#include "common/text/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct sl_tokenizer *t, uint32_t unk, const char *text, unsigned flags)
{
    struct sl_encode_in in = {.text = text, .len = strlen(text), .flags = flags, .max_tokens = 200};
    struct sl_buf out;
    uint32_t *ids = NULL;
    size_t n = 0;
    if (sl_tokenizer_encode(t, &in, &ids, &n, NULL))
        return;
    SL_ASSERT(n <= in.max_tokens);
    for (size_t i = 0; i < n; i++) {
        SL_ASSERT(ids[i] < sl_tokenizer_n_vocab(t));
        SL_ASSERT(flags || ids[i] == unk || !sl_tokenizer_is_control(t, ids[i]));
    }
    sl_buf_init(&out, SIZE_MAX);
    SL_ASSERT(sl_tokenizer_decode(t, ids, n, true, &out));
    SL_ASSERT(out.len == 0 || sl_utf8_valid_prefix(out.data, out.len) == out.len);
    sl_buf_fini(&out);
    sl_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_vocab_src src;
    struct sl_tokenizer *t = NULL;
    struct sl_why why = {0};
    if (sl_hf_tokenizer_parse((const char *)data, size, "input.json", 0, &src, &why)) {
        SL_ASSERT(why.text[0] && !src.arena);
        return 0;
    }
    if (sl_tokenizer_open(&src, &t, &why)) {
        SL_ASSERT(why.text[0]);
    } else {
        use(t, src.unk_id, "Hello  <|im_end|> \n 12 \u00e9e\u0301 <s> the \u9875 \U0001F642a", 0);
        use(t, src.unk_id, "Hello  <|im_end|> \n 12 \u00e9e\u0301 <s> the \u9875 \U0001F642a", 3);
    }
    sl_tokenizer_close(t);
    sl_vocab_src_fini(&src);
    return 0;
}
