/* SPDX-License-Identifier: Apache-2.0 */
/* NVML, opened at run time: the machine's GPUs, and the figures of one of them.
 *
 *   - dlopen libnvidia-ml.so.1, look up the functions, nvmlInit_v2;
 *   - list: every GPU's UUID, name, PCI address and memory, and its MIG devices if it is in MIG mode;
 *   - sample: each value by itself; a value that the device does not report is left out.
 * Fails by: no library (no driver installed), no running driver, a library older than 2020 that lacks a
 * function; a device that has fallen off the bus.
 *
 * The declarations follow NVIDIA's NVML API reference (docs.nvidia.com/deploy/nvml-api); only functions and
 * structures are used whose layout has not changed since their suffix was introduced. nvmlShutdown is called
 * for every init; the library stays loaded, because its threads may still run. */
#include "client/gpu/gpu.h"

#include <dlfcn.h>
#include <stdio.h>

struct nvml_device; /* opaque */

/* nvmlReturn_t, an enum: int. */
#define NVML_SUCCESS 0

struct nvml_memory { /* nvmlMemory_t */
        unsigned long long total, free, used;
};
struct nvml_utilization { /* nvmlUtilization_t, percent */
        unsigned gpu, memory;
};
struct nvml_pci { /* nvmlPciInfo_t of nvmlDeviceGetPciInfo_v3 */
        char bus_id_legacy[16];
        unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
        char bus_id[32];
};
_Static_assert(sizeof(struct nvml_memory) == 24 && sizeof(struct nvml_pci) == 68, "NVML's layout");

struct mfl_nvml {
        char driver[80];
        /* Needed. */
        int (*init)(void);
        int (*shutdown)(void);
        const char *(*error_text)(int result);
        int (*count)(unsigned *n);
        int (*by_index)(unsigned i, struct nvml_device **device);
        int (*by_uuid)(const char *uuid, struct nvml_device **device);
        int (*uuid)(struct nvml_device *device, char *text, unsigned bytes);
        /* Optional: NULL in a library without them. */
        int (*driver_version)(char *text, unsigned bytes);
        int (*name)(struct nvml_device *device, char *text, unsigned bytes);
        int (*pci)(struct nvml_device *device, struct nvml_pci *pci);
        int (*memory)(struct nvml_device *device, struct nvml_memory *memory);
        int (*utilization)(struct nvml_device *device, struct nvml_utilization *utilization);
        int (*temperature)(struct nvml_device *device, int sensor, unsigned *celsius);
        int (*power)(struct nvml_device *device, unsigned *milliwatts);
        int (*mig_mode)(struct nvml_device *device, unsigned *current, unsigned *pending);
        int (*mig_max)(struct nvml_device *device, unsigned *n);
        int (*mig_by_index)(struct nvml_device *device, unsigned i, struct nvml_device **mig);
};

static const struct {
        const char *symbol;
        size_t offset;
        bool needed;
} functions[] = {
#define FUNCTION(symbol, member, needed)                                                                     \
        {                                                                                                    \
                symbol, offsetof(struct mfl_nvml, member), needed                                            \
        }
        FUNCTION("nvmlInit_v2", init, true),
        FUNCTION("nvmlShutdown", shutdown, true),
        FUNCTION("nvmlErrorString", error_text, true),
        FUNCTION("nvmlDeviceGetCount_v2", count, true),
        FUNCTION("nvmlDeviceGetHandleByIndex_v2", by_index, true),
        FUNCTION("nvmlDeviceGetHandleByUUID", by_uuid, true),
        FUNCTION("nvmlDeviceGetUUID", uuid, true),
        FUNCTION("nvmlSystemGetDriverVersion", driver_version, false),
        FUNCTION("nvmlDeviceGetName", name, false),
        FUNCTION("nvmlDeviceGetPciInfo_v3", pci, false),
        FUNCTION("nvmlDeviceGetMemoryInfo", memory, false),
        FUNCTION("nvmlDeviceGetUtilizationRates", utilization, false),
        FUNCTION("nvmlDeviceGetTemperature", temperature, false),
        FUNCTION("nvmlDeviceGetPowerUsage", power, false),
        FUNCTION("nvmlDeviceGetMigMode", mig_mode, false),
        FUNCTION("nvmlDeviceGetMaxMigDeviceCount", mig_max, false),
        FUNCTION("nvmlDeviceGetMigDeviceHandleByIndex", mig_by_index, false),
#undef FUNCTION
};

static int find_functions(struct mfl_nvml *nvml, void *library, struct mfl_error *err)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(functions); i++) {
                void *f = dlsym(library, functions[i].symbol);
                if (!f && functions[i].needed)
                        return mfl_fail(err, MFL_NOT_FOUND, "NVML has no %s: the NVIDIA driver is too old",
                                functions[i].symbol);
                memcpy((char *)nvml + functions[i].offset, &f, sizeof(f));
        }
        return 0;
}

int mfl_nvml_open(struct mfl_nvml **ret_nvml, struct mfl_error *err)
{
        void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!library)
                return mfl_fail(err, MFL_NOT_FOUND, "no NVML, so there is no NVIDIA driver: %s", dlerror());
        struct mfl_nvml *nvml = mfl_calloc(1, sizeof(*nvml));
        if (!nvml)
                return mfl_fail_memory(err, sizeof(*nvml), "NVML");
        int r = find_functions(nvml, library, err);
        int result = r ? 0 : nvml->init();
        if (result != NVML_SUCCESS)
                r = mfl_fail(err, MFL_NOT_FOUND, "NVML: %s", nvml->error_text(result));
        if (r) {
                free(nvml);
                return r;
        }
        if (!nvml->driver_version || nvml->driver_version(nvml->driver, sizeof(nvml->driver)))
                nvml->driver[0] = 0;
        *ret_nvml = nvml;
        return 0;
}

void mfl_nvml_close(struct mfl_nvml *nvml)
{
        if (!nvml)
                return;
        nvml->shutdown();
        free(nvml);
}

const char *mfl_nvml_driver(const struct mfl_nvml *nvml)
{
        return nvml->driver;
}

/* ---- the list ---- */

static void describe(struct mfl_nvml *nvml, struct nvml_device *device, struct mfl_gpu *gpu)
{
        struct nvml_memory memory;
        struct nvml_pci pci;
        if (!nvml->name || nvml->name(device, gpu->name, sizeof(gpu->name)))
                gpu->name[0] = 0;
        if (nvml->memory && !nvml->memory(device, &memory))
                gpu->memory_bytes = memory.total;
        /* As CUDA and lspci print it: four digits of the domain, lower case. */
        if (nvml->pci && !nvml->pci(device, &pci))
                snprintf(gpu->pci, sizeof(gpu->pci), "%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
}

static void list_mig(struct mfl_nvml *nvml, struct nvml_device *device, struct mfl_gpus *gpus)
{
        struct mfl_gpu gpu = gpus->v[gpus->n - 1];
        unsigned current = 0, pending, n = 0;
        if (!nvml->mig_mode || !nvml->mig_max || !nvml->mig_by_index ||
                nvml->mig_mode(device, &current, &pending) || !current)
                return;
        gpus->v[gpus->n - 1].mig_mode = true;
        if (nvml->mig_max(device, &n))
                return;
        for (unsigned i = 0; i < n && gpus->n < MFL_GPUS_MAX; i++) {
                struct nvml_device *mig;
                struct mfl_gpu *g = &gpus->v[gpus->n];
                *g = (struct mfl_gpu){.index = gpu.index, .mig = (int)i};
                /* Numbers without a device are normal: n is how many there could be. */
                if (nvml->mig_by_index(device, i, &mig) || nvml->uuid(mig, g->uuid, sizeof(g->uuid)))
                        continue;
                describe(nvml, mig, g);
                mfl_strcpy(g->gpu_uuid, sizeof(g->gpu_uuid), gpu.uuid);
                if (!*g->name)
                        mfl_strcpy(g->name, sizeof(g->name), gpu.name);
                mfl_strcpy(g->pci, sizeof(g->pci), gpu.pci);
                gpus->n++;
        }
}

int mfl_nvml_list(struct mfl_nvml *nvml, struct mfl_gpus *ret_gpus, struct mfl_error *err)
{
        unsigned n = 0;
        int result = nvml->count(&n);
        if (result != NVML_SUCCESS)
                return mfl_fail(err, MFL_NOT_FOUND, "NVML: count the GPUs: %s", nvml->error_text(result));
        ret_gpus->n = 0;
        for (unsigned i = 0; i < n && ret_gpus->n < MFL_GPUS_MAX; i++) {
                struct nvml_device *device;
                struct mfl_gpu *g = &ret_gpus->v[ret_gpus->n];
                *g = (struct mfl_gpu){.index = i, .mig = -1};
                /* Leaves out a device that this process may not open (in a container), or that is lost. */
                if (nvml->by_index(i, &device) || nvml->uuid(device, g->uuid, sizeof(g->uuid)))
                        continue;
                mfl_strcpy(g->gpu_uuid, sizeof(g->gpu_uuid), g->uuid);
                describe(nvml, device, g);
                ret_gpus->n++;
                list_mig(nvml, device, ret_gpus);
        }
        return 0;
}

/* ---- a sample ---- */

int mfl_nvml_sample(
        struct mfl_nvml *nvml, const char *uuid, struct mfl_telemetry *ret_telemetry, struct mfl_error *err)
{
        struct mfl_telemetry t = {0};
        struct nvml_device *device;
        struct nvml_utilization utilization;
        struct nvml_memory memory;
        unsigned number;
        int result = nvml->by_uuid(uuid, &device);
        if (result != NVML_SUCCESS)
                return mfl_fail(err, MFL_NOT_FOUND, "NVML: %s: %s", uuid, nvml->error_text(result));
        if (nvml->utilization && !nvml->utilization(device, &utilization) && utilization.gpu <= 100) {
                t.known |= MFL_TELEMETRY_GPU;
                t.gpu_percent = utilization.gpu;
        }
        /* This version's `used` includes what the driver reserves, so it does not exceed total. */
        if (nvml->memory && !nvml->memory(device, &memory) && memory.total && memory.used <= memory.total) {
                t.known |= MFL_TELEMETRY_MEMORY_USED | MFL_TELEMETRY_MEMORY_TOTAL;
                t.memory_used = memory.used;
                t.memory_total = memory.total;
        }
        if (nvml->temperature && !nvml->temperature(device, 0, &number) && number <= 1000) {
                t.known |= MFL_TELEMETRY_TEMPERATURE;
                t.temperature_c = number;
        }
        if (nvml->power && !nvml->power(device, &number) && number <= 1000000000) {
                t.known |= MFL_TELEMETRY_POWER;
                t.power_mw = number;
        }
        *ret_telemetry = t;
        return 0;
}
