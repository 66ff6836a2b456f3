/* SPDX-License-Identifier: Apache-2.0 */
/* Sums on the device that outlive the task that made them; struct mfl_backend_ops says what each function
 * does. */
#ifndef MFL_KERNELS_CUDA_SUM_H
#define MFL_KERNELS_CUDA_SUM_H

#include "kernels/cuda/nccl/comm.h"

int mfl_cuda_sum_new(struct mfl_device *device, uint64_t n, struct mfl_sum **ret_sum, struct mfl_error *err);
void mfl_cuda_sum_free(struct mfl_sum *sum);
int mfl_cuda_sum_clear(struct mfl_sum *sum, struct mfl_error *err);
int mfl_cuda_sum_move(struct mfl_net *net, struct mfl_sum *sum, struct mfl_error *err);
int mfl_cuda_sum_read(
        struct mfl_sum *sum, int64_t *out, struct mfl_comm_control *control, struct mfl_error *err);
uint64_t mfl_cuda_sum_bytes(uint64_t n);

#endif
