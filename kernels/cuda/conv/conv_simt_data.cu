/* SPDX-License-Identifier: Apache-2.0 */
/* Backward data tiles of the fp32 family (conv_simt.h). */
#include "kernels/cuda/conv/conv_simt_tile.h"

#define DATA(name, bm, bn, bk, tm, tn, slices, stages, blocks)                                               \
        SIMT_KERNEL(name, MFL_CUDA_BACKWARD_DATA, bm, bn, bk, tm, tn, slices, stages, blocks)

DATA(data_128x64, 128, 64, 16, 8, 8, 1, 2, 2)
DATA(data_64x64, 64, 64, 16, 8, 4, 1, 2, 3)
DATA(data_128x32, 128, 32, 16, 8, 4, 1, 2, 3)
DATA(data_64x16, 64, 16, 16, 4, 4, 1, 3, 8)
DATA(data_128x8, 128, 8, 16, 8, 4, 1, 3, 8)
DATA(data_32x128, 32, 128, 16, 4, 8, 1, 3, 3)
DATA(data_16x64, 16, 64, 32, 4, 4, 1, 2, 6)
DATA(data_16x32_4, 16, 32, 16, 4, 4, 4, 2, 4)

const struct mfl_simt_kernel mfl_simt_data[] = {
        {"simt 128x64", "simt 128x64, split", 128, 64, 1, 128, false, NULL, data_128x64_run},
        {"simt 64x64", "simt 64x64, split", 64, 64, 1, 128, false, NULL, data_64x64_run},
        {"simt 128x32", "simt 128x32, split", 128, 32, 1, 128, false, NULL, data_128x32_run},
        {"simt 64x16", "simt 64x16, split", 64, 16, 1, 64, false, NULL, data_64x16_run},
        {"simt 128x8", "simt 128x8, split", 128, 8, 1, 32, false, NULL, data_128x8_run},
        {"simt 32x128", "simt 32x128, split", 32, 128, 1, 128, false, NULL, data_32x128_run},
        {"simt 16x64", "simt 16x64, split", 16, 64, 1, 64, false, NULL, data_16x64_run},
        {"simt 16x32 in 4", "simt 16x32 in 4, split", 16, 32, 4, 128, false, NULL, data_16x32_4_run},
        {"simt patch", "", 4, 8, 1, 256, true, mfl_simt_patch_can_data, mfl_simt_patch_data},
};
const int mfl_simt_data_count = (int)(sizeof mfl_simt_data / sizeof mfl_simt_data[0]);
