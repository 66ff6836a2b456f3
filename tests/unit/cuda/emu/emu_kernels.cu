/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that test the emulated device itself (emu_kernels.h). */
#include "tests/unit/cuda/emu/emu_kernels.h"

MFL_KERNEL(add_kernel, struct emu_add)
{
        int64_t i = MFL_GLOBAL_INDEX;
        if (i < a.n)
                a.y[i] = a.x[i] + a.by;
}

MFL_HOST cudaError_t emu_add(const struct emu_add *a, cudaStream_t stream)
{
        return MFL_LAUNCH(add_kernel, mfl_blocks(a->n, 128), 1, 1, 128, 0, stream, a);
}

MFL_KERNEL_BOUNDS(sum_kernel, struct emu_sum, 256, 2)
{
        MFL_SHARED(uint32_t, part, 256);
        for (int r = 0; r < a.rounds; r++) {
                MFL_SYNC();
                part[threadIdx.x] = a.x[MFL_GLOBAL_INDEX];
                for (int step = 128; step; step /= 2) {
                        MFL_SYNC();
                        if ((int)threadIdx.x < step)
                                part[threadIdx.x] += part[threadIdx.x + step];
                }
        }
        if (threadIdx.x == 0)
                a.to[blockIdx.x] = part[0];
}

MFL_HOST cudaError_t emu_sum(const struct emu_sum *a, uint32_t blocks, cudaStream_t stream)
{
        return MFL_LAUNCH(sum_kernel, blocks, 1, 1, 256, 0, stream, a);
}

MFL_DEVICE void try_copies(const struct emu_try *a, uint32_t *row)
{
        uint32_t t = threadIdx.x;
        for (int k = 0; k < 2; k++) {
                mfl_cp_async_16(
                        row + 4 * k + (a->what == EMU_COPY_MISALIGNED), a->in + 8 * t + 4 * k, k ? 12 : 16);
                if (a->what != EMU_COPY_NO_COMMIT)
                        mfl_cp_async_commit();
        }
        if (a->what == EMU_COPY_OVERWRITTEN)
                a->in[8 * t] = 77;
        if (a->what == EMU_COPY_TOO_FEW)
                mfl_cp_async_wait(1);
        else if (a->what != EMU_COPY_NO_WAIT)
                mfl_cp_async_wait(0);
        uint32_t sum = 0;
        for (int i = 0; i < 8; i++)
                sum += row[i];
        a->out[t] = sum;
}

MFL_DEVICE void try_neighbours(const struct emu_try *a, uint32_t *row)
{
        uint32_t t = threadIdx.x, n = blockDim.x;
        row[t] = a->in[8 * t];
        if (a->what == EMU_EXIT_BEFORE_SYNC && t == 3)
                return;
        if (a->what == EMU_TWO_BARRIERS && t % 2)
                MFL_SYNC();
        else if (a->what != EMU_NO_BARRIER && a->what != EMU_NO_BARRIER_LEFT)
                MFL_SYNC();
        a->out[t] = row[a->what == EMU_NO_BARRIER_LEFT ? (t + n - 1) % n : (t + 1) % n];
}

MFL_DEVICE void try_warp(const struct emu_try *a)
{
        uint32_t t = threadIdx.x, v = a->in[8 * t];
        float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        uint32_t x[4] = {0, 0, 0, 0};
        if (a->what == EMU_LANE_MISSING && t == 5)
                return;
        if (a->what == EMU_DIVERGENT_KINDS && t >= 16)
                mfl_mma_tf32(d, x, x);
        else
                v = mfl_shfl_xor_u32(v, 1);
        a->out[t] = v;
}

MFL_KERNEL_BOUNDS(try_kernel, struct emu_try, 512, 1)
{
        MFL_SHARED_DYNAMIC(bytes);
        uint32_t *shared = (uint32_t *)bytes;
        switch (a.what) {
        case EMU_LANE_MISSING:
        case EMU_DIVERGENT_KINDS:
                try_warp(&a);
                break;
        case EMU_MISALIGNED:
                mfl_copy_16(shared + 1, a.in);
                break;
        case EMU_BEYOND_SHARED:
                bytes[8 * sizeof(uint32_t) * blockDim.x] = 1;
                break;
        case EMU_STALE_SHARED:
                a.out[threadIdx.x] = shared[threadIdx.x];
                break;
        case EMU_COPY:
        case EMU_COPY_NO_WAIT:
        case EMU_COPY_NO_COMMIT:
        case EMU_COPY_TOO_FEW:
        case EMU_COPY_OVERWRITTEN:
        case EMU_COPY_MISALIGNED:
                try_copies(&a, shared + 8 * threadIdx.x);
                break;
        default:
                try_neighbours(&a, shared);
        }
}

MFL_HOST cudaError_t emu_try(const struct emu_try *a, uint32_t threads, size_t shared, cudaStream_t stream)
{
        return MFL_LAUNCH(try_kernel, 1, 1, 1, threads, shared, stream, a);
}

/* Fragments as the PTX ISA's formulas have them: group = lane / 4, part = lane % 4. */
MFL_DEVICE void mma_tf32(const struct emu_mma *m, float d[4])
{
        int group = (int)threadIdx.x / 4, part = (int)threadIdx.x % 4;
        uint32_t x[4], y[2];
        for (int i = 0; i < 4; i++) {
                int row = i == 0 || i == 2 ? group : group + 8, col = i < 2 ? part : part + 4;
                x[i] = mfl_to_tf32(m->a[row * 8 + col]);
        }
        for (int i = 0; i < 2; i++)
                y[i] = mfl_to_tf32(m->b[(i == 0 ? part : part + 4) * 8 + group]);
        mfl_mma_tf32(d, x, y);
}

MFL_DEVICE uint32_t half_bits(float v, enum mfl_precision precision)
{
        return precision == MFL_PRECISION_BF16 ? mfl_float_to_bf16(v) : mfl_float_to_f16(v);
}

MFL_DEVICE void mma_half(const struct emu_mma *m, float d[4])
{
        int group = (int)threadIdx.x / 4, part = (int)threadIdx.x % 4;
        uint32_t x[4] = {0, 0, 0, 0}, y[2] = {0, 0};
        for (int i = 0; i < 8; i++) {
                int row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
                int col = part * 2 + (i & 1) + (i < 4 ? 0 : 8);
                x[i / 2] |= half_bits(m->a[row * 16 + col], m->precision) << 16 * (i % 2);
        }
        for (int i = 0; i < 4; i++) {
                int row = part * 2 + (i & 1) + (i < 2 ? 0 : 8);
                y[i / 2] |= half_bits(m->b[row * 8 + group], m->precision) << 16 * (i % 2);
        }
        if (m->precision == MFL_PRECISION_BF16)
                mfl_mma_bf16(d, x, y);
        else
                mfl_mma_f16(d, x, y);
}

MFL_KERNEL(mma_kernel, struct emu_mma)
{
        int group = (int)threadIdx.x / 4, part = (int)threadIdx.x % 4;
        float d[4];
        for (int i = 0; i < 4; i++)
                d[i] = a.c[(i < 2 ? group : group + 8) * 8 + part * 2 + (i & 1)];
        if (a.precision == MFL_PRECISION_TF32)
                mma_tf32(&a, d);
        else
                mma_half(&a, d);
        for (int i = 0; i < 4; i++)
                a.d[(i < 2 ? group : group + 8) * 8 + part * 2 + (i & 1)] = d[i];
}

MFL_HOST cudaError_t emu_mma(const struct emu_mma *a, cudaStream_t stream)
{
        return MFL_LAUNCH(mma_kernel, 1, 1, 1, 32, 0, stream, a);
}

MFL_KERNEL(ldmatrix_kernel, struct emu_ldmatrix)
{
        MFL_SHARED(uint16_t, rows, 4 * 8 * 8);
        uint32_t r[4];
        mfl_copy_16(rows + 8 * threadIdx.x, a.in + 8 * threadIdx.x);
        MFL_SYNC();
        if (a.transposed)
                mfl_ldmatrix_x4_trans(r, rows + 8 * threadIdx.x);
        else
                mfl_ldmatrix_x4(r, rows + 8 * threadIdx.x);
        for (int i = 0; i < 4; i++)
                a.out[4 * threadIdx.x + i] = r[i];
}

MFL_HOST cudaError_t emu_ldmatrix(const struct emu_ldmatrix *a, cudaStream_t stream)
{
        return MFL_LAUNCH(ldmatrix_kernel, 1, 1, 1, 32, 0, stream, a);
}
