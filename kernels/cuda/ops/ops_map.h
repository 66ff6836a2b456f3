/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse linear maps (common/model/graph_map.h). Conventions, errors and the meaning of `add` are those of ops.h. */
#ifndef MFL_KERNELS_CUDA_OPS_OPS_MAP_H
#define MFL_KERNELS_CUDA_OPS_OPS_MAP_H

#include "kernels/cuda/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* to[a][r][b] = the sum of weight * from[a][index][b] over the terms of row r, one after another; `fill` where there
 * are none. Backward is the same with the transposed table. */
struct mfl_cuda_map {
        int groups, batch;
        enum mfl_cuda_type type;
        int outer, n_from, n_to, inner; /* of a sample */
        const int32_t *first, *index;   /* first NULL: row r has the one term r */
        const float *weight;            /* NULL: all 1 */
        float fill;
        const void *from;
        void *to;
        bool add;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_map(const struct mfl_cuda_map *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
