/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one block: its threads take turns at barriers and warp collectives.
 *
 * Threads that may run wait in a queue. A thread that has to wait leaves the queue and hands over to the
 * first one. The last thread to reach a barrier puts the whole block back, in the chosen order. The last lane
 * of a warp to reach a collective does the work of all lanes and puts its warp in front. When the queue is
 * empty and not all threads are done, some thread waits for others that will never come: a fault. A thread
 * that ends runs the next one on its own stack, so a kernel without barriers is a loop. */
#include "tests/emu/emu_internal.h"

#include <stdarg.h>
#include <stdio.h>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
struct mfl_emu_thread *mfl_emu_current;
const struct mfl_emu_watch *mfl_emu_watch;

struct warp {
        unsigned n_arrived;
        enum mfl_emu_collective what;
        struct mfl_emu_lane *lanes[MFL_EMU_WARP];
        const char *file;
        int line;
};

enum {
        QUEUE = 2 * MFL_EMU_THREADS_MAX,
};

static struct {
        const struct mfl_emu_kernel *kernel;
        const void *a;
        unsigned n, n_done, n_at_sync;
        const char *sync_file; /* the barrier they wait at */
        int sync_line;
        struct mfl_emu_thread threads[MFL_EMU_THREADS_MAX];
        struct warp warps[MFL_EMU_THREADS_MAX / MFL_EMU_WARP];
        uint16_t queue[QUEUE];
        unsigned head, tail; /* they only count up */
        bool fault;
} block;
static bool trap;
static char last_fault[1024];

/* ---- faults ---- */

void mfl_emu_set_trap(bool wanted)
{
        trap = wanted;
}

const char *mfl_emu_last_fault(void)
{
        return last_fault;
}

static void say_fault(const char *fmt, va_list ap)
{
        int n = 0;
        if (mfl_emu_current)
                n = snprintf(last_fault, sizeof last_fault,
                        "emulated GPU: %s, block (%u, %u, %u), thread %u: ", block.kernel->name, blockIdx.x,
                        blockIdx.y, blockIdx.z, mfl_emu_current->number);
        else
                n = snprintf(last_fault, sizeof last_fault,
                        "emulated GPU: %s: ", block.kernel ? block.kernel->name : "outside of kernels");
        vsnprintf(last_fault + n, sizeof last_fault - (size_t)n, fmt, ap);
        if (trap)
                return;
        fprintf(stderr, "%s\n", last_fault);
        abort();
}

void mfl_emu_fault(const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        say_fault(fmt, ap);
        va_end(ap);
        if (mfl_emu_fiber_self() == mfl_emu_fiber_host()) {
                fprintf(stderr, "%s\n", last_fault);
                abort();
        }
        block.fault = true;
        mfl_emu_fiber_switch(mfl_emu_fiber_host());
        abort(); /* nobody resumes a thread after a fault */
}

void mfl_emu_fault_after(const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        say_fault(fmt, ap);
        va_end(ap);
        block.fault = true;
}

/* ---- the queue ---- */

/* Queues the n threads from `first` on, behind all others or before them, in the chosen order. */
static void push_many(unsigned first, unsigned n, bool front)
{
        enum mfl_emu_order order = mfl_emu_order();
        unsigned at = front ? block.head - n : block.tail;
        if (front)
                block.head -= n;
        else
                block.tail += n;
        for (unsigned i = 0; i < n; i++)
                block.queue[(at + i) % QUEUE] =
                        (uint16_t)(first + (order == MFL_EMU_REVERSE ? n - 1 - i : i));
        for (unsigned i = n; order == MFL_EMU_RANDOM && i > 1; i--) {
                unsigned x = (at + i - 1) % QUEUE, y = (at + mfl_emu_random(i)) % QUEUE;
                uint16_t t = block.queue[x];
                block.queue[x] = block.queue[y];
                block.queue[y] = t;
        }
}

static void set_current(struct mfl_emu_thread *t)
{
        mfl_emu_current = t;
        t->state = MFL_EMU_RUNNING;
        threadIdx.x = t->number;
        if (blockDim.x != block.n) { /* these divisions would otherwise happen at every turn */
                threadIdx.x = t->number % blockDim.x;
                threadIdx.y = t->number / blockDim.x % blockDim.y;
                threadIdx.z = t->number / (blockDim.x * blockDim.y);
        }
}

static void fiber_main(void);

/* Gives the processor to `t`, from a stack that is not its own. */
static void resume(struct mfl_emu_thread *t)
{
        if (!t->fiber) {
                t->fiber = mfl_emu_fiber_get(fiber_main);
                t->fiber->thread = t;
        }
        set_current(t);
        mfl_emu_fiber_switch(t->fiber);
}

static struct mfl_emu_thread *pop(void)
{
        return block.head == block.tail ? NULL : &block.threads[block.queue[block.head++ % QUEUE]];
}

/* The current thread waits. It returns when another thread has queued it and its turn has come. */
static void wait_turn(struct mfl_emu_thread *me)
{
        struct mfl_emu_thread *t = pop();
        if (t == me)
                set_current(me);
        else if (t)
                resume(t);
        else
                mfl_emu_fiber_switch(mfl_emu_fiber_host());
}

static void fiber_main(void)
{
        mfl_emu_fiber_begun();
        struct mfl_emu_fiber *self = mfl_emu_fiber_self();
        for (;;) {
                struct mfl_emu_thread *me = self->thread, *next;
                block.kernel->call(block.a);
                if (me->n_copies)
                        mfl_emu_copies_finish(me, UINT64_MAX);
                me->state = MFL_EMU_DONE;
                me->fiber = NULL;
                block.n_done++;
                next = pop();
                if (next && !next->fiber) {
                        next->fiber = self;
                        self->thread = next;
                        set_current(next);
                        continue;
                }
                mfl_emu_fiber_put(self);
                if (next)
                        resume(next);
                else
                        mfl_emu_fiber_switch(mfl_emu_fiber_host());
        }
}

/* ---- what kernels call ---- */

static bool same_place(const char *file, int line, const char *other_file, int other_line)
{
        return line == other_line && (file == other_file || !strcmp(file, other_file));
}

void mfl_emu_sync(const char *file, int line)
{
        struct mfl_emu_thread *me = mfl_emu_current;
        if (!me)
                mfl_emu_fault("%s:%d: MFL_SYNC by the host", file, line);
        me->state = MFL_EMU_AT_SYNC;
        me->file = file;
        me->line = line;
        if (!block.n_at_sync) {
                block.sync_file = file;
                block.sync_line = line;
        } else if (!same_place(file, line, block.sync_file, block.sync_line)) {
                mfl_emu_fault("%s:%d: a barrier while other threads wait at that of %s:%d", file, line,
                        block.sync_file, block.sync_line);
        }
        if (++block.n_at_sync == block.n) {
                block.n_at_sync = 0;
                if (mfl_emu_watch)
                        mfl_emu_watch->sync();
                push_many(0, block.n, false);
        }
        wait_turn(me);
}

void mfl_emu_collective(enum mfl_emu_collective what, struct mfl_emu_lane *lane, const char *file, int line)
{
        struct mfl_emu_thread *me = mfl_emu_current;
        const char *name = mfl_emu_collective_names[what];
        if (!me)
                mfl_emu_fault("%s:%d: %s by the host", file, line, name);
        struct warp *warp = &block.warps[me->number / MFL_EMU_WARP];
        unsigned first = me->number / MFL_EMU_WARP * MFL_EMU_WARP;
        if (first + MFL_EMU_WARP > block.n)
                mfl_emu_fault("%s:%d: %s in a warp of %u threads", file, line, name, block.n - first);
        if (!warp->n_arrived) {
                warp->what = what;
                warp->file = file;
                warp->line = line;
        } else if (warp->what != what || !same_place(file, line, warp->file, warp->line)) {
                mfl_emu_fault("%s:%d: %s while other lanes wait in %s at %s:%d", file, line, name,
                        mfl_emu_collective_names[warp->what], warp->file, warp->line);
        }
        me->state = MFL_EMU_AT_COLLECTIVE;
        me->file = file;
        me->line = line;
        if (lane)
                lane->pc = __builtin_return_address(0);
        warp->lanes[me->number - first] = lane;
        if (++warp->n_arrived == MFL_EMU_WARP) {
                warp->n_arrived = 0;
                mfl_emu_collective_run(what, warp->lanes, me->number / MFL_EMU_WARP);
                if (mfl_emu_watch)
                        mfl_emu_watch->collective(me->number / MFL_EMU_WARP, what == MFL_EMU_SYNC_WARP);
                push_many(first, MFL_EMU_WARP, true);
        }
        wait_turn(me);
}

/* ---- the block ---- */

static void say_stuck(void)
{
        unsigned n_sync = 0, n_warp = 0;
        const struct mfl_emu_thread *first = NULL;
        for (unsigned i = 0; i < block.n; i++) {
                n_sync += block.threads[i].state == MFL_EMU_AT_SYNC;
                n_warp += block.threads[i].state == MFL_EMU_AT_COLLECTIVE;
                if (!first && block.threads[i].state != MFL_EMU_DONE)
                        first = &block.threads[i];
        }
        mfl_emu_current = NULL;
        mfl_emu_fault_after("block (%u, %u, %u): %u of %u threads wait at a barrier, %u in warp collectives, "
                            "%u have left "
                            "the kernel; thread %u waits at %s:%d",
                blockIdx.x, blockIdx.y, blockIdx.z, n_sync, block.n, n_warp, block.n_done, first->number,
                first->file, first->line);
}

bool mfl_emu_block_run(const struct mfl_emu_kernel *kernel, const void *a)
{
        block.kernel = kernel;
        block.a = a;
        block.n = blockDim.x * blockDim.y * blockDim.z;
        block.n_done = block.n_at_sync = block.head = block.tail = 0;
        block.fault = false;
        threadIdx.y = threadIdx.z = 0;
        for (unsigned i = 0; i < block.n; i++) {
                struct mfl_emu_thread *t = &block.threads[i];
                t->fiber = NULL;
                t->state = MFL_EMU_READY;
                t->number = i;
                t->n_copies = 0;
                t->n_groups = 0;
        }
        for (unsigned i = 0; i * MFL_EMU_WARP < block.n; i++)
                block.warps[i].n_arrived = 0;
        if (mfl_emu_watch)
                mfl_emu_watch->block();
        push_many(0, block.n, false);
        resume(pop());
        if (!block.fault && block.n_done != block.n)
                say_stuck();
        mfl_emu_current = NULL;
        if (mfl_emu_watch)
                mfl_emu_watch->block_end();
        block.kernel = NULL;
        if (block.fault)
                mfl_emu_fibers_reset();
        return !block.fault;
}
