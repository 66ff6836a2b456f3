/* SPDX-License-Identifier: Apache-2.0 */
/* What batch and group normalisation share: moments of columns, and the gradient before the fused activation.
 *
 * Moments (mean and sum of squared differences from it) are computed as in Welford 1962 and joined as in
 * Chan, Golub and LeVeque 1979, so that x is read once for them and nothing cancels. A lane takes its rows
 * one after another; lanes and chunks are joined in the order of ops_columns.h.
 */
#ifndef MFL_KERNELS_CUDA_OPS_OPS_NORM_H
#define MFL_KERNELS_CUDA_OPS_OPS_NORM_H

#include "kernels/cuda/ops/ops_columns.h"

/* Takes in rows number done + 1 to done + n at `at`, at + step, ..., one after another; all are requested
 * before it waits for the first. n is a constant, 1 or MFL_ROWS. */
MFL_DEVICE void mfl_moments_add(float *mean, float *m2, int done, const void *p, int64_t at, int64_t step,
        int n, enum mfl_cuda_type type, int width)
{
        float x[MFL_ROWS][MFL_PACK_MAX];
        MFL_UNROLL
        for (int j = 0; j < n; j++)
                mfl_pack_load(x[j], p, at + j * step, type, width);
        MFL_UNROLL
        for (int j = 0; j < n; j++) {
                float inverse = 1.0f / (float)(done + j + 1);
                MFL_UNROLL
                for (int k = 0; k < width; k++) {
                        float d = x[j][k] - mean[k];
                        mean[k] += d * inverse;
                        m2[k] += d * (x[j][k] - mean[k]);
                }
        }
}

/* The moments of rows [r, end) in steps of `lanes`; row r is at `at`, the next one at at + step. Returns how
 * many rows these are. */
MFL_DEVICE int mfl_moments_of(float *mean, float *m2, const void *p, int64_t at, int64_t step, int64_t r,
        int64_t end, int lanes, enum mfl_cuda_type type, int width)
{
        int n = 0;
        for (; r + (MFL_ROWS - 1) * lanes < end; r += MFL_ROWS * lanes, at += MFL_ROWS * step, n += MFL_ROWS)
                mfl_moments_add(mean, m2, n, p, at, step, MFL_ROWS, type, width);
        for (; r < end; r += lanes, at += step, n++)
                mfl_moments_add(mean, m2, n, p, at, step, 1, type, width);
        return n;
}

/* Joins the moments of n_b values into those of n. */
MFL_DEVICE void mfl_moments_join(float *mean, float *m2, int n, float mean_b, float m2_b, int n_b)
{
        if (n_b == 0)
                return;
        float f = (float)n_b / ((float)n + (float)n_b), d = mean_b - *mean;
        *mean += d * f;
        *m2 += m2_b + d * d * ((float)n * f);
}

/* Like mfl_columns_tree: part is [2][MFL_PACK_MAX][256], mean and then m2; count is [256]. */
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

/* Below, n packs are at `at`, at + step, ...: 1 or 2, a constant. Both are read before the first is written,
 * since y may be x. */
#define MFL_PAIR 2

/* y = act((x - mean) * scale + shift + residual). */
MFL_DEVICE void mfl_norm_apply(const struct mfl_cuda_norm *a, int64_t at, int64_t step, int n,
        const float *mean, const float *scale, const float *shift, enum mfl_cuda_type type, int width)
{
        float x[MFL_PAIR][MFL_PACK_MAX], z[MFL_PAIR][MFL_PACK_MAX];
        MFL_UNROLL
        for (int j = 0; j < n; j++) {
                mfl_pack_load(x[j], a->in, at + j * step, type, width);
                if (a->residual)
                        mfl_pack_load(z[j], a->residual, at + j * step, type, width);
        }
        MFL_UNROLL
        for (int j = 0; j < n; j++) {
                MFL_UNROLL
                for (int k = 0; k < width; k++)
                        x[j][k] = (x[j][k] - mean[k]) * scale[k] + shift[k];
                if (a->residual) {
                        MFL_UNROLL
                        for (int k = 0; k < width; k++)
                                x[j][k] += z[j][k];
                }
                mfl_pack_act(a->act, x[j], width);
                mfl_pack_store(a->out, at + j * step, x[j], type, width);
        }
}

/* x, and dz, the gradient before the activation. */
MFL_DEVICE void mfl_norm_read(const struct mfl_cuda_norm *a, int64_t at, int64_t step, int n,
        float (*dz)[MFL_PACK_MAX], float (*x)[MFL_PACK_MAX], enum mfl_cuda_type type, int width)
{
        float y[MFL_PAIR][MFL_PACK_MAX];
        MFL_UNROLL
        for (int j = 0; j < n; j++) {
                mfl_pack_load(dz[j], a->dout, at + j * step, type, width);
                mfl_pack_load(x[j], a->in, at + j * step, type, width);
                if (a->act != MFL_CUDA_ACT_NONE)
                        mfl_pack_load(y[j], a->out, at + j * step, type, width);
        }
        MFL_UNROLL
        for (int j = 0; j < n; j++)
                mfl_pack_act_grad(a->act, y[j], dz[j], width);
}

/* The sums that both gradients need: dz, and dz * xhat. */
MFL_DEVICE void mfl_norm_sums(const struct mfl_cuda_norm *a, int64_t at, int64_t step, int n,
        const float *mean, const float *inverse, float *sum, float *sum_xhat, enum mfl_cuda_type type,
        int width)
{
        float dz[MFL_PAIR][MFL_PACK_MAX], x[MFL_PAIR][MFL_PACK_MAX];
        mfl_norm_read(a, at, step, n, dz, x, type, width);
        MFL_UNROLL
        for (int j = 0; j < n; j++) {
                MFL_UNROLL
                for (int k = 0; k < width; k++) {
                        sum[k] += dz[j][k];
                        sum_xhat[k] += dz[j][k] * ((x[j][k] - mean[k]) * inverse[k]);
                }
        }
}

/* dx = inverse * (weight * dz - mean(weight * dz) - xhat * mean(weight * dz * xhat)), the means given. */
MFL_DEVICE void mfl_norm_dx(const struct mfl_cuda_norm *a, int64_t at, int64_t step, int n, const float *mean,
        const float *inverse, const float *weight, const float *mean_dz, const float *mean_dz_xhat,
        enum mfl_cuda_type type, int width)
{
        float dz[MFL_PAIR][MFL_PACK_MAX], x[MFL_PAIR][MFL_PACK_MAX];
        mfl_norm_read(a, at, step, n, dz, x, type, width);
        MFL_UNROLL
        for (int j = 0; j < n; j++) {
                MFL_UNROLL
                for (int k = 0; k < width; k++) {
                        float xhat = (x[j][k] - mean[k]) * inverse[k];
                        x[j][k] = inverse[k] * (weight[k] * dz[j][k] - mean_dz[k] - xhat * mean_dz_xhat[k]);
                }
                mfl_pack_give(a->din, a->add, x[j], at + j * step, type, width);
                mfl_pack_give(a->dresidual, a->add_residual, dz[j], at + j * step, type, width);
        }
}

/* Runs the statement for rows (or pixels) [r, end) in steps of `lanes`, in pairs and then the last; it gets
 * `at` and `n`. */
#define MFL_NORM_ROWS(r, end, lanes, at, step, n, statement)                                                 \
        do {                                                                                                 \
                for (; (r) + (lanes) < (end); (r) += 2 * (lanes), (at) += 2 * (step)) {                      \
                        enum { n = 2 };                                                                      \
                        statement;                                                                           \
                }                                                                                            \
                for (; (r) < (end); (r) += (lanes), (at) += (step)) {                                        \
                        enum { n = 1 };                                                                      \
                        statement;                                                                           \
                }                                                                                            \
        } while (0)

/* For a row beyond count. */
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

/* Packs where c allows them. Then every tensor must be aligned, since the order of sums follows the packs. */
static inline bool mfl_norm_aligned(const struct mfl_cuda_norm *a)
{
        uintptr_t bits = (uintptr_t)a->in | (uintptr_t)a->residual | (uintptr_t)a->out | (uintptr_t)a->dout |
                         (uintptr_t)a->din | (uintptr_t)a->dresidual;
        return a->x.c % mfl_pack_width(a->x.type) != 0 || bits % 16 == 0;
}

#endif
