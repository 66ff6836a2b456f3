/* SPDX-License-Identifier: Apache-2.0 */
/* Products of many small matrices of any strides and types. A block computes a tile of one of them, 16
 * columns and rows at a time in shared memory, a thread 4 x 4 elements of it. Where all matrices have the
 * type of a precision other than fp32, tensor cores do it (ops_matmul_mma.cu). */
#include "kernels/cuda/ops/ops_matmul.h"

#define STEP 16 /* of k */
#define EACH 4  /* rows and columns of a thread */

static inline MFL_HD int threads_of(int tile)
{
        return tile / EACH * (tile / EACH);
}

/* What a thread copies of a tile [STEP][tile]; neighbours take adjacent elements: along k, or across. */
struct brought {
        float v[STEP * EACH * EACH / 32]; /* tile 32; a tile of 64 needs half */
};
MFL_DEVICE void tile_index(const struct matmul_operand *o, int tile, int e, int *ret_k, int *ret_other)
{
        int t = (int)threadIdx.x + e * threads_of(tile);
        bool along = o->step == 1;
        *ret_k = along ? t % STEP : t / tile;
        *ret_other = along ? t / STEP : t % tile;
}

MFL_DEVICE void bring(const struct matmul_operand *o, int tile, int first, struct brought *b)
{
        MFL_UNROLL
        for (int e = 0; e < STEP * tile / threads_of(tile); e++) {
                int k, other;
                tile_index(o, tile, e, &k, &other);
                bool inside = matmul_inside(o, other, first + k);
                b->v[e] = inside ? mfl_load(o->x->p, matmul_at(o, other, first + k), o->x->type) : 0.0f;
        }
}

MFL_DEVICE void put(const struct matmul_operand *o, int tile, const struct brought *b, float *shared)
{
        MFL_UNROLL
        for (int e = 0; e < STEP * tile / threads_of(tile); e++) {
                int k, other;
                tile_index(o, tile, e, &k, &other);
                shared[k * (tile + EACH) + other] = b->v[e];
        }
}

MFL_DEVICE void multiply_step(int tile, const float *a, const float *b, int n, float sum[EACH][EACH])
{
        int i = (int)threadIdx.x / (tile / EACH) * EACH, j = (int)threadIdx.x % (tile / EACH) * EACH;
        for (int k = 0; k < n; k++) {
                float4 va = *(const float4 *)(a + k * (tile + EACH) + i);
                float4 vb = *(const float4 *)(b + k * (tile + EACH) + j);
                float x[EACH] = {va.x, va.y, va.z, va.w}, y[EACH] = {vb.x, vb.y, vb.z, vb.w};
                MFL_UNROLL
                for (int r = 0; r < EACH; r++)
                        MFL_UNROLL
                for (int c = 0; c < EACH; c++)
                        sum[r][c] = fmaf(x[r], y[c], sum[r][c]);
        }
}

MFL_DEVICE void matmul_block(const struct mfl_cuda_matmul *v, int tile, float *shared_a, float *shared_b)
{
        struct matmul_place at = matmul_place_of(v, tile, tile);
        struct matmul_operand a = matmul_operand_of(v, &at, true), b = matmul_operand_of(v, &at, false);
        struct brought next_a, next_b;
        float sum[EACH][EACH] = {{0.0f}};
        bring(&a, tile, 0, &next_a);
        bring(&b, tile, 0, &next_b);
        for (int k = 0; k < v->k; k += STEP) {
                put(&a, tile, &next_a, shared_a);
                put(&b, tile, &next_b, shared_b);
                MFL_SYNC();
                if (k + STEP < v->k) { /* under way during the products */
                        bring(&a, tile, k + STEP, &next_a);
                        bring(&b, tile, k + STEP, &next_b);
                }
                multiply_step(tile, shared_a, shared_b, v->k - k < STEP ? v->k - k : STEP, sum);
                MFL_SYNC();
        }
        int i = (int)threadIdx.x / (tile / EACH) * EACH, j = (int)threadIdx.x % (tile / EACH) * EACH;
        MFL_UNROLL
        for (int r = 0; r < EACH; r++)
                MFL_UNROLL
        for (int c = 0; c < EACH; c++)
                matmul_give(v, &at, i + r, j + c, sum[r][c]);
}

#define MATMUL_KERNEL(tile, blocks)                                                                          \
        MFL_KERNEL_BOUNDS(matmul_##tile, struct mfl_cuda_matmul, (tile) / EACH * ((tile) / EACH), blocks)    \
        {                                                                                                    \
                MFL_SHARED(float, shared_a, STEP *((tile) + EACH));                                          \
                MFL_SHARED(float, shared_b, STEP *((tile) + EACH));                                          \
                if (mfl_cuda_rows(&a.steps, blockIdx.y) > 0)                                                 \
                        matmul_block(&a, tile, shared_a, shared_b);                                          \
        }
MATMUL_KERNEL(64, 2)
MATMUL_KERNEL(32, 6)

static bool has_tensor_cores(const struct mfl_cuda_matmul *a)
{
        enum mfl_cuda_type type = mfl_cuda_type_of(a->precision);
        return a->precision != MFL_PRECISION_FP32 && a->a.type == type && a->b.type == type &&
               a->c.type == type;
}

MFL_HOST cudaError_t mfl_cuda_matmul(const struct mfl_cuda_matmul *a, cudaStream_t stream)
{
        int tile = matmul_tile(a);
        int64_t tiles = mfl_blocks(a->m, tile) * mfl_blocks(a->n, tile) * a->outer * a->inner;
        if (a->groups < 1 || a->groups > 65535 || a->m < 1 || a->n < 1 || a->k < 0 || a->outer < 1 ||
                a->inner < 1 || tiles >= (int64_t)1 << 31)
                return cudaErrorInvalidValue;
        if (has_tensor_cores(a))
                return mfl_cuda_matmul_mma(a, tile, (uint32_t)tiles, stream);
        return mfl_launch(tile == 64 ? (const void *)(matmul_64) : (const void *)(matmul_32), (uint32_t)tiles,
                (uint32_t)a->groups, 1, (uint32_t)threads_of(tile), 0, stream, a);
}
