/* SPDX-License-Identifier: Apache-2.0 */
/* The instances of mma_block for one precision. conv_mma_tf32.cu, conv_mma_bf16.cu and conv_mma_f16.cu each
 * include this once, after they define MMA_PRECISION, MMA_GET (the function that returns them) and MMA_LARGE.
 * MMA_LARGE is one more tile for large problems, with warps of 64x32, which read less shared memory per
 * product than those of 32x32: 128x128 for the 16-bit types. In float that tile does not fit into the 99 KiB
 * of a block on sm_89. */
#include "kernels/cuda/conv/conv_mma_tile.h"

#define MMA_SHAPE(pass, bm, bn, wm, wn)                                                                      \
        {                                                                                                    \
                pass, MMA_PRECISION, bm, bn, wm, wn                                                          \
        }
#define MMA_KERNEL(name, pass, bm, bn, wm, wn, blocks)                                                       \
        MFL_KERNEL_BOUNDS(                                                                                   \
                name##_##bm##x##bn##_##wm, struct mfl_mma_args, (bm) / (wm) * ((bn) / (wn)) * 32, blocks)    \
        {                                                                                                    \
                MFL_SHARED_DYNAMIC(shared);                                                                  \
                const struct mfl_mma_shape s = MMA_SHAPE(pass, bm, bn, wm, wn);                              \
                mma_block(&a, s, shared);                                                                    \
        }

/* F(name, pass, bm, bn, wm, wn, blocks per multiprocessor) */
#define MMA_OVER_IMAGE(F, name, pass)                                                                        \
        F(name, pass, 128, 64, 32, 32, 2)                                                                    \
        F(name, pass, 64, 64, 32, 32, 4)                                                                     \
        F(name, pass, 128, 32, 32, 32, 4)                                                                    \
        F(name, pass, 64, 16, 16, 16, 5)                                                                     \
        F(name, pass, 16, 64, 16, 16, 5)
#define MMA_OVER_WEIGHTS(F, name, pass)                                                                      \
        F(name, pass, 128, 64, 32, 32, 2)                                                                    \
        F(name, pass, 64, 64, 32, 32, 4)                                                                     \
        F(name, pass, 32, 32, 16, 16, 5)                                                                     \
        F(name, pass, 16, 64, 16, 16, 5)

MMA_OVER_IMAGE(MMA_KERNEL, forward, MFL_CUDA_FORWARD)
MMA_OVER_IMAGE(MMA_KERNEL, backward_data, MFL_CUDA_BACKWARD_DATA)
MMA_OVER_WEIGHTS(MMA_KERNEL, backward_weights, MFL_CUDA_BACKWARD_WEIGHTS)
MMA_LARGE(MMA_KERNEL, forward, MFL_CUDA_FORWARD)
MMA_LARGE(MMA_KERNEL, backward_data, MFL_CUDA_BACKWARD_DATA)
MMA_LARGE(MMA_KERNEL, backward_weights, MFL_CUDA_BACKWARD_WEIGHTS)

#define MMA_ENTRY(kernel_name, of_pass, bm_, bn_, wm_, wn_, blocks)                                          \
        if (pass == (of_pass) && tile-- == 0) {                                                              \
                const struct mfl_mma_shape s = MMA_SHAPE(of_pass, bm_, bn_, wm_, wn_);                       \
                struct mfl_mma_kernel k = {(const void *)kernel_name##_##bm_##x##bn_##_##wm_, bm_, bn_,      \
                        mma_threads(s), mma_shared_bytes(s),                                                 \
                        {"mma " #bm_ "x" #bn_ "x32 w" #wm_ "x" #wn_,                                         \
                                "mma " #bm_ "x" #bn_ "x32 w" #wm_ "x" #wn_ " split"}};                       \
                *ret_kernel = k;                                                                             \
                return true;                                                                                 \
        }

MFL_HOST bool MMA_GET(enum mfl_cuda_pass pass, int tile, struct mfl_mma_kernel *ret_kernel)
{
        MMA_OVER_IMAGE(MMA_ENTRY, forward, MFL_CUDA_FORWARD)
        MMA_OVER_IMAGE(MMA_ENTRY, backward_data, MFL_CUDA_BACKWARD_DATA)
        MMA_OVER_WEIGHTS(MMA_ENTRY, backward_weights, MFL_CUDA_BACKWARD_WEIGHTS)
        MMA_LARGE(MMA_ENTRY, forward, MFL_CUDA_FORWARD)
        MMA_LARGE(MMA_ENTRY, backward_data, MFL_CUDA_BACKWARD_DATA)
        MMA_LARGE(MMA_ENTRY, backward_weights, MFL_CUDA_BACKWARD_WEIGHTS)
        return false;
}
