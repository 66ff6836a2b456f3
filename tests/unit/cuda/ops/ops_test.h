/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of kernels/cuda/ops/ops.h share: guarded and poisoned device memory, tensors, steps.
 *
 * Every test runs with the threads in forward and in reverse order; everything that it reads back must be the
 * same.
 */
#ifndef MFL_TESTS_UNIT_CUDA_OPS_OPS_TEST_H
#define MFL_TESTS_UNIT_CUDA_OPS_OPS_TEST_H

#include "tests/lib/test.h"

#include "kernels/cuda/ops/ops.h"

/* Device memory between guard zones, all bytes 0xff at first: NaN in each type. */
struct ops_buffer {
        unsigned char *base, *at;
        size_t bytes;
};
struct ops_buffer ops_new(size_t bytes);
void ops_free(struct ops_buffer *b);
/* Filled from, and read back to, memory of b->bytes; reading checks the guards. */
void ops_put(const struct ops_buffer *b, const void *from);
void ops_get(const struct ops_buffer *b, void *to);
struct ops_buffer ops_new_from(const void *from, size_t bytes);
/* Nothing was written to [at, at + bytes). */
void ops_assert_untouched(const struct ops_buffer *b, size_t at, size_t bytes);

/* Floats [G][batch][c][h][w] and back; the values are rounded to the type. */
int64_t ops_count(const struct mfl_cuda_tensor *x); /* elements of all groups */
struct ops_buffer ops_tensor(const struct mfl_cuda_tensor *x);
struct ops_buffer ops_tensor_from(const struct mfl_cuda_tensor *x, const float *nchw);
void ops_tensor_get(const struct ops_buffer *b, const struct mfl_cuda_tensor *x, float *nchw);
float ops_round(float v, enum mfl_cuda_type type);
/* Half a unit in the last place, relative; below `tiny` it is absolute. */
float ops_rounding(enum mfl_cuda_type type);

/* Random numbers that are exact in the type, uniform in +-1; and whole ones in +-limit. */
float *ops_uniform(int64_t n, enum mfl_cuda_type type, uint64_t seed);
float *ops_whole(int64_t n, int limit, uint64_t seed);
float *ops_zeros(int64_t n);

/* Step 2 of 3, for groups with count[g] rows; the other steps' numbers are poison. */
struct ops_steps {
        struct mfl_cuda_steps on_device;
        struct mfl_rng_key *dropout, *augment; /* the host's copies */
        uint32_t *index, *step_first;
        uint32_t *count;
        struct ops_buffer buffers[6];
};
#define OPS_STEP 2u
struct ops_steps ops_steps_new(int groups, int batch, const uint32_t *count, uint32_t n_samples);
void ops_steps_free(struct ops_steps *s);

/* For G groups (1, 2 or 5) of `batch` rows: some full, some short, some empty. */
extern const int ops_groups[3];
const uint32_t *ops_counts(int groups, int batch);

/* Clears the rows beyond count: values[g][r] = 0. */
void ops_clear_rows(const struct mfl_cuda_tensor *x, const uint32_t *count, float *values);

/* Must be exactly equal; prints the first place that is not. */
void ops_assert_equal(const float *got, const float *want, int64_t n, const char *what);

/* Runs body in both orders and compares what it read back. */
void ops_both_orders(void (*body)(void));
#define OPS_TEST(name)                                                                                       \
        static void name##_body(void);                                                                       \
        static void name(void **state)                                                                       \
        {                                                                                                    \
                ops_both_orders(name##_body);                                                                \
        }                                                                                                    \
        static void name##_body(void)

#define OPS_OK(call) assert_int_equal(call, cudaSuccess)

#endif
