/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated CUDA runtime. */
#include "emu_internal.h"

cudaError_t cudaLaunchKernel(
        const void *func, dim3 grid, dim3 block, void **args, size_t shared_bytes, cudaStream_t stream)
{
        struct mfl_emu_kernel *kernel = mfl_emu_find_kernel(func);
        if (!kernel)
                return cudaErrorInvalidDeviceFunction;
        cudaError_t e = mfl_emu_launch_check(kernel, grid, block, shared_bytes);
        return e ? e : mfl_emu_launch_run(kernel, grid, block, shared_bytes, args[0]);
}
cudaError_t cudaFuncSetAttribute(const void *func, enum cudaFuncAttribute attr, int value)
{
        struct mfl_emu_kernel *kernel = mfl_emu_find_kernel(func);
        if (!kernel)
                return cudaErrorInvalidDeviceFunction;
        if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize)
                return cudaSuccess;
        if (value < 0 || value > MFL_EMU_SHARED_MAX)
                return cudaErrorInvalidValue;
        kernel->dynamic_max = (size_t)value;
        return cudaSuccess;
}
cudaError_t cudaMalloc(void **p, size_t bytes)
{
        *p = NULL;
        if (posix_memalign(p, 256, bytes ? bytes : 1))
                return cudaErrorMemoryAllocation;
        memset(*p, 0xff, bytes);
        return cudaSuccess;
}
cudaError_t cudaFree(void *p)
{
        free(p);
        return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
        memcpy(to, from, bytes);
        return cudaSuccess;
}
cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
        memset(to, value, bytes);
        return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void)
{
        return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
        return cudaSuccess;
}
cudaError_t cudaGetLastError(void)
{
        return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t e)
{
        return e ? "error" : "no error";
}
