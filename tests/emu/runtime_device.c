/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated runtime's devices: their properties, and the limits of kernels. */
#include "tests/emu/runtime.h"

#include <stdio.h>

static struct {
        int sm, n, first;
        uint64_t memory;
} settings;
static _Thread_local int current;

static void read_settings(void)
{
        const char *sm = getenv("MFL_EMU_SM"), *n = getenv("MFL_EMU_DEVICES"),
                   *memory = getenv("MFL_EMU_MEMORY"), *first = getenv("MFL_EMU_FIRST");
        if (settings.sm)
                return;
        settings.n = n ? atoi(n) : 1;
        settings.first = first ? atoi(first) : 0;
        settings.memory = memory ? strtoull(memory, NULL, 0) : (uint64_t)8 << 30;
        settings.sm = sm ? atoi(sm) : 90;
}

void mfl_emu_set_memory(uint64_t bytes)
{
        read_settings();
        settings.memory = bytes;
}

void mfl_emu_set_devices(int n)
{
        read_settings();
        settings.n = n;
}

void mfl_emu_set_sm(int sm)
{
        read_settings();
        settings.sm = sm;
}

int mfl_emu_sm(void)
{
        read_settings();
        return settings.sm;
}

uint64_t mfl_emu_memory_total(void)
{
        read_settings();
        return settings.memory;
}

int mfl_emu_device(void)
{
        return current;
}

/* CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". */
struct limits {
        int sm, processors, shared_block, shared_processor, threads_processor, blocks_processor, l2;
};
static const struct limits *limits(void)
{
        static const struct limits all[] = {
                {80, 108, 163 << 10, 164 << 10, 2048, 32, 40 << 20},
                {86, 84, 99 << 10, 100 << 10, 1536, 16, 6 << 20},
                {89, 128, 99 << 10, 100 << 10, 1536, 24, 72 << 20},
                {90, 132, 227 << 10, 228 << 10, 2048, 32, 50 << 20},
        };
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
                if (all[i].sm == mfl_emu_sm())
                        return &all[i];
        return &all[3];
}

size_t mfl_emu_shared_max(void)
{
        return (size_t)limits()->shared_block;
}

static bool bad_device(int device)
{
        read_settings();
        return device < 0 || device >= settings.n;
}

cudaError_t cudaGetDeviceCount(int *count)
{
        cudaError_t status = mfl_emu_enter("cudaGetDeviceCount");
        read_settings();
        if (!status) {
                *count = settings.n;
                status = settings.n ? cudaSuccess : cudaErrorNoDevice;
        }
        return mfl_emu_leave(status);
}

cudaError_t cudaSetDevice(int device)
{
        cudaError_t status = mfl_emu_enter("cudaSetDevice");
        if (!status && bad_device(device))
                status = cudaErrorInvalidDevice;
        if (!status)
                current = device;
        return mfl_emu_leave(status);
}

cudaError_t cudaGetDevice(int *device)
{
        cudaError_t status = mfl_emu_enter("cudaGetDevice");
        if (!status)
                *device = current;
        return mfl_emu_leave(status);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
        cudaError_t status = mfl_emu_enter("cudaDeviceGetAttribute");
        const struct limits *l = limits();
        const struct {
                enum cudaDeviceAttr attr;
                int value;
        } table[] = {
                {cudaDevAttrComputeCapabilityMajor, l->sm / 10},
                {cudaDevAttrComputeCapabilityMinor, l->sm % 10},
                {cudaDevAttrMultiProcessorCount, l->processors},
                {cudaDevAttrMaxSharedMemoryPerBlock, MFL_EMU_SHARED_DEFAULT},
                {cudaDevAttrMaxSharedMemoryPerBlockOptin, l->shared_block},
                {cudaDevAttrMaxSharedMemoryPerMultiprocessor, l->shared_processor},
                {cudaDevAttrMaxThreadsPerBlock, MFL_EMU_THREADS_MAX},
                {cudaDevAttrMaxThreadsPerMultiProcessor, l->threads_processor},
                {cudaDevAttrMaxBlocksPerMultiprocessor, l->blocks_processor},
                {cudaDevAttrMaxRegistersPerBlock, 65536},
                {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
                {cudaDevAttrWarpSize, MFL_EMU_WARP},
                {cudaDevAttrL2CacheSize, l->l2},
                {cudaDevAttrConcurrentKernels, 1},
                {cudaDevAttrAsyncEngineCount, 3},
                {cudaDevAttrUnifiedAddressing, 1},
                {cudaDevAttrStreamPrioritiesSupported, 1},
                {cudaDevAttrPciBusId, settings.first + device + 1},
                {cudaDevAttrPciDeviceId, 0},
                {cudaDevAttrPciDomainId, 0},
        };
        if (!status)
                status = bad_device(device) ? cudaErrorInvalidDevice : cudaErrorInvalidValue;
        else
                return mfl_emu_leave(status);
        for (size_t i = 0; status == cudaErrorInvalidValue && i < sizeof table / sizeof table[0]; i++)
                if (table[i].attr == attr) {
                        *value = table[i].value;
                        status = cudaSuccess;
                }
        return mfl_emu_leave(status);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
        cudaError_t status = mfl_emu_enter("cudaGetDeviceProperties");
        const struct limits *l = limits();
        if (!status && bad_device(device))
                status = cudaErrorInvalidDevice;
        if (!status) {
                *prop = (struct cudaDeviceProp){.totalGlobalMem = mfl_emu_memory_total(),
                        .sharedMemPerBlock = MFL_EMU_SHARED_DEFAULT,
                        .sharedMemPerBlockOptin = (size_t)l->shared_block,
                        .sharedMemPerMultiprocessor = (size_t)l->shared_processor,
                        .regsPerBlock = 65536,
                        .regsPerMultiprocessor = 65536,
                        .warpSize = MFL_EMU_WARP,
                        .maxThreadsPerBlock = MFL_EMU_THREADS_MAX,
                        .maxThreadsDim = {MFL_EMU_THREADS_MAX, MFL_EMU_THREADS_MAX, 64},
                        .maxGridSize = {INT32_MAX, 65535, 65535},
                        .major = l->sm / 10,
                        .minor = l->sm % 10,
                        .multiProcessorCount = l->processors,
                        .maxThreadsPerMultiProcessor = l->threads_processor,
                        .maxBlocksPerMultiProcessor = l->blocks_processor,
                        .l2CacheSize = l->l2,
                        .concurrentKernels = 1,
                        .unifiedAddressing = 1,
                        .pciBusID = settings.first + device + 1};
                snprintf(prop->name, sizeof prop->name, "emulated GPU (sm_%d)", l->sm);
                memcpy(prop->uuid.bytes, "emulated GPU 0", 14);
                prop->uuid.bytes[15] = (char)(settings.first + device);
        }
        return mfl_emu_leave(status);
}

cudaError_t cudaDeviceGetPCIBusId(char *pciBusId, int len, int device)
{
        cudaError_t status = mfl_emu_enter("cudaDeviceGetPCIBusId");
        if (!status && bad_device(device))
                status = cudaErrorInvalidDevice;
        if (!status && snprintf(pciBusId, (size_t)len, "0000:%02X:00.0", settings.first + device + 1) >= len)
                status = cudaErrorInvalidValue;
        return mfl_emu_leave(status);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
        cudaError_t status = mfl_emu_enter("cudaDeviceGetStreamPriorityRange");
        if (!status) {
                *leastPriority = 0;
                *greatestPriority = -5;
        }
        return mfl_emu_leave(status);
}

cudaError_t cudaSetDeviceFlags(unsigned int flags)
{
        return mfl_emu_leave(mfl_emu_enter("cudaSetDeviceFlags"));
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
        cudaError_t status = mfl_emu_enter("cudaRuntimeGetVersion");
        if (!status)
                *version = CUDART_VERSION;
        return mfl_emu_leave(status);
}

cudaError_t cudaDriverGetVersion(int *version)
{
        cudaError_t status = mfl_emu_enter("cudaDriverGetVersion");
        if (!status)
                *version = CUDART_VERSION;
        return mfl_emu_leave(status);
}

/* ---- kernels ---- */

cudaError_t cudaFuncSetAttribute(const void *func, enum cudaFuncAttribute attr, int value)
{
        cudaError_t status = mfl_emu_enter("cudaFuncSetAttribute");
        struct mfl_emu_kernel *kernel = mfl_emu_find_kernel(func);
        if (!status && !kernel)
                status = cudaErrorInvalidDeviceFunction;
        if (!status && attr == cudaFuncAttributeMaxDynamicSharedMemorySize) {
                if (value < 0 || kernel->static_bytes + (size_t)value > mfl_emu_shared_max())
                        status = cudaErrorInvalidValue;
                else
                        kernel->dynamic_max = (size_t)value;
        }
        return mfl_emu_leave(status);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attr, const void *func)
{
        cudaError_t status = mfl_emu_enter("cudaFuncGetAttributes");
        const struct mfl_emu_kernel *kernel = mfl_emu_find_kernel(func);
        if (!status && !kernel)
                status = cudaErrorInvalidDeviceFunction;
        if (!status)
                *attr = (struct cudaFuncAttributes){.sharedSizeBytes = kernel->static_bytes,
                        .maxThreadsPerBlock = (int)kernel->threads_max,
                        .maxDynamicSharedSizeBytes = (int)kernel->dynamic_max,
                        .binaryVersion = mfl_emu_sm(),
                        .ptxVersion = mfl_emu_sm()};
        return mfl_emu_leave(status);
}

/* Registers are unknown here, so this is an upper bound. */
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        int *numBlocks, const void *func, int blockSize, size_t dynamicSMemSize)
{
        cudaError_t status = mfl_emu_enter("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
        const struct mfl_emu_kernel *kernel = mfl_emu_find_kernel(func);
        const struct limits *l = limits();
        if (!status && !kernel)
                status = cudaErrorInvalidDeviceFunction;
        if (!status && blockSize < 1)
                status = cudaErrorInvalidValue;
        if (!status) {
                int warps = (blockSize + MFL_EMU_WARP - 1) / MFL_EMU_WARP;
                int n = l->threads_processor / (warps * MFL_EMU_WARP);
                size_t shared =
                        kernel->static_bytes + dynamicSMemSize + 1024; /* CUDA takes 1 KiB per block */
                if (n > l->blocks_processor)
                        n = l->blocks_processor;
                if ((size_t)n > (size_t)l->shared_processor / shared)
                        n = (int)((size_t)l->shared_processor / shared);
                *numBlocks = (unsigned)blockSize > kernel->threads_max ? 0 : n;
        }
        return mfl_emu_leave(status);
}
