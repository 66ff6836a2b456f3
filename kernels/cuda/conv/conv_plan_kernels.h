/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels around library calls: copies between layouts and types, and the parts of a comparison.
 *
 * Pure launches: no allocation, nothing waits, any thread; safe to capture. Errors are CUDA's.
 */
#ifndef MFL_KERNELS_CUDA_CONV_CONV_PLAN_KERNELS_H
#define MFL_KERNELS_CUDA_CONV_CONV_PLAN_KERNELS_H

#include "kernels/cuda/base/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* to[g * to_group + i * to_row + j] = from[g * from_group + i * from_row + j] for i < rows, j < columns,
 * converted between the types; strides in elements. With from_row = columns and to_row = groups * columns it
 * puts the clients' channels side by side, and the reverse separates them. */
struct mfl_cuda_copy_rows {
        const void *from;
        void *to;
        enum mfl_cuda_type from_type, to_type;
        int groups;
        int64_t rows, columns, from_group, from_row, to_group, to_row;
};
cudaError_t mfl_cuda_copy_rows(const struct mfl_cuda_copy_rows *a, cudaStream_t stream);

/* n pseudo-random numbers, uniform in [-scale, scale). */
struct mfl_cuda_fill {
        void *to;
        enum mfl_cuda_type type;
        int64_t n;
        uint32_t seed;
        float scale;
};
cudaError_t mfl_cuda_fill(const struct mfl_cuda_fill *a, cudaStream_t stream);

/* Partial sums over n elements of b against a; n_bad: elements of either that are not finite, which count
 * nowhere else. */
#define MFL_CUDA_COMPARE_PARTS 128
struct mfl_cuda_compare_part {
        double error2, reference2; /* sums of (b - a)^2 and a^2 */
        float error_max;
        uint32_t n_bad;
};
struct mfl_cuda_compare {
        const void *a, *b;
        enum mfl_cuda_type type;
        int64_t n;
        struct mfl_cuda_compare_part *parts; /* [mfl_cuda_compare_parts(n)], device memory */
};
static inline int mfl_cuda_compare_parts(int64_t n)
{
        return n < MFL_CUDA_COMPARE_PARTS * 1024 ? (int)mfl_blocks(n, 1024) : MFL_CUDA_COMPARE_PARTS;
}
cudaError_t mfl_cuda_compare(const struct mfl_cuda_compare *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
