/* SPDX-License-Identifier: Apache-2.0 */
/* The inner checks of this backend: struct mfl_backend_ops, selftest. */
#ifndef MFL_KERNELS_CUDA_SELFTEST_H
#define MFL_KERNELS_CUDA_SELFTEST_H

#include "kernels/cuda/context.h"

/* small: a few small problems only, as many as an emulated device does in seconds. Needs about 1 GiB of the
 * device's memory. Negative: CUDA, memory. */
int mfl_cuda_selftest(struct mfl_cuda_context *context, bool small,
        void (*report)(void *user, bool ok, const char *text), void *user, struct mfl_error *err);

#endif
