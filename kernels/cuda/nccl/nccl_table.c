/* SPDX-License-Identifier: Apache-2.0 */
/* The backend's table of communicators. */
#include "kernels/cuda/nccl/nccl_internal.h"

static int open_comm(struct mfl_device *device, const uint8_t id[MFL_COMM_ID_BYTES], uint32_t rank,
        uint32_t n_ranks, uint32_t deadline_ms, struct mfl_comm_control *control, struct mfl_comm **ret_comm,
        struct mfl_error *err)
{
        struct patience p = mfl_nccl_patience(deadline_ms, control ? &control->cancel : NULL);
        return mfl_nccl_open(device, id, rank, n_ranks, &p, ret_comm, err);
}

const struct mfl_comm_ops mfl_cuda_comm = {
        .version = mfl_nccl_version,
        .id = mfl_nccl_id,
        .open = open_comm,
        .reduce = mfl_nccl_reduce,
        .close = mfl_nccl_close,
        .mesh = mfl_cuda_nccl_mesh,
};
