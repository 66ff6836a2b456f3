/* SPDX-License-Identifier: Apache-2.0 */
/* Pinning: see the table in the header.
 *
 *   - find the device that was asked for, set CUDA_VISIBLE_DEVICES, take the lock;
 *   - open the backend and its device;
 *   - compare the device's UUID with what was asked for; take the lock now if it was not taken before.
 * Fails by: no such GPU, contradicting settings, another daemon on that GPU, no driver although a GPU was
 * demanded, a device that is not the one that was asked for. */
#include "client/gpu/gpu_pin.h"

#include <stdio.h>

#include "common/base/log.h"

int mfl_gpu_list(struct mfl_nvml **ret_nvml, struct mfl_gpus **ret_gpus, struct mfl_error *err)
{
        struct mfl_nvml *nvml = NULL;
        struct mfl_error reason = {{0}};
        struct mfl_gpus *gpus = mfl_calloc(1, sizeof(*gpus));
        if (!gpus)
                return mfl_fail_memory(err, sizeof(*gpus), "a list of GPUs");
        int r = mfl_nvml_open(&nvml, &reason);
        if (!r)
                r = mfl_nvml_list(nvml, gpus, &reason);
        if (r == MFL_NOT_FOUND && !mfl_gpu_list_proc(MFL_GPU_PROC, gpus, NULL))
                r = 0;
        if (!r && ret_nvml) {
                *ret_nvml = nvml;
                nvml = NULL;
        }
        mfl_nvml_close(nvml);
        if (r) {
                free(gpus);
                return mfl_fail(err, r, "%s", reason.text);
        }
        *ret_gpus = gpus;
        return 0;
}

static int take_lock(struct mfl_gpu_pin *pin, const char *uuid, bool share, struct mfl_error *err)
{
        int r = mfl_gpu_lock_take(&pin->lock, uuid, share, err);
        if (r == MFL_NOT_FOUND) {
                mfl_log(MFL_LOG_WARN, "%s; if another daemon uses this GPU, it will not be noticed",
                        err->text);
                return 0;
        }
        return r > 0 ? MFL_INVALID : r;
}

/* ---- before CUDA starts ---- */

static int set_visible(const char *text, struct mfl_error *err)
{
        if (setenv("CUDA_VISIBLE_DEVICES", text, 1) || setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1))
                return mfl_fail_memory(err, strlen(text), "the environment");
        return 0;
}

static int pin_none(char *backend, struct mfl_error *err)
{
        if (!strcmp(backend, "cuda"))
                return mfl_fail(err, MFL_INVALID, "gpu none and backend cuda contradict each other");
        if (!strcmp(backend, "auto"))
                strcpy(backend, "cpu");
        return set_visible("", err);
}

static int pin_one(struct mfl_gpu_pin *pin, char *backend, bool share, struct mfl_error *err)
{
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        const struct mfl_gpu *gpu = NULL;
        struct mfl_error reason = {{0}};
        int r = mfl_gpu_list(&pin->nvml, &pin->gpus, &reason);
        if (r < 0)
                return mfl_fail(err, r, "%s", reason.text);
        if (!r)
                r = mfl_gpu_find(pin->gpus, &pin->id, &gpu, err);
        /* The driver's files lack MIG devices, and perhaps some UUIDs: then CUDA is asked. */
        if (r == MFL_INVALID && pin->nvml)
                return r;
        if (!gpu)
                mfl_log(MFL_LOG_DEBUG, "GPU %s can't be looked up: %s", pin->id.text, reason.text);
        r = mfl_gpu_check_visible(visible, &pin->id, gpu, pin->gpus, err);
        if (r)
                return r;
        if (!strcmp(backend, "auto"))
                strcpy(backend, "cuda");
        pin->known = gpu != NULL;
        if (gpu)
                pin->gpu = *gpu;
        /* By UUID, because an index may mean another device: with another order, in a container that sees
         * only some GPUs, or behind an MPS daemon. */
        r = set_visible(gpu ? gpu->uuid : pin->id.text, err);
        return r || !gpu ? r : take_lock(pin, gpu->uuid, share, err);
}

static int prepare(const struct mfl_gpu_pin_options *options, struct mfl_gpu_pin *pin, char *backend,
        struct mfl_error *err)
{
        if (!mfl_gpu_id_parse(options->gpu, &pin->id))
                return mfl_fail(err, MFL_INVALID, "gpu %s: expected an index, GPU-..., MIG-... or none",
                        options->gpu);
        if (pin->id.kind == MFL_GPU_NONE)
                return pin_none(backend, err);
        pin->demanded = pin->id.kind != MFL_GPU_UNSET;
        return pin->demanded ? pin_one(pin, backend, options->share, err) : 0;
}

/* ---- the backend ---- */

static bool on_gpu(const struct mfl_gpu_pin *pin)
{
        return !strcmp(pin->ops->name, "cuda");
}

/* Opens a backend and its device. */
static int open_one(struct mfl_gpu_pin *pin, const char *name, struct mfl_error *err)
{
        int r = mfl_backend_open(name, &pin->ops, err);
        if (!r)
                r = pin->ops->device_open(&pin->device, err);
        if (r)
                pin->device = NULL;
        return r;
}

/* Tries the backends in this order; if the CPU is used, one line says why. ret_reason is that of the
 * first. */
static int open_any(struct mfl_gpu_pin *pin, struct mfl_error *ret_reason)
{
        static const char *const order[] = {"cuda", "cpu", "reference"};
        struct mfl_error others = {{0}};
        int first = open_one(pin, order[0], ret_reason), r = first;
        for (size_t i = 1; r && r != -ENOMEM && i < MFL_ARRAY_SIZE(order); i++)
                r = open_one(pin, order[i], &others);
        if (r || !first)
                return r;
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        pin->ops->device_info(pin->device, &pin->info);
        /* Having no device is normal; a device that does not work is not. */
        mfl_log(first < 0 ? MFL_LOG_WARN : MFL_LOG_INFO, "no GPU: %s%s; training on the CPU (%s)",
                ret_reason->text, visible && !*visible ? " (CUDA_VISIBLE_DEVICES is empty)" : "",
                *pin->info.library ? pin->info.library : "plain loops");
        return 0;
}

/* If a GPU was demanded, a missing driver or device is an error of the configuration; a broken device is
 * not. */
static int open_device(struct mfl_gpu_pin *pin, const char *backend, struct mfl_error *err)
{
        struct mfl_error reason = {{0}};
        int r = strcmp(backend, "auto") ? open_one(pin, backend, &reason) : open_any(pin, &reason);
        if (r > 0 && pin->demanded)
                return mfl_fail(err, MFL_INVALID, "GPU %s was asked for: %.400s", pin->id.text, reason.text);
        return r ? mfl_fail(err, r > 0 ? MFL_INVALID : r, "%s", reason.text) : 0;
}

/* Compares the device's UUID with what was asked for. CUDA reports a MIG device by its own UUID or, in older
 * versions, by its GPU's. */
static int check_uuid(const struct mfl_gpu_pin *pin, struct mfl_error *err)
{
        const char *got = pin->info.uuid;
        if (!pin->demanded || !on_gpu(pin) || !*got)
                return 0;
        bool right = true;
        if (pin->known)
                right = mfl_gpu_uuid_begins(got, pin->gpu.uuid) ||
                        mfl_gpu_uuid_begins(got, pin->gpu.gpu_uuid) ||
                        (pin->gpu.mig >= 0 && strlen(got) > 4 &&
                                mfl_gpu_uuid_begins(got + 4, pin->gpu.uuid + 4));
        else if (pin->id.kind == MFL_GPU_UUID)
                right = mfl_gpu_uuid_begins(got, pin->id.text);
        if (right)
                return 0;
        return mfl_fail(err, MFL_INVALID, "GPU %s%s%s%s was asked for, but CUDA opened %s (%s)", pin->id.text,
                pin->known ? " (" : "", pin->known ? pin->gpu.uuid : "", pin->known ? ")" : "", got,
                pin->info.name);
}

/* The first entry of the environment, if it is a MIG device: CUDA may report its GPU's UUID, which others
 * share. Otherwise the UUID that CUDA reports. */
static bool opened_id(const struct mfl_gpu_pin *pin, const char *visible, struct mfl_gpu_id *ret_id)
{
        char first[MFL_GPU_TEXT_BYTES] = "";
        size_t bytes = visible ? strcspn(visible, ",") : 0;
        if (bytes < sizeof(first))
                memcpy(first, visible ? visible : "", bytes);
        if (mfl_gpu_id_parse(first, ret_id) && ret_id->kind == MFL_GPU_MIG)
                return true;
        return mfl_gpu_id_parse(pin->info.uuid, ret_id) && ret_id->kind >= MFL_GPU_UUID;
}

static bool look_up(const struct mfl_gpus *gpus, struct mfl_gpu_id id, struct mfl_gpu *ret_gpu)
{
        const struct mfl_gpu *gpu;
        if (!gpus)
                return false;
        if (mfl_gpu_find(gpus, &id, &gpu, NULL)) {
                memcpy(id.text, "MIG-", 4); /* CUDA does not tell MIG devices and GPUs apart */
                if (mfl_gpu_find(gpus, &id, &gpu, NULL))
                        return false;
        }
        *ret_gpu = *gpu;
        return true;
}

static void tell_others(const struct mfl_gpu_pin *pin, const char *visible)
{
        uint32_t n_gpus = 0;
        for (uint32_t i = 0; pin->gpus && i < pin->gpus->n; i++)
                n_gpus += pin->gpus->v[i].mig < 0;
        uint32_t n = mfl_gpu_count_visible(visible, n_gpus);
        if (n > 1)
                mfl_log(MFL_LOG_INFO,
                        "%u GPUs are visible and one daemon uses one: this is the first; --gpu chooses "
                        "another, "
                        "--all-gpus starts a daemon for each",
                        n);
}

/* A CUDA device that was not named, or could not be looked up before: now take its lock and look it up. */
static int adopt(struct mfl_gpu_pin *pin, bool share, struct mfl_error *err)
{
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        struct mfl_gpu_id id;
        if (!pin->gpus && mfl_gpu_list(&pin->nvml, &pin->gpus, NULL) < 0)
                return mfl_fail_memory(err, sizeof(*pin->gpus), "a list of GPUs");
        tell_others(pin, visible);
        if (!opened_id(pin, visible, &id))
                return 0;
        pin->known = true;
        if (!look_up(pin->gpus, id, &pin->gpu)) {
                pin->gpu = (struct mfl_gpu){.mig = -1, .memory_bytes = pin->info.memory_bytes};
                strcpy(pin->gpu.uuid, id.text);
                strcpy(pin->gpu.gpu_uuid, id.text);
                mfl_strcpy(pin->gpu.pci, sizeof(pin->gpu.pci), pin->info.pci);
        }
        return take_lock(pin, pin->gpu.uuid, share, err);
}

static void tell_sharing(const struct mfl_gpu_pin *pin, bool share)
{
        if (pin->mps)
                mfl_log(MFL_LOG_INFO, "the Multi-Process Service (MPS) runs: CUDA goes through it");
        if (share && !pin->mps)
                mfl_log(MFL_LOG_WARN,
                        "the GPU is shared without MPS: only one process computes at a time, and "
                        "big kernels queue up");
}

int mfl_gpu_pin_open(
        const struct mfl_gpu_pin_options *options, struct mfl_gpu_pin *ret_pin, struct mfl_error *err)
{
        struct mfl_gpu_pin *pin = ret_pin;
        char backend[16];
        *pin = (struct mfl_gpu_pin){.lock = {.fd = -1}};
        mfl_assert(strlen(options->backend) < sizeof(backend));
        strcpy(backend, options->backend);
        int r = prepare(options, pin, backend, err);
        if (r)
                return r;
        r = open_device(pin, backend, err);
        /* Without oneDNN, or its library, the plain loops of `reference` are used. */
        if (r == MFL_INVALID && pin->id.kind == MFL_GPU_NONE && strcmp(backend, options->backend)) {
                mfl_log(MFL_LOG_WARN, "the plain loops of backend reference train, many times slower: %s",
                        err ? err->text : "cpu can't be used");
                r = open_device(pin, "reference", err);
        }
        if (r)
                return r;
        pin->ops->device_info(pin->device, &pin->info);
        r = check_uuid(pin, err);
        if (!r && on_gpu(pin) && !pin->known)
                r = adopt(pin, options->share, err);
        if (r)
                return r;
        pin->mps = on_gpu(pin) && mfl_gpu_mps_running();
        if (pin->known)
                tell_sharing(pin, options->share);
        return 0;
}

void mfl_gpu_pin_close(struct mfl_gpu_pin *pin)
{
        if (pin->device)
                pin->ops->device_close(pin->device);
        mfl_nvml_close(pin->nvml);
        free(pin->gpus);
        if (pin->ops || pin->demanded)
                mfl_gpu_lock_release(&pin->lock);
        *pin = (struct mfl_gpu_pin){.lock = {.fd = -1}};
}
