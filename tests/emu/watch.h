/* SPDX-License-Identifier: Apache-2.0 */
/* Watches what kernels do with memory: finds races, counts bank conflicts and sectors.
 *
 * Kernels are compiled with -fsanitize=thread, which puts a call before each access; watch.c has these calls,
 * in place of the sanitizer's own runtime. The emulator reports launches, blocks, barriers, and accesses that
 * are calls (asynchronous copies, ldmatrix, atomics).
 *
 * A race: two accesses of one launch to one byte by two threads, at least one of them a write, not both
 * atomic, that nothing orders: no MFL_SYNC in between (threads of one block), no MFL_SYNC_WARP (of one warp).
 * Blocks of a launch are never ordered. Shuffles, mma and ldmatrix order nothing: CUDA promises no more.
 * Races are found whatever the order in which the emulator runs threads, even where the values hide them.
 *
 * A request: the accesses of one warp by one instruction. The first two blocks of each launch are counted, at
 * the size in the source (nvcc may merge neighbours).
 *
 * Each pair of instructions that races is reported once on stderr, with both source lines where addr2line is
 * available; the process then ends with status 66. MFL_EMU_COUNTS=FILE: at the end the counts are appended to
 * it, one line per kernel; a kernel that did not run has zeros:
 *     FILE:KERNEL LAUNCHES SHARED-REQUESTS PASSES IDEAL GLOBAL-REQUESTS SECTORS IDEAL
 * PASSES is how often the banks were accessed for these requests, IDEAL the least for the same words.
 */
#ifndef MFL_TESTS_EMU_WATCH_H
#define MFL_TESTS_EMU_WATCH_H

#include "tests/emu/emu_internal.h"

struct mfl_emu_counts {
        uint64_t launches;
        uint64_t shared_requests, passes, passes_ideal;
        uint64_t global_requests, sectors, sectors_ideal;
};

/* For tests: pairs found so far, and the text of the last one. quiet: nothing on stderr, no exit status. */
int mfl_emu_races(void);
const char *mfl_emu_last_race(void);
void mfl_emu_races_reset(bool quiet);
/* Of all launches of a kernel so far; zeros for one that never ran. */
struct mfl_emu_counts mfl_emu_counts_of(const char *kernel);

/* ---- what watch.c and its neighbours share ---- */

/* One access by the current thread; pc: within the kernel's code. */
void mfl_emu_watch_access(const void *p, size_t bytes, enum mfl_emu_access access, const void *pc);

/* watch_race.c. epoch: grows with every barrier, block and launch. */
struct mfl_emu_now {
        const struct mfl_emu_kernel *kernel;
        uint32_t epoch, block_first, launch_first;
        uint32_t warp_epoch[MFL_EMU_THREADS_MAX / MFL_EMU_WARP];
};
extern struct mfl_emu_now mfl_emu_now;
/* offset: within shared memory, or negative: global memory. */
void mfl_emu_race_access(const void *p, ptrdiff_t offset, size_t bytes, enum mfl_emu_access access,
        unsigned thread, const void *pc);
void mfl_emu_race_launch(void);

/* watch_count.c */
void mfl_emu_count_launch(void);
void mfl_emu_count_block(void);
void mfl_emu_count_access(const void *p, ptrdiff_t offset, size_t bytes, enum mfl_emu_access access,
        unsigned thread, const void *pc);
/* Ends the warp's current requests: later accesses belong to other ones. */
void mfl_emu_count_flush(unsigned warp);

#endif
