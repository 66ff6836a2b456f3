/* SPDX-License-Identifier: Apache-2.0 */
/* The host side of attention by tiles (attention.h): the choice of the kernel, the number of warps, and the
 * launch. */
#include "kernels/cuda/attention/attention.h"

static bool kernel_of(const struct mfl_cuda_flash *op, enum mfl_flash_pass pass, struct mfl_flash_kernel *ret)
{
        switch (op->precision) {
        case MFL_PRECISION_FP32:
                return mfl_cuda_flash_kernel_fp32(pass, op->size, ret);
        case MFL_PRECISION_TF32:
                return mfl_cuda_flash_kernel_tf32(pass, op->size, ret);
        case MFL_PRECISION_BF16:
                return mfl_cuda_flash_kernel_bf16(pass, op->size, ret);
        default:
                return mfl_cuda_flash_kernel_f16(pass, op->size, ret);
        }
}

/* A head's rows and columns begin at multiples of its size in bytes. */
static void set_copies(struct mfl_flash_args *a, const struct mfl_cuda_flash *op)
{
        int bytes = op->size * mfl_cuda_type_bytes(mfl_cuda_type_of(op->precision));
        uintptr_t at = (uintptr_t)op->in | (uintptr_t)op->out | (uintptr_t)op->dout | (uintptr_t)op->din;
        a->copy = bytes % 16 == 0 && at % 16 == 0 ? 16 : bytes % 4 == 0 && at % 4 == 0 ? 4 : 2;
        a->pairs = op->size % 2 == 0 && at % 8 == 0;
}

static cudaError_t launch(const struct mfl_cuda_flash *op, enum mfl_flash_pass pass, cudaStream_t stream)
{
        struct mfl_flash_args a = {0};
        struct mfl_flash_kernel k;
        int64_t pairs = (int64_t)op->batch * op->heads;
        if (op->groups < 1 || op->groups > 65535 || op->positions < 1 || op->size < 1 || pairs < 1 ||
                op->positions >= 1 << 24 || !kernel_of(op, pass, &k))
                return cudaErrorInvalidValue;
        /* As few blocks as the warps allow, and no more warps than those blocks need. */
        int sixteens = (op->positions + 15) / 16, blocks = (sixteens + k.warps_max - 1) / k.warps_max;
        int warps = (sixteens + blocks - 1) / blocks, shared = k.shared_of_block + warps * k.shared_of_warp;
        if (pairs * blocks >= (int64_t)1 << 31)
                return cudaErrorInvalidValue;
        a.op = *op;
        a.blocks = blocks;
        a.depth = (op->size + 15) / 16 * 16;
        a.scale = 1.0f / sqrtf((float)op->size);
        a.exponent = (float)(1.44269504088896340736 / sqrt((double)op->size));
        set_copies(&a, op);
        if (shared > 48 << 10) { /* the limit of a launch unless the kernel was told */
                cudaError_t e = cudaFuncSetAttribute(k.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                        k.shared_of_block + k.warps_max * k.shared_of_warp);
                if (e != cudaSuccess)
                        return e;
        }
        return MFL_LAUNCH(k.function, pairs * blocks, op->groups, 1, warps * 32, shared, stream, &a);
}

MFL_HOST cudaError_t mfl_cuda_flash_forward(const struct mfl_cuda_flash *a, cudaStream_t stream)
{
        return launch(a, MFL_FLASH_FORWARD, stream);
}

/* The keys' pass reads the means that the queries' pass leaves. */
MFL_HOST cudaError_t mfl_cuda_flash_backward(const struct mfl_cuda_flash *a, cudaStream_t stream)
{
        cudaError_t e = launch(a, MFL_FLASH_QUERIES, stream);
        return e == cudaSuccess ? launch(a, MFL_FLASH_KEYS, stream) : e;
}
