/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of this backend, and communicators that add them between the GPUs of one host (NCCL).
 *
 * The library is opened on first use (version, id, open or a new sum), never at start. Opening it costs 1 ms
 * and 3 MiB once its file is cached, and 40 ms when it is not, for 12 thousand relocations and 148
 * constructors; and a daemon without neighbours does not need it. Opening makes two settings in the process's
 * environment. NCCL_COMM_BLOCKING=0, since only communicators that do not block can be given up.
 * NCCL_SOCKET_IFNAME==lo (that interface exactly) unless it is set, since all ranks are on one host: NCCL's
 * own choice is the first interface that is not the loopback, where its unauthenticated bootstrap socket
 * would listen to the network and break when that interface does.
 *
 * How one reduction goes, at the root. Ranges of MFL_NCCL_RANGE elements; a ring of MFL_NCCL_SLOTS of them:
 *
 *     stream  (NCCL)   reduce 0   reduce 1   reduce 2   reduce 3   ..     each waits for its slot to be free
 *     copies  (DMA)               copy 0     copy 1     copy 2     ..     device slot -> pinned slot
 *     this thread                            memcpy 0   memcpy 1   ..     pinned slot -> out; control->ready
 *
 * The caller may send what is ready while later ranges are added. All waiting is polling: streams and events
 * with cudaEventQuery, NCCL with ncclCommGetAsyncError.
 *
 * Rules of NCCL 2.28 that this file keeps (nccl.h, the user guide's "Fault Tolerance" and "Communicators"):
 * - After ncclInProgress, the next call is allowed only when ncclCommGetAsyncError has returned ncclSuccess.
 *   Only then is the operation in the stream, so events are recorded after it.
 * - ncclCommInitRankConfig writes the handle when its own thread ends. So the handle lies in the
 *   communicator's memory, which stays as long as that thread may run.
 * - When a rank dies, the others are not told: they poll, with a deadline, and abort. ncclCommAbort joins
 *   NCCL's threads and has been seen to hang, so it runs on a thread of its own. If it does not return within
 *   MFL_NCCL_ABORT_MS, the communicator and what it may touch are given up (their memory stays), and this
 *   process opens no other one.
 * - All ranks or none register their buffers. NCCL 2.28 does not use that for a ring's reduce
 *   (register/coll_reg.cc); until it does, registering only adds a list entry.
 * - A buffer is deregistered before it is freed. After an abort, which forgets all buffers, it is not.
 * - A unique id that nobody opens costs a socket and a thread until the process ends.
 *
 * Within the steps of a team NCCL adds gradients: nccl_mesh.c.
 *
 * Why no reduction of updates runs beside training steps. No element of a federated update is final before the last
 * client's last step, so no range could go early, unlike gradients of backward layers. Only the reduction
 * itself could be hidden: 25 M params are 200 MB, which take 1 ms over NVLink (200 GB/s), 8 ms over PCIe 4
 * (24 GB/s), and as long again for the copy to the host, compared with 160 ms of upload at 10 Gbit/s and
 * seconds of training. The first rank would pay for it: NCCL's kernel spins on 16 to 32 of 132
 * multiprocessors until the slowest rank comes, so a skew of 50 ms already costs 6 to 12 ms of computing. So
 * the server orders the reduction when every member is ready, and only the three stages above and the upload
 * overlap.
 */
#ifndef MFL_KERNELS_CUDA_NCCL_COMM_H
#define MFL_KERNELS_CUDA_NCCL_COMM_H

#include "kernels/backend.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/device.h"

#define MFL_NCCL_RANGE ((uint64_t)1 << 20) /* elements: 8 MiB, which takes longer than a launch */
#define MFL_NCCL_SLOTS 4
#define MFL_NCCL_ABORT_MS 10000
#define MFL_NCCL_FINALIZE_MS 1000

struct mfl_sum {
        struct mfl_device *device;
        uint64_t n;
        int64_t *memory;
        bool library; /* from ncclMemAlloc */
};

/* ---- nccl.c, or nccl_absent.c without nccl.h ---- */

extern const struct mfl_comm_ops mfl_cuda_comm;
/* Memory that communicators can use: from ncclMemAlloc where there is NCCL, else from cudaMalloc. Out of
 * memory is MFL_INVALID. */
int mfl_cuda_nccl_alloc(
        uint64_t bytes, const char *what, void **ret_memory, bool *ret_library, struct mfl_error *err);
void mfl_cuda_nccl_free(void *memory, bool library);
/* Call it before a sum's memory is freed: it removes the sum from all communicators. False: a communicator
 * that could not be aborted may still touch the memory, so it must stay. */
bool mfl_cuda_nccl_forget(const struct mfl_sum *sum);
/* For tests. range: elements of a range of communicators opened from now on; 0: MFL_NCCL_RANGE. abort_ms,
 * finalize_ms: how long an abort and a finalisation may take; 0: as above. */
void mfl_cuda_nccl_tune(uint64_t range, uint32_t abort_ms, uint32_t finalize_ms);

#endif
