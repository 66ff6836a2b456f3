/* SPDX-License-Identifier: Apache-2.0 */
/* How tests steer the emulated device, and how the emulated libraries put their work on its streams.
 *
 * The environment says the same for whole programs:
 *     MFL_EMU_ORDER=forward|reverse|random:SEED   threads, blocks, streams, nodes of graphs
 *     MFL_EMU_FAIL=NAME:N                         the N-th call (from 1) of NAME fails; NAME * is any call
 *     MFL_EMU_MEMORY=BYTES                        of the device; 8 GiB
 *     MFL_EMU_SM=80|86|89|90                      compute capability and what follows from it; 90
 *     MFL_EMU_DEVICES=N                           1; 0: no device
 *     MFL_EMU_FIRST=N                             0; number of the first one on its host: several processes
 * are given one card each, and NCCL tells cards apart by it
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
 * mfl_emu_failed: it has struck. So a test can sweep all calls, as mfl_alloc_fail_at does with memory. */
void mfl_emu_fail_at(const char *name, long n);
bool mfl_emu_failed(void);
void mfl_emu_set_memory(uint64_t bytes);
void mfl_emu_set_sm(int sm);
void mfl_emu_set_devices(int n);
/* Device memory that is allocated now; tests look for leaks with it. */
uint64_t mfl_emu_memory_used(void);
/* Works that wait in streams. */
unsigned mfl_emu_pending(void);

/* ---- the emulated NCCL: nccl.c says how it behaves ---- */

/* From the n-th look on (from 0) the communicator of this rank tells `error` (a ncclResult_t); error 0: none.
 * Of all communicators of this process that have the rank. */
void mfl_emu_nccl_async(int rank, int error, int n);
/* Aborts do not come back until this is called with false. */
void mfl_emu_nccl_hang_abort(bool hang);
/* Communicators that were neither destroyed nor aborted, and registered buffers. */
int mfl_emu_nccl_open(void);
int mfl_emu_nccl_registered(void);

/* ---- for the emulated cuDNN and cuBLASLt ---- */

/* First statement of a library's function: true: it shall fail now. */
bool mfl_emu_fails(const char *name);
/* Queues run(args) on a stream with a copy of the `bytes` at args, or records it if the stream is captured:
 * device memory may be read and written in `run`, and nowhere else. */
cudaError_t mfl_emu_enqueue(
        cudaStream_t stream, const char *name, void (*run)(void *args), const void *args, size_t bytes);
/* All `bytes` from p on are one allocation of device memory. */
bool mfl_emu_is_device(const void *p, size_t bytes);

#endif
