/* tests/fuzz/router/fuzz_ctl_line.c - any words as sluicectl's command line. Input: the words, each ended by a line end. */
#include <stdint.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/ctl/ctl.h"

#define MAX_WORDS 32

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = sl_xstrndup((const char *)data, size), *rest = text,
         *argv[MAX_WORDS + 2] = {(char *)"sluicectl"};
    int argc = 1;
    while (rest && *rest && argc <= MAX_WORDS)
        argv[argc++] = strsep(&rest, "\n");
    struct sl_ctl_call call;
    struct sl_why why = {{0}};
    if (sl_ctl_parse(argc, argv, &call, &why) != SL_OK) {
        SL_ASSERT(why.text[0]);
    } else {
        SL_ASSERT(call.help || call.version || call.command);
        SL_ASSERT(call.n_args <= SL_CTL_MAX_ARGS && call.format <= SL_CTL_YAML);
        SL_ASSERT(call.help || call.version ||
                  (call.n_args >= call.command->min_args && call.n_args <= call.command->max_args));
    }
    sl_free(text);
    return 0;
}
