/* SPDX-License-Identifier: Apache-2.0 */
/* What the emulator reports to watchers, and the calls that -fsanitize=thread puts before accesses
 * (gcc/sanitizer.def has their names); the sanitizer's own runtime is not linked. */
#include "tests/emu/watch.h"

struct mfl_emu_now mfl_emu_now;

/* ---- which memory ---- */

enum {
        PAGE_BITS = 12,
        N_KNOWN = 1024, /* pages whose kind is stored during a launch */
};
static struct {
        uintptr_t page;
        uint32_t launch;
        bool device;
} known[N_KNOWN];

/* Stacks, constants and the emulator's own variables are not the device's. */
static bool is_device(const void *p)
{
        uintptr_t page = (uintptr_t)p >> PAGE_BITS;
        size_t i = page % N_KNOWN;
        if (known[i].page != page || known[i].launch != mfl_emu_now.launch_first) {
                known[i].page = page;
                known[i].launch = mfl_emu_now.launch_first;
                known[i].device = mfl_emu_is_device(p, 1);
        }
        return known[i].device;
}

static void watch_access(
        unsigned thread, const void *p, size_t bytes, enum mfl_emu_access access, const void *pc)
{
        ptrdiff_t offset = mfl_emu_shared_offset(p);
        if (offset < 0 && !is_device(p))
                return;
        mfl_emu_race_access(p, offset, bytes, access, thread, pc);
        mfl_emu_count_access(p, offset, bytes, access, thread, pc);
}

void mfl_emu_watch_access(const void *p, size_t bytes, enum mfl_emu_access access, const void *pc)
{
        struct mfl_emu_thread *me = mfl_emu_current;
        if (!me)
                return; /* a kernel's host function */
        const struct mfl_emu_fiber *fiber = me->fiber;
        if ((uintptr_t)p - (uintptr_t)fiber->stack < fiber->stack_bytes)
                return;
        watch_access(me->number, p, bytes, access, pc);
}

/* ---- what the emulator reports ---- */

static void watch_launch(const struct mfl_emu_kernel *kernel)
{
        mfl_emu_now.kernel = kernel;
        mfl_emu_now.launch_first = mfl_emu_now.block_first = ++mfl_emu_now.epoch;
        mfl_emu_race_launch();
        mfl_emu_count_launch();
}

static void watch_block(void)
{
        mfl_emu_now.block_first = ++mfl_emu_now.epoch;
        memset(mfl_emu_now.warp_epoch, 0, sizeof mfl_emu_now.warp_epoch);
        mfl_emu_count_block();
}

static void flush_all(void)
{
        unsigned n = blockDim.x * blockDim.y * blockDim.z;
        for (unsigned w = 0; w * MFL_EMU_WARP < n; w++)
                mfl_emu_count_flush(w);
}

static void watch_sync(void)
{
        flush_all();
        mfl_emu_now.epoch++;
}

static void watch_collective(unsigned warp, bool sync)
{
        mfl_emu_count_flush(warp);
        mfl_emu_now.warp_epoch[warp] += sync;
}

static __attribute__((constructor)) void start(void)
{
        static const struct mfl_emu_watch watch = {
                watch_launch, watch_block, flush_all, watch_sync, watch_collective, watch_access};
        mfl_emu_watch = &watch;
}

/* ---- what the compiler calls ---- */

#define PC __builtin_return_address(0)
#define ACCESS(name, bytes, access)                                                                          \
        void name(void *p);                                                                                  \
        void name(void *p)                                                                                   \
        {                                                                                                    \
                mfl_emu_watch_access(p, bytes, access, PC);                                                  \
        }
ACCESS(__tsan_read1, 1, MFL_EMU_READ)
ACCESS(__tsan_read2, 2, MFL_EMU_READ)
ACCESS(__tsan_read4, 4, MFL_EMU_READ)
ACCESS(__tsan_read8, 8, MFL_EMU_READ)
ACCESS(__tsan_read16, 16, MFL_EMU_READ)
ACCESS(__tsan_unaligned_read2, 2, MFL_EMU_READ)
ACCESS(__tsan_unaligned_read4, 4, MFL_EMU_READ)
ACCESS(__tsan_unaligned_read8, 8, MFL_EMU_READ)
ACCESS(__tsan_unaligned_read16, 16, MFL_EMU_READ)
ACCESS(__tsan_write1, 1, MFL_EMU_WRITE)
ACCESS(__tsan_write2, 2, MFL_EMU_WRITE)
ACCESS(__tsan_write4, 4, MFL_EMU_WRITE)
ACCESS(__tsan_write8, 8, MFL_EMU_WRITE)
ACCESS(__tsan_write16, 16, MFL_EMU_WRITE)
ACCESS(__tsan_unaligned_write2, 2, MFL_EMU_WRITE)
ACCESS(__tsan_unaligned_write4, 4, MFL_EMU_WRITE)
ACCESS(__tsan_unaligned_write8, 8, MFL_EMU_WRITE)
ACCESS(__tsan_unaligned_write16, 16, MFL_EMU_WRITE)

void __tsan_read_range(void *p, size_t bytes);
void __tsan_read_range(void *p, size_t bytes)
{
        mfl_emu_watch_access(p, bytes, MFL_EMU_READ, PC);
}
void __tsan_write_range(void *p, size_t bytes);
void __tsan_write_range(void *p, size_t bytes)
{
        mfl_emu_watch_access(p, bytes, MFL_EMU_WRITE, PC);
}
void __tsan_init(void);
void __tsan_init(void)
{
}
void __tsan_func_entry(void *caller);
void __tsan_func_entry(void *caller)
{
        (void)caller;
}
void __tsan_func_exit(void);
void __tsan_func_exit(void)
{
}
