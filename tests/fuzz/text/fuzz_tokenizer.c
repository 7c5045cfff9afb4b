/* tests/fuzz/text/fuzz_tokenizer.c - any text through encode, decode, streaming and stop strings.
 * Input: flags, pre-tokeniser, start and end of an untrusted span, then the text. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/detok.h"
#include "common/text/stop_match.h"
#include "common/text/tokenizer.h"
#include "common/text/utf8.h"
#include "tests/golden/text/text_fixture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What comes first gives back every text as it was. */
#define N_FAITHFUL 4
static const char *const names[] = {"smollm", "gpt-2",     "llama-bpe", "tekken",  "qwen2",
                                    "qwen35", "spm-plain", "spm-odd",   "spm-unk", "spm"};

static struct sl_tokenizer *tokenizer(unsigned which)
{
    static struct sl_tokenizer *opened[SL_COUNTOF(names)];
    if (!opened[which]) {
        struct sl_vocab_src src;
        text_fixture_tiny_vocab(names[which], &src);
        SL_ASSERT(sl_tokenizer_open(&src, &opened[which], NULL) == SL_OK);
        sl_vocab_src_fini(&src);
    }
    return opened[which];
}

/* The bytes of all tokens, as one piece. */
static void join(const struct sl_tokenizer *t, const uint32_t *ids, size_t n, struct sl_buf *text)
{
    struct sl_buf bytes;
    struct sl_detok d;
    sl_buf_init(&bytes, 1u << 20);
    for (size_t i = 0; i < n; i++) {
        size_t len = 0;
        const char *p = sl_tokenizer_piece(t, ids[i], true, &len);
        SL_ASSERT(sl_buf_append(&bytes, p, len));
    }
    sl_detok_init(&d, t, true);
    SL_ASSERT(sl_detok_push_bytes(&d, bytes.data, bytes.len, text));
    SL_ASSERT(sl_detok_end(&d, text));
    sl_buf_fini(&bytes);
}

/* Token by token, with stop strings: what is shown must be the beginning of the whole text. */
static void stream(const struct sl_tokenizer *t, const uint32_t *ids, size_t n)
{
    static const char *const strings[] = {"\n\n", "aba", "<|im"};
    static const size_t lens[] = {2, 3, 4};
    struct sl_detok d;
    struct sl_stop *stop = NULL;
    struct sl_buf text, shown, whole;
    int found = -1;
    sl_buf_init(&text, 1u << 20);
    sl_buf_init(&shown, 1u << 20);
    sl_buf_init(&whole, 1u << 20);
    join(t, ids, n, &whole);
    SL_ASSERT(sl_stop_new(strings, lens, 3, &stop, NULL) == SL_OK);
    sl_detok_init(&d, t, true);
    for (size_t i = 0; i <= n && found < 0; i++) {
        sl_buf_clear(&text);
        SL_ASSERT(i < n ? sl_detok_push(&d, ids[i], &text) : sl_detok_end(&d, &text));
        SL_ASSERT(text.len == 0 || sl_utf8_valid_prefix(text.data, text.len) == text.len);
        found = sl_stop_push(stop, text.data, text.len, false, &shown);
    }
    if (found < 0)
        sl_stop_end(stop, &shown);
    SL_ASSERT(found < 0 ? shown.len == whole.len : shown.len < whole.len);
    SL_ASSERT(shown.len == 0 || memcmp(shown.data, whole.data, shown.len) == 0);
    sl_stop_free(stop);
    sl_buf_fini(&shown);
    sl_buf_fini(&text);
    sl_buf_fini(&whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4 || size > 65536)
        return 0;
    unsigned which = data[1] % SL_COUNTOF(names);
    const struct sl_tokenizer *t = tokenizer(which);
    const char *text = (const char *)data + 4;
    size_t len = size - 4, from = data[2] < len ? data[2] : len, to = data[3] < len ? data[3] : len, n = 0;
    struct sl_span span = {from, to > from ? to : from};
    struct sl_encode_in in = {.text = text,
                              .len = len,
                              .flags = data[0] & SL_TOK_PARSE_SPECIAL,
                              .untrusted = &span,
                              .n_untrusted = 1,
                              .max_tokens = 3 * size + 1};
    uint32_t *ids = NULL;
    struct sl_buf whole;
    SL_ASSERT(sl_tokenizer_encode(t, &in, &ids, &n, NULL) == SL_OK);
    sl_buf_init(&whole, 1u << 20);
    SL_ASSERT(sl_tokenizer_decode(t, ids, n, true, &whole));
    if (which < N_FAITHFUL && len && sl_utf8_valid_prefix(text, len) == len)
        SL_ASSERT(whole.len == len && memcmp(whole.data, text, len) == 0);
    for (size_t i = 0; i < n && !in.flags; i++)
        SL_ASSERT(!sl_tokenizer_is_control(t, ids[i]) || ids[i] == 0); /* 0: unknown, of spm-unk */
    stream(t, ids, n);
    sl_buf_fini(&whole);
    sl_free(ids);
    return 0;
}
