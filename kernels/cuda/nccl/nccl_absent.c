/* SPDX-License-Identifier: Apache-2.0 */
/* A build without nccl.h: sums, but no communicators; every call returns the reason. */
#include "kernels/cuda/nccl/comm.h"

static int no_version(struct mfl_device *device, char text[64], uint32_t *ret_version, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID, "NCCL: this CUDA backend was built without it (no nccl.h)");
}

static int no_id(struct mfl_device *device, uint8_t id[MFL_COMM_ID_BYTES], struct mfl_error *err)
{
        return no_version(device, NULL, NULL, err);
}

static int no_open(struct mfl_device *device, const uint8_t id[MFL_COMM_ID_BYTES], uint32_t rank,
        uint32_t n_ranks, uint32_t deadline_ms, struct mfl_comm_control *control, struct mfl_comm **ret_comm,
        struct mfl_error *err)
{
        return no_version(device, NULL, NULL, err);
}

static int no_reduce(struct mfl_comm *comm, struct mfl_sum *own, uint32_t root, int64_t *out,
        uint32_t deadline_ms, struct mfl_comm_control *control, struct mfl_error *err)
{
        return no_version(NULL, NULL, NULL, err);
}

static void no_close(struct mfl_comm *comm)
{
        (void)comm;
}

static int no_mesh(struct mfl_device *device, const uint8_t id[MFL_COMM_ID_BYTES], uint32_t rank,
        uint32_t n_ranks, uint32_t deadline_ms, const atomic_bool *cancel, struct mfl_mesh **ret_mesh,
        struct mfl_error *err)
{
        return no_version(device, NULL, NULL, err);
}

const struct mfl_comm_ops mfl_cuda_comm = {
        .version = no_version,
        .id = no_id,
        .open = no_open,
        .reduce = no_reduce,
        .close = no_close,
        .mesh = no_mesh,
};

int mfl_cuda_nccl_alloc(
        uint64_t bytes, const char *what, void **ret_memory, bool *ret_library, struct mfl_error *err)
{
        int rc = mfl_cuda_alloc(bytes, what, ret_memory, err);
        if (!rc)
                *ret_library = false;
        return rc;
}

void mfl_cuda_nccl_free(void *memory, bool library)
{
        (void)cudaFree(memory);
}

bool mfl_cuda_nccl_forget(const struct mfl_sum *sum)
{
        return true;
}

void mfl_cuda_nccl_tune(uint64_t range, uint32_t abort_ms, uint32_t finalize_ms)
{
        (void)range;
}
