/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU that this process has opened. */
#ifndef MFL_KERNELS_CUDA_BASE_DEVICE_H
#define MFL_KERNELS_CUDA_BASE_DEVICE_H

#include <pthread.h>

#include "kernels/backend.h"
#include "kernels/cuda/base/pipe.h"

struct mfl_device {
        int ordinal; /* CUDA's number */
        int sm_version, driver;
        struct mfl_device_info info; /* memory_free_bytes is queried each time */
        struct mfl_tuner *tuner;
        /* For sum_read, on the legacy stream; the first sum makes it. It stays until the device is closed:
         * freeing pinned memory waits for all work, including a reduction that waits for other ranks. */
        struct mfl_cuda_pipe reads;
        pthread_mutex_t reading; /* guards reads */
};

#endif
