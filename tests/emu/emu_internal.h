/* SPDX-License-Identifier: Apache-2.0 */
/* What the emulator's own files share: fibers, the running block, launches. */
#ifndef MFL_TESTS_EMU_INTERNAL_H
#define MFL_TESTS_EMU_INTERNAL_H

#include "tests/emu/emu.h"
#include "tests/emu/emu_kernel.h"

#if defined(__SANITIZE_ADDRESS__)
#define MFL_EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MFL_EMU_ASAN 1
#endif
#endif
#ifndef MFL_EMU_ASAN
#define MFL_EMU_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__)
#define MFL_EMU_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MFL_EMU_TSAN 1
#endif
#endif
#ifndef MFL_EMU_TSAN
#define MFL_EMU_TSAN 0
#endif

enum {
        MFL_EMU_WARP = 32,
        MFL_EMU_THREADS_MAX = 1024,
        MFL_EMU_SHARED_DEFAULT = 48 << 10,
};

/* ---- fibers (fiber.c) ---- */

struct mfl_emu_fiber {
        void *context; /* saved registers */
        char *stack;
        size_t stack_bytes;
        unsigned number;
        void *fake_stack, *tsan; /* of the sanitizers */
        struct mfl_emu_thread *thread;
        struct mfl_emu_fiber *next_free, *next;
};
struct mfl_emu_fiber *mfl_emu_fiber_get(void (*main)(void)); /* from a pool; aborts without memory */
void mfl_emu_fiber_put(struct mfl_emu_fiber *fiber);
/* Forgets what all fibers were doing. Call it only on the host's own stack. */
void mfl_emu_fibers_reset(void);
struct mfl_emu_fiber *mfl_emu_fiber_host(void); /* the stack that launched */
struct mfl_emu_fiber *mfl_emu_fiber_self(void);
void mfl_emu_fiber_switch(struct mfl_emu_fiber *to);
void mfl_emu_fiber_begun(void); /* first call on a new fiber */

/* ---- one block (block.c) ---- */

struct mfl_emu_copy {
        unsigned char *to;
        const unsigned char *from;
        unsigned char data[16];
        uint8_t bytes, valid;
        uint64_t group;
        const char *file;
        int line;
        const void *pc;
};
enum mfl_emu_state {
        MFL_EMU_READY,
        MFL_EMU_RUNNING,
        MFL_EMU_AT_SYNC,
        MFL_EMU_AT_COLLECTIVE,
        MFL_EMU_DONE,
};
struct mfl_emu_thread {
        struct mfl_emu_fiber *fiber; /* NULL: not begun */
        enum mfl_emu_state state;
        unsigned number;
        const char *file; /* where it waits */
        int line;
        struct mfl_emu_copy *copies;
        size_t n_copies, copies_max;
        uint64_t n_groups; /* committed */
};
extern struct mfl_emu_thread *mfl_emu_current;
/* Runs all threads of block blockIdx; false: there was a fault. */
bool mfl_emu_block_run(const struct mfl_emu_kernel *kernel, const void *a);
/* Like mfl_emu_fault, outside of a kernel: returns if faults are trapped. */
void mfl_emu_fault_after(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Does the work of a collective for the 32 lanes (warp.c). */
void mfl_emu_collective_run(
        enum mfl_emu_collective what, struct mfl_emu_lane *const lanes[MFL_EMU_WARP], unsigned warp);
extern const char *const mfl_emu_collective_names[MFL_EMU_COLLECTIVE_COUNT_];

/* ---- shared memory (shared.c) ---- */

void mfl_emu_shared_begin(struct mfl_emu_kernel *kernel, size_t dynamic_bytes); /* for a launch */
void mfl_emu_shared_block(void);                                                /* for a block */
bool mfl_emu_shared_check(void);                                                /* after a block */
void mfl_emu_shared_end(void);
bool mfl_emu_is_shared(const void *at, size_t bytes);
size_t mfl_emu_shared_max(void); /* of a block that requested it (runtime_device.c) */
void mfl_emu_copies_finish(struct mfl_emu_thread *thread, uint64_t groups);

/* Where `at` lies in the block's shared memory, with all arrays one after another; -1: elsewhere. */
ptrdiff_t mfl_emu_shared_offset(const void *at);

/* ---- watchers (watch.h) ---- */

enum mfl_emu_access {
        MFL_EMU_READ,
        MFL_EMU_WRITE,
        MFL_EMU_ATOMIC,
        MFL_EMU_COPY_END, /* of an asynchronous copy: a write, but no request of its own */
};
struct mfl_emu_watch {
        void (*launch)(const struct mfl_emu_kernel *kernel);
        void (*block)(void); /* a new one begins */
        void (*block_end)(void);
        void (*sync)(void);                           /* all threads of the block have reached a barrier */
        void (*collective)(unsigned warp, bool sync); /* all of its lanes have; sync: MFL_SYNC_WARP */
        void (*access)(
                unsigned thread, const void *p, size_t bytes, enum mfl_emu_access access, const void *pc);
};
extern const struct mfl_emu_watch *mfl_emu_watch; /* NULL: nobody */

/* ---- launches (launch.c) ---- */

struct mfl_emu_kernel *mfl_emu_find_kernel(const void *function);
struct mfl_emu_kernel *mfl_emu_kernels(void); /* all kernels of the program, by `next` */
/* cudaSuccess: the launch may run. Grid and block as cudaLaunchKernel has them. */
cudaError_t mfl_emu_launch_check(
        const struct mfl_emu_kernel *kernel, dim3 grid, dim3 block, size_t shared_bytes);
/* Runs the whole grid now. cudaErrorLaunchFailure: a fault that was trapped. */
cudaError_t mfl_emu_launch_run(
        struct mfl_emu_kernel *kernel, dim3 grid, dim3 block, size_t shared_bytes, const void *a);

/* ---- order (order.c) ---- */

enum mfl_emu_order mfl_emu_order(void);
uint32_t mfl_emu_random(uint32_t n); /* in [0, n) */
/* Place i of n things in the current order; block numbers. */
struct mfl_emu_permutation {
        uint64_t n, factor, first;
};
struct mfl_emu_permutation mfl_emu_permutation(uint64_t n);
uint64_t mfl_emu_permute(const struct mfl_emu_permutation *permutation, uint64_t i);

#endif
