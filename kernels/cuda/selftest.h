/* SPDX-License-Identifier: Apache-2.0 */
/* The inner checks of this backend: struct mfl_backend_ops, selftest. */
#ifndef MFL_KERNELS_CUDA_SELFTEST_H
#define MFL_KERNELS_CUDA_SELFTEST_H

#include "kernels/backend.h"
#include "kernels/cuda/base/context.h"

/* Parts: a problem in a precision each. small: only a few small problems, as many as an emulated device does
 * in seconds. False: there is no such part. */
bool mfl_cuda_selftest_name(bool small, int part, char name[MFL_SELFTEST_NAME]);
/* Needs about 1 GiB of the device's memory. Negative: CUDA, memory. */
int mfl_cuda_selftest(struct mfl_cuda_context *context, int part,
        void (*report)(void *user, bool ok, const char *text), void *user, struct mfl_error *err);
/* One rank alone opens a communicator, adds, and compares. Reports the reason where there is no NCCL. */
int mfl_cuda_nccl_selftest(struct mfl_device *device, void (*report)(void *user, bool ok, const char *text),
        void *user, struct mfl_error *err);

#endif
