/* SPDX-License-Identifier: Apache-2.0 */
/* Pools: the largest or the mean of a window, and the mean of a whole channel.
 *
 * A thread computes a pack of channels of one output pixel, so no two threads add to one element. The orders
 * of the sums, in float:
 *   mean, forward   taps by row, then column; divided by the window's size at the end
 *   backward        what was there (`add`), then windows by output row, then column; for a mean each share
 *                   is dy / size
 *   global mean     pixels by row, then column
 */
#include "kernels/cuda/ops/ops_common.h"

#define NONE8 255u /* argmax where a window holds padding only */
#define NONE32 0xffffffffu

/* One pack's place in a tensor of [rows][h][w][units]. */
struct place {
        int unit, w, h, row;
};

MFL_DEVICE struct place place_of(uint32_t i, uint32_t units, uint32_t w, uint32_t h)
{
        struct place at;
        at.unit = (int)(i % units);
        i /= units;
        at.w = (int)(i % w);
        i /= w;
        at.h = (int)(i % h);
        at.row = (int)(i / h);
        return at;
}

static inline MFL_HD bool argmax_is_wide(const struct mfl_window *v)
{
        return v->k[0] * v->k[1] > 255;
}

MFL_DEVICE void argmax_store(const struct mfl_cuda_pool *a, int64_t at, const uint32_t *best, int width)
{
        if (a->argmax_wide) {
                for (int k = 0; k < width; k++)
                        a->argmax_wide[at + k] = best[k];
        } else if (a->argmax) {
                if (width == 1) {
                        a->argmax[at] = (uint8_t)best[0];
                        return;
                }
                MFL_UNROLL
                for (int k = 0; k < width; k += 4)
                        *(uint32_t *)(void *)(a->argmax + at + k) =
                                (best[k] & 255u) | (best[k + 1] & 255u) << 8 | (best[k + 2] & 255u) << 16 |
                                best[k + 3] << 24;
        }
}

/* NONE8 comes back as NONE32. */
MFL_DEVICE void argmax_load(const struct mfl_cuda_pool *a, int64_t at, uint32_t *best, int width)
{
        if (a->argmax_wide) {
                for (int k = 0; k < width; k++)
                        best[k] = a->argmax_wide[at + k];
                return;
        }
        if (width == 1) {
                best[0] = a->argmax[at];
        } else {
                MFL_UNROLL
                for (int k = 0; k < width; k += 4) {
                        uint32_t word = *(const uint32_t *)(const void *)(a->argmax + at + k);
                        for (int j = 0; j < 4; j++)
                                best[k + j] = word >> 8 * j & 255u;
                }
        }
        MFL_UNROLL
        for (int k = 0; k < width; k++)
                best[k] = best[k] == NONE8 ? NONE32 : best[k];
}

/* ---- forward ---- */

MFL_DEVICE void take_max(float *v, uint32_t *best, const float *x, uint32_t tap, int width)
{
        MFL_UNROLL
        for (int k = 0; k < width; k++)
                if (best[k] == NONE32 || x[k] > v[k]) {
                        v[k] = x[k];
                        best[k] = tap;
                }
}

MFL_DEVICE void pool_forward(const struct mfl_cuda_pool *a, enum mfl_cuda_type type, int width)
{
        int units = a->x.c / width, oh = (int)a->window.oh, ow = (int)a->window.ow;
        int64_t i = MFL_GLOBAL_INDEX, n = (int64_t)a->x.batch * oh * ow * units;
        if (i >= n || mfl_cuda_rows(&a->steps, blockIdx.y) == 0)
                return;
        struct place at = place_of((uint32_t)i, (uint32_t)units, (uint32_t)ow, (uint32_t)oh);
        int kh = (int)a->window.k[0], kw = (int)a->window.k[1];
        int h0 = at.h * (int)a->window.s[0] - (int)a->window.p[0];
        int w0 = at.w * (int)a->window.s[1] - (int)a->window.p[1];
        int64_t image = ((int64_t)blockIdx.y * a->x.batch + at.row) * a->x.h * a->x.w;
        float v[MFL_PACK_MAX];
        uint32_t best[MFL_PACK_MAX];
        MFL_UNROLL
        for (int k = 0; k < width; k++) {
                v[k] = 0.0f;
                best[k] = NONE32;
        }
        for (int r = 0; r < kh; r++) {
                int h = h0 + r * (int)a->window.d[0];
                for (int c = 0; c < kw; c++) {
                        int w = w0 + c * (int)a->window.d[1];
                        if (h < 0 || h >= a->x.h || w < 0 || w >= a->x.w)
                                continue;
                        float x[MFL_PACK_MAX];
                        int64_t pixel = image + (int64_t)h * a->x.w + w;
                        mfl_pack_load(x, a->in, pixel * a->x.c + at.unit * width, type, width);
                        if (a->max)
                                take_max(v, best, x, (uint32_t)(r * kw + c), width);
                        else
                                for (int k = 0; k < width; k++)
                                        v[k] += x[k];
                }
        }
        if (!a->max)
                for (int k = 0; k < width; k++)
                        v[k] /= (float)(kh * kw);
        int64_t to = ((int64_t)blockIdx.y * n + i) * width;
        mfl_pack_store(a->out, to, v, type, width);
        if (a->max)
                argmax_store(a, to, best, width);
}
MFL_OPS_KERNELS(pool_forward, struct mfl_cuda_pool, pool_forward)

/* ---- backward ---- */

/* Output coordinates [ret_first, ret_last] whose windows may contain input coordinate `at` of one axis. */
MFL_DEVICE void windows_of(
        const struct mfl_window *v, int axis, int at, int size, int *ret_first, int *ret_last)
{
        int p = at + (int)v->p[axis], s = (int)v->s[axis];
        int reach = ((int)v->k[axis] - 1) * (int)v->d[axis];
        *ret_first = p > reach ? (p - reach + s - 1) / s : 0;
        *ret_last = p / s < size ? p / s : size - 1;
}

/* What window tap (r, c) of output pixel `pixel` gives to the input pixel. */
MFL_DEVICE void add_window(const struct mfl_cuda_pool *a, float *sum, int64_t from, uint32_t tap,
        enum mfl_cuda_type type, int width)
{
        float dy[MFL_PACK_MAX];
        mfl_pack_load(dy, a->dout, from, type, width);
        if (!a->max) {
                float area = (float)(a->window.k[0] * a->window.k[1]);
                MFL_UNROLL
                for (int k = 0; k < width; k++)
                        sum[k] += dy[k] / area;
                return;
        }
        uint32_t best[MFL_PACK_MAX];
        argmax_load(a, from, best, width);
        MFL_UNROLL
        for (int k = 0; k < width; k++)
                if (best[k] == tap)
                        sum[k] += dy[k];
}

MFL_DEVICE void start_sum(
        const struct mfl_cuda_pool *a, float *sum, int64_t at, enum mfl_cuda_type type, int width)
{
        if (a->add)
                mfl_pack_load(sum, a->din, at, type, width);
        else
                for (int k = 0; k < width; k++)
                        sum[k] = 0.0f;
}

MFL_DEVICE void finish_sum(
        const struct mfl_cuda_pool *a, float *sum, int64_t at, enum mfl_cuda_type type, int width)
{
        if (a->act != MFL_CUDA_ACT_NONE) {
                float y[MFL_PACK_MAX];
                mfl_pack_load(y, a->in, at, type, width);
                mfl_pack_act_grad(a->act, y, sum, width);
        }
        mfl_pack_store(a->din, at, sum, type, width);
}

MFL_DEVICE void pool_backward(const struct mfl_cuda_pool *a, enum mfl_cuda_type type, int width)
{
        int units = a->x.c / width, oh = (int)a->window.oh, ow = (int)a->window.ow;
        int64_t i = MFL_GLOBAL_INDEX, n = (int64_t)a->x.batch * a->x.h * a->x.w * units;
        if (i >= n || mfl_cuda_rows(&a->steps, blockIdx.y) == 0)
                return;
        struct place at = place_of((uint32_t)i, (uint32_t)units, (uint32_t)a->x.w, (uint32_t)a->x.h);
        int h_first, h_last, w_first, w_last;
        windows_of(&a->window, 0, at.h, oh, &h_first, &h_last);
        windows_of(&a->window, 1, at.w, ow, &w_first, &w_last);
        int64_t image = ((int64_t)blockIdx.y * a->x.batch + at.row) * oh * ow;
        int64_t to = ((int64_t)blockIdx.y * n + i) * width;
        float sum[MFL_PACK_MAX];
        start_sum(a, sum, to, type, width);
        for (int h = h_first; h <= h_last; h++) {
                int r = at.h + (int)a->window.p[0] - h * (int)a->window.s[0];
                for (int w = w_first; w <= w_last; w++) {
                        int c = at.w + (int)a->window.p[1] - w * (int)a->window.s[1];
                        int dh = (int)a->window.d[0], dw = (int)a->window.d[1];
                        if ((dh > 1 && r % dh) || (dw > 1 && c % dw))
                                continue;
                        uint32_t tap = (uint32_t)(r / dh * (int)a->window.k[1] + c / dw);
                        int64_t from = (image + (int64_t)h * ow + w) * a->x.c + at.unit * width;
                        add_window(a, sum, from, tap, type, width);
                }
        }
        finish_sum(a, sum, to, type, width);
}
MFL_OPS_KERNELS(pool_backward, struct mfl_cuda_pool, pool_backward)

static bool pool_fits(const struct mfl_cuda_pool *a)
{
        struct mfl_cuda_tensor y = a->x;
        y.h = (int)a->window.oh;
        y.w = (int)a->window.ow;
        bool argmax = !a->max || a->argmax_wide || !argmax_is_wide(&a->window);
        return mfl_ops_fits(&a->x) && mfl_ops_fits(&y) && argmax;
}

static bool pool_wide(const struct mfl_cuda_pool *a)
{
        return mfl_ops_wide(&a->x, a->x.c,
                       (uintptr_t)a->in | (uintptr_t)a->out | (uintptr_t)a->din | (uintptr_t)a->dout) &&
               (uintptr_t)a->argmax % 4 == 0;
}

MFL_HOST cudaError_t mfl_cuda_pool_forward(const struct mfl_cuda_pool *a, cudaStream_t stream)
{
        if (!pool_fits(a))
                return cudaErrorInvalidValue;
        bool wide = pool_wide(a);
        int64_t n = a->x.batch * a->window.oh * a->window.ow * a->x.c;
        return mfl_ops_launch_flat(pool_forward_pick(a->x.type, wide),
                n / (wide ? mfl_pack_width(a->x.type) : 1), a->x.groups, stream, a);
}

MFL_HOST cudaError_t mfl_cuda_pool_backward(const struct mfl_cuda_pool *a, cudaStream_t stream)
{
        if (!pool_fits(a) || (a->max && !a->argmax && !a->argmax_wide))
                return cudaErrorInvalidValue;
        bool wide = pool_wide(a);
        return mfl_ops_launch_flat(pool_backward_pick(a->x.type, wide),
                mfl_ops_elements(&a->x) / (wide ? mfl_pack_width(a->x.type) : 1), a->x.groups, stream, a);
}

/* ---- the mean of a channel ---- */

MFL_DEVICE void global_forward(const struct mfl_cuda_pool *a, enum mfl_cuda_type type, int width)
{
        int units = a->x.c / width, pixels = a->x.h * a->x.w;
        int64_t i = MFL_GLOBAL_INDEX, n = (int64_t)a->x.batch * units;
        if (i >= n || mfl_cuda_rows(&a->steps, blockIdx.y) == 0)
                return;
        int64_t row = (int64_t)blockIdx.y * a->x.batch + i / units, at = i % units * width;
        float sum[MFL_PACK_MAX];
        for (int k = 0; k < width; k++)
                sum[k] = 0.0f;
        int p = 0;
        for (; p + MFL_ROWS <= pixels; p += MFL_ROWS)
                mfl_pack_sum(sum, a->in, (row * pixels + p) * a->x.c + at, a->x.c, MFL_ROWS, type, width);
        for (; p < pixels; p++)
                mfl_pack_sum(sum, a->in, (row * pixels + p) * a->x.c + at, a->x.c, 1, type, width);
        MFL_UNROLL
        for (int k = 0; k < width; k++)
                sum[k] /= (float)pixels;
        mfl_pack_store(a->out, row * a->x.c + at, sum, type, width);
}
MFL_OPS_KERNELS(global_forward, struct mfl_cuda_pool, global_forward)

MFL_DEVICE void global_backward(const struct mfl_cuda_pool *a, enum mfl_cuda_type type, int width)
{
        uint32_t units = (uint32_t)(a->x.c / width), pixels = (uint32_t)(a->x.h * a->x.w);
        int64_t i = MFL_GLOBAL_INDEX, n = (int64_t)a->x.batch * pixels * units;
        if (i >= n || mfl_cuda_rows(&a->steps, blockIdx.y) == 0)
                return;
        int64_t row = (int64_t)blockIdx.y * a->x.batch + (uint32_t)i / units / pixels;
        int64_t to = ((int64_t)blockIdx.y * n + i) * width;
        float sum[MFL_PACK_MAX], dy[MFL_PACK_MAX];
        start_sum(a, sum, to, type, width);
        mfl_pack_load(dy, a->dout, row * a->x.c + (int64_t)((uint32_t)i % units) * width, type, width);
        MFL_UNROLL
        for (int k = 0; k < width; k++)
                sum[k] += dy[k] / (float)pixels;
        finish_sum(a, sum, to, type, width);
}
MFL_OPS_KERNELS(global_backward, struct mfl_cuda_pool, global_backward)

MFL_HOST cudaError_t mfl_cuda_global_pool_forward(const struct mfl_cuda_pool *a, cudaStream_t stream)
{
        if (!mfl_ops_fits(&a->x))
                return cudaErrorInvalidValue;
        bool wide = pool_wide(a);
        return mfl_ops_launch_flat(global_forward_pick(a->x.type, wide),
                (int64_t)a->x.batch * a->x.c / (wide ? mfl_pack_width(a->x.type) : 1), a->x.groups, stream,
                a);
}

MFL_HOST cudaError_t mfl_cuda_global_pool_backward(const struct mfl_cuda_pool *a, cudaStream_t stream)
{
        if (!mfl_ops_fits(&a->x))
                return cudaErrorInvalidValue;
        bool wide = pool_wide(a);
        return mfl_ops_launch_flat(global_backward_pick(a->x.type, wide),
                mfl_ops_elements(&a->x) / (wide ? mfl_pack_width(a->x.type) : 1), a->x.groups, stream, a);
}
