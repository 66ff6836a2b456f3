/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels around library calls: copying rows between layouts and types, random numbers, comparison. */
#include "kernels/cuda/conv/conv_plan_kernels.h"

#define THREADS 256

MFL_KERNEL(copy_rows_kernel, struct mfl_cuda_copy_rows)
{
        int64_t e = MFL_GLOBAL_INDEX;
        if (e < a.groups * a.rows * a.columns) {
                int64_t j = e % a.columns, i = e / a.columns % a.rows, g = e / a.columns / a.rows;
                mfl_store(a.to, g * a.to_group + i * a.to_row + j,
                        mfl_load(a.from, g * a.from_group + i * a.from_row + j, a.from_type), a.to_type);
        }
}

/* The same for one type; all strides, and columns, in units of 16 bytes. */
MFL_KERNEL(copy_rows_16_kernel, struct mfl_cuda_copy_rows)
{
        int64_t e = MFL_GLOBAL_INDEX;
        if (e < a.groups * a.rows * a.columns) {
                int64_t j = e % a.columns, i = e / a.columns % a.rows, g = e / a.columns / a.rows;
                mfl_copy_16((char *)a.to + (g * a.to_group + i * a.to_row + j) * 16,
                        (const char *)a.from + (g * a.from_group + i * a.from_row + j) * 16);
        }
}

MFL_HOST cudaError_t mfl_cuda_copy_rows(const struct mfl_cuda_copy_rows *a, cudaStream_t stream)
{
        struct mfl_cuda_copy_rows b = *a;
        int64_t unit = 16 / mfl_cuda_type_bytes(a->from_type);
        int64_t n = a->groups * a->rows * a->columns;
        if (n == 0)
                return cudaSuccess;
        if (a->from_type != a->to_type ||
                (a->columns | a->from_group | a->from_row | a->to_group | a->to_row) % unit != 0 ||
                ((uintptr_t)a->from | (uintptr_t)a->to) % 16 != 0)
                return MFL_LAUNCH(copy_rows_kernel, mfl_blocks(n, THREADS), 1, 1, THREADS, 0, stream, a);
        b.columns /= unit;
        b.from_group /= unit;
        b.from_row /= unit;
        b.to_group /= unit;
        b.to_row /= unit;
        return MFL_LAUNCH(copy_rows_16_kernel, mfl_blocks(n / unit, THREADS), 1, 1, THREADS, 0, stream, &b);
}

/* The finalizer of MurmurHash3 (Appleby): every bit of i changes half of the result's. */
MFL_DEVICE uint32_t mix(uint32_t h)
{
        h ^= h >> 16;
        h *= 0x85ebca6bu;
        h ^= h >> 13;
        h *= 0xc2b2ae35u;
        return h ^ h >> 16;
}

MFL_KERNEL(fill_kernel, struct mfl_cuda_fill)
{
        int64_t i = MFL_GLOBAL_INDEX;
        if (i < a.n) {
                uint32_t u = mix((uint32_t)i + mix((uint32_t)(i >> 32) + a.seed));
                mfl_store(a.to, i, (float)((int32_t)(u >> 8) - 0x800000) * 0x1p-23f * a.scale, a.type);
        }
}

MFL_HOST cudaError_t mfl_cuda_fill(const struct mfl_cuda_fill *a, cudaStream_t stream)
{
        if (a->n == 0)
                return cudaSuccess;
        return MFL_LAUNCH(fill_kernel, mfl_blocks(a->n, THREADS), 1, 1, THREADS, 0, stream, a);
}

MFL_KERNEL(compare_kernel, struct mfl_cuda_compare)
{
        MFL_SHARED(struct mfl_cuda_compare_part, sums, THREADS);
        struct mfl_cuda_compare_part sum = {0.0, 0.0, 0.0f, 0};
        int64_t step = (int64_t)gridDim.x * THREADS;
        for (int64_t i = MFL_GLOBAL_INDEX; i < a.n; i += step) {
                float x = mfl_load(a.a, i, a.type), d = mfl_load(a.b, i, a.type) - x;
                if (!(fabsf(d) < INFINITY)) {
                        sum.n_bad++;
                        continue;
                }
                sum.error2 += (double)d * (double)d;
                sum.reference2 += (double)x * (double)x;
                sum.error_max = fmaxf(sum.error_max, fabsf(d));
        }
        sums[threadIdx.x] = sum;
        MFL_SYNC();
        for (unsigned half = THREADS / 2; half > 0; half /= 2) {
                if (threadIdx.x < half) {
                        struct mfl_cuda_compare_part *to = &sums[threadIdx.x], *other = to + half;
                        to->error2 += other->error2;
                        to->reference2 += other->reference2;
                        to->error_max = fmaxf(to->error_max, other->error_max);
                        to->n_bad += other->n_bad;
                }
                MFL_SYNC();
        }
        if (threadIdx.x == 0)
                a.parts[blockIdx.x] = sums[0];
}

MFL_HOST cudaError_t mfl_cuda_compare(const struct mfl_cuda_compare *a, cudaStream_t stream)
{
        return MFL_LAUNCH(compare_kernel, mfl_cuda_compare_parts(a->n), 1, 1, THREADS, 0, stream, a);
}
