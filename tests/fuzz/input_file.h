/* tests/fuzz/input_file.h - an input as a file, for readers that take a path. */
#ifndef SLUICE_TESTS_FUZZ_INPUT_FILE_H
#define SLUICE_TESTS_FUZZ_INPUT_FILE_H

#include <stddef.h>

enum { SL_INPUT_FILES = 2 };

/* The path of file `which` (below SL_INPUT_FILES), which holds these bytes until the next call for it. Only its owner may
 * read it. */
const char *sl_input_file(unsigned which, const void *bytes, size_t n);

#endif
