/* SPDX-License-Identifier: Apache-2.0 */
/* Backward weights tiles of the fp32 family (conv_simt.h). */
#include "kernels/cuda/conv/conv_simt_tile.h"

#define WEIGHTS(name, bm, bn, bk, tm, tn, slices, stages, blocks)                                            \
        SIMT_KERNEL(name, MFL_CUDA_BACKWARD_WEIGHTS, bm, bn, bk, tm, tn, slices, stages, blocks)

WEIGHTS(weights_64x128, 64, 128, 16, 8, 8, 1, 2, 2)
WEIGHTS(weights_64x64, 64, 64, 16, 8, 4, 1, 2, 3)
WEIGHTS(weights_32x64, 32, 64, 16, 4, 4, 1, 2, 4)
WEIGHTS(weights_16x64, 16, 64, 16, 4, 4, 1, 3, 8)
WEIGHTS(weights_16x32_4, 16, 32, 16, 4, 4, 4, 2, 4)
WEIGHTS(weights_8x32_8, 8, 32, 8, 4, 4, 8, 2, 3)

const struct mfl_simt_kernel mfl_simt_weights[] = {
        {"simt 64x128", "simt 64x128, split", 64, 128, 1, 128, false, NULL, weights_64x128_run},
        {"simt 64x64", "simt 64x64, split", 64, 64, 1, 128, false, NULL, weights_64x64_run},
        {"simt 32x64", "simt 32x64, split", 32, 64, 1, 128, false, NULL, weights_32x64_run},
        {"simt 16x64", "simt 16x64, split", 16, 64, 1, 64, false, NULL, weights_16x64_run},
        {"simt 16x32 in 4", "simt 16x32 in 4, split", 16, 32, 4, 128, false, NULL, weights_16x32_4_run},
        {"simt 8x32 in 8", "simt 8x32 in 8, split", 8, 32, 8, 128, false, NULL, weights_8x32_8_run},
        {"simt rows", "", 8, 4, 1, 256, true, mfl_simt_rows_can, mfl_simt_rows},
};
const int mfl_simt_weights_count = (int)(sizeof mfl_simt_weights / sizeof mfl_simt_weights[0]);
