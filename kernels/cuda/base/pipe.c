/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned buffers between the host's memory and the device: pipe.h has the picture. */
#include "kernels/cuda/base/pipe.h"

#include "kernels/cuda/base/context.h"

int mfl_cuda_pipe_init(struct mfl_cuda_pipe *pipe, uint64_t most, struct mfl_error *err)
{
        *pipe = (struct mfl_cuda_pipe){0};
        void *pinned = NULL;
        uint64_t bytes = MFL_MIN((MFL_MAX(most, 1) + 255) / 256 * 256, MFL_CUDA_PIPE_BYTES);
        int rc = mfl_cuda_check(cudaMallocHost(&pinned, (size_t)(2 * bytes)), "allocate pinned memory", err);
        if (rc)
                return rc;
        pipe->bytes = bytes;
        for (int k = 0; k < 2; k++)
                pipe->pinned[k] = (char *)pinned + (size_t)k * bytes;
        for (int k = 0; !rc && k < 2; k++)
                rc = mfl_cuda_check(cudaEventCreateWithFlags(&pipe->copied[k], cudaEventDisableTiming),
                        "create an event", err);
        return rc;
}

void mfl_cuda_pipe_deinit(struct mfl_cuda_pipe *pipe)
{
        for (int k = 0; k < 2; k++)
                if (pipe->copied[k])
                        (void)cudaEventDestroy(pipe->copied[k]);
        if (pipe->pinned[0])
                (void)cudaFreeHost(pipe->pinned[0]);
        *pipe = (struct mfl_cuda_pipe){0};
}

int mfl_cuda_pipe_send(struct mfl_cuda_pipe *pipe, cudaStream_t stream, void *to, const void *from,
        uint64_t bytes, const char *what, struct mfl_error *err)
{
        int rc = 0, k = 0;
        for (uint64_t at = 0, n; !rc && at < bytes; at += n, k = !k) {
                n = MFL_MIN(pipe->bytes, bytes - at);
                /* An event that was never recorded counts as done. */
                rc = mfl_cuda_check(cudaEventSynchronize(pipe->copied[k]), what, err);
                if (rc)
                        return rc;
                memcpy(pipe->pinned[k], (const char *)from + at, (size_t)n);
                rc = mfl_cuda_check(cudaMemcpyAsync((char *)to + at, pipe->pinned[k], (size_t)n,
                                            cudaMemcpyHostToDevice, stream),
                        what, err);
                if (!rc)
                        rc = mfl_cuda_check(cudaEventRecord(pipe->copied[k], stream), what, err);
        }
        return rc;
}

static int issue(struct mfl_cuda_pipe *pipe, cudaStream_t stream, const struct mfl_cuda_landing *landing,
        uint64_t at, int k, struct mfl_error *err)
{
        uint64_t n = MFL_MIN(pipe->bytes, landing->bytes - at);
        const void *from = NULL;
        int rc = landing->make(landing->arg, at, n, &from, err);
        if (!rc)
                rc = mfl_cuda_check(
                        cudaMemcpyAsync(pipe->pinned[k], from, (size_t)n, cudaMemcpyDeviceToHost, stream),
                        landing->what, err);
        return rc ? rc : mfl_cuda_check(cudaEventRecord(pipe->copied[k], stream), landing->what, err);
}

int mfl_cuda_pipe_land(struct mfl_cuda_pipe *pipe, cudaStream_t stream,
        const struct mfl_cuda_landing *landing, struct mfl_error *err)
{
        uint64_t issued = 0;
        int rc = 0, k = 0;
        for (int i = 0; !rc && i < 2 && issued < landing->bytes; i++, issued += pipe->bytes)
                rc = issue(pipe, stream, landing, issued, i, err);
        for (uint64_t at = 0; !rc && at < landing->bytes; at += pipe->bytes, k = !k) {
                rc = mfl_cuda_check(cudaEventSynchronize(pipe->copied[k]), landing->what, err);
                if (rc)
                        return rc;
                landing->take(landing->arg, at, MFL_MIN(pipe->bytes, landing->bytes - at), pipe->pinned[k]);
                if (issued < landing->bytes)
                        rc = issue(pipe, stream, landing, issued, k, err);
                issued += pipe->bytes;
        }
        return rc;
}
