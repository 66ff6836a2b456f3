/* SPDX-License-Identifier: Apache-2.0 */
/* Bias and activation in place, and sums over rows: the gradients of biases. */
#include "kernels/cuda/ops/ops_columns.h"

/* ---- y = act(x + bias) ---- */

MFL_DEVICE void bias_act(const struct mfl_cuda_bias *a, enum mfl_cuda_type type, int width)
{
        uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, units = (uint32_t)(a->x.c / width);
        int64_t n = mfl_ops_elements(&a->x);
        if ((int64_t)i * width >= n || mfl_cuda_rows(&a->steps, blockIdx.y) == 0)
                return;
        int64_t at = blockIdx.y * n + (int64_t)i * width;
        float v[MFL_PACK_MAX], bias[MFL_PACK_MAX];
        mfl_pack_load(v, a->values, at, type, width);
        if (a->bias) {
                mfl_floats_load(bias, a->bias + blockIdx.y * a->stride + i % units * width, width);
                MFL_UNROLL
                for (int k = 0; k < width; k++)
                        v[k] += bias[k];
        }
        mfl_pack_act(a->act, v, width);
        mfl_pack_store(a->values, at, v, type, width);
}
MFL_OPS_KERNELS(bias_act, struct mfl_cuda_bias, bias_act)

MFL_HOST cudaError_t mfl_cuda_bias_act(const struct mfl_cuda_bias *a, cudaStream_t stream)
{
        if (!mfl_ops_fits(&a->x))
                return cudaErrorInvalidValue;
        bool wide = mfl_ops_wide(&a->x, a->x.c, (uintptr_t)a->values);
        return mfl_ops_launch_flat(bias_act_pick(a->x.type, wide),
                mfl_ops_elements(&a->x) / (wide ? mfl_pack_width(a->x.type) : 1), a->x.groups, stream, a);
}

/* ---- dx = act_grad(act_y, dx (+ old)) ---- */

MFL_DEVICE void bias_act_grad(const struct mfl_cuda_bias *a, enum mfl_cuda_type type, int width)
{
        int64_t i = MFL_GLOBAL_INDEX * width, n = mfl_ops_elements(&a->x);
        if (i >= n || mfl_cuda_rows(&a->steps, blockIdx.y) == 0)
                return;
        i += blockIdx.y * n;
        float v[MFL_PACK_MAX], other[MFL_PACK_MAX];
        mfl_pack_load(v, a->values, i, type, width);
        if (a->old) {
                mfl_pack_load(other, a->old, i, type, width);
                MFL_UNROLL
                for (int k = 0; k < width; k++)
                        v[k] = other[k] + v[k];
        }
        if (a->act != MFL_CUDA_ACT_NONE) {
                mfl_pack_load(other, a->act_y, i, type, width);
                mfl_pack_act_grad(a->act, other, v, width);
        }
        mfl_pack_store(a->values, i, v, type, width);
}
MFL_OPS_KERNELS(bias_act_grad, struct mfl_cuda_bias, bias_act_grad)

MFL_HOST cudaError_t mfl_cuda_bias_act_grad(const struct mfl_cuda_bias *a, cudaStream_t stream)
{
        if (!mfl_ops_fits(&a->x))
                return cudaErrorInvalidValue;
        if (!a->old && a->act == MFL_CUDA_ACT_NONE)
                return cudaSuccess;
        bool wide = mfl_ops_wide(&a->x, mfl_ops_elements(&a->x),
                (uintptr_t)a->values | (uintptr_t)a->old | (uintptr_t)a->act_y);
        return mfl_ops_launch_flat(bias_act_grad_pick(a->x.type, wide),
                mfl_ops_elements(&a->x) / (wide ? mfl_pack_width(a->x.type) : 1), a->x.groups, stream, a);
}

/* ---- db = sums of dy over rows and pixels, in the order of ops_columns.h ---- */

struct bias_grad {
        struct mfl_cuda_bias op;
        struct mfl_columns plan;
};

MFL_DEVICE void bias_grad(const struct bias_grad *b, enum mfl_cuda_type type, int width)
{
        MFL_SHARED(float, part, MFL_PACK_MAX *MFL_OPS_THREADS);
        const struct mfl_columns *plan = &b->plan;
        int64_t g = blockIdx.y, c = b->op.x.c;
        if (mfl_cuda_rows(&b->op.steps, blockIdx.y) == 0)
                return;
        struct mfl_columns_place at = mfl_columns_place(plan, plan->rows);
        float sum[MFL_PACK_MAX];
        for (int k = 0; k < width; k++)
                sum[k] = 0.0f;
        if (at.lane >= 0) {
                int64_t r = at.first + at.lane, step = plan->lanes * c;
                int64_t from = (g * plan->rows + r) * c + at.unit * width;
                for (; r + (MFL_ROWS - 1) * plan->lanes < at.end;
                        r += MFL_ROWS * plan->lanes, from += MFL_ROWS * step)
                        mfl_pack_sum(sum, b->op.values, from, step, MFL_ROWS, type, width);
                for (; r < at.end; r += plan->lanes, from += step)
                        mfl_pack_sum(sum, b->op.values, from, step, 1, type, width);
        }
        mfl_columns_tree(part, sum, width, at.slot, at.lane, plan->tile, plan->lanes);
        if (at.lane != 0)
                return;
        float *to = plan->chunks == 1 ? b->op.db + blockIdx.y * b->op.stride
                                      : (float *)b->op.workspace + (g * plan->chunks + at.chunk) * c;
        for (int k = 0; k < width; k++)
                to[at.unit * width + k] = part[k * MFL_OPS_THREADS + at.slot];
}
MFL_OPS_KERNELS(bias_grad, struct bias_grad, bias_grad)

static struct mfl_columns bias_plan(const struct mfl_cuda_tensor *x)
{
        return mfl_columns_of(x->batch * mfl_ops_pixels(x), x->c, x->type);
}

MFL_HOST uint64_t mfl_cuda_bias_workspace(const struct mfl_cuda_tensor *x)
{
        struct mfl_columns plan = bias_plan(x);
        return plan.chunks == 1 ? 0 : (uint64_t)x->groups * (uint64_t)plan.chunks * (uint64_t)x->c * 4;
}

MFL_HOST cudaError_t mfl_cuda_bias_grad(const struct mfl_cuda_bias *a, cudaStream_t stream)
{
        struct bias_grad b;
        b.op = *a;
        b.plan = bias_plan(&a->x);
        bool wide = b.plan.width > 1;
        if (!mfl_ops_fits(&a->x))
                return cudaErrorInvalidValue;
        if (wide && (uintptr_t)a->values % 16)
                return cudaErrorMisalignedAddress;
        cudaError_t r = mfl_launch(bias_grad_pick(a->x.type, wide), (uint32_t)(b.plan.tiles * b.plan.chunks),
                (uint32_t)a->x.groups, 1, MFL_OPS_THREADS, 0, stream, &b);
        if (r != cudaSuccess || b.plan.chunks == 1)
                return r;
        struct mfl_sum_chunks sum = {(const float *)a->workspace, {a->db, NULL}, NULL, a->stride, a->x.groups,
                b.plan.chunks, 1, a->x.c, a->steps};
        return mfl_cuda_sum_chunks(&sum, stream);
}

/* ---- the second level ---- */

MFL_KERNEL(sum_chunks, struct mfl_sum_chunks)
{
        MFL_SHARED(float, part, MFL_OPS_THREADS);
        if (mfl_cuda_rows(&a.steps, blockIdx.y) == 0)
                return;
        int n = a.quantities * a.c, slot = (int)threadIdx.x % MFL_CHUNK_TILE;
        int lane = (int)threadIdx.x / MFL_CHUNK_TILE, column = (int)blockIdx.x * MFL_CHUNK_TILE + slot;
        float sum = 0.0f;
        if (column < n)
                for (int i = lane; i < a.chunks; i += MFL_CHUNK_LANES)
                        sum += a.from[((int64_t)blockIdx.y * a.chunks + i) * n + column];
        mfl_columns_tree(part, &sum, 1, slot, lane, MFL_CHUNK_TILE, MFL_CHUNK_LANES);
        if (lane != 0 || column >= n)
                return;
        int q = column / a.c;
        if (a.to[q])
                a.to[q][blockIdx.y * a.stride + column % a.c] = part[slot];
        if (a.copy)
                a.copy[(int64_t)blockIdx.y * n + column] = part[slot];
}

MFL_HOST cudaError_t mfl_cuda_sum_chunks(const struct mfl_sum_chunks *a, cudaStream_t stream)
{
        return MFL_LAUNCH(sum_chunks, mfl_blocks(a->quantities * a->c, MFL_CHUNK_TILE), a->groups, 1,
                MFL_OPS_THREADS, 0, stream, a);
}
