/* common/text/vocab.c - which kind of model lies at a path, and the empty vocabulary. */
#include "common/text/vocab.h"

#include <sys/stat.h>

#include "common/text/gguf_vocab.h"
#include "common/text/hf_vocab.h"

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

enum sl_err sl_vocab_load(const char *path, struct sl_vocab_src *src, struct sl_model_info *info,
                          struct sl_why *why)
{
    struct stat st;
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    return folder ? sl_hf_vocab_load(path, src, info, why) : sl_gguf_vocab_load(path, src, info, why);
}
