/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the GPU, describes it, and holds the CUDA module's table of functions.
 *
 * Happy path: takes the first visible device, reads its properties, opens the tuner's file. Ways to fail: no
 * driver or no device (MFL_NOT_FOUND: the program goes on without), a device older than sm_80 (MFL_INVALID),
 * a device that is broken (negative).
 */
#include "kernels/cuda/base/dnn.h"
#include "kernels/cuda/net/net.h"
#include "kernels/cuda/selftest.h"
#include "kernels/cuda/sum.h"

#include <stdio.h>

#define SM_OLDEST 80

/* As nvidia-smi -L prints it. In a MIG partition, CUDA gives the partition's UUID and puts MIG into the name.
 */
static void format_uuid(const struct cudaDeviceProp *prop, char *buf, size_t bytes)
{
        const unsigned char *u = (const unsigned char *)prop->uuid.bytes;
        snprintf(buf, bytes, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                strstr(prop->name, " MIG ") ? "MIG" : "GPU", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7],
                u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

static int describe(struct mfl_device *device, struct mfl_error *err)
{
        struct cudaDeviceProp prop;
        int runtime = 0, rc;
        rc = mfl_cuda_check(
                cudaGetDeviceProperties(&prop, device->ordinal), "read the device's properties", err);
        if (!rc)
                rc = mfl_cuda_check(cudaRuntimeGetVersion(&runtime), "read the runtime's version", err);
        if (!rc)
                rc = mfl_cuda_check(cudaDriverGetVersion(&device->driver), "read the driver's version", err);
        if (rc)
                return rc;
        struct mfl_device_info *info = &device->info;
        *info = (struct mfl_device_info){.backend = "cuda",
                .cores = prop.multiProcessorCount,
                .memory_bytes = prop.totalGlobalMem,
                .own_memory = true};
        mfl_strcpy(info->name, sizeof info->name, prop.name);
        snprintf(info->library, sizeof info->library, "cuDNN %s, CUDA %d.%d", mfl_dnn_version(),
                runtime / 1000, runtime % 1000 / 10);
        format_uuid(&prop, info->uuid, sizeof info->uuid);
        snprintf(info->pci, sizeof info->pci, "%04x:%02x:%02x.0", (unsigned)prop.pciDomainID & 0xffffu,
                (unsigned)prop.pciBusID & 0xffu, (unsigned)prop.pciDeviceID & 0xffu);
        device->sm_version = prop.major * 10 + prop.minor;
        if (device->sm_version >= SM_OLDEST)
                return 0;
        return mfl_fail(err, MFL_INVALID,
                "cuda: %s has compute capability %d.%d: 8.0 (Ampere) or newer is needed", prop.name,
                prop.major, prop.minor);
}

static int open_tuner(struct mfl_device *device, struct mfl_error *err)
{
        char identity[256];
        snprintf(identity, sizeof identity, "%s, sm_%d, %s, driver %d.%d", device->info.name,
                device->sm_version, device->info.library, device->driver / 1000, device->driver % 1000 / 10);
        return mfl_tuner_new(identity, &device->tuner, err);
}

static void close_device(struct mfl_device *device)
{
        if (!device)
                return;
        mfl_cuda_pipe_deinit(&device->reads);
        pthread_mutex_destroy(&device->reading);
        mfl_tuner_free(device->tuner);
        free(device);
}

static int open_device(struct mfl_device **ret_device, struct mfl_error *err)
{
        int n = 0, rc;
        cudaError_t status = cudaGetDeviceCount(&n);
        if (status != cudaSuccess) {
                (void)cudaGetLastError();
                return mfl_fail(err, MFL_NOT_FOUND, "cuda: no device: %s: %s", cudaGetErrorName(status),
                        cudaGetErrorString(status));
        }
        if (n < 1)
                return mfl_fail(err, MFL_NOT_FOUND, "cuda: no device is visible");
        struct mfl_device *device = mfl_calloc(1, sizeof *device);
        if (!device)
                return mfl_fail_memory(err, sizeof *device, "cuda device");
        pthread_mutex_init(&device->reading, NULL);
        rc = describe(device, err);
        if (!rc)
                rc = mfl_cuda_check(cudaSetDevice(device->ordinal), "set device", err);
        if (!rc)
                rc = open_tuner(device, err);
        if (rc) {
                close_device(device);
                return rc;
        }
        *ret_device = device;
        return 0;
}

static void describe_device(const struct mfl_device *device, struct mfl_device_info *ret_info)
{
        size_t free_bytes = 0, total_bytes = 0;
        *ret_info = device->info;
        if (cudaSetDevice(device->ordinal) == cudaSuccess &&
                cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess)
                ret_info->memory_free_bytes = free_bytes;
}

static bool is_emulated(const struct mfl_device *device)
{
        return strstr(device->info.name, "emulated") != NULL;
}

/* The convolutions' parts, and one of NCCL. */
static bool selftest_name(struct mfl_device *device, int part, char name[MFL_SELFTEST_NAME])
{
        bool emulated = is_emulated(device);
        if (mfl_cuda_selftest_name(emulated, part, name))
                return true;
        mfl_snprintf(name, MFL_SELFTEST_NAME, "NCCL");
        return part == 0 || mfl_cuda_selftest_name(emulated, part - 1, (char[MFL_SELFTEST_NAME]){""});
}

static int selftest(struct mfl_device *device, int part,
        void (*report)(void *user, bool ok, const char *text), void *user, struct mfl_error *err)
{
        struct mfl_cuda_context context;
        char name[MFL_SELFTEST_NAME];
        if (!mfl_cuda_selftest_name(is_emulated(device), part, name))
                return mfl_cuda_nccl_selftest(device, report, user, err);
        int rc = mfl_cuda_context_init(&context, device->ordinal, device->tuner, err);
        if (rc)
                return rc;
        rc = mfl_cuda_selftest(&context, part, report, user, err);
        mfl_cuda_context_deinit(&context);
        return rc;
}

__attribute__((visibility("default"))) extern const struct mfl_backend_ops mfl_backend_module;
const struct mfl_backend_ops mfl_backend_module = {
        .abi = MFL_BACKEND_ABI,
        .name = "cuda",
        .device_open = open_device,
        .device_close = close_device,
        .device_info = describe_device,
        .data_new = mfl_cuda_data_new,
        .data_bytes = mfl_cuda_data_bytes,
        .data_free = mfl_cuda_data_free,
        .net_new = mfl_cuda_net_new,
        .net_free = mfl_cuda_net_free,
        .net_bytes = mfl_cuda_net_bytes,
        .net_plan = mfl_cuda_net_plan,
        .params_base = mfl_cuda_params_base,
        .params_set = mfl_cuda_params_set,
        .params_get = mfl_cuda_params_get,
        .correction_set = mfl_cuda_correction_set,
        .stage_new = mfl_cuda_stage_new,
        .stage_free = mfl_cuda_stage_free,
        .stage_put = mfl_cuda_stage_put,
        .stage_bytes = mfl_cuda_stage_bytes,
        .params_staged = mfl_cuda_params_staged,
        .sum_add = mfl_cuda_net_sum_add,
        .sum_take = mfl_cuda_net_sum_take,
        .sum_new = mfl_cuda_sum_new,
        .sum_free = mfl_cuda_sum_free,
        .sum_clear = mfl_cuda_sum_clear,
        .sum_move = mfl_cuda_sum_move,
        .sum_read = mfl_cuda_sum_read,
        .sum_bytes = mfl_cuda_sum_bytes,
        .comm = &mfl_cuda_comm,
        .fuse = mfl_cuda_fuse,
        .step = mfl_cuda_step,
        .grad = &mfl_cuda_grad_ops,
        .eval = mfl_cuda_eval,
        .time = mfl_cuda_net_time,
        .forward = mfl_cuda_forward,
        .backward = mfl_cuda_backward,
        .selftest_name = selftest_name,
        .selftest = selftest,
};
