/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of one network on a GPU share: streams, library handles, the tuner.
 *
 * One context for each network; a context belongs to one thread at a time. Errors of CUDA calls are negative
 * (the process cannot go on; the device's state is unknown), with the operation's name in the text.
 */
#ifndef MFL_KERNELS_CUDA_BASE_CONTEXT_H
#define MFL_KERNELS_CUDA_BASE_CONTEXT_H

#include <cuda_runtime_api.h>

#include "common/base/base.h"
#include "kernels/cuda/base/tune.h"

#define MFL_CUDA_BRANCHES_MAX 8

struct mfl_cuda_context {
        cudaStream_t stream;                          /* orders everything */
        cudaStream_t branches[MFL_CUDA_BRANCHES_MAX]; /* the first fork that needs one makes it; [0] is
                                                         unused: branch 0 is `stream` */
        cudaEvent_t fork, join[MFL_CUDA_BRANCHES_MAX];
        struct mfl_dnn *dnn;      /* dnn.h: NULL until first used */
        struct mfl_blas *blas;    /* blas.h: NULL until first used */
        struct mfl_tuner *tuner;  /* the device's; shared by its networks */
        int device;               /* CUDA's number: 0 unless several are visible */
        int sm_count, sm_version; /* 132, 90 */
};

int mfl_cuda_context_init(
        struct mfl_cuda_context *context, int device, struct mfl_tuner *tuner, struct mfl_error *err);
void mfl_cuda_context_deinit(struct mfl_cuda_context *context);
/* Branch b's stream, ordered after what `stream` holds so far; n <= MFL_CUDA_BRANCHES_MAX. */
int mfl_cuda_context_fork(struct mfl_cuda_context *context, int n, struct mfl_error *err);
/* `stream` continues when all branches of the last fork are done. */
int mfl_cuda_context_join(struct mfl_cuda_context *context, int n, struct mfl_error *err);

/* -EIO with "cuda: WHAT: cudaErrorLaunchFailure: unspecified launch failure", or 0. */
int mfl_cuda_check(cudaError_t status, const char *what, struct mfl_error *err);
/* cudaMalloc; out of memory is MFL_INVALID with the sizes (wanted, free, total). */
int mfl_cuda_alloc(uint64_t bytes, const char *what, void **ret_memory, struct mfl_error *err);
/* Something that could not be aborted may still touch the device's memory, until the process ends. Any thread. */
void mfl_cuda_set_stuck(void);
bool mfl_cuda_is_stuck(void);

#endif
