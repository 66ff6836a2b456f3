/* SPDX-License-Identifier: Apache-2.0 */
/* How tests control the emulated device, and how the emulated libraries put their work on its streams.
 *
 * The environment does the same for whole programs:
 *     MFL_EMU_ORDER=forward|reverse|random:SEED   threads, blocks, streams, nodes of graphs
 *     MFL_EMU_FAIL=NAME:N                         the N-th call (from 1) of NAME fails; NAME * is any call
 *     MFL_EMU_MEMORY=BYTES                        of the device; 8 GiB
 *     MFL_EMU_SM=80|86|89|90                      compute capability and what follows from it; 90
 *     MFL_EMU_DEVICES=N                           1; 0: no device
 *     MFL_EMU_FIRST=N                             0; number of its first device on the host: several
 *                                                 processes get one card each, and NCCL tells cards apart by it
 */
#ifndef MFL_TESTS_EMU_H
#define MFL_TESTS_EMU_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

enum mfl_emu_order {
        MFL_EMU_FORWARD,
        MFL_EMU_REVERSE,
        MFL_EMU_RANDOM,
};
void mfl_emu_set_order(enum mfl_emu_order order, uint64_t seed);

/* Faults no longer abort: the kernel ends, the context gets cudaErrorLaunchFailure, which stays until
 * cudaDeviceReset, and the text of the last fault can be read. */
void mfl_emu_set_trap(bool trap);
const char *mfl_emu_last_fault(void);

/* The n-th call from now on (from 1) of `name`, or of any function if it is "*", fails once; 0 turns it off.
 * mfl_emu_failed: whether that call has happened. So a test can sweep all calls, as mfl_alloc_fail_at does
 * with memory. */
void mfl_emu_fail_at(const char *name, long n);
bool mfl_emu_failed(void);
void mfl_emu_set_memory(uint64_t bytes);
void mfl_emu_set_sm(int sm);
void mfl_emu_set_devices(int n);
/* Device memory that is allocated now; tests find leaks with it. */
uint64_t mfl_emu_memory_used(void);
/* Seconds of the device's clock per second of the host's; 1000. */
void mfl_emu_set_slowness(double factor);
/* Works that wait in streams. */
unsigned mfl_emu_pending(void);

/* What calls outside captures have requested since the last query. */
struct mfl_emu_traffic {
        uint64_t to_device[2], to_host[2]; /* bytes of copies from or to host memory: pageable, pinned */
        uint64_t copies, fills, fill_bytes;
};
struct mfl_emu_traffic mfl_emu_traffic_take(void);

/* ---- the emulated NCCL: nccl.c says how it behaves ---- */

/* From the n-th query on (from 0) the communicator of this rank reports `error` (a ncclResult_t); error 0:
 * none. Applies to all communicators of this process with the rank. */
void mfl_emu_nccl_async(int rank, int error, int n);
/* Aborts do not return until this is called with false. */
void mfl_emu_nccl_hang_abort(bool hang);
/* Communicators that were neither destroyed nor aborted, and registered buffers. */
int mfl_emu_nccl_open(void);
int mfl_emu_nccl_registered(void);

/* ---- for the emulated cuDNN and cuBLASLt ---- */

/* First statement of a library's function; true: the call has to fail now. */
bool mfl_emu_fails(const char *name);
/* Queues run(args) on a stream with a copy of the `bytes` at args, or records it if the stream is captured.
 * Only `run` may read and write device memory. */
cudaError_t mfl_emu_enqueue(
        cudaStream_t stream, const char *name, void (*run)(void *args), const void *args, size_t bytes);
/* All `bytes` from p on are one allocation of device memory. */
bool mfl_emu_is_device(const void *p, size_t bytes);

#endif
