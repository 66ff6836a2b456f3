/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of communicators share: the communicator itself, waiting by polling, calls with a time
 * limit. */
#ifndef MFL_KERNELS_CUDA_NCCL_NCCL_INTERNAL_H
#define MFL_KERNELS_CUDA_NCCL_NCCL_INTERNAL_H

#include "kernels/cuda/nccl/comm.h"
#include "kernels/cuda/nccl/nccl_load.h"

struct enrolled {
        const void *memory;
        void *handle;
        struct enrolled *next;
};

struct mfl_comm {
        struct mfl_comm *next;
        struct mfl_device *device;
        const struct mfl_nccl *nccl;
        ncclComm_t handle; /* NULL: aborted. A thread of NCCL may write it while the communicator opens */
        bool stuck;
        uint32_t rank, n_ranks;
        uint64_t range;
        cudaStream_t stream, copies;
        cudaEvent_t added[MFL_NCCL_SLOTS], copied[MFL_NCCL_SLOTS];
        int64_t *ring; /* on the device, of slots; where this rank has been a root */
        bool ring_library;
        int64_t *pinned;
        void *scratch;        /* for the first reduction */
        pthread_mutex_t busy; /* guards reductions, and removing a sum from the list */
        struct enrolled *enrolled;
};

static inline ncclComm_t mfl_nccl_handle(const struct mfl_comm *comm)
{
        return __atomic_load_n(&comm->handle, __ATOMIC_ACQUIRE);
}

/* ---- nccl_wait.c ---- */

struct patience {
        uint64_t end_ns;
        uint32_t deadline_ms, n_polls;
        const atomic_bool *cancel; /* NULL: nobody does */
};

struct patience mfl_nccl_patience(uint32_t deadline_ms, const atomic_bool *cancel);
/* MFL_COMM_BROKEN when patience has ended. */
int mfl_nccl_check_patience(const struct patience *p, const char *what, struct mfl_error *err);
/* The same after a nap. */
int mfl_nccl_be_patient(struct patience *p, const char *what, struct mfl_error *err);
/* MFL_COMM_BROKEN with NCCL's texts. */
int mfl_nccl_fail(const struct mfl_comm *comm, ncclResult_t result, const char *what, struct mfl_error *err);
/* The errors that NCCL has found since. ret_busy: the last call is not done yet. */
int mfl_nccl_check_async(struct mfl_comm *comm, const char *what, bool *ret_busy, struct mfl_error *err);
/* Waits until the call that returned `result` is done. */
int mfl_nccl_settle(struct mfl_comm *comm, ncclResult_t result, struct patience *p, const char *what,
        struct mfl_error *err);
/* Runs it on a thread of its own. False: it did not return in time. */
bool mfl_nccl_call_in_time(ncclResult_t (*call)(ncclComm_t handle), ncclComm_t handle, uint32_t ms);

/* ---- nccl.c ---- */

/* As in struct mfl_comm_ops. */
int mfl_nccl_version(struct mfl_device *device, char text[64], uint32_t *ret_version, struct mfl_error *err);
int mfl_nccl_id(struct mfl_device *device, uint8_t id[MFL_COMM_ID_BYTES], struct mfl_error *err);
void mfl_nccl_close(struct mfl_comm *comm);
int mfl_nccl_open(struct mfl_device *device, const uint8_t id[MFL_COMM_ID_BYTES], uint32_t rank,
        uint32_t n_ranks, struct patience *p, struct mfl_comm **ret_comm, struct mfl_error *err);

/* Registers a buffer with the communicator, once. */
int mfl_nccl_enroll(
        struct mfl_comm *comm, void *memory, uint64_t bytes, struct patience *p, struct mfl_error *err);
/* Leaves no kernel and no thread behind, or marks the communicator as stuck. */
void mfl_nccl_give_up(struct mfl_comm *comm);
uint32_t mfl_nccl_lag_ms(void); /* so long that may take */

/* ---- nccl_mesh.c ---- */

int mfl_cuda_nccl_mesh(struct mfl_device *device, const uint8_t id[MFL_COMM_ID_BYTES], uint32_t rank,
        uint32_t n_ranks, uint32_t deadline_ms, const atomic_bool *cancel, struct mfl_mesh **ret_mesh,
        struct mfl_error *err);

/* ---- nccl_reduce.c ---- */

int mfl_nccl_reduce(struct mfl_comm *comm, struct mfl_sum *own, uint32_t root, int64_t *out,
        uint32_t deadline_ms, struct mfl_comm_control *control, struct mfl_error *err);

#endif
