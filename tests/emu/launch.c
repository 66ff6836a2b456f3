/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels by their address, the limits of a launch, and the loop over a grid's blocks. */
#include "tests/emu/emu_internal.h"

static struct mfl_emu_kernel *kernels;

void mfl_emu_register(struct mfl_emu_kernel *kernel)
{
        kernel->next = kernels;
        kernels = kernel;
}

struct mfl_emu_kernel *mfl_emu_find_kernel(const void *function)
{
        for (struct mfl_emu_kernel *k = kernels; k; k = k->next)
                if (k->function == function)
                        return k;
        return NULL;
}

struct mfl_emu_kernel *mfl_emu_kernels(void)
{
        return kernels;
}

cudaError_t mfl_emu_launch_check(
        const struct mfl_emu_kernel *kernel, dim3 grid, dim3 block, size_t shared_bytes)
{
        uint64_t threads = (uint64_t)block.x * block.y * block.z;
        if (!grid.x || !grid.y || !grid.z || grid.x > INT32_MAX || grid.y > 65535 || grid.z > 65535)
                return cudaErrorInvalidConfiguration;
        if (!threads || block.x > MFL_EMU_THREADS_MAX || block.y > MFL_EMU_THREADS_MAX || block.z > 64 ||
                threads > MFL_EMU_THREADS_MAX)
                return cudaErrorInvalidConfiguration;
        if (threads > kernel->threads_max)
                return cudaErrorLaunchOutOfResources;
        return shared_bytes > kernel->dynamic_max ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t mfl_emu_launch_run(
        struct mfl_emu_kernel *kernel, dim3 grid, dim3 block, size_t shared_bytes, const void *a)
{
        uint64_t n = (uint64_t)grid.x * grid.y * grid.z;
        struct mfl_emu_permutation order = mfl_emu_permutation(n);
        bool good = true;
        gridDim = grid;
        blockDim = block;
        mfl_emu_shared_begin(kernel, shared_bytes);
        if (mfl_emu_watch)
                mfl_emu_watch->launch(kernel);
        for (uint64_t i = 0; good && i < n; i++) {
                uint64_t b = mfl_emu_permute(&order, i);
                blockIdx.x = (unsigned)(b % grid.x);
                blockIdx.y = (unsigned)(b / grid.x % grid.y);
                blockIdx.z = (unsigned)(b / grid.x / grid.y);
                mfl_emu_shared_block();
                good = mfl_emu_block_run(kernel, a) && mfl_emu_shared_check();
        }
        mfl_emu_shared_end();
        return good ? cudaSuccess : cudaErrorLaunchFailure;
}
