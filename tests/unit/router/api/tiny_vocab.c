/* tests/unit/router/api/tiny_vocab.c */
#include "tests/unit/router/api/tiny_vocab.h"

#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/text/utf8.h"

const char tiny_template[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + "
    "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/* GPT-2's byte alphabet: printable bytes stand for themselves, the others for characters from U+0100 on. */
static uint32_t letter_of(unsigned byte)
{
    unsigned n = 0;
    for (unsigned b = 0; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte)
            return itself ? b : 256 + n;
        n += !itself;
    }
    return 0;
}

struct sl_tokenizer *tiny_tokenizer(void)
{
    static const char *const controls[] = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"};
    struct sl_vocab_src v;
    sl_vocab_src_init(&v);
    v.arena = sl_arena_new(1 << 20);
    v.model = sl_arena_strndup(v.arena, "gpt2", 4);
    v.pre = sl_arena_strndup(v.arena, "gpt-2", 5);
    v.n_tokens = TINY_N_VOCAB;
    v.tokens = sl_arena_alloc(v.arena, TINY_N_VOCAB * sizeof *v.tokens);
    v.types = sl_arena_alloc(v.arena, TINY_N_VOCAB);
    for (unsigned i = 0; i < 256; i++) {
        char text[4];
        size_t n = sl_utf8_encode(letter_of(i), text);
        v.tokens[i] = (struct sl_vocab_str){sl_arena_strndup(v.arena, text, n), (uint32_t)n};
        v.types[i] = SL_TOKEN_NORMAL;
    }
    for (unsigned i = 0; i < 3; i++) {
        v.tokens[256 + i] = (struct sl_vocab_str){controls[i], (uint32_t)strlen(controls[i])};
        v.types[256 + i] = SL_TOKEN_CONTROL;
    }
    static struct sl_vocab_str merge = {"~ ~", 3}; /* byte-level BPE needs one; no test text has it */
    v.tokens[TINY_TILDES] = (struct sl_vocab_str){"~~", 2};
    v.types[TINY_TILDES] = SL_TOKEN_NORMAL;
    v.tokens[TINY_TOOL_CALLS] = (struct sl_vocab_str){"[TOOL_CALLS]", 12};
    v.types[TINY_TOOL_CALLS] = SL_TOKEN_CONTROL;
    v.n_merges = 1;
    v.merges = &merge;
    v.eos_id = TINY_IM_END;
    struct sl_tokenizer *t = NULL;
    struct sl_why why = {0};
    enum sl_err err = sl_tokenizer_open(&v, &t, &why);
    if (err)
        SL_ERROR("%s", why.text);
    SL_ASSERT(err == SL_OK);
    sl_vocab_src_fini(&v);
    return t;
}
