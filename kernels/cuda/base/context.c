/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events and library handles of one network; CUDA's errors as text. */
#include "kernels/cuda/base/context.h"

#include "kernels/cuda/base/blas.h"
#include "kernels/cuda/base/dnn.h"

int mfl_cuda_check(cudaError_t status, const char *what, struct mfl_error *err)
{
        if (status == cudaSuccess)
                return 0;
        return mfl_fail(
                err, -EIO, "cuda: %s: %s: %s", what, cudaGetErrorName(status), cudaGetErrorString(status));
}

int mfl_cuda_alloc(uint64_t bytes, const char *what, void **ret_memory, struct mfl_error *err)
{
        size_t free_bytes = 0, total_bytes = 0;
        cudaError_t status = cudaMalloc(ret_memory, (size_t)bytes);
        if (status != cudaErrorMemoryAllocation)
                return mfl_cuda_check(status, what, err);
        /* It is not sticky, but stays the thread's last error until it is read. */
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&free_bytes, &total_bytes);
        return mfl_fail(err, MFL_INVALID, "%s: %llu bytes wanted, %zu free of the device's %zu", what,
                (unsigned long long)bytes, free_bytes, total_bytes);
}

static atomic_bool stuck;

void mfl_cuda_set_stuck(void)
{
        atomic_store(&stuck, true);
}

bool mfl_cuda_is_stuck(void)
{
        return atomic_load(&stuck);
}

static int make_event(cudaEvent_t *ret_event, struct mfl_error *err)
{
        return mfl_cuda_check(
                cudaEventCreateWithFlags(ret_event, cudaEventDisableTiming), "create an event", err);
}

static int make_stream(cudaStream_t *ret_stream, struct mfl_error *err)
{
        return mfl_cuda_check(
                cudaStreamCreateWithFlags(ret_stream, cudaStreamNonBlocking), "create a stream", err);
}

int mfl_cuda_context_init(
        struct mfl_cuda_context *context, int device, struct mfl_tuner *tuner, struct mfl_error *err)
{
        int major = 0, minor = 0, rc;
        *context = (struct mfl_cuda_context){.device = device, .tuner = tuner};
        rc = mfl_cuda_check(cudaSetDevice(device), "set device", err);
        if (!rc)
                rc = mfl_cuda_check(
                        cudaDeviceGetAttribute(&context->sm_count, cudaDevAttrMultiProcessorCount, device),
                        "count multiprocessors", err);
        if (!rc)
                rc = mfl_cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                        "read the compute capability", err);
        if (!rc)
                rc = mfl_cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
                        "read the compute capability", err);
        context->sm_version = major * 10 + minor;
        if (!rc)
                rc = make_stream(&context->stream, err);
        if (!rc)
                rc = make_event(&context->fork, err);
        if (rc)
                mfl_cuda_context_deinit(context);
        return rc;
}

void mfl_cuda_context_deinit(struct mfl_cuda_context *context)
{
        mfl_dnn_close(context->dnn);
        mfl_blas_close(context->blas);
        for (int b = 1; b < MFL_CUDA_BRANCHES_MAX; b++) {
                if (context->join[b])
                        (void)cudaEventDestroy(context->join[b]);
                if (context->branches[b])
                        (void)cudaStreamDestroy(context->branches[b]);
        }
        if (context->fork)
                (void)cudaEventDestroy(context->fork);
        if (context->stream)
                (void)cudaStreamDestroy(context->stream);
        *context = (struct mfl_cuda_context){0};
}

/* Most networks never fork so wide. Measuring forks first, so no step does this. */
static int make_branch(struct mfl_cuda_context *context, int b, struct mfl_error *err)
{
        int rc = context->branches[b] ? 0 : make_stream(&context->branches[b], err);
        return rc || context->join[b] ? rc : make_event(&context->join[b], err);
}

int mfl_cuda_context_fork(struct mfl_cuda_context *context, int n, struct mfl_error *err)
{
        mfl_assert(n <= MFL_CUDA_BRANCHES_MAX);
        if (n <= 1)
                return 0;
        int rc = 0;
        for (int b = 1; !rc && b < n; b++)
                rc = make_branch(context, b, err);
        if (!rc)
                rc = mfl_cuda_check(cudaEventRecord(context->fork, context->stream), "fork a stream", err);
        for (int b = 1; !rc && b < n; b++)
                rc = mfl_cuda_check(
                        cudaStreamWaitEvent(context->branches[b], context->fork, 0), "fork a stream", err);
        return rc;
}

int mfl_cuda_context_join(struct mfl_cuda_context *context, int n, struct mfl_error *err)
{
        mfl_assert(n <= MFL_CUDA_BRANCHES_MAX);
        int rc = 0;
        for (int b = 1; !rc && b < n; b++) {
                rc = mfl_cuda_check(
                        cudaEventRecord(context->join[b], context->branches[b]), "join a stream", err);
                if (!rc)
                        rc = mfl_cuda_check(cudaStreamWaitEvent(context->stream, context->join[b], 0),
                                "join a stream", err);
        }
        return rc;
}
