/* SPDX-License-Identifier: Apache-2.0 */
/* See ops_direct.h. */
#include "kernels/cuda/ops/ops_direct.h"
#include "kernels/cuda/ops/ops_common.h"

#define WARP 32

/* The window with sizes that fit 32 bits. */
struct direct {
        struct mfl_cuda_direct op;
        int c, h, w, o, oh, ow, k[2], s[2], p[2], d[2];
        int width, filters; /* channels and filters of a group of channels */
};

MFL_DEVICE float weight_at(const struct direct *b, int o, int r, int s, int c)
{
        int64_t at = (((int64_t)o * b->k[0] + r) * b->k[1] + s) * b->width + c;
        return mfl_load(b->op.w, (int64_t)(blockIdx.y * b->op.w_stride) + at, b->op.type);
}

MFL_DEVICE float x_at(const struct direct *b, int64_t row, int h, int w, int c)
{
        return mfl_load(b->op.x, ((row * b->h + h) * b->w + w) * b->c + c, b->op.type);
}

MFL_DEVICE float y_at(const struct direct *b, int64_t row, int h, int w, int o)
{
        return mfl_load(b->op.y, ((row * b->oh + h) * b->ow + w) * b->o + o, b->op.type);
}

MFL_DEVICE void direct_give(const struct direct *b, int64_t at, int channel, float sum)
{
        if (b->op.bias)
                sum += b->op.bias[blockIdx.y * b->op.p_stride + (uint64_t)channel];
        if (b->op.add)
                sum = mfl_load(b->op.to, at, b->op.type) + sum;
        mfl_store(b->op.to, at, sum, b->op.type);
}

MFL_KERNEL(direct_forward, struct direct)
{
        int64_t i = MFL_GLOBAL_INDEX, each = (int64_t)a.oh * a.ow * a.o, n = each * a.op.batch;
        if (i >= n || mfl_cuda_rows(&a.op.steps, blockIdx.y) == 0)
                return;
        int o = (int)(i % a.o), ow = (int)(i / a.o % a.ow), oh = (int)(i / a.o / a.ow % a.oh);
        int64_t row = (int64_t)blockIdx.y * a.op.batch + i / each;
        int first = o / a.filters * a.width;
        float sum = 0.0f;
        for (int r = 0; r < a.k[0]; r++) {
                int h = oh * a.s[0] - a.p[0] + r * a.d[0];
                for (int s = 0; h >= 0 && h < a.h && s < a.k[1]; s++) {
                        int w = ow * a.s[1] - a.p[1] + s * a.d[1];
                        for (int c = 0; w >= 0 && w < a.w && c < a.width; c++)
                                sum = fmaf(x_at(&a, row, h, w, first + c), weight_at(&a, o, r, s, c), sum);
                }
        }
        direct_give(&a, (int64_t)blockIdx.y * n + i, o, sum);
}

/* The output whose tap r reads input `at`, or -1. */
MFL_DEVICE int output_of(int at, int r, int stride, int pad, int dilation, int size)
{
        int o = at + pad - r * dilation;
        return o >= 0 && o % stride == 0 && o / stride < size ? o / stride : -1;
}

MFL_KERNEL(direct_data, struct direct)
{
        int64_t i = MFL_GLOBAL_INDEX, each = (int64_t)a.h * a.w * a.c, n = each * a.op.batch;
        if (i >= n || mfl_cuda_rows(&a.op.steps, blockIdx.y) == 0)
                return;
        int c = (int)(i % a.c), w = (int)(i / a.c % a.w), h = (int)(i / a.c / a.w % a.h);
        int64_t row = (int64_t)blockIdx.y * a.op.batch + i / each;
        int first = c / a.width * a.filters;
        float sum = 0.0f;
        for (int r = 0; r < a.k[0]; r++) {
                int oh = output_of(h, r, a.s[0], a.p[0], a.d[0], a.oh);
                for (int s = 0; oh >= 0 && s < a.k[1]; s++) {
                        int ow = output_of(w, s, a.s[1], a.p[1], a.d[1], a.ow);
                        for (int o = first; ow >= 0 && o < first + a.filters; o++)
                                sum = fmaf(
                                        y_at(&a, row, oh, ow, o), weight_at(&a, o, r, s, c % a.width), sum);
                }
        }
        direct_give(&a, (int64_t)blockIdx.y * n + i, c, sum);
}

MFL_KERNEL(direct_weights, struct direct)
{
        int64_t i = MFL_GLOBAL_INDEX / WARP, n = (int64_t)a.o * a.k[0] * a.k[1] * a.width;
        if (i >= n || mfl_cuda_rows(&a.op.steps, blockIdx.y) == 0)
                return;
        int lane = (int)threadIdx.x % WARP, c = (int)(i % a.width), s = (int)(i / a.width % a.k[1]);
        int r = (int)(i / a.width / a.k[1] % a.k[0]), o = (int)(i / a.width / a.k[1] / a.k[0]);
        int channel = o / a.filters * a.width + c;
        int64_t pixels = (int64_t)a.oh * a.ow, outputs = pixels * a.op.batch;
        float sum = 0.0f;
        for (int64_t e = lane; e < outputs; e += WARP) {
                int64_t row = (int64_t)blockIdx.y * a.op.batch + e / pixels;
                int oh = (int)(e % pixels / a.ow), ow = (int)(e % a.ow);
                int h = oh * a.s[0] - a.p[0] + r * a.d[0], w = ow * a.s[1] - a.p[1] + s * a.d[1];
                if (h >= 0 && h < a.h && w >= 0 && w < a.w)
                        sum = fmaf(x_at(&a, row, h, w, channel), y_at(&a, row, oh, ow, o), sum);
        }
        for (int k = WARP / 2; k > 0; k /= 2)
                sum += mfl_shfl_xor(sum, k);
        if (lane == 0)
                a.op.dw[blockIdx.y * a.op.p_stride + (uint64_t)i] = sum;
}

static cudaError_t direct_launch(
        const void *kernel, const struct mfl_cuda_direct *a, int64_t n, cudaStream_t stream)
{
        const struct mfl_window *v = &a->window;
        struct direct b;
        b.op = *a;
        b.c = (int)v->c;
        b.h = (int)v->h;
        b.w = (int)v->w;
        b.o = (int)v->o;
        b.oh = (int)v->oh;
        b.ow = (int)v->ow;
        for (int k = 0; k < 2; k++) {
                b.k[k] = (int)v->k[k];
                b.s[k] = (int)v->s[k];
                b.p[k] = (int)v->p[k];
                b.d[k] = (int)v->d[k];
        }
        b.width = (int)(v->c / v->groups);
        b.filters = (int)(v->o / v->groups);
        if (a->groups < 1 || a->groups > 65535 || n < 1 || n >= (int64_t)1 << 36)
                return cudaErrorInvalidValue;
        return mfl_ops_launch_flat(kernel, n, a->groups, stream, &b);
}

MFL_HOST cudaError_t mfl_cuda_direct_forward(const struct mfl_cuda_direct *a, cudaStream_t stream)
{
        return direct_launch((const void *)(direct_forward), a,
                a->batch * a->window.oh * a->window.ow * a->window.o, stream);
}

MFL_HOST cudaError_t mfl_cuda_direct_data(const struct mfl_cuda_direct *a, cudaStream_t stream)
{
        return direct_launch(
                (const void *)(direct_data), a, a->batch * a->window.h * a->window.w * a->window.c, stream);
}

MFL_HOST cudaError_t mfl_cuda_direct_weights(const struct mfl_cuda_direct *a, cudaStream_t stream)
{
        const struct mfl_window *v = &a->window;
        return direct_launch((const void *)(direct_weights), a,
                WARP * v->o * v->k[0] * v->k[1] * (v->c / v->groups), stream);
}
