/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated CUDA runtime: errors, faults on request, launches. */
#include "tests/emu/runtime.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static cudaError_t sticky;
static _Thread_local cudaError_t last;

static struct {
        char name[64];
        long left;
        bool struck;
} failing;

static void init(void)
{
        pthread_mutexattr_t attr;
        pthread_mutexattr_init(&attr);
        pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
        pthread_mutex_init(&lock, &attr);
        const char *text = getenv("MFL_EMU_FAIL"), *colon = text ? strrchr(text, ':') : NULL;
        if (colon && (size_t)(colon - text) < sizeof failing.name) {
                memcpy(failing.name, text, (size_t)(colon - text));
                failing.left = strtol(colon + 1, NULL, 10);
        }
}

/* ---- faults on request ---- */

void mfl_emu_fail_at(const char *name, long n)
{
        pthread_once(&once, init);
        pthread_mutex_lock(&lock);
        snprintf(failing.name, sizeof failing.name, "%s", name);
        failing.left = n;
        failing.struck = false;
        pthread_mutex_unlock(&lock);
}

bool mfl_emu_failed(void)
{
        return failing.struck;
}

static bool strikes(const char *name)
{
        if (failing.left <= 0 || (strcmp(failing.name, "*") && strcmp(failing.name, name)) ||
                --failing.left > 0)
                return false;
        failing.struck = true;
        return true;
}

bool mfl_emu_fails(const char *name)
{
        pthread_once(&once, init);
        pthread_mutex_lock(&lock);
        bool r = strikes(name);
        pthread_mutex_unlock(&lock);
        return r;
}

static cudaError_t injected(const char *name)
{
        if (!strcmp(name, "cudaMalloc") || !strcmp(name, "cudaHostAlloc") || !strcmp(name, "cudaMallocHost"))
                return cudaErrorMemoryAllocation;
        if (!strcmp(name, "cudaGetDeviceCount"))
                return cudaErrorNoDevice;
        if (!strcmp(name, "cudaGraphInstantiate") || !strncmp(name, "cudaStreamCreate", 16) ||
                !strncmp(name, "cudaEventCreate", 15))
                return cudaErrorMemoryAllocation;
        sticky = cudaErrorLaunchFailure; /* from earlier work, which any call may return */
        return sticky;
}

/* ---- calls ---- */

cudaError_t mfl_emu_enter(const char *name)
{
        pthread_once(&once, init);
        pthread_mutex_lock(&lock);
        if (name && strikes(name))
                return injected(name);
        return sticky;
}

cudaError_t mfl_emu_enter_unsafe(const char *name)
{
        cudaError_t status = mfl_emu_enter(name);
        return status ? status : mfl_emu_capture_unsafe();
}

cudaError_t mfl_emu_leave(cudaError_t status)
{
        if (!status)
                status = sticky;
        if (status && status != cudaErrorNotReady)
                last = status;
        pthread_mutex_unlock(&lock);
        return status;
}

void mfl_emu_pause(void)
{
        struct timespec nap = {.tv_nsec = 100000};
        pthread_mutex_unlock(&lock);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&lock);
}

void mfl_emu_set_sticky(cudaError_t status)
{
        if (!sticky)
                sticky = status;
}

cudaError_t mfl_emu_sticky(void)
{
        return sticky;
}

cudaError_t cudaGetLastError(void)
{
        cudaError_t status = last;
        last = sticky;
        return status ? status : sticky;
}

cudaError_t cudaPeekAtLastError(void)
{
        return last ? last : sticky;
}

cudaError_t cudaDeviceReset(void)
{
        pthread_once(&once, init);
        pthread_mutex_lock(&lock);
        mfl_emu_streams_reset();
        mfl_emu_graphs_reset();
        mfl_emu_memory_reset();
        sticky = last = cudaSuccess;
        pthread_mutex_unlock(&lock);
        return cudaSuccess;
}

#define ERRORS(X)                                                                                            \
        X(cudaSuccess, "no error")                                                                           \
        X(cudaErrorInvalidValue, "invalid argument")                                                         \
        X(cudaErrorMemoryAllocation, "out of memory")                                                        \
        X(cudaErrorInitializationError, "initialization error")                                              \
        X(cudaErrorInvalidConfiguration, "invalid configuration argument")                                   \
        X(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy")                              \
        X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version")       \
        X(cudaErrorInvalidDeviceFunction, "invalid device function")                                         \
        X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                           \
        X(cudaErrorInvalidDevice, "invalid device ordinal")                                                  \
        X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                         \
        X(cudaErrorNotReady, "device not ready")                                                             \
        X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                               \
        X(cudaErrorLaunchOutOfResources, "too many resources requested for launch")                          \
        X(cudaErrorHostMemoryAlreadyRegistered,                                                              \
                "part or all of the requested memory range is already mapped")                               \
        X(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region")     \
        X(cudaErrorLaunchFailure, "unspecified launch failure")                                              \
        X(cudaErrorNotSupported, "operation not supported")                                                  \
        X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")             \
        X(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture")      \
        X(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences")    \
        X(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began")           \
        X(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")                              \
        X(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream")        \
        X(cudaErrorStreamCaptureImplicit,                                                                    \
                "operation would make the legacy stream depend on a capturing blocking stream")              \
        X(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream") \
        X(cudaErrorStreamCaptureWrongThread,                                                                 \
                "attempt to terminate a thread-local capture sequence from another thread")

const char *cudaGetErrorName(cudaError_t error)
{
        switch (error) {
#define NAME(e, text)                                                                                        \
        case e:                                                                                              \
                return #e;
                ERRORS(NAME)
        default:
                return "unrecognized error code";
        }
}

const char *cudaGetErrorString(cudaError_t error)
{
        switch (error) {
#define TEXT(e, text)                                                                                        \
        case e:                                                                                              \
                return text;
                ERRORS(TEXT)
        default:
                return "unrecognized error code";
        }
}

/* ---- work ---- */

struct mfl_emu_work *mfl_emu_work_new(
        const char *name, cudaError_t (*run)(struct mfl_emu_work *work), const void *args, size_t arg_bytes)
{
        struct mfl_emu_work *work;
        if (posix_memalign((void **)&work, 64, sizeof *work + arg_bytes))
                return NULL;
        memset(work, 0, sizeof *work);
        work->name = name;
        work->run = run;
        work->refs = 1;
        if (args)
                memcpy(work->args, args, arg_bytes);
        return work;
}

void mfl_emu_work_put(struct mfl_emu_work *work)
{
        if (!work || --work->refs)
                return;
        if (work->drop)
                work->drop(work);
        free(work);
}

static cudaError_t run_launch(struct mfl_emu_work *work)
{
        return mfl_emu_launch_run(work->launch.kernel, work->launch.grid, work->launch.block,
                work->launch.shared_bytes, work->args);
}

static cudaError_t launch(
        const void *function, dim3 grid, dim3 block, void **args, size_t shared_bytes, cudaStream_t handle)
{
        struct CUstream_st *stream = mfl_emu_find_stream(handle);
        struct mfl_emu_kernel *kernel = mfl_emu_find_kernel(function);
        if (!kernel)
                return cudaErrorInvalidDeviceFunction;
        if (!stream)
                return cudaErrorInvalidResourceHandle;
        cudaError_t status = mfl_emu_launch_check(kernel, grid, block, shared_bytes);
        if (status)
                return status;
        struct mfl_emu_work *work = mfl_emu_work_new(kernel->name, run_launch, args[0], kernel->arg_bytes);
        if (work) {
                work->launch.kernel = kernel;
                work->launch.grid = grid;
                work->launch.block = block;
                work->launch.shared_bytes = shared_bytes;
        }
        return mfl_emu_submit(stream, work);
}

cudaError_t cudaLaunchKernel(
        const void *func, dim3 gridDim_, dim3 blockDim_, void **args, size_t sharedMem, cudaStream_t stream)
{
        cudaError_t status = mfl_emu_enter("cudaLaunchKernel");
        return mfl_emu_leave(status ? status : launch(func, gridDim_, blockDim_, args, sharedMem, stream));
}

static cudaError_t run_host(struct mfl_emu_work *work)
{
        work->host.call(work->host.data);
        return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *data)
{
        cudaError_t status = mfl_emu_enter("cudaLaunchHostFunc");
        struct CUstream_st *s = mfl_emu_find_stream(stream);
        if (!status && (!s || !fn))
                status = s ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle;
        if (!status) {
                struct mfl_emu_work *work = mfl_emu_work_new("host function", run_host, NULL, 0);
                if (work) {
                        work->host.call = fn;
                        work->host.data = data;
                }
                status = mfl_emu_submit(s, work);
        }
        return mfl_emu_leave(status);
}

static cudaError_t run_library(struct mfl_emu_work *work)
{
        work->library(work->args);
        return cudaSuccess;
}

cudaError_t mfl_emu_enqueue(
        cudaStream_t stream, const char *name, void (*run)(void *args), const void *args, size_t bytes)
{
        cudaError_t status = mfl_emu_enter(NULL); /* its caller has called mfl_emu_fails */
        struct CUstream_st *s = mfl_emu_find_stream(stream);
        if (!status && !s)
                status = cudaErrorInvalidResourceHandle;
        if (!status) {
                struct mfl_emu_work *work = mfl_emu_work_new(name, run_library, args, bytes);
                if (work)
                        work->library = run;
                status = mfl_emu_submit(s, work);
        }
        return mfl_emu_leave(status);
}
