/* tests/golden/model/requantise.h - a model file again, with its matrices in another type. */
#ifndef SLUICE_TESTS_GOLDEN_MODEL_REQUANTISE_H
#define SLUICE_TESTS_GOLDEN_MODEL_REQUANTISE_H

#include "kernels/tensor.h"

/* Writes a llama GGUF file without vocabulary to a temporary file whose path is the caller's (sl_free,
 * unlink): matrices of path dequantised and turned into type, vectors as float32. Dies on error. */
char *requantised_file(const char *path, enum sl_dtype type);

#endif
