/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPU a daemon is for: what a user may ask for, what the machine has, one daemon per GPU, and how the
 * GPU is.
 *
 * Nothing here includes or links a CUDA or NVML header: NVML (libnvidia-ml.so.1, part of the driver) is
 * opened at run time, and its few functions are declared in gpu_nvml.c. Everything blocks, NVML for
 * milliseconds to seconds: at the start of a program, or on a worker thread; never on the loop. Errors are
 * MFL_INVALID (what was asked for cannot be had, with what there is) and MFL_NOT_FOUND, as noted; texts name
 * the way out.
 */
#ifndef MFL_CLIENT_GPU_H
#define MFL_CLIENT_GPU_H

#include "common/base.h"
#include "proto/message.h"

/* Of a UUID or a name: NVML's NVML_DEVICE_UUID_V2_BUFFER_SIZE, NVML_DEVICE_NAME_V2_BUFFER_SIZE. */
#define MFL_GPU_TEXT_BYTES 96
#define MFL_GPUS_MAX 128u /* GPUs and MIG devices of a machine */

/* ---- what a user writes (pure) ---- */

enum mfl_gpu_kind {
        MFL_GPU_UNSET,
        MFL_GPU_NONE,  /* "none" */
        MFL_GPU_INDEX, /* "3": in the order of PCI addresses, as nvidia-smi counts */
        MFL_GPU_UUID,  /* "GPU-5d3c...": whole, or enough of its beginning */
        MFL_GPU_MIG,   /* "MIG-...": a MIG device, in either of the two forms that drivers have used */
};
struct mfl_gpu_id {
        enum mfl_gpu_kind kind;
        uint32_t index; /* INDEX */
        char text[MFL_GPU_TEXT_BYTES];
};
/* "" is UNSET. False: none of the above. */
bool mfl_gpu_id_parse(const char *text, struct mfl_gpu_id *ret_id);
/* "3", "0,2,GPU-5d": one or several, none twice. False as above. */
bool mfl_gpu_ids_parse(const char *text, struct mfl_gpu_id ids[MFL_GPUS_MAX], uint32_t *ret_n);
/* Whether `uuid` begins with `asked`, in either case of letters, as CUDA takes it in CUDA_VISIBLE_DEVICES.
 * "GPU-" and "MIG-" count as letters do: a MIG device is not its GPU. */
bool mfl_gpu_uuid_begins(const char *uuid, const char *asked);

/* ---- what the machine has ---- */

struct mfl_gpu {
        uint32_t index; /* of the GPU, in the order of PCI addresses */
        int mig;        /* number of the MIG device on it; -1: the GPU itself */
        bool mig_mode;  /* the GPU itself: it is cut into MIG devices, of which CUDA sees one at a time */
        char uuid[MFL_GPU_TEXT_BYTES];
        char gpu_uuid[MFL_GPU_TEXT_BYTES]; /* of the GPU that a MIG device is on; else the same as uuid */
        char name[MFL_GPU_TEXT_BYTES];     /* empty: not known */
        char pci[MFL_DEVICE_PCI_BYTES];    /* "0000:65:00.0" */
        uint64_t memory_bytes;             /* 0: not known */
};
/* A GPU's MIG devices follow it. */
struct mfl_gpus {
        uint32_t n;
        struct mfl_gpu v[MFL_GPUS_MAX];
};

struct mfl_nvml;
/* MFL_NOT_FOUND: no library, or it found no driver; with the reason. Tests put a library of that name where
 * LD_LIBRARY_PATH finds it. Any thread may use it; NVML locks for itself. */
int mfl_nvml_open(struct mfl_nvml **ret_nvml, struct mfl_error *err);
void mfl_nvml_close(struct mfl_nvml *nvml);               /* NULL is fine */
const char *mfl_nvml_driver(const struct mfl_nvml *nvml); /* "580.65.06"; empty: not known */
int mfl_nvml_list(struct mfl_nvml *nvml, struct mfl_gpus *ret_gpus, struct mfl_error *err);
/* What the device of that UUID reports now. MFL_NOT_FOUND: no such device, or it is lost. */
int mfl_nvml_sample(
        struct mfl_nvml *nvml, const char *uuid, struct mfl_telemetry *ret_telemetry, struct mfl_error *err);

/* The same list without NVML, from the driver's files: `folder` is /proc/driver/nvidia/gpus. No MIG devices,
 * no memory sizes. MFL_NOT_FOUND: no such folder, or nothing in it. */
#define MFL_GPU_PROC "/proc/driver/nvidia/gpus"
int mfl_gpu_list_proc(const char *folder, struct mfl_gpus *ret_gpus, struct mfl_error *err);

/* ---- choosing (pure) ---- */

/* The one that `id` (INDEX, UUID, MIG) means. MFL_INVALID: none, several, or a GPU in MIG mode; the text
 * lists what there is. */
int mfl_gpu_find(const struct mfl_gpus *gpus, const struct mfl_gpu_id *id, const struct mfl_gpu **ret_gpu,
        struct mfl_error *err);
/* Whether CUDA_VISIBLE_DEVICES = visible (NULL: not set) lets `id` be used as asked: not set, or the very
 * same device. gpus: NULL when not known; gpu: what id means, NULL when not known. */
int mfl_gpu_check_visible(const char *visible, const struct mfl_gpu_id *id, const struct mfl_gpu *gpu,
        const struct mfl_gpus *gpus, struct mfl_error *err);
/* How many GPUs CUDA would see: entries of CUDA_VISIBLE_DEVICES where it is set, else n_gpus. */
uint32_t mfl_gpu_count_visible(const char *visible, uint32_t n_gpus);
/* One each for --all-gpus and --gpus: `ids` where n_ids > 0, else those in `visible` where it is set, else
 * all. A GPU in MIG mode stands for its MIG devices. */
int mfl_gpu_select(const struct mfl_gpus *gpus, const struct mfl_gpu_id *ids, uint32_t n_ids,
        const char *visible, struct mfl_gpus *ret_chosen, struct mfl_error *err);

/* ---- one daemon per GPU ---- */

/* A file in /run/lock, else $XDG_RUNTIME_DIR, else /tmp ($MFL_GPU_LOCK_DIR goes before all), locked by flock:
 * the lock goes with the process, however it ends. /run/lock comes first because daemons of two users must
 * meet in one place. */
struct mfl_gpu_lock {
        int fd; /* -1: none */
        char path[256];
};
/* shared: others that ask for sharing, too, may hold it at the same time. MFL_BUSY: somebody else has it; the
 * text has the process's number. MFL_NOT_FOUND: nowhere to put a lock file; the text says where it was tried.
 */
int mfl_gpu_lock_take(struct mfl_gpu_lock *lock, const char *uuid, bool shared, struct mfl_error *err);
void mfl_gpu_lock_release(struct mfl_gpu_lock *lock); /* also of one that was never taken, with fd = -1 */

/* Whether a CUDA program started now would be a client of the Multi-Process Service: its control daemon
 * answers in $CUDA_MPS_PIPE_DIRECTORY (default /tmp/nvidia-mps). */
bool mfl_gpu_mps_running(void);

#endif
