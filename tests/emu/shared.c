/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of the running block, and asynchronous copies into it. */
#include "tests/emu/emu_internal.h"

#include <stdio.h>

enum {
        STATICS_MAX = 64,
        GUARD_BYTES = 64,
        GUARD = 0x5a,
        POISON = 0xff,
};

uint64_t mfl_emu_block_serial;
static struct {
        struct mfl_emu_kernel *kernel;
        unsigned char *dynamic;
        size_t dynamic_bytes, static_bytes;
        struct {
                unsigned char *at;
                size_t bytes, offset;
        } statics[STATICS_MAX];
        int n_statics;
} shared;

void mfl_emu_shared_begin(struct mfl_emu_kernel *kernel, size_t dynamic_bytes)
{
        /* Without the address sanitizer's red zones, a guard detects writes behind the end. */
        size_t guard = MFL_EMU_ASAN ? 0 : GUARD_BYTES;
        shared.kernel = kernel;
        shared.dynamic_bytes = dynamic_bytes;
        if (posix_memalign((void **)&shared.dynamic, 128, dynamic_bytes + guard + !dynamic_bytes)) {
                perror("emulated GPU: shared memory");
                abort();
        }
        memset(shared.dynamic + dynamic_bytes, GUARD, guard);
}

void mfl_emu_shared_block(void)
{
        mfl_emu_block_serial++;
        shared.n_statics = 0;
        shared.static_bytes = 0;
        memset(shared.dynamic, POISON, shared.dynamic_bytes);
}

bool mfl_emu_shared_check(void)
{
        for (size_t i = 0; !MFL_EMU_ASAN && i < GUARD_BYTES; i++)
                if (shared.dynamic[shared.dynamic_bytes + i] != GUARD) {
                        mfl_emu_fault_after("%s: a write %zu bytes behind the %zu of dynamic shared memory",
                                shared.kernel->name, i, shared.dynamic_bytes);
                        return false;
                }
        return true;
}

void mfl_emu_shared_end(void)
{
        free(shared.dynamic);
        shared.dynamic = NULL;
        shared.n_statics = 0;
}

void mfl_emu_shared(void *at, size_t bytes, uint64_t *stamp)
{
        size_t before = shared.static_bytes, total = shared.static_bytes += (bytes + 15) / 16 * 16;
        *stamp = mfl_emu_block_serial;
        memset(at, POISON, bytes);
        if (shared.n_statics == STATICS_MAX)
                mfl_emu_fault("more than %d arrays of shared memory", STATICS_MAX);
        shared.statics[shared.n_statics].at = at;
        shared.statics[shared.n_statics].offset = (shared.dynamic_bytes + 127) / 128 * 128 + before;
        shared.statics[shared.n_statics++].bytes = bytes;
        if (total > MFL_EMU_SHARED_DEFAULT)
                mfl_emu_fault(
                        "%zu bytes of static shared memory: the limit is %d", total, MFL_EMU_SHARED_DEFAULT);
        total += shared.dynamic_bytes;
        if (total > mfl_emu_shared_max())
                mfl_emu_fault("%zu bytes of static and dynamic shared memory: the limit is %zu", total,
                        mfl_emu_shared_max());
        if (total > MFL_EMU_SHARED_DEFAULT && shared.kernel->dynamic_max <= MFL_EMU_SHARED_DEFAULT)
                mfl_emu_fault("%zu bytes of static and dynamic shared memory without "
                              "cudaFuncAttributeMaxDynamicSharedMemorySize",
                        total);
        if (shared.kernel->static_bytes < shared.static_bytes)
                shared.kernel->static_bytes = shared.static_bytes;
}

unsigned char *mfl_emu_shared_dynamic(void)
{
        return shared.dynamic;
}

bool mfl_emu_is_shared(const void *at, size_t bytes)
{
        const unsigned char *p = at;
        if (shared.dynamic && p >= shared.dynamic && p + bytes <= shared.dynamic + shared.dynamic_bytes)
                return true;
        for (int i = 0; i < shared.n_statics; i++)
                if (p >= shared.statics[i].at && p + bytes <= shared.statics[i].at + shared.statics[i].bytes)
                        return true;
        return false;
}

ptrdiff_t mfl_emu_shared_offset(const void *at)
{
        const unsigned char *p = at;
        if (p >= shared.dynamic && p < shared.dynamic + shared.dynamic_bytes)
                return p - shared.dynamic;
        for (int i = 0; i < shared.n_statics; i++)
                if (p >= shared.statics[i].at && p < shared.statics[i].at + shared.statics[i].bytes)
                        return p - shared.statics[i].at + (ptrdiff_t)shared.statics[i].offset;
        return -1;
}

/* ---- atomics ---- */

static void watch(const void *at, size_t bytes, enum mfl_emu_access access, const void *pc)
{
        if (mfl_emu_watch && mfl_emu_current)
                mfl_emu_watch->access(mfl_emu_current->number, at, bytes, access, pc);
}

void mfl_atomic_add_u64(uint64_t *at, uint64_t v)
{
        watch(at, sizeof *at, MFL_EMU_ATOMIC, __builtin_return_address(0));
        *at += v;
}

void mfl_atomic_add_i64(int64_t *at, int64_t v)
{
        watch(at, sizeof *at, MFL_EMU_ATOMIC, __builtin_return_address(0));
        *at = (int64_t)((uint64_t)*at + (uint64_t)v);
}

void mfl_atomic_or_u32(uint32_t *at, uint32_t v)
{
        watch(at, sizeof *at, MFL_EMU_ATOMIC, __builtin_return_address(0));
        *at |= v;
}

/* ---- asynchronous copies ---- */

static struct mfl_emu_copy *new_copy(struct mfl_emu_thread *t)
{
        if (t->n_copies == t->copies_max) {
                t->copies_max = t->copies_max ? 2 * t->copies_max : 16;
                t->copies = realloc(t->copies, t->copies_max * sizeof t->copies[0]);
                if (!t->copies) {
                        perror("emulated GPU: asynchronous copies");
                        abort();
                }
        }
        return &t->copies[t->n_copies++];
}

/* The source is read here, so that the wait can detect a write to it. Until then the destination is
 * undefined: readers of a tile that were not waited for find NaN. */
void mfl_emu_cp_async(void *to, const void *from, int bytes, int valid, const char *file, int line)
{
        struct mfl_emu_thread *me = mfl_emu_current;
        if (!me)
                mfl_emu_fault("%s:%d: mfl_cp_async by the host", file, line);
        if (valid < 0 || valid > bytes)
                mfl_emu_fault("%s:%d: mfl_cp_async: %d of %d bytes", file, line, valid, bytes);
        if (((uintptr_t)to | (uintptr_t)from) % (unsigned)bytes)
                mfl_emu_fault(
                        "%s:%d: mfl_cp_async_%d of misaligned addresses %p, %p", file, line, bytes, to, from);
        if (!mfl_emu_is_shared(to, (size_t)bytes))
                mfl_emu_fault("%s:%d: mfl_cp_async to %p: not shared memory", file, line, to);
        if (valid && mfl_emu_is_shared(from, 1))
                mfl_emu_fault("%s:%d: mfl_cp_async from shared memory", file, line);
        /* What was there is lost now; the new data is there at the wait. */
        if (valid)
                watch(from, (size_t)valid, MFL_EMU_READ, __builtin_return_address(0));
        watch(to, (size_t)bytes, MFL_EMU_WRITE, __builtin_return_address(0));
        struct mfl_emu_copy *copy = new_copy(me);
        copy->pc = __builtin_return_address(0);
        copy->to = to;
        copy->from = from;
        copy->bytes = (uint8_t)bytes;
        copy->valid = (uint8_t)valid;
        copy->group = me->n_groups;
        copy->file = file;
        copy->line = line;
        if (bytes == 16 && valid == 16) { /* nearly always: sizes that the compiler knows */
                memcpy(copy->data, from, 16);
        } else {
                memset(copy->data, 0, sizeof copy->data);
                if (valid)
                        memcpy(copy->data, from, (size_t)valid);
        }
        if (bytes == 16)
                memset(to, POISON, 16);
        else
                memset(to, POISON, 4);
}

void mfl_cp_async_commit(void)
{
        mfl_emu_current->n_groups++;
}

static bool same(const void *a, const void *b, int bytes)
{
        return bytes == 16 ? !memcmp(a, b, 16) : bytes == 4 ? !memcmp(a, b, 4) : !memcmp(a, b, (size_t)bytes);
}

static void finish_copy(const struct mfl_emu_copy *copy, unsigned thread)
{
        static const unsigned char poison[16] = {POISON, POISON, POISON, POISON, POISON, POISON, POISON,
                POISON, POISON, POISON, POISON, POISON, POISON, POISON, POISON, POISON};
        if (copy->valid && !same(copy->from, copy->data, copy->valid))
                mfl_emu_fault("%s:%d: the source of this mfl_cp_async changed before the wait", copy->file,
                        copy->line);
        if (!same(copy->to, poison, copy->bytes))
                mfl_emu_fault("%s:%d: the destination of this mfl_cp_async was written to before the wait",
                        copy->file, copy->line);
        if (mfl_emu_watch)
                mfl_emu_watch->access(thread, copy->to, copy->bytes, MFL_EMU_COPY_END, copy->pc);
        if (copy->bytes == 16)
                memcpy(copy->to, copy->data, 16);
        else
                memcpy(copy->to, copy->data, 4);
}

/* Completes the groups below `groups`. */
void mfl_emu_copies_finish(struct mfl_emu_thread *t, uint64_t groups)
{
        size_t n = 0;
        while (n < t->n_copies && t->copies[n].group < groups)
                finish_copy(&t->copies[n++], t->number);
        t->n_copies -= n;
        if (n && t->n_copies)
                memmove(t->copies, t->copies + n, t->n_copies * sizeof t->copies[0]);
}

void mfl_cp_async_wait(int pending)
{
        struct mfl_emu_thread *me = mfl_emu_current;
        if (pending < 0)
                mfl_emu_fault("mfl_cp_async_wait(%d)", pending);
        if (me->n_copies && me->n_groups > (unsigned)pending)
                mfl_emu_copies_finish(me, me->n_groups - (unsigned)pending);
}
