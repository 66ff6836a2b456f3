/* SPDX-License-Identifier: Apache-2.0 */
/* The names of kernels/cuda/base/kernel.h for the tests' emulated device: a kernel is C17 that runs on the
 * CPU.
 *
 * Each thread of a block is a fiber. Threads take turns only at barriers and warp collectives, in an order
 * that the environment chooses: MFL_EMU_ORDER=forward (the default), reverse, or random:SEED, for threads,
 * blocks and streams alike. A result that changes with the order has a missing barrier or a race. Shared
 * memory and fresh device memory hold 0xff bytes, which are NaN in every floating type.
 *
 * Some errors pass silently on a device, or have silent effects. Here they are faults: the message goes to
 * stderr and the process aborts (emu.h can turn that into cudaErrorLaunchFailure, for tests of the emulator).
 * Faults are a barrier or warp collective that not all threads reach, a misaligned 16-byte access, shared
 * memory beyond the limits, a forgotten wait for an asynchronous copy, and a source of such a copy that
 * changes before the wait.
 */
#ifndef MFL_TESTS_EMU_KERNEL_H
#define MFL_TESTS_EMU_KERNEL_H

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MFL_EMULATED 1

/* The running thread's place. One kernel runs at a time, so these are plain globals. */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

struct mfl_emu_kernel {
        const char *name, *file; /* file: of the .cu, as the compiler was given it */
        const void *function;
        void (*call)(const void *a);
        size_t arg_bytes;
        unsigned threads_max;
        size_t dynamic_max;  /* by cudaFuncSetAttribute */
        size_t static_bytes; /* of shared memory, as seen so far */
        struct mfl_emu_kernel *next;
};
void mfl_emu_register(struct mfl_emu_kernel *kernel);

#define MFL_HOST
#define MFL_DEVICE static inline __attribute__((unused))
#define MFL_KERNEL(name, type) MFL_KERNEL_BOUNDS(name, type, 1024, 1)
#define MFL_KERNEL_BOUNDS(name, type, threads, blocks)                                                       \
        static void name(const type a);                                                                      \
        static void name##_emu_call(const void *args)                                                        \
        {                                                                                                    \
                name(*(const type *)args);                                                                   \
        }                                                                                                    \
        static __attribute__((constructor)) void name##_emu_register(void)                                   \
        {                                                                                                    \
                static struct mfl_emu_kernel kernel = {#name, __BASE_FILE__, (const void *)name,             \
                        name##_emu_call, sizeof(type), threads, 48 << 10, 0, NULL};                          \
                _Static_assert((threads) <= 1024 && (blocks) >= 1, "bounds of " #name);                      \
                _Static_assert(sizeof(type) <= 4096, "argument of " #name);                                  \
                mfl_emu_register(&kernel);                                                                   \
        }                                                                                                    \
        static void name(const type a)

/* Poisoned when the first thread of a block passes. */
extern uint64_t mfl_emu_block_serial;
void mfl_emu_shared(void *at, size_t bytes, uint64_t *stamp);
#define MFL_SHARED(type, name, count)                                                                        \
        static type name[count] __attribute__((aligned(16)));                                                \
        static uint64_t name##_emu_stamp;                                                                    \
        if (name##_emu_stamp != mfl_emu_block_serial)                                                        \
        mfl_emu_shared(name, sizeof name, &name##_emu_stamp)
unsigned char *mfl_emu_shared_dynamic(void);
#define MFL_SHARED_DYNAMIC(name) unsigned char *const name = mfl_emu_shared_dynamic()

void mfl_emu_sync(const char *file, int line);
#define MFL_SYNC() mfl_emu_sync(__FILE__, __LINE__)
#define MFL_UNROLL

static inline cudaError_t mfl_launch(const void *kernel, uint32_t gx, uint32_t gy, uint32_t gz,
        uint32_t threads, size_t shared_bytes, cudaStream_t stream, const void *a)
{
        void *args[1] = {(void *)(uintptr_t)a};
        dim3 grid = {gx, gy, gz}, block = {threads, 1, 1};
        return cudaLaunchKernel(kernel, grid, block, args, shared_bytes, stream);
}

/* ---- warp collectives: the last of the 32 lanes does the work of all ---- */

enum mfl_emu_collective {
        MFL_EMU_SYNC_WARP,
        MFL_EMU_SHFL_XOR,
        MFL_EMU_MMA_TF32,
        MFL_EMU_MMA_BF16,
        MFL_EMU_MMA_F16,
        MFL_EMU_LDMATRIX,
        MFL_EMU_LDMATRIX_TRANS,
        MFL_EMU_COLLECTIVE_COUNT_
};
/* One lane's operands; the collective says which of them count. */
struct mfl_emu_lane {
        float *d;
        const uint32_t *a, *b;
        const void *from, *pc;
        uint32_t *to, value;
        int mask;
};
void mfl_emu_collective(enum mfl_emu_collective what, struct mfl_emu_lane *lane, const char *file, int line);
#define MFL_SYNC_WARP() mfl_emu_collective(MFL_EMU_SYNC_WARP, NULL, __FILE__, __LINE__)

static inline uint32_t mfl_emu_shfl_xor(uint32_t v, int mask, const char *file, int line)
{
        uint32_t r = 0;
        struct mfl_emu_lane lane = {.value = v, .mask = mask, .to = &r};
        mfl_emu_collective(MFL_EMU_SHFL_XOR, &lane, file, line);
        return r;
}
static inline float mfl_emu_shfl_xor_float(float v, int mask, const char *file, int line)
{
        uint32_t u;
        memcpy(&u, &v, sizeof u);
        u = mfl_emu_shfl_xor(u, mask, file, line);
        memcpy(&v, &u, sizeof v);
        return v;
}
#define mfl_shfl_xor(v, mask) mfl_emu_shfl_xor_float(v, mask, __FILE__, __LINE__)
#define mfl_shfl_xor_u32(v, mask) mfl_emu_shfl_xor(v, mask, __FILE__, __LINE__)

static inline void mfl_emu_mma(enum mfl_emu_collective what, float d[4], const uint32_t a[4],
        const uint32_t b[2], const char *file, int line)
{
        struct mfl_emu_lane lane = {.d = d, .a = a, .b = b};
        mfl_emu_collective(what, &lane, file, line);
}
#define mfl_mma_tf32(d, a, b) mfl_emu_mma(MFL_EMU_MMA_TF32, d, a, b, __FILE__, __LINE__)
#define mfl_mma_bf16(d, a, b) mfl_emu_mma(MFL_EMU_MMA_BF16, d, a, b, __FILE__, __LINE__)
#define mfl_mma_f16(d, a, b) mfl_emu_mma(MFL_EMU_MMA_F16, d, a, b, __FILE__, __LINE__)

static inline void mfl_emu_ldmatrix(
        enum mfl_emu_collective what, uint32_t r[4], const void *shared, const char *file, int line)
{
        struct mfl_emu_lane lane = {.to = r, .from = shared};
        mfl_emu_collective(what, &lane, file, line);
}
#define mfl_ldmatrix_x4(r, shared) mfl_emu_ldmatrix(MFL_EMU_LDMATRIX, r, shared, __FILE__, __LINE__)
#define mfl_ldmatrix_x4_trans(r, shared)                                                                     \
        mfl_emu_ldmatrix(MFL_EMU_LDMATRIX_TRANS, r, shared, __FILE__, __LINE__)

/* Ties away from zero; infinities and NaNs stay what they are. */
static inline uint32_t mfl_to_tf32(float v)
{
        uint32_t u;
        memcpy(&u, &v, sizeof u);
        if ((u & 0x7f800000u) == 0x7f800000u)
                return (u & 0x7fffffu) ? 0x7fffe000u : u;
        return (u + 0x1000u) & 0xffffe000u;
}

/* ---- atomics: no other thread runs meanwhile (shared.c) ---- */

void mfl_atomic_add_u64(uint64_t *at, uint64_t v);
void mfl_atomic_add_i64(int64_t *at, int64_t v);
void mfl_atomic_or_u32(uint32_t *at, uint32_t v);

/* ---- asynchronous copies: the data arrives at the wait; until then the place is poisoned ---- */

void mfl_emu_cp_async(void *shared, const void *global, int bytes, int valid, const char *file, int line);
void mfl_cp_async_commit(void);
void mfl_cp_async_wait(int pending);
#define mfl_cp_async_16(shared, global, valid) mfl_emu_cp_async(shared, global, 16, valid, __FILE__, __LINE__)
#define mfl_cp_async_4(shared, global, valid) mfl_emu_cp_async(shared, global, 4, valid, __FILE__, __LINE__)

void mfl_emu_fault(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
static inline void mfl_emu_copy_16(void *to, const void *from, const char *file, int line)
{
        if (((uintptr_t)to | (uintptr_t)from) % 16)
                mfl_emu_fault("%s:%d: mfl_copy_16 of misaligned addresses %p, %p", file, line, to, from);
        memcpy(to, from, 16);
}
#define mfl_copy_16(to, from) mfl_emu_copy_16(to, from, __FILE__, __LINE__)

/* What CUDA has beyond math.h. */
static inline float mfl_emu_rsqrtf(float x)
{
        return (float)(1.0 / sqrt((double)x));
}
#define rsqrtf mfl_emu_rsqrtf

#endif
