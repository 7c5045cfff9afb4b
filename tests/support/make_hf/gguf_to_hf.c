/* tests/support/make_hf/gguf_to_hf.c - sluice-gguf-to-hf: the command line of make_hf.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support/make_hf/make_hf.h"
#include "tests/support/make_model/make_model.h"

static const char help[] =
    "usage: sluice-gguf-to-hf FILE.gguf FOLDER [f32|f16|bf16 [MEGABYTES]]\n"
    "Writes the model as a Hugging Face folder: quantised matrices as bf16 or the given "
    "type, in files of\nat most so many megabytes (0: one file).\n";

int main(int argc, char **argv)
{
    struct sl_make_hf m = {.type = SL_BF16};
    struct sl_why why = {{0}};
    char *end = "";
    if (argc < 3 || argc > 5 || (argc > 3 && !sl_quantise_type_parse(argv[3], &m.type)) ||
        (m.type != SL_F32 && m.type != SL_F16 && m.type != SL_BF16)) {
        fputs(help, stderr);
        return 64;
    }
    m.gguf = argv[1];
    m.folder = argv[2];
    if (argc > 4)
        m.shard_bytes = (size_t)strtoul(argv[4], &end, 10) << 20;
    if (*end || (mkdir(m.folder, 0777) != 0 && errno != EEXIST)) {
        fprintf(stderr, "sluice-gguf-to-hf: %s: %s\n", *end ? argv[4] : m.folder,
                *end ? "not a number" : strerror(errno));
        return 64;
    }
    if (sl_make_hf_write(&m, &why) != SL_OK) {
        fprintf(stderr, "sluice-gguf-to-hf: %s\n", why.text);
        return 1;
    }
    return 0;
}
