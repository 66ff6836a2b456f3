/* SPDX-License-Identifier: Apache-2.0 */
/* Sums that outlive the task that made them, in the graph's flat order, in memory that communicators can use.
 */
#include "kernels/cuda/sum.h"

#include "kernels/cuda/net/net.h"

static int enter(const struct mfl_sum *sum, struct mfl_error *err)
{
        return mfl_cuda_check(cudaSetDevice(sum->device->ordinal), "set device", err);
}

/* ncclMemAlloc gives whole pages of the device. */
#define PAGE ((uint64_t)2 << 20)

uint64_t mfl_cuda_sum_bytes(uint64_t n)
{
        return (MFL_MAX(n, 1) * sizeof(int64_t) + PAGE - 1) / PAGE * PAGE;
}

static int make_pipe(struct mfl_device *device, struct mfl_error *err)
{
        pthread_mutex_lock(&device->reading);
        int rc = device->reads.pinned[0] ? 0 : mfl_cuda_pipe_init(&device->reads, MFL_CUDA_PIPE_BYTES, err);
        if (rc)
                mfl_cuda_pipe_deinit(&device->reads);
        pthread_mutex_unlock(&device->reading);
        return rc;
}

int mfl_cuda_sum_new(struct mfl_device *device, uint64_t n, struct mfl_sum **ret_sum, struct mfl_error *err)
{
        struct mfl_sum *sum = mfl_calloc(1, sizeof *sum);
        if (!sum)
                return mfl_fail_memory(err, sizeof *sum, "a sum on the device");
        *sum = (struct mfl_sum){.device = device, .n = n};
        void *memory = NULL;
        int rc = enter(sum, err);
        if (!rc)
                rc = mfl_cuda_nccl_alloc(MFL_MAX(n, 1) * sizeof *sum->memory, "a sum on the device", &memory,
                        &sum->library, err);
        sum->memory = memory;
        if (!rc)
                rc = make_pipe(device, err);
        if (!rc)
                rc = mfl_cuda_sum_clear(sum, err);
        if (rc) {
                mfl_cuda_sum_free(sum);
                return rc;
        }
        *ret_sum = sum;
        return 0;
}

void mfl_cuda_sum_free(struct mfl_sum *sum)
{
        if (!sum)
                return;
        (void)cudaSetDevice(sum->device->ordinal);
        if (sum->memory && mfl_cuda_nccl_forget(sum))
                mfl_cuda_nccl_free(sum->memory, sum->library);
        free(sum);
}

/* The legacy stream waits for no stream of this backend, and none waits for it. So each call waits itself. */
static int wait_for(const char *what, struct mfl_error *err)
{
        return mfl_cuda_check(cudaStreamSynchronize(NULL), what, err);
}

int mfl_cuda_sum_clear(struct mfl_sum *sum, struct mfl_error *err)
{
        int rc = enter(sum, err);
        if (rc || !sum->n)
                return rc;
        rc = mfl_cuda_check(cudaMemsetAsync(sum->memory, 0, (size_t)sum->n * sizeof *sum->memory, NULL),
                "clear a sum", err);
        return rc ? rc : wait_for("clear a sum", err);
}

int mfl_cuda_sum_move(struct mfl_net *net, struct mfl_sum *sum, struct mfl_error *err)
{
        mfl_assert(net->model.options.training && net->model.flat->n_moving == sum->n);
        int rc = mfl_cuda_enter(net, err);
        if (rc || !sum->n)
                return rc;
        rc = mfl_cuda_check(mfl_cuda_sum_gather(sum->n,
                                    (uint32_t *)mfl_cuda_at(net, MFL_CUDA_PLACE) + net->model.flat->n_frozen,
                                    mfl_cuda_at(net, MFL_CUDA_SUM), sum->memory, net->main.stream),
                "move the sum of updates", err);
        if (!rc)
                rc = mfl_cuda_check(cudaMemsetAsync(mfl_cuda_at(net, MFL_CUDA_SUM), 0,
                                            (size_t)net->model.region_bytes[MFL_CUDA_SUM], net->main.stream),
                        "clear the sum of updates", err);
        return rc ? rc : mfl_cuda_sync(net, "move the sum of updates", err);
}

struct read {
        const struct mfl_sum *sum;
        int64_t *out;
        struct mfl_comm_control *control;
};

static int find_piece(void *arg, uint64_t at, uint64_t n, const void **ret_from, struct mfl_error *err)
{
        const struct read *read = arg;
        *ret_from = (const char *)read->sum->memory + at;
        return 0;
}

static void take_piece(void *arg, uint64_t at, uint64_t n, const void *bytes)
{
        const struct read *read = arg;
        memcpy((char *)read->out + at, bytes, (size_t)n);
        mfl_comm_advance(read->control, (at + n) / sizeof *read->out);
}

int mfl_cuda_sum_read(
        struct mfl_sum *sum, int64_t *out, struct mfl_comm_control *control, struct mfl_error *err)
{
        struct read read = {sum, out, control};
        struct mfl_cuda_landing landing = {"read a sum", sum->n * sizeof *out, find_piece, take_piece, &read};
        int rc = enter(sum, err);
        if (rc || !sum->n)
                return rc;
        pthread_mutex_lock(&sum->device->reading);
        rc = mfl_cuda_pipe_land(&sum->device->reads, NULL, &landing, err);
        pthread_mutex_unlock(&sum->device->reading);
        return rc;
}
