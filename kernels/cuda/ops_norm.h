/* SPDX-License-Identifier: Apache-2.0 */
/* What batch and group normalisation share: moments of columns, the gradient behind the fused activation.
 *
 * Moments (mean and sum of squared differences from it) are kept as in Welford 1962 and joined as in Chan,
 * Golub and LeVeque 1979, so that x is read once for them and nothing cancels. A lane takes its rows one
 * after another; lanes and chunks are joined in the order of ops_columns.h.
 */
#ifndef MFL_KERNELS_CUDA_OPS_NORM_H
#define MFL_KERNELS_CUDA_OPS_NORM_H

#include "kernels/cuda/ops_columns.h"

/* Row number n, counted from 1, of `width` columns. */
MFL_DEVICE void mfl_moments_add(float *mean, float *m2, int n, const float *x, int width)
{
        float inverse = 1.0f / (float)n;
        MFL_UNROLL
        for (int k = 0; k < width; k++) {
                float d = x[k] - mean[k];
                mean[k] += d * inverse;
                m2[k] += d * (x[k] - mean[k]);
        }
}

/* Moments of n values take in those of n_b. */
MFL_DEVICE void mfl_moments_join(float *mean, float *m2, int n, float mean_b, float m2_b, int n_b)
{
        if (n_b == 0)
                return;
        float f = (float)n_b / ((float)n + (float)n_b), d = mean_b - *mean;
        *mean += d * f;
        *m2 += m2_b + d * d * ((float)n * f);
}

/* As mfl_columns_tree: part is [2][MFL_PACK_MAX][256], mean and then m2; count is [256]. */
#define MFL_MOMENTS_PART (2 * MFL_PACK_MAX * MFL_OPS_THREADS)
#define MFL_MOMENTS_M2 (MFL_PACK_MAX * MFL_OPS_THREADS)
MFL_DEVICE void mfl_moments_tree(float *part, int *count, const float *mean, const float *m2, int n,
        int width, int slot, int lane, int tile, int lanes)
{
        int t = lane * tile + slot;
        if (lane >= 0) {
                count[t] = n;
                for (int k = 0; k < width; k++) {
                        part[k * MFL_OPS_THREADS + t] = mean[k];
                        part[MFL_MOMENTS_M2 + k * MFL_OPS_THREADS + t] = m2[k];
                }
        }
        MFL_SYNC();
        for (int s = mfl_tree_half(lanes); s > 0; s /= 2) {
                if (lane >= 0 && lane < s && lane + s < lanes) {
                        int other = t + s * tile;
                        for (int k = 0; k < width; k++) {
                                float *p = part + k * MFL_OPS_THREADS;
                                mfl_moments_join(&p[t], &p[MFL_MOMENTS_M2 + t], count[t], p[other],
                                        p[MFL_MOMENTS_M2 + other], count[other]);
                        }
                        count[t] += count[other];
                }
                MFL_SYNC();
        }
}

MFL_DEVICE void mfl_zero(float *v, int width)
{
        for (int k = 0; k < width; k++)
                v[k] = 0.0f;
}

/* y = act((x - mean) * scale + shift + residual) of the pack at `at`. */
MFL_DEVICE void mfl_norm_apply(const struct mfl_cuda_norm *a, int64_t at, const float *mean,
        const float *scale, const float *shift, enum mfl_cuda_type type, int width)
{
        float x[MFL_PACK_MAX], z[MFL_PACK_MAX];
        mfl_pack_load(x, a->in, at, type, width);
        if (a->residual)
                mfl_pack_load(z, a->residual, at, type, width);
        MFL_UNROLL
        for (int k = 0; k < width; k++) {
                x[k] = (x[k] - mean[k]) * scale[k] + shift[k];
                if (a->residual)
                        x[k] += z[k];
                x[k] = mfl_act(a->act, x[k]);
        }
        mfl_pack_store(a->out, at, x, type, width);
}

/* dz, the gradient before the activation. */
MFL_DEVICE void mfl_norm_dz(
        const struct mfl_cuda_norm *a, int64_t at, float *dz, enum mfl_cuda_type type, int width)
{
        mfl_pack_load(dz, a->dout, at, type, width);
        if (a->act == MFL_CUDA_ACT_NONE)
                return;
        float y[MFL_PACK_MAX];
        mfl_pack_load(y, a->out, at, type, width);
        MFL_UNROLL
        for (int k = 0; k < width; k++)
                dz[k] = mfl_act_grad(a->act, y[k], dz[k]);
}

/* The sums that both gradients need: dz, and dz * xhat. */
MFL_DEVICE void mfl_norm_sums(const struct mfl_cuda_norm *a, int64_t at, const float *mean,
        const float *inverse, float *sum, float *sum_xhat, enum mfl_cuda_type type, int width)
{
        float dz[MFL_PACK_MAX], x[MFL_PACK_MAX];
        mfl_norm_dz(a, at, dz, type, width);
        mfl_pack_load(x, a->in, at, type, width);
        MFL_UNROLL
        for (int k = 0; k < width; k++) {
                sum[k] += dz[k];
                sum_xhat[k] += dz[k] * ((x[k] - mean[k]) * inverse[k]);
        }
}

/* dx = inverse * (weight * dz - mean(weight * dz) - xhat * mean(weight * dz * xhat)), the means given. */
MFL_DEVICE void mfl_norm_dx(const struct mfl_cuda_norm *a, int64_t at, const float *mean,
        const float *inverse, const float *weight, const float *mean_dz, const float *mean_dz_xhat,
        enum mfl_cuda_type type, int width)
{
        float dz[MFL_PACK_MAX], x[MFL_PACK_MAX];
        mfl_norm_dz(a, at, dz, type, width);
        mfl_pack_load(x, a->in, at, type, width);
        MFL_UNROLL
        for (int k = 0; k < width; k++) {
                float xhat = (x[k] - mean[k]) * inverse[k];
                x[k] = inverse[k] * (weight[k] * dz[k] - mean_dz[k] - xhat * mean_dz_xhat[k]);
        }
        mfl_pack_give(a->din, a->add, x, at, type, width);
        mfl_pack_give(a->dresidual, a->add_residual, dz, at, type, width);
}

/* Of a row beyond count. */
MFL_DEVICE void mfl_norm_dx_none(
        const struct mfl_cuda_norm *a, int64_t at, enum mfl_cuda_type type, int width)
{
        float none[MFL_PACK_MAX];
        mfl_zero(none, width);
        mfl_pack_give(a->din, a->add, none, at, type, width);
        mfl_pack_give(a->dresidual, a->add_residual, none, at, type, width);
}

#ifdef __cplusplus
extern "C" {
#endif
/* norm_groups > 0 */
uint64_t mfl_cuda_group_norm_workspace(const struct mfl_cuda_tensor *x);
cudaError_t mfl_cuda_group_norm_forward(const struct mfl_cuda_norm *a, cudaStream_t stream);
cudaError_t mfl_cuda_group_norm_backward(const struct mfl_cuda_norm *a, cudaStream_t stream);
#ifdef __cplusplus
}
#endif

/* Packs where c allows them; then every tensor must be aligned, since the order of sums follows the packs. */
static inline bool mfl_norm_aligned(const struct mfl_cuda_norm *a)
{
        uintptr_t bits = (uintptr_t)a->in | (uintptr_t)a->residual | (uintptr_t)a->out | (uintptr_t)a->dout |
                         (uintptr_t)a->din | (uintptr_t)a->dresidual;
        return a->x.c % mfl_pack_width(a->x.type) != 0 || bits % 16 == 0;
}

#endif
