/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU module's table of functions. */
#include <stdio.h>

#include "kernels/cpu/net.h"

static int device_open(struct mfl_device **ret_device, struct mfl_error *err)
{
        struct mfl_device *device = mfl_calloc(1, sizeof *device);
        if (!device)
                return mfl_fail_memory(err, sizeof *device, "cpu device");
        mfl_cpu_bf16_avoid_broken_amx();
        if (dnnl_engine_create(&device->engine, dnnl_cpu, 0)) {
                free(device);
                return mfl_fail(err, -ENODEV, "cpu: oneDNN has no CPU engine");
        }
        device->loops = mfl_loops_choose();
        device->bf16 = mfl_cpu_bf16_choose();
        *ret_device = device;
        return 0;
}

static void device_close(struct mfl_device *device)
{
        if (!device)
                return;
        dnnl_engine_destroy(device->engine);
        free(device);
}

static void device_info(const struct mfl_device *device, struct mfl_device_info *ret_info)
{
        const dnnl_version_t *v = dnnl_version();
        *ret_info = (struct mfl_device_info){.backend = "cpu"};
        mfl_host_device_info(ret_info);
        snprintf(ret_info->library, sizeof ret_info->library, "oneDNN %d.%d.%d, own loops %s%s%s", v->major,
                v->minor, v->patch, device->loops->name, device->bf16 ? ", bf16 " : "",
                mfl_cpu_bf16_name(device->bf16));
}

__attribute__((visibility("default"))) extern const struct mfl_backend_ops mfl_backend_module;
const struct mfl_backend_ops mfl_backend_module = {
        .abi = MFL_BACKEND_ABI,
        .name = "cpu",
        .device_open = device_open,
        .device_close = device_close,
        .device_info = device_info,
        .data_new = mfl_host_data_new,
        .data_free = mfl_host_data_free,
        .net_new = mfl_cpu_net_new,
        .net_free = mfl_cpu_net_free,
        .net_bytes = mfl_cpu_net_bytes,
        .net_plan = mfl_cpu_net_plan,
        .params_base = mfl_cpu_params_base,
        .params_set = mfl_cpu_params_set,
        .params_get = mfl_cpu_params_get,
        .correction_set = mfl_cpu_correction_set,
        .sum_add = mfl_cpu_sum_add,
        .sum_take = mfl_cpu_sum_take,
        .step = mfl_cpu_step,
        .grad = &mfl_cpu_grad_ops,
        .eval = mfl_cpu_eval,
        .infer = mfl_cpu_infer,
        .gather_ns = mfl_cpu_gather_ns,
        .forward = mfl_cpu_forward,
        .backward = mfl_cpu_backward,
};
