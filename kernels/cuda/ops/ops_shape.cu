/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that move, join or average tensors: one thread for each element of the output, in the order of
 * its memory. */
#include "kernels/cuda/ops/ops_shape.h"
#include "kernels/cuda/ops/ops_common.h"

/* An element of the walk over a group's samples. */
struct walk {
        int64_t row; /* over all groups */
        int at[3];
};

MFL_DEVICE struct walk walk_of(int64_t i, int batch, const int *dim)
{
        int count = dim[0] * dim[1] * dim[2], e = (int)(i % count);
        struct walk w;
        w.row = (int64_t)blockIdx.y * batch + i / count;
        w.at[2] = e % dim[2];
        w.at[1] = e / dim[2] % dim[1];
        w.at[0] = e / dim[2] / dim[1];
        return w;
}

MFL_DEVICE int64_t side_at(const struct mfl_cuda_side *side, int64_t row, int i, int j, int k)
{
        int e = side->first + i * side->stride[0] + j * side->stride[1] + k * side->stride[2];
        if (side->pixels > 1)
                e = e % side->pixels * side->c + e / side->pixels;
        return row * side->count + e;
}

MFL_DEVICE int64_t walk_at(const struct mfl_cuda_side *side, const struct walk *w)
{
        return side_at(side, w->row, w->at[0], w->at[1], w->at[2]);
}

MFL_DEVICE void give(void *to, int64_t at, bool add, float v, enum mfl_cuda_type type)
{
        mfl_store(to, at, add ? mfl_load(to, at, type) + v : v, type);
}

static int64_t walk_count(int batch, const int *dim)
{
        return (int64_t)batch * dim[0] * dim[1] * dim[2];
}

static bool walk_fits(int groups, int batch, const int *dim)
{
        int64_t n = walk_count(batch, dim);
        return groups >= 1 && groups <= 65535 && n >= 1 && n < (int64_t)1 << 31;
}

/* ---- copies ---- */

MFL_KERNEL(move, struct mfl_cuda_move)
{
        int64_t i = MFL_GLOBAL_INDEX;
        if (i >= (int64_t)a.batch * a.dim[0] * a.dim[1] * a.dim[2] ||
                mfl_cuda_rows(&a.steps, blockIdx.y) == 0)
                return;
        struct walk w = walk_of(i, a.batch, a.dim);
        give(a.to, walk_at(&a.target, &w), a.add, mfl_load(a.from, walk_at(&a.source, &w), a.type), a.type);
}

MFL_HOST cudaError_t mfl_cuda_move(const struct mfl_cuda_move *a, cudaStream_t stream)
{
        if (!walk_fits(a->groups, a->batch, a->dim))
                return cudaErrorInvalidValue;
        return mfl_ops_launch_flat((const void *)(move), walk_count(a->batch, a->dim), a->groups, stream, a);
}

MFL_KERNEL(clear, struct mfl_cuda_clear)
{
        int64_t i = MFL_GLOBAL_INDEX;
        if (i < (int64_t)a.n && mfl_cuda_rows(&a.steps, blockIdx.y) > 0)
                a.to[blockIdx.y * a.stride + (uint64_t)i] = 0;
}

MFL_HOST cudaError_t mfl_cuda_clear(const struct mfl_cuda_clear *a, cudaStream_t stream)
{
        if (a->groups < 1 || a->groups > 65535 || a->n >= (uint64_t)1 << 39)
                return cudaErrorInvalidValue;
        return a->n ? mfl_ops_launch_flat((const void *)(clear), (int64_t)a->n, a->groups, stream, a)
                    : cudaSuccess;
}

/* ---- sums and products ---- */

MFL_KERNEL(join_forward, struct mfl_cuda_join)
{
        int64_t i = MFL_GLOBAL_INDEX;
        if (i >= (int64_t)a.batch * a.dim[0] * a.dim[1] * a.dim[2] ||
                mfl_cuda_rows(&a.steps, blockIdx.y) == 0)
                return;
        struct walk w = walk_of(i, a.batch, a.dim);
        float x = mfl_load(a.in, walk_at(&a.x, &w), a.type);
        float x2 = mfl_load(a.in2, walk_at(&a.x2, &w), a.type);
        float y = a.gate ? (x2 > 0.0f ? x : 0.0f) : a.multiply ? x * x2 : x + x2;
        mfl_store(a.out, walk_at(&a.y, &w), y, a.type);
}

MFL_KERNEL(join_backward, struct mfl_cuda_join)
{
        int64_t i = MFL_GLOBAL_INDEX;
        if (i >= (int64_t)a.batch * a.dim[0] * a.dim[1] * a.dim[2] ||
                mfl_cuda_rows(&a.steps, blockIdx.y) == 0)
                return;
        struct walk w = walk_of(i, a.batch, a.dim);
        float d = mfl_load(a.dout, walk_at(&a.y, &w), a.type);
        if (a.multiply)
                d *= mfl_load(a.in2, walk_at(&a.x2, &w), a.type);
        if (a.gate && !(mfl_load(a.in2, walk_at(&a.x2, &w), a.type) > 0.0f))
                d = 0.0f;
        give(a.din, walk_at(&a.x, &w), a.add, d, a.type);
}

/* dy (* x) of the l-th partner of element `w` of x2. */
MFL_DEVICE float join_met(const struct mfl_cuda_join *a, const struct walk *w, const int *met, int l)
{
        if (a->gate)
                return 0.0f;
        int k = w->at[2] + l % met[2], j = w->at[1] + l / met[2] % met[1], i = w->at[0] + l / met[2] / met[1];
        float d = mfl_load(a->dout, side_at(&a->y, w->row, i, j, k), a->type);
        return a->multiply ? d * mfl_load(a->in, side_at(&a->x, w->row, i, j, k), a->type) : d;
}

/* Whole warps leave, so that a butterfly has all its lanes. */
MFL_DEVICE void join_backward2(const struct mfl_cuda_join *a, int lanes)
{
        int met[3], lane = (int)threadIdx.x % lanes;
        for (int d = 0; d < 3; d++)
                met[d] = a->dim2[d] == 1 ? a->dim[d] : 1;
        int64_t i = MFL_GLOBAL_INDEX / lanes;
        if (i >= (int64_t)a->batch * a->dim2[0] * a->dim2[1] * a->dim2[2] ||
                mfl_cuda_rows(&a->steps, blockIdx.y) == 0)
                return;
        struct walk w = walk_of(i, a->batch, a->dim2);
        int n = met[0] * met[1] * met[2];
        float sum = 0.0f;
        for (int l = lane; l < n; l += lanes)
                sum += join_met(a, &w, met, l);
        for (int s = lanes / 2; s > 0; s /= 2)
                sum += mfl_shfl_xor(sum, s);
        if (lane == 0)
                give(a->din2, walk_at(&a->x2, &w), a->add2, sum, a->type);
}

MFL_KERNEL(join_backward2_few, struct mfl_cuda_join)
{
        join_backward2(&a, 1);
}
MFL_KERNEL(join_backward2_many, struct mfl_cuda_join)
{
        join_backward2(&a, 32);
}

MFL_HOST cudaError_t mfl_cuda_join_forward(const struct mfl_cuda_join *a, cudaStream_t stream)
{
        if (!walk_fits(a->groups, a->batch, a->dim))
                return cudaErrorInvalidValue;
        return mfl_ops_launch_flat(
                (const void *)(join_forward), walk_count(a->batch, a->dim), a->groups, stream, a);
}

MFL_HOST cudaError_t mfl_cuda_join_backward(const struct mfl_cuda_join *a, cudaStream_t stream)
{
        int64_t n = walk_count(a->batch, a->dim), n2 = walk_count(a->batch, a->dim2);
        bool many = n / n2 >= 32;
        if (!walk_fits(a->groups, a->batch, a->dim) || n2 < 1)
                return cudaErrorInvalidValue;
        cudaError_t r = cudaSuccess;
        if (a->din)
                r = mfl_ops_launch_flat((const void *)(join_backward), n, a->groups, stream, a);
        if (r != cudaSuccess || !a->din2)
                return r;
        return many ? mfl_ops_launch_flat((const void *)(join_backward2_many), 32 * n2, a->groups, stream, a)
                    : mfl_ops_launch_flat((const void *)(join_backward2_few), n2, a->groups, stream, a);
}

/* ---- means ---- */

MFL_KERNEL(mean_forward, struct mfl_cuda_mean)
{
        int64_t i = MFL_GLOBAL_INDEX;
        if (i >= (int64_t)a.batch * a.dim[0] * a.dim[1] * a.dim[2] ||
                mfl_cuda_rows(&a.steps, blockIdx.y) == 0)
                return;
        struct walk w = walk_of(i, a.batch, a.dim);
        int64_t from = walk_at(&a.x, &w);
        float sum = 0.0f;
        for (int k = 0; k < a.n; k++)
                sum += mfl_load(a.in, from + (int64_t)k * a.step, a.type);
        mfl_store(a.out, walk_at(&a.y, &w), sum / (float)a.n, a.type);
}

MFL_KERNEL(mean_backward, struct mfl_cuda_mean)
{
        int64_t i = MFL_GLOBAL_INDEX, n = (int64_t)a.batch * a.dim[0] * a.dim[1] * a.dim[2];
        if (i >= n * a.n || mfl_cuda_rows(&a.steps, blockIdx.y) == 0)
                return;
        struct walk w = walk_of(i % n, a.batch, a.dim);
        float d = mfl_load(a.dout, walk_at(&a.y, &w), a.type) / (float)a.n;
        give(a.din, walk_at(&a.x, &w) + i / n * a.step, a.add, d, a.type);
}

static bool mean_fits(const struct mfl_cuda_mean *a)
{
        return walk_fits(a->groups, a->batch, a->dim) && a->n >= 1 &&
               walk_count(a->batch, a->dim) * a->n < (int64_t)1 << 31;
}

MFL_HOST cudaError_t mfl_cuda_mean_forward(const struct mfl_cuda_mean *a, cudaStream_t stream)
{
        if (!mean_fits(a))
                return cudaErrorInvalidValue;
        return mfl_ops_launch_flat(
                (const void *)(mean_forward), walk_count(a->batch, a->dim), a->groups, stream, a);
}

MFL_HOST cudaError_t mfl_cuda_mean_backward(const struct mfl_cuda_mean *a, cudaStream_t stream)
{
        if (!mean_fits(a))
                return cudaErrorInvalidValue;
        return mfl_ops_launch_flat(
                (const void *)(mean_backward), walk_count(a->batch, a->dim) * a->n, a->groups, stream, a);
}

/* ---- the largest of a channel ---- */

/* Its pixel; `from` is the channel's first element. */
MFL_DEVICE int global_best(
        const struct mfl_cuda_pool *a, int64_t from, float *ret_value, enum mfl_cuda_type type)
{
        int best = 0, pixels = a->x.h * a->x.w;
        float value = mfl_load(a->in, from, type);
        for (int p = 1; p < pixels; p++) {
                float v = mfl_load(a->in, from + (int64_t)p * a->x.c, type);
                if (v > value) {
                        value = v;
                        best = p;
                }
        }
        *ret_value = value;
        return best;
}

MFL_KERNEL(global_max, struct mfl_cuda_pool)
{
        int64_t i = MFL_GLOBAL_INDEX, pixels = (int64_t)a.x.h * a.x.w;
        if (i >= (int64_t)a.x.batch * a.x.c || mfl_cuda_rows(&a.steps, blockIdx.y) == 0)
                return;
        int64_t row = (int64_t)blockIdx.y * a.x.batch + i / a.x.c, c = i % a.x.c;
        int64_t first = row * pixels * a.x.c + c;
        float value;
        int best = global_best(&a, first, &value, a.x.type);
        if (!a.din) {
                mfl_store(a.out, row * a.x.c + c, value, a.x.type);
                return;
        }
        float d = mfl_load(a.dout, row * a.x.c + c, a.x.type);
        for (int64_t p = 0; p < pixels; p++)
                give(a.din, first + p * a.x.c, a.add, p == best ? d : 0.0f, a.x.type);
}

static cudaError_t global_max_launch(const struct mfl_cuda_pool *a, cudaStream_t stream)
{
        if (!mfl_ops_fits(&a->x))
                return cudaErrorInvalidValue;
        return mfl_ops_launch_flat(
                (const void *)(global_max), (int64_t)a->x.batch * a->x.c, a->x.groups, stream, a);
}

MFL_HOST cudaError_t mfl_cuda_global_max_forward(const struct mfl_cuda_pool *a, cudaStream_t stream)
{
        struct mfl_cuda_pool b = *a;
        b.din = NULL;
        return global_max_launch(&b, stream);
}

MFL_HOST cudaError_t mfl_cuda_global_max_backward(const struct mfl_cuda_pool *a, cudaStream_t stream)
{
        return a->din ? global_max_launch(a, stream) : cudaErrorInvalidValue;
}

/* ---- activations ---- */

/* Each function has loops of its own, which unroll, so that the numbers stay in registers. */
#define CURVE_EACH(variant, value)                                                                           \
        case MFL_CURVE_##variant:                                                                            \
                MFL_UNROLL for (int k = 0; k < width; k++) v[k] = value;                                     \
                break;

MFL_DEVICE void curve(const struct mfl_cuda_unary *f, float *v, int width)
{
        switch (f->curve) {
#define UNARY(symbol, body, stem, reads, n, ...)                                                             \
        CURVE_EACH(symbol, mfl_unary_##body(v[k] MFL_UNARY_ARGS_##n(f->alpha, f->beta)))
#define UNARY_VARIANT(symbol, variant, body, ...) CURVE_EACH(variant, mfl_unary_##body(v[k]))
#include "common/model/unary.def"
        default:
                break;
        }
}

/* All from the input; where a body needs the output, it is computed again. */
#define GRAD_OF_INPUT(body, args) mfl_unary_##body##_grad(x[k], v[k] args)
#define GRAD_OF_NOTHING GRAD_OF_INPUT
#define GRAD_OF_OUTPUT(body, args) mfl_unary_##body##_grad(mfl_unary_##body(x[k] args), v[k] args)
MFL_DEVICE void curve_grad(const struct mfl_cuda_unary *f, const float *x, float *v, int width)
{
        switch (f->curve) {
#define UNARY(symbol, body, stem, reads, n, ...)                                                             \
        CURVE_EACH(symbol, GRAD_OF_##reads(body, MFL_UNARY_ARGS_##n(f->alpha, f->beta)))
#define UNARY_VARIANT(symbol, variant, body, ...) CURVE_EACH(variant, mfl_unary_##body##_grad(x[k], v[k]))
#include "common/model/unary.def"
        default:
                break;
        }
}

MFL_DEVICE void unary_forward(const struct mfl_cuda_unary *a, enum mfl_cuda_type type, int width)
{
        int64_t i = MFL_GLOBAL_INDEX * width, n = mfl_ops_elements(&a->x);
        if (i >= n || mfl_cuda_rows(&a->steps, blockIdx.y) == 0)
                return;
        i += blockIdx.y * n;
        float v[MFL_PACK_MAX];
        mfl_pack_load(v, a->in, i, type, width);
        curve(a, v, width);
        mfl_pack_store(a->out, i, v, type, width);
}
MFL_OPS_KERNELS(unary_forward, struct mfl_cuda_unary, unary_forward)

MFL_DEVICE void unary_backward(const struct mfl_cuda_unary *a, enum mfl_cuda_type type, int width)
{
        int64_t i = MFL_GLOBAL_INDEX * width, n = mfl_ops_elements(&a->x);
        if (i >= n || mfl_cuda_rows(&a->steps, blockIdx.y) == 0)
                return;
        i += blockIdx.y * n;
        float x[MFL_PACK_MAX], d[MFL_PACK_MAX];
        mfl_pack_load(x, a->in, i, type, width);
        mfl_pack_load(d, a->dout, i, type, width);
        curve_grad(a, x, d, width);
        mfl_pack_give(a->din, a->add, d, i, type, width);
}
MFL_OPS_KERNELS(unary_backward, struct mfl_cuda_unary, unary_backward)

static cudaError_t unary_launch(const struct mfl_cuda_unary *a, bool backward, cudaStream_t stream)
{
        if (!mfl_ops_fits(&a->x))
                return cudaErrorInvalidValue;
        bool wide = mfl_ops_wide(&a->x, mfl_ops_elements(&a->x),
                (uintptr_t)a->in | (uintptr_t)a->out | (uintptr_t)a->dout | (uintptr_t)a->din);
        return mfl_ops_launch_flat(
                backward ? unary_backward_pick(a->x.type, wide) : unary_forward_pick(a->x.type, wide),
                mfl_ops_elements(&a->x) / (wide ? mfl_pack_width(a->x.type) : 1), a->x.groups, stream, a);
}

MFL_HOST cudaError_t mfl_cuda_unary_forward(const struct mfl_cuda_unary *a, cudaStream_t stream)
{
        return unary_launch(a, false, stream);
}

MFL_HOST cudaError_t mfl_cuda_unary_backward(const struct mfl_cuda_unary *a, cudaStream_t stream)
{
        return unary_launch(a, true, stream);
}

/* ---- tensors of params ---- */

MFL_KERNEL(rows_of, struct mfl_cuda_rows_of)
{
        int64_t i = MFL_GLOBAL_INDEX, n = mfl_ops_elements(&a.x), count = n / a.x.batch;
        if (i >= n || mfl_cuda_rows(&a.steps, blockIdx.y) == 0)
                return;
        mfl_store(
                a.out, blockIdx.y * n + i, a.weight[blockIdx.y * a.stride + (uint64_t)(i % count)], a.x.type);
}

MFL_HOST cudaError_t mfl_cuda_rows_of(const struct mfl_cuda_rows_of *a, cudaStream_t stream)
{
        if (!mfl_ops_fits(&a->x))
                return cudaErrorInvalidValue;
        return mfl_ops_launch_flat((const void *)(rows_of), mfl_ops_elements(&a->x), a->x.groups, stream, a);
}
