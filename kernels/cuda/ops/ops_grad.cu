/* SPDX-License-Identifier: Apache-2.0 */
/* A team's gradient on the device. A block of threads has one part, of at most 4096 elements, or one block of the gradient. */
#include "common/base/fixed.h"
#include "kernels/cuda/ops/ops_common.h"
#include "kernels/cuda/ops/ops_grad.h"
#include "kernels/grad.h"

#define PART ((int)MFL_GRAD_BLOCK)

/* The largest of the threads' numbers, for thread 0. */
MFL_DEVICE float largest_of(float *part, float v)
{
        part[threadIdx.x] = v;
        MFL_SYNC();
        for (uint32_t s = MFL_OPS_THREADS / 2; s > 0; s /= 2) {
                if (threadIdx.x < s && part[threadIdx.x + s] > part[threadIdx.x])
                        part[threadIdx.x] = part[threadIdx.x + s];
                MFL_SYNC();
        }
        return part[0];
}

MFL_KERNEL(grad_round, struct mfl_cuda_grad_round)
{
        MFL_SHARED(float, of_thread, MFL_OPS_THREADS);
        struct mfl_cuda_grad_part part = a.table.part[blockIdx.x];
        double factor = a.table.factor[part.tensor];
        float largest = 0.0f;
        for (uint32_t i = threadIdx.x; i < part.count; i += MFL_OPS_THREADS) {
                uint64_t at = part.at + i;
                float g = a.from[a.place[at]] * a.times, size = fabsf(g);
                largest = size > largest ? size : size <= 3.402823466e38f ? largest : INFINITY;
                uint64_t before = a.first ? 0 : (uint64_t)a.sum[at];
                a.sum[at] = (int64_t)(before + mfl_fixed_round((double)g * factor));
        }
        largest = largest_of(of_thread, largest);
        if (threadIdx.x == 0)
                a.scratch[blockIdx.x] = largest;
}

MFL_KERNEL(grad_largest, struct mfl_cuda_grad_round)
{
        MFL_SHARED(float, of_thread, MFL_OPS_THREADS);
        uint32_t t = blockIdx.x;
        float largest = a.largest[t];
        for (uint32_t i = a.table.of_tensor[t] + threadIdx.x; i < a.table.of_tensor[t + 1];
                i += MFL_OPS_THREADS)
                largest = a.scratch[i] > largest ? a.scratch[i] : largest;
        largest = largest_of(of_thread, largest);
        if (threadIdx.x == 0)
                a.largest[t] = largest;
}

MFL_HOST cudaError_t mfl_cuda_grad_round(const struct mfl_cuda_grad_round *a, cudaStream_t stream)
{
        if (!a->table.n_parts)
                return cudaSuccess;
        cudaError_t r = MFL_LAUNCH(grad_round, a->table.n_parts, 1, 1, MFL_OPS_THREADS, 0, stream, a);
        return r == cudaSuccess
                       ? MFL_LAUNCH(grad_largest, a->table.n_tensors, 1, 1, MFL_OPS_THREADS, 0, stream, a)
                       : r;
}

/* The step's element, with the proximal term that is part of the gradient. */
MFL_DEVICE float element(const struct mfl_cuda_grad_step *a, double factor, uint64_t at)
{
        uint64_t own = at - a->first;
        float g = (float)((double)a->sum[own] * (1.0 / factor)); /* exact: a power of two */
        return a->prox_mu != 0.0f ? g + a->prox_mu * (a->params[at] - a->start[own]) : g;
}

MFL_KERNEL(grad_squares, struct mfl_cuda_grad_step)
{
        MFL_SHARED(double, square, PART);
        uint64_t block = a.first / PART + blockIdx.x, begin = block * PART;
        for (int i = (int)threadIdx.x; i < PART; i += MFL_OPS_THREADS)
                square[i] = 0.0;
        MFL_SYNC();
        for (uint32_t p = a.table.of_block[block]; p < a.table.of_block[block + 1]; p++) {
                struct mfl_cuda_grad_part part = a.table.part[p];
                double factor = a.table.factor[part.tensor];
                for (uint32_t i = threadIdx.x; i < part.count; i += MFL_OPS_THREADS) {
                        double g = (double)element(&a, factor, part.at + i);
                        square[part.at + i - begin] = g * g;
                }
        }
        MFL_SYNC();
        if (threadIdx.x > 0)
                return;
        double sum = 0.0;
        for (int i = 0; i < PART; i++)
                sum += square[i];
        a.squares[blockIdx.x] = sum;
}

MFL_HOST cudaError_t mfl_cuda_grad_squares(const struct mfl_cuda_grad_step *a, cudaStream_t stream)
{
        return a->n ? MFL_LAUNCH(grad_squares, mfl_blocks((int64_t)a->n, PART), 1, 1, MFL_OPS_THREADS, 0,
                              stream, a)
                    : cudaSuccess;
}

MFL_KERNEL(grad_apply, struct mfl_cuda_grad_step)
{
        uint64_t block = a.first / PART + blockIdx.x;
        for (uint32_t p = a.table.of_block[block]; p < a.table.of_block[block + 1]; p++) {
                struct mfl_cuda_grad_part part = a.table.part[p];
                double factor = a.table.factor[part.tensor];
                for (uint32_t i = threadIdx.x; i < part.count; i += MFL_OPS_THREADS) {
                        uint64_t at = part.at + i, own = at - a.first;
                        float g = element(&a, factor, at);
                        mfl_optimizer_update(&a.params[at], a.momentum ? &a.momentum[own] : NULL,
                                a.second ? &a.second[own] : NULL, a.start ? &a.start[own] : NULL, &a.opt,
                                &a.rate, a.factor == 1.0f ? g : g * a.factor);
                }
        }
}

MFL_HOST cudaError_t mfl_cuda_grad_apply(const struct mfl_cuda_grad_step *a, cudaStream_t stream)
{
        return a->n ? MFL_LAUNCH(grad_apply, mfl_blocks((int64_t)a->n, PART), 1, 1, MFL_OPS_THREADS, 0,
                              stream, a)
                    : cudaSuccess;
}

MFL_KERNEL(grad_running, struct mfl_cuda_grad_running)
{
        int64_t k = MFL_GLOBAL_INDEX;
        if (k >= (int64_t)a.n)
                return;
        if (!a.params) {
                a.to[k] = a.from[a.place[a.at[k]]];
                return;
        }
        mfl_running_update(1, a.momentum[k], &a.to[k], &a.params[a.at[k]]);
}

MFL_HOST cudaError_t mfl_cuda_grad_running(const struct mfl_cuda_grad_running *a, cudaStream_t stream)
{
        return a->n ? MFL_LAUNCH(grad_running, mfl_blocks(a->n, 256), 1, 1, 256, 0, stream, a) : cudaSuccess;
}
