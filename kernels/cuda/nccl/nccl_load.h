/* SPDX-License-Identifier: Apache-2.0 */
/* The NCCL functions in use, found at run time (nccl_load.c), or the emulated ones (tests/emu). */
#ifndef MFL_KERNELS_CUDA_NCCL_NCCL_LOAD_H
#define MFL_KERNELS_CUDA_NCCL_NCCL_LOAD_H

#include <nccl.h>

#include "common/base/base.h"

/* The name in the table, and nccl##Name: X(field, Name). */
#define MFL_NCCL_FUNCTIONS(X)                                                                                \
        X(get_version, GetVersion)                                                                           \
        X(get_unique_id, GetUniqueId)                                                                        \
        X(init, CommInitRankConfig)                                                                          \
        X(finalize, CommFinalize)                                                                            \
        X(destroy, CommDestroy)                                                                              \
        X(abort, CommAbort)                                                                                  \
        X(get_async_error, CommGetAsyncError)                                                                \
        X(error_string, GetErrorString)                                                                      \
        X(last_error, GetLastError)                                                                          \
        X(enroll, CommRegister)                                                                              \
        X(expel, CommDeregister)                                                                             \
        X(alloc, MemAlloc)                                                                                   \
        X(free, MemFree)                                                                                     \
        X(reduce, Reduce)                                                                                    \
        X(all_reduce, AllReduce)                                                                             \
        X(broadcast, Broadcast)

struct mfl_nccl {
#define MFL_NCCL_FIELD(field, Name) __typeof__(&nccl##Name) field;
        MFL_NCCL_FUNCTIONS(MFL_NCCL_FIELD)
#undef MFL_NCCL_FIELD
        int version; /* 22809 */
};

/* Opens the library at the first call; any thread. MFL_INVALID, with the reason, where it is missing, lacks a
 * function, or is older than 2.19. */
int mfl_nccl_load(const struct mfl_nccl **ret_nccl, struct mfl_error *err);

#endif
