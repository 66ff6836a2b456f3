/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of library convolutions: a problem on the emulated device with random operands, and the results
 * of its passes, computed in double by plain loops. */
#ifndef MFL_TESTS_UNIT_CUDA_CONV_CONV_TEST_H
#define MFL_TESTS_UNIT_CUDA_CONV_CONV_TEST_H

#include "kernels/cuda/conv/conv.h"

struct conv_test {
        struct mfl_cuda_conv conv;
        enum mfl_cuda_pass pass;
        struct mfl_cuda_conv_args args; /* device memory */
        uint64_t x_n, y_n, w_n, stride; /* elements of one client; of all its params */
        double *want, *want_db;         /* of all clients */
};

/* n rows of h x w x c to k channels with a filter of r x s; padded by r / 2, s / 2. */
struct mfl_cuda_conv conv_test_problem(enum mfl_precision precision, int groups, int n, int h, int w, int c,
        int k, int r, int s, int stride);
/* scale: for all weights (backward weights: dy). */
void conv_test_open(struct conv_test *test, const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass,
        bool bias, enum mfl_cuda_act act, bool add);
/* The result becomes NaN again, or what it is added to. */
void conv_test_reset(struct conv_test *test);
/* The root of the mean square of the error, over that of the result. */
double conv_test_error(const struct conv_test *test);
double conv_test_db_error(const struct conv_test *test);
/* Bytes of client g's result, freed by the caller. */
void *conv_test_result(const struct conv_test *test, int g, uint64_t *ret_bytes);
void conv_test_close(struct conv_test *test);

/* The error that rounding explains, for the reductions of these tests (below 1000). */
double conv_test_bound(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, bool low_weights);

#endif
