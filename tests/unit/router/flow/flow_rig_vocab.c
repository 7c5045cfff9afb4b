/* tests/unit/router/flow/flow_rig_vocab.c - a vocabulary of single letters. */
#include <string.h>

#include "common/text/tokenizer.h"

struct sl_tokenizer *rig_tokenizer(void);

struct sl_tokenizer *rig_tokenizer(void)
{
    /* GPT-2's byte alphabet: ' ' is U+0120, bytes c3 and a9 are U+00C3 and U+00A9 */
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
    static struct sl_vocab_str tokens[31];
    static uint8_t types[31];
    for (uint32_t i = 0; i < 31; i++) {
        types[i] = SL_TOKEN_NORMAL;
        if (i < 26)
            tokens[i] = (struct sl_vocab_str){&letters[i], 1};
    }
    tokens[26] = (struct sl_vocab_str){"\xc4\xa0", 2};
    tokens[27] = (struct sl_vocab_str){"\xc3\x83", 2};
    tokens[28] = (struct sl_vocab_str){"\xc2\xa9", 2};
    tokens[29] = (struct sl_vocab_str){"<eos>", 5};
    types[29] = SL_TOKEN_CONTROL;
    tokens[30] = (struct sl_vocab_str){"ab", 2}; /* byte-level BPE must have a merge */
    static struct sl_vocab_str merge = {"a b", 3};
    struct sl_vocab_src src;
    sl_vocab_src_init(&src);
    src.model = (char *)"gpt2";
    src.pre = (char *)"gpt-2";
    src.n_tokens = 31;
    src.tokens = tokens;
    src.types = types;
    src.eos_id = 29;
    src.merges = &merge;
    src.n_merges = 1;
    struct sl_tokenizer *t = NULL;
    struct sl_why why = {{0}};
    enum sl_err err = sl_tokenizer_open(&src, &t, &why);
    SL_ASSERT(err == SL_OK);
    return t;
}
