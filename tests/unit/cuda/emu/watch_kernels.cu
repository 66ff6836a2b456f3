/* SPDX-License-Identifier: Apache-2.0 */
/* See watch_kernels.h. */
#include "tests/unit/cuda/emu/watch_kernels.h"

#define THREADS 64

MFL_DEVICE void race_shared(const struct race *a, uint32_t *row)
{
        uint32_t t = threadIdx.x, lane = t % 32;
        enum race_case what = a->what;
        row[t] = t;
        if (what == RACE_SYNC_WARP_ONLY || what == RACE_NONE)
                MFL_SYNC_WARP();
        if (what == RACE_SHUFFLE_ONLY)
                a->out[THREADS + t] = mfl_shfl_xor_u32(t, 1);
        if (what == RACE_NONE) {
                a->out[THREADS + t] = row[t - lane + (lane + 1) % 32];
                MFL_SYNC();
        }
        if (what == RACE_NO_SYNC_WARP || what == RACE_SHUFFLE_ONLY)
                a->out[t] = row[t - lane + (lane + 1) % 32];
        else
                a->out[t] = row[(t + 32) % THREADS];
        if (what == RACE_NONE)
                MFL_SYNC();
        if (what == RACE_NONE) {
                row[(t + 1) % THREADS] = t;
                MFL_SYNC();
                row[t] = 1;
        }
}

MFL_DEVICE void race_after_read(const struct race *a, uint32_t *row)
{
        uint32_t t = threadIdx.x;
        for (uint32_t round = 0; round < 2; round++) {
                row[t] = t + round;
                MFL_SYNC();
                a->out[t] = row[(t + 32) % THREADS];
        }
}

MFL_DEVICE void race_global(const struct race *a)
{
        uint32_t t = threadIdx.x, b = blockIdx.x;
        uint8_t *bytes = (uint8_t *)a->out;
        switch (a->what) {
        case RACE_BLOCKS:
                a->out[t] = b;
                break;
        case RACE_BLOCKS_READ:
                if (b == 0)
                        a->out[t] = t;
                else
                        a->out[THREADS + t] = a->out[t];
                break;
        case RACE_ATOMIC_PLAIN:
                mfl_atomic_add_u64(a->sum, 1);
                if (t == 0)
                        a->out[b] = (uint32_t)*a->sum;
                break;
        case RACE_ATOMICS_FINE:
                mfl_atomic_add_u64(a->sum, 1);
                break;
        case RACE_BYTE:
                bytes[(b * THREADS + t) / 2] = 1;
                break;
        case RACE_BYTES_FINE:
                bytes[b * THREADS + t] = (uint8_t)t;
                break;
        default:
                break;
        }
}

MFL_DEVICE void race_copy(const struct race *a, uint32_t *row)
{
        uint32_t t = threadIdx.x;
        mfl_cp_async_16(row + 4 * t, a->in + 4 * t, 16);
        mfl_cp_async_commit();
        mfl_cp_async_wait(0);
        a->out[t] = row[4 * ((t + 1) % THREADS)];
}

MFL_DEVICE void race_ldmatrix(const struct race *a, uint32_t *row)
{
        uint32_t t = threadIdx.x, r[4];
        mfl_copy_16(row + 4 * t, a->in + 4 * t);
        mfl_ldmatrix_x4(r, row + 4 * (t ^ 1u));
        a->out[t] = r[0];
}

MFL_KERNEL_BOUNDS(race_kernel, struct race, THREADS, 1)
{
        MFL_SHARED(uint32_t, row, 4 * THREADS);
        switch (a.what) {
        case RACE_WRITE_AFTER_READ:
                race_after_read(&a, row);
                break;
        case RACE_SAME_VALUE:
                row[0] = 7;
                break;
        case RACE_COPY:
                race_copy(&a, row);
                break;
        case RACE_LDMATRIX:
                race_ldmatrix(&a, row);
                break;
        case RACE_NONE:
        case RACE_NO_SYNC:
        case RACE_SYNC_WARP_ONLY:
        case RACE_NO_SYNC_WARP:
        case RACE_SHUFFLE_ONLY:
                race_shared(&a, row);
                break;
        default:
                race_global(&a);
        }
}

MFL_HOST cudaError_t race_run(const struct race *a, uint32_t blocks, cudaStream_t stream)
{
        return MFL_LAUNCH(race_kernel, blocks, 1, 1, THREADS, 0, stream, a);
}

MFL_KERNEL(request_words_kernel, struct request)
{
        MFL_SHARED(uint32_t, words, 32 * 33);
        uint32_t t = threadIdx.x;
        a.out[t] = words[t * a.shared_stride] + a.in[a.global_first + t * a.global_stride];
}

MFL_HOST cudaError_t request_words(const struct request *a, cudaStream_t stream)
{
        return MFL_LAUNCH(request_words_kernel, 1, 1, 1, 32, 0, stream, a);
}

MFL_KERNEL(request_vectors_kernel, struct request)
{
        MFL_SHARED(uint32_t, words, 32 * 40);
        uint32_t t = threadIdx.x;
        mfl_copy_16(words + t * a.shared_stride, a.in + 4 * t);
}

MFL_HOST cudaError_t request_vectors(const struct request *a, cudaStream_t stream)
{
        return MFL_LAUNCH(request_vectors_kernel, 1, 1, 1, 32, 0, stream, a);
}
