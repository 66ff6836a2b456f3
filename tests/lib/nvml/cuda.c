/* SPDX-License-Identifier: Apache-2.0 */
/* A "cuda" module for tests of pinning, without CUDA: the reference backend under that name, whose device is
 * the GPU of FAKE_NVML (nvml.c) that CUDA_VISIBLE_DEVICES shows first when the device is opened, by CUDA's
 * rules. What it computes says nothing about a GPU; the emulated device of tests/emu is for that.
 *
 * FAKE_CUDA_OPENS: the UUID that it has in any case. FAKE_CUDA_BREAKS names a file: while it exists, training
 * fails as on a device whose context is gone. FAKE_CUDA_FAILS: opening the device fails so, as a broken
 * device.
 */
#include <stdio.h>
#include <unistd.h>

#include "kernels/backend.h"

static char uuid[48];

static bool begins(const char *text, const char *part, size_t part_bytes)
{
        return part_bytes && !strncasecmp(text, part, part_bytes);
}

/* Item i of the ';' list, its first field. */
static bool list_uuid(int i, char *buf, size_t bytes)
{
        const char *at = getenv("FAKE_NVML");
        for (; at && *at && i > 0; i--) {
                at += strcspn(at, ";");
                at += *at == ';';
        }
        if (!at || !*at)
                return false;
        snprintf(buf, bytes, "%.*s", (int)strcspn(at, "|;"), at);
        return true;
}

static bool find_visible(void)
{
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        char one[48];
        if (!visible)
                visible = "0";
        size_t n = strcspn(visible, ",");
        bool index = n && strspn(visible, "0123456789") == n;
        int number = 0;
        for (int i = 0; list_uuid(i, one, sizeof(one)); i++) {
                bool gpu = strncmp(one, "MIG-", 4);
                if (index ? gpu && number == atoi(visible) : begins(one, visible, n)) {
                        strcpy(uuid, one);
                        return true;
                }
                number += gpu;
        }
        return false;
}

static int open_device(struct mfl_device **ret_device, struct mfl_error *err)
{
        const char *opens = getenv("FAKE_CUDA_OPENS"), *fails = getenv("FAKE_CUDA_FAILS");
        if (fails)
                return mfl_fail(err, -EIO, "cuda: set device: %s", fails);
        if (!find_visible())
                return mfl_fail(err, MFL_NOT_FOUND, "cuda: no device is visible");
        if (opens)
                mfl_strcpy(uuid, sizeof(uuid), opens);
        return mfl_backend_reference.device_open(ret_device, err);
}

static void tell_device(const struct mfl_device *device, struct mfl_device_info *ret_info)
{
        mfl_backend_reference.device_info(device, ret_info);
        strcpy(ret_info->backend, "cuda");
        strcpy(ret_info->name, "Fake GPU");
        strcpy(ret_info->uuid, uuid);
        strcpy(ret_info->pci, "0000:ff:00.0");
}

static int step(struct mfl_net *net, const struct mfl_device_data *data, struct mfl_group_steps *groups,
        uint32_t n_steps, const struct mfl_optimizer *opt, struct mfl_error *err)
{
        const char *breaks = getenv("FAKE_CUDA_BREAKS");
        if (breaks && !access(breaks, F_OK))
                return mfl_fail(
                        err, -EIO, "cuda: launch the step's graph: an illegal memory access was encountered");
        return mfl_backend_reference.step(net, data, groups, n_steps, opt, err);
}

__attribute__((visibility("default"))) extern struct mfl_backend_ops mfl_backend_module;
struct mfl_backend_ops mfl_backend_module;

__attribute__((constructor)) static void fill_table(void)
{
        mfl_backend_module = mfl_backend_reference;
        mfl_backend_module.name = "cuda";
        mfl_backend_module.device_open = open_device;
        mfl_backend_module.device_info = tell_device;
        mfl_backend_module.step = step;
}
