/* SPDX-License-Identifier: Apache-2.0 */
/* Params that come to the device while the rest of them is still on its way to the host. A stage has its own
 * stream and pinned buffers, so it needs nothing of a network and disturbs none. */
#include "kernels/cuda/net/net.h"

uint64_t mfl_cuda_stage_bytes(uint64_t n)
{
        return MFL_MAX(n, 1) * sizeof(float);
}

static int fill_stage(struct mfl_stage *stage, struct mfl_error *err)
{
        void *memory = NULL;
        int rc = mfl_cuda_check(cudaSetDevice(stage->device->ordinal), "set device", err);
        if (!rc)
                rc = mfl_cuda_check(cudaMalloc(&memory, (size_t)mfl_cuda_stage_bytes(stage->n)),
                        "allocate staged params", err);
        stage->memory = memory;
        if (!rc)
                rc = mfl_cuda_check(cudaStreamCreateWithFlags(&stage->stream, cudaStreamNonBlocking),
                        "create a stream", err);
        return rc ? rc : mfl_cuda_pipe_init(&stage->pipe, mfl_cuda_stage_bytes(stage->n), err);
}

int mfl_cuda_stage_new(
        struct mfl_device *device, uint64_t n, struct mfl_stage **ret_stage, struct mfl_error *err)
{
        struct mfl_stage *stage = mfl_calloc(1, sizeof *stage);
        if (!stage)
                return mfl_fail_memory(err, sizeof *stage, "staged params");
        *stage = (struct mfl_stage){.device = device, .n = n};
        int rc = fill_stage(stage, err);
        if (rc) {
                mfl_cuda_stage_free(stage);
                return rc;
        }
        *ret_stage = stage;
        return 0;
}

void mfl_cuda_stage_free(struct mfl_stage *stage)
{
        if (!stage)
                return;
        (void)cudaSetDevice(stage->device->ordinal);
        if (stage->stream)
                (void)cudaStreamSynchronize(stage->stream);
        mfl_cuda_pipe_deinit(&stage->pipe);
        if (stage->stream)
                (void)cudaStreamDestroy(stage->stream);
        if (stage->memory)
                (void)cudaFree(stage->memory);
        free(stage);
}

/* Waits for the copies, so that any network may read the stage afterwards. */
int mfl_cuda_stage_put(
        struct mfl_stage *stage, uint64_t first, const float *params, uint64_t n, struct mfl_error *err)
{
        mfl_assert(first <= stage->n && n <= stage->n - first);
        int rc = mfl_cuda_check(cudaSetDevice(stage->device->ordinal), "set device", err);
        if (!rc && n)
                rc = mfl_cuda_pipe_send(&stage->pipe, stage->stream, stage->memory + first, params,
                        n * sizeof(float), "stage params", err);
        return rc ? rc : mfl_cuda_check(cudaStreamSynchronize(stage->stream), "stage params", err);
}
