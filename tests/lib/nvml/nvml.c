/* SPDX-License-Identifier: Apache-2.0 */
/* A libnvidia-ml.so.1 for tests: devices and their figures come from the environment.
 *
 * FAKE_NVML lists them, separated by ';', each UUID|NAME|PERCENT|USED|TOTAL|CELSIUS|MILLIWATTS with '-' for
 * what the device does not report. A UUID that begins with "MIG-" is a MIG device of the GPU before it, which
 * is in MIG mode then. A UUID "-" is a GPU that may not be opened. Without FAKE_NVML, or with
 * FAKE_NVML_FAILS, no driver runs. FAKE_NVML_LOST names a file: while it exists, devices are lost.
 * FAKE_NVML_SLEEP_MS makes every measurement that slow.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum {
        SUCCESS = 0,
        UNINITIALIZED = 1,
        INVALID_ARGUMENT = 2,
        NOT_SUPPORTED = 3,
        NO_PERMISSION = 4,
        NOT_FOUND = 6,
        INSUFFICIENT_SIZE = 7,
        DRIVER_NOT_LOADED = 9,
        GPU_IS_LOST = 15
};

#define FIELDS 7
struct device {
        char text[256];
        const char *field[FIELDS];
        int gpu; /* number of the GPU; of a MIG device: of the one it is on */
        int mig; /* -1: a GPU */
};
static struct device devices[64];
static int n_devices, n_gpus, n_inits;

static void add_device(const char *text, size_t bytes)
{
        struct device *d = &devices[n_devices++];
        snprintf(d->text, sizeof d->text, "%.*s", (int)bytes, text);
        char *at = d->text;
        for (int i = 0; i < FIELDS; i++) {
                d->field[i] = at ? at : "-";
                at = at ? strchr(at, '|') : NULL;
                if (at)
                        *at++ = 0;
        }
        if (strncmp(d->field[0], "MIG-", 4)) {
                d->gpu = n_gpus++;
                d->mig = -1;
                return;
        }
        const struct device *before = d - 1;
        d->gpu = before->gpu;
        d->mig = before->mig + 1;
}

API int nvmlInit_v2(void)
{
        const char *list = getenv("FAKE_NVML");
        if (!list || getenv("FAKE_NVML_FAILS"))
                return DRIVER_NOT_LOADED;
        n_devices = n_gpus = 0;
        for (const char *at = list; *at; at += strcspn(at, ";"), at += *at == ';')
                add_device(at, strcspn(at, ";"));
        n_inits++;
        return SUCCESS;
}

API int nvmlShutdown(void)
{
        return n_inits-- > 0 ? SUCCESS : UNINITIALIZED;
}

API const char *nvmlErrorString(int result)
{
        switch (result) {
        case DRIVER_NOT_LOADED:
                return "Driver Not Loaded";
        case NOT_FOUND:
                return "Not Found";
        case GPU_IS_LOST:
                return "GPU is lost";
        }
        return "Some error";
}

static int copy(const char *from, char *text, unsigned bytes)
{
        if (!strcmp(from, "-"))
                return NOT_SUPPORTED;
        return snprintf(text, bytes, "%s", from) < (int)bytes ? SUCCESS : INSUFFICIENT_SIZE;
}

API int nvmlSystemGetDriverVersion(char *text, unsigned bytes)
{
        return copy("999.1", text, bytes);
}

API int nvmlDeviceGetCount_v2(unsigned *n)
{
        *n = (unsigned)n_gpus;
        return SUCCESS;
}

static struct device *find(int gpu, int mig)
{
        for (int i = 0; i < n_devices; i++) {
                if (devices[i].gpu == gpu && devices[i].mig == mig)
                        return &devices[i];
        }
        return NULL;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned i, struct device **device)
{
        *device = find((int)i, -1);
        if (*device && !strcmp((*device)->field[0], "-"))
                return NO_PERMISSION;
        return *device ? SUCCESS : INVALID_ARGUMENT;
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device)
{
        const char *lost = getenv("FAKE_NVML_LOST"), *sleep_ms = getenv("FAKE_NVML_SLEEP_MS");
        if (sleep_ms) {
                long ms = strtol(sleep_ms, NULL, 10);
                nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
        }
        if (lost && !access(lost, F_OK))
                return GPU_IS_LOST;
        for (int i = 0; i < n_devices; i++) {
                *device = &devices[i];
                if (!strcmp(devices[i].field[0], uuid))
                        return SUCCESS;
        }
        return NOT_FOUND;
}

API int nvmlDeviceGetUUID(struct device *d, char *text, unsigned bytes)
{
        return copy(d->field[0], text, bytes);
}

API int nvmlDeviceGetName(struct device *d, char *text, unsigned bytes)
{
        return copy(d->field[1], text, bytes);
}

struct pci {
        char legacy[16];
        unsigned domain, bus, device, id, subsystem;
        char bus_id[32];
};

API int nvmlDeviceGetPciInfo_v3(struct device *d, struct pci *pci)
{
        if (d->mig >= 0)
                return NOT_SUPPORTED;
        memset(pci, 0, sizeof *pci);
        pci->bus = 0xa0 + (unsigned)d->gpu;
        snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
        return SUCCESS;
}

static int number(const struct device *d, int field, unsigned long long *n)
{
        if (!strcmp(d->field[field], "-"))
                return NOT_SUPPORTED;
        *n = strtoull(d->field[field], NULL, 10);
        return SUCCESS;
}

API int nvmlDeviceGetMemoryInfo(struct device *d, unsigned long long memory[3])
{
        unsigned long long used, total;
        if (number(d, 3, &used) || number(d, 4, &total))
                return NOT_SUPPORTED;
        memory[0] = total;
        memory[1] = total - used;
        memory[2] = used;
        return SUCCESS;
}

API int nvmlDeviceGetUtilizationRates(struct device *d, unsigned rates[2])
{
        unsigned long long n = 0;
        int r = number(d, 2, &n);
        rates[0] = (unsigned)n;
        rates[1] = 1;
        return r;
}

API int nvmlDeviceGetTemperature(struct device *d, int sensor, unsigned *celsius)
{
        unsigned long long n = 0;
        int r = sensor ? INVALID_ARGUMENT : number(d, 5, &n);
        *celsius = (unsigned)n;
        return r;
}

API int nvmlDeviceGetPowerUsage(struct device *d, unsigned *milliwatts)
{
        unsigned long long n = 0;
        int r = number(d, 6, &n);
        *milliwatts = (unsigned)n;
        return r;
}

API int nvmlDeviceGetMigMode(struct device *d, unsigned *current, unsigned *pending)
{
        *current = *pending = find(d->gpu, 0) != NULL;
        return SUCCESS;
}

/* There could be one more than there are. */
API int nvmlDeviceGetMaxMigDeviceCount(struct device *d, unsigned *n)
{
        for (*n = 0; find(d->gpu, (int)*n);)
                ++*n;
        ++*n;
        return SUCCESS;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(struct device *d, unsigned i, struct device **mig)
{
        *mig = find(d->gpu, (int)i);
        return *mig ? SUCCESS : NOT_FOUND;
}
