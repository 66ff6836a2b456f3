/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPU a daemon uses: what a user may write, what the machine has, one daemon per GPU, and the GPU's
 * figures.
 *
 * Nothing here includes or links a CUDA or NVML header: NVML (libnvidia-ml.so.1, part of the driver) is
 * opened at run time, and its few functions are declared in gpu_nvml.c. Everything blocks, NVML for
 * milliseconds to seconds: call it at the start of a program or on a worker thread, never on the loop. Errors
 * are MFL_INVALID (what was asked for is not available; the text lists what is) and MFL_NOT_FOUND, as noted;
 * the texts say what to do. */
#ifndef MFL_CLIENT_GPU_GPU_H
#define MFL_CLIENT_GPU_GPU_H

#include "common/base/base.h"
#include "proto/message.h"

/* Sizes of a UUID and a name: NVML's NVML_DEVICE_UUID_V2_BUFFER_SIZE, NVML_DEVICE_NAME_V2_BUFFER_SIZE. */
#define MFL_GPU_TEXT_BYTES 96
#define MFL_GPUS_MAX 128u /* GPUs and MIG devices of a machine */

/* ---- what a user writes (pure) ---- */

enum mfl_gpu_kind {
        MFL_GPU_UNSET,
        MFL_GPU_NONE,  /* "none" */
        MFL_GPU_INDEX, /* "3": in the order of PCI addresses, as nvidia-smi counts */
        MFL_GPU_UUID,  /* "GPU-5d3c...": whole, or long enough to be unique */
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
/* Whether `uuid` begins with `asked`, ignoring case, as CUDA compares them in CUDA_VISIBLE_DEVICES. "GPU-"
 * and "MIG-" are compared, too: a MIG device is not its GPU. */
bool mfl_gpu_uuid_begins(const char *uuid, const char *asked);

/* ---- what the machine has ---- */

struct mfl_gpu {
        uint32_t index; /* of the GPU, in the order of PCI addresses */
        int mig;        /* number of the MIG device on it; -1: the GPU itself */
        bool mig_mode;  /* the GPU itself: it is split into MIG devices, and CUDA sees one of them at a
                           time */
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
/* MFL_NOT_FOUND: no library, or it found no driver; with the reason. Tests put a library of that name into
 * LD_LIBRARY_PATH. Any thread may use it; NVML does its own locking. */
int mfl_nvml_open(struct mfl_nvml **ret_nvml, struct mfl_error *err);
void mfl_nvml_close(struct mfl_nvml *nvml);               /* NULL is fine */
const char *mfl_nvml_driver(const struct mfl_nvml *nvml); /* "580.65.06"; empty: not known */
int mfl_nvml_list(struct mfl_nvml *nvml, struct mfl_gpus *ret_gpus, struct mfl_error *err);
/* What the device with that UUID reports now. MFL_NOT_FOUND: no such device, or it is lost. */
int mfl_nvml_sample(
        struct mfl_nvml *nvml, const char *uuid, struct mfl_telemetry *ret_telemetry, struct mfl_error *err);

/* The same list without NVML, from the driver's files: `folder` is /proc/driver/nvidia/gpus. It has no MIG
 * devices and no memory sizes. MFL_NOT_FOUND: no such folder, or it is empty. */
#define MFL_GPU_PROC "/proc/driver/nvidia/gpus"
int mfl_gpu_list_proc(const char *folder, struct mfl_gpus *ret_gpus, struct mfl_error *err);

/* ---- choosing (pure) ---- */

/* The device that `id` (INDEX, UUID, MIG) means. MFL_INVALID: none, several, or a GPU in MIG mode; the text
 * lists what there is. */
int mfl_gpu_find(const struct mfl_gpus *gpus, const struct mfl_gpu_id *id, const struct mfl_gpu **ret_gpu,
        struct mfl_error *err);
/* Whether CUDA_VISIBLE_DEVICES = visible (NULL: not set) allows `id`: it is not set, or names the same
 * device. gpus: NULL when not known; gpu: the device of `id`, NULL when not known. */
int mfl_gpu_check_visible(const char *visible, const struct mfl_gpu_id *id, const struct mfl_gpu *gpu,
        const struct mfl_gpus *gpus, struct mfl_error *err);
/* How many GPUs CUDA would see: the entries of CUDA_VISIBLE_DEVICES if it is set, otherwise n_gpus. */
uint32_t mfl_gpu_count_visible(const char *visible, uint32_t n_gpus);
/* The devices for --all-gpus and --gpus: `ids` if n_ids > 0, otherwise those in `visible` if it is set,
 * otherwise all. A GPU in MIG mode is replaced by its MIG devices. */
int mfl_gpu_select(const struct mfl_gpus *gpus, const struct mfl_gpu_id *ids, uint32_t n_ids,
        const char *visible, struct mfl_gpus *ret_chosen, struct mfl_error *err);

/* ---- one daemon per GPU ---- */

/* A lock file in /run/lock, otherwise $XDG_RUNTIME_DIR, otherwise /tmp ($MFL_GPU_LOCK_DIR comes before all),
 * locked by flock: the lock ends with the process, however it ends. /run/lock comes first because daemons of
 * different users must use the same place. */
struct mfl_gpu_lock {
        int fd; /* -1: none */
        char path[256];
};
/* shared: other processes that also ask for sharing may hold it at the same time. MFL_BUSY: another process
 * has it; the text has the process's number. MFL_NOT_FOUND: no place for a lock file; the text says where it
 * was tried. */
int mfl_gpu_lock_take(struct mfl_gpu_lock *lock, const char *uuid, bool shared, struct mfl_error *err);
void mfl_gpu_lock_release(struct mfl_gpu_lock *lock); /* also after a lock that was never taken, with fd =
                                                         -1 */

/* Whether a CUDA program that starts now would use the Multi-Process Service: its control daemon answers in
 * $CUDA_MPS_PIPE_DIRECTORY (default /tmp/nvidia-mps). */
bool mfl_gpu_mps_running(void);

#endif
