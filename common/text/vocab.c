/* common/text/vocab.c - which kind of model lies at a path, and the empty vocabulary. */
#include "common/text/vocab.h"

#include <sys/stat.h>

#include "common/text/gguf_vocab.h"

void sl_vocab_src_init(struct sl_vocab_src *v)
{
    *v = (struct sl_vocab_src){.bos_id = SL_VOCAB_NO_ID,
                               .eos_id = SL_VOCAB_NO_ID,
                               .eot_id = SL_VOCAB_NO_ID,
                               .unk_id = SL_VOCAB_NO_ID};
}

void sl_vocab_src_fini(struct sl_vocab_src *v)
{
    sl_arena_free(v->arena);
    sl_vocab_src_init(v);
}
