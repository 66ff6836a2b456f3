/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of this backend, and communicators that add them up between the GPUs of one host (NCCL).
 *
 * The library is opened when somebody first asks for it (version, id, open or a new sum), never at start:
 * opening it costs 1 ms and 3 MiB once its file is cached, 40 ms when it is not, for 12 thousand relocations
 * and 148 constructors; and a daemon without neighbours has no use for it. With it come two settings of the
 * process's environment: NCCL_COMM_BLOCKING=0, since only communicators that do not block can be given up,
 * and NCCL_SOCKET_IFNAME==lo (that interface exactly) unless it is set, since all ranks are on one host:
 * NCCL's own choice is the first interface that is not the loopback, where its unauthenticated bootstrap
 * socket would listen to the network and break when that interface does.
 *
 * How one reduction goes, at the root. Ranges of MFL_NCCL_RANGE elements; a ring of MFL_NCCL_SLOTS of them:
 *
 *     stream  (NCCL)   reduce 0   reduce 1   reduce 2   reduce 3   ..     each waits for its slot to be free
 *     copies  (DMA)               copy 0     copy 1     copy 2     ..     device slot -> pinned slot
 *     this thread                            memcpy 0   memcpy 1   ..     pinned slot -> out; control->ready
 *
 * so that the caller may send what is ready while later ranges are added. Nothing is waited for but by
 * polling: streams and events with cudaEventQuery, NCCL with ncclCommGetAsyncError.
 *
 * Rules of NCCL 2.28 that this file keeps (nccl.h, the user guide's "Fault Tolerance" and "Communicators"):
 *   - After ncclInProgress the next call is allowed only when ncclCommGetAsyncError has said ncclSuccess; and
 *     what was asked for is in the stream only then, so events are recorded after it.
 *   - ncclCommInitRankConfig writes the handle when its own thread ends, so the handle lies in the
 *     communicator's memory, which stays as long as that thread may run.
 *   - When a rank dies the others are told nothing: they poll, with a deadline, and abort. ncclCommAbort
 *     joins NCCL's threads and has been seen to hang, so it runs on a thread of its own; if it does not come
 *     back in MFL_NCCL_ABORT_MS the communicator and what it may touch are given up (their memory stays), and
 *     this process opens no other one.
 *   - All ranks or none register their buffers. NCCL 2.28 makes no use of that for a ring's reduce
 *     (register/coll_reg.cc); registering is a list entry until it does.
 *   - A buffer is deregistered before it is freed, and not at all after an abort, which forgets them all.
 *   - A unique id that nobody opens costs a socket and a thread until the process ends.
 *
 * Why no reduction runs beside training steps. A federated update is final in no element before the last
 * client's last step: there is no range that could go early, unlike gradients of backward layers. What could
 * be hidden is the reduction itself: 25 M params are 200 MB, which is 1 ms over NVLink (200 GB/s), 8 ms over
 * PCIe 4 (24 GB/s), and as long again for the copy to the host, beside 160 ms of upload at 10 Gbit/s and
 * seconds of training. The price would be paid by whoever is first: NCCL's kernel spins on 16 to 32 of 132
 * multiprocessors until the slowest rank comes, so a skew of 50 ms already costs 6 to 12 ms of computing. So
 * the server orders the reduction when every member is ready, and what overlaps are the three stages above
 * and the upload.
 */
#ifndef MFL_KERNELS_CUDA_COMM_H
#define MFL_KERNELS_CUDA_COMM_H

#include <pthread.h>

#include "kernels/cuda/net.h"

#define MFL_NCCL_RANGE ((uint64_t)1 << 20) /* elements: 8 MiB, more than a launch costs */
#define MFL_NCCL_SLOTS 4
#define MFL_NCCL_ABORT_MS 10000
#define MFL_NCCL_FINALIZE_MS 1000

struct mfl_sum {
        struct mfl_device *device;
        uint64_t n;
        int64_t *memory;
        bool library; /* of ncclMemAlloc */
};

/* ---- sum.c ---- */

int mfl_cuda_sum_new(struct mfl_device *device, uint64_t n, struct mfl_sum **ret_sum, struct mfl_error *err);
void mfl_cuda_sum_free(struct mfl_sum *sum);
int mfl_cuda_sum_clear(struct mfl_sum *sum, struct mfl_error *err);
int mfl_cuda_sum_move(struct mfl_net *net, struct mfl_sum *sum, struct mfl_error *err);
int mfl_cuda_sum_read(struct mfl_sum *sum, int64_t *out, struct mfl_error *err);
uint64_t mfl_cuda_sum_bytes(uint64_t n);

/* ---- nccl.c, or nccl_absent.c where there was no nccl.h ---- */

extern const struct mfl_comm_ops mfl_cuda_comm;
/* Memory that communicators can use: ncclMemAlloc's where there is NCCL, else cudaMalloc's. Out of memory is
 * MFL_INVALID. */
int mfl_cuda_nccl_alloc(
        uint64_t bytes, const char *what, void **ret_memory, bool *ret_library, struct mfl_error *err);
void mfl_cuda_nccl_free(void *memory, bool library);
/* Before a sum's memory is freed: takes it out of all communicators. False: one that could not be aborted may
 * still touch it, so it must stay. */
bool mfl_cuda_nccl_forget(const struct mfl_sum *sum);
/* One rank alone: opens, adds, and compares. Reports the reason where there is no NCCL. */
int mfl_cuda_nccl_selftest(struct mfl_device *device, void (*report)(void *user, bool ok, const char *text),
        void *user, struct mfl_error *err);
/* For tests: elements of a range of communicators opened from now on; 0: MFL_NCCL_RANGE. And how long an
 * abort and a finalisation may take; 0: as above. */
void mfl_cuda_nccl_tune(uint64_t range, uint32_t abort_ms, uint32_t finalize_ms);

#endif
