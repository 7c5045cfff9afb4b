/* tests/kernels/op_setup.h - random inputs and opened backends for op tests. Everything dies on error. */
#ifndef SLUICE_TESTS_KERNELS_OP_SETUP_H
#define SLUICE_TESTS_KERNELS_OP_SETUP_H

#include "kernels/backend.h"

/* A small generator with its own state, so that each case is the same alone and in a row of cases. */
struct op_rand {
    uint64_t state;
};
uint32_t op_rand_u32(struct op_rand *r);
uint32_t op_rand_below(struct op_rand *r, uint32_t n);
/* About normal, mean 0, deviation 1; a few outliers of 10. */
float op_rand_float(struct op_rand *r);
void op_rand_floats(struct op_rand *r, float *to, size_t n, float scale);

/* A matrix in file form with random contents of size about 1/sqrt(n_cols), freed with sl_free. */
void *op_random_tensor(struct op_rand *r, enum sl_dtype type, uint32_t n_rows, uint32_t n_cols,
                       struct sl_tensor_view *out);

/* The named backend, or NULL when this machine cannot run it. */
const struct sl_backend_ops *op_backend(const char *name);
struct sl_dev *op_open(const struct sl_backend_ops *ops, uint32_t n_threads, uint32_t max_rows);

/* Fails with the place of the first difference. */
void op_assert_same_bits(const float *a, const float *b, size_t n, const char *what);
/* Root mean square of a - b over root mean square of b. */
double op_relative_error(const float *a, const float *b, size_t n);

#endif
