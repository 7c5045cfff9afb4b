/* tests/fuzz/model/fuzz_model_conf.c - what a model file says about itself, from any bytes that the GGUF
 * reader lets through: either refused with a sentence, or numbers that the tensors bear out. */
#include <stdint.h>
#include <string.h>

#include "common/model/model_conf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_gguf *g;
    struct sl_why why = {{0}};
    if (sl_gguf_open_memory(data, size, "fuzz", &g, &why) != SL_OK)
        return 0;
    struct sl_model_file *f = sl_model_file_of_gguf(g);
    struct sl_model_conf c;
    if (sl_model_conf_read(f, &c, &why) != SL_OK) {
        SL_ASSERT(why.text[0] != 0);
    } else {
        const struct sl_model_tensor *embed = sl_model_file_tensor_find(f, "token_embd.weight");
        SL_ASSERT(embed != NULL && embed->view.n_cols == c.d_model && embed->view.n_rows == c.n_vocab);
        SL_ASSERT(c.n_layers > 0 && c.attn.n_heads % c.attn.n_kv_heads == 0 &&
                  c.attn.rope_dim <= c.attn.head_dim);
        SL_ASSERT(strlen(c.name) < sizeof c.name);
    }
    sl_model_file_close(f);
    return 0;
}
