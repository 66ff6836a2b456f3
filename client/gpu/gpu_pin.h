/* SPDX-License-Identifier: Apache-2.0 */
/* From the settings to an open device: pins the process to its GPU before CUDA starts, takes the GPU's lock,
 * opens the backend, checks that the device is the one that was asked for, and logs the result.
 *
 *   setting              CUDA_VISIBLE_DEVICES   what happens
 *   gpu unset            not set                backend auto: the first GPU, or the CPU with the reason
 *   gpu unset            set by the caller      kept as it is; its first device is used
 *   gpu: 3, GPU-, MIG-   not set, or the same   set to that device's UUID (its index if the UUID is not
 *                                               known); the GPU is demanded: backend auto means cuda
 *   gpu: 3, GPU-, MIG-   another one            an error
 *   gpu: none            any                    set to nothing; backend auto means cpu
 *
 * With a backend other than cuda, a pinned GPU is kept (locked, measured) but not computed on.
 * Blocks, at start; the functions are for one thread. */
#ifndef MFL_CLIENT_GPU_GPU_PIN_H
#define MFL_CLIENT_GPU_GPU_PIN_H

#include "client/gpu/gpu.h"
#include "kernels/backend.h"

struct mfl_gpu_pin_options {
        const char *gpu;     /* as written; empty: not said */
        const char *backend; /* "auto", or a backend's name; at most 15 characters */
        bool share;          /* other daemons may use the GPU, too */
};

struct mfl_gpu_pin {
        struct mfl_gpu_id id;  /* what was asked for, by configuration or environment */
        bool demanded;         /* by configuration: no fallback */
        struct mfl_nvml *nvml; /* NULL: not opened, or not available */
        struct mfl_gpus *gpus; /* NULL: no GPU is used, or none is known */
        bool known;            /* `gpu` is the device */
        struct mfl_gpu gpu;    /* from NVML or the driver's files; otherwise from the device itself */
        bool mps;              /* CUDA goes through the Multi-Process Service */
        struct mfl_gpu_lock lock;
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        struct mfl_device_info info;
};

/* On success ops, device and info are set. MFL_INVALID (exit status 78): what was asked for is not available,
 * or another daemon uses the GPU. Negative: a broken device, or no memory. Call close also after a
 * failure. */
int mfl_gpu_pin_open(
        const struct mfl_gpu_pin_options *options, struct mfl_gpu_pin *ret_pin, struct mfl_error *err);
void mfl_gpu_pin_close(struct mfl_gpu_pin *pin);

/* All GPUs of the machine, by NVML (kept open in *ret_nvml if that is not NULL), otherwise from the driver's
 * files. MFL_NOT_FOUND with both reasons. The caller frees the list. */
int mfl_gpu_list(struct mfl_nvml **ret_nvml, struct mfl_gpus **ret_gpus, struct mfl_error *err);

#endif
