/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated runtime's memory: device memory is the host's, with a list that says which memory belongs to
 * what.
 *
 * Fresh device memory holds 0xff. Copies between host and device read and write pinned host memory when the
 * work runs. Pageable memory is read at the call, and a copy to it waits, as in CUDA. */
#include "tests/emu/runtime.h"

#include <stdio.h>

enum {
        GUARD_BYTES = MFL_EMU_ASAN ? 0 : 256,
        GUARD = 0x5a,
        GRAIN = 512,
};
enum kind { PAGEABLE, DEVICE, PINNED, REGISTERED };

struct block {
        struct block *next;
        unsigned char *p;
        size_t bytes;
        enum kind kind;
        bool library; /* not for cudaFree */
};
static struct block *blocks;
static uint64_t used;
static struct mfl_emu_traffic traffic;

static struct block *find(const void *at, size_t bytes)
{
        const unsigned char *p = at;
        for (struct block **link = &blocks, *b; (b = *link); link = &b->next)
                if (p >= b->p && p < b->p + b->bytes + !b->bytes && bytes <= (size_t)(b->p + b->bytes - p)) {
                        *link = b->next; /* to the front: the next query is often for the same block */
                        b->next = blocks;
                        return blocks = b;
                }
        return NULL;
}

static enum kind kind_of(const void *at)
{
        struct block *b = find(at, 0);
        return b ? b->kind : PAGEABLE;
}

bool mfl_emu_is_device(const void *p, size_t bytes)
{
        struct block *b = find(p, bytes);
        return b && b->kind == DEVICE;
}

uint64_t mfl_emu_memory_used(void)
{
        return used;
}

struct mfl_emu_traffic mfl_emu_traffic_take(void)
{
        (void)mfl_emu_enter(NULL);
        struct mfl_emu_traffic now = traffic;
        traffic = (struct mfl_emu_traffic){0};
        (void)mfl_emu_leave(cudaSuccess);
        return now;
}

static uint64_t charge(const struct block *b)
{
        return b->kind == DEVICE ? (b->bytes + GRAIN - 1) / GRAIN * GRAIN : 0;
}

static cudaError_t allocate(void **ret, size_t bytes, enum kind kind, void *own)
{
        struct block b = {.bytes = bytes, .kind = kind, .p = own}, *new;
        /* Watchers look at pages: no page holds anything else. */
        size_t align = mfl_emu_watch ? 4096 : 256, room = bytes + GUARD_BYTES + !bytes;
        room = (room + align - 1) / align * align;
        if (used + charge(&b) > mfl_emu_memory_total())
                return cudaErrorMemoryAllocation;
        new = malloc(sizeof *new);
        if (!new || (!own && posix_memalign((void **)&b.p, align,
                                     mfl_emu_watch ? room : bytes + GUARD_BYTES + !bytes))) {
                free(new);
                return cudaErrorMemoryAllocation;
        }
        if (!own) {
                memset(b.p, 0xff, bytes);
                memset(b.p + bytes, GUARD, GUARD_BYTES);
        }
        *new = b;
        new->next = blocks;
        blocks = new;
        used += charge(&b);
        *ret = b.p;
        return cudaSuccess;
}

static cudaError_t release(void *p, enum kind kind, bool library)
{
        struct block *b = find(p, 0); /* to the front */
        if (!b || b->p != p || b->kind != kind || b->library != library)
                return cudaErrorInvalidValue;
        blocks = b->next;
        used -= charge(b);
        for (size_t i = 0; kind != REGISTERED && i != GUARD_BYTES; i++)
                if (b->p[b->bytes + i] != GUARD) {
                        mfl_emu_fault_after(
                                "a write %zu bytes behind an allocation of %zu bytes", i, b->bytes);
                        mfl_emu_set_sticky(cudaErrorIllegalAddress);
                        break;
                }
        if (kind != REGISTERED)
                free(b->p);
        free(b);
        return cudaSuccess;
}

void mfl_emu_memory_reset(void)
{
        while (blocks)
                (void)release(blocks->p, blocks->kind, blocks->library);
}

/* cudaFree and cudaFreeHost wait for all work. */
static cudaError_t drain_and_release(void *p, enum kind kind)
{
        if (!p)
                return cudaSuccess;
        cudaError_t status = mfl_emu_drain(NULL), freed = release(p, kind, false);
        return status ? status : freed;
}

cudaError_t cudaMalloc(void **devPtr, size_t size)
{
        cudaError_t status = mfl_emu_enter_unsafe("cudaMalloc");
        if (!status && !size)
                *devPtr = NULL;
        else if (!status)
                status = allocate(devPtr, size, DEVICE, NULL);
        return mfl_emu_leave(status);
}

cudaError_t cudaFree(void *devPtr)
{
        cudaError_t status = mfl_emu_enter_unsafe("cudaFree");
        return mfl_emu_leave(status ? status : drain_and_release(devPtr, DEVICE));
}

cudaError_t mfl_emu_library_alloc(void **ret, size_t bytes)
{
        cudaError_t status = mfl_emu_enter(NULL);
        if (!status)
                status = allocate(ret, bytes, DEVICE, NULL);
        if (!status)
                blocks->library = true;
        return mfl_emu_leave(status);
}

/* Waits for nothing, as unmapping does: work that still uses the memory is a fault. */
cudaError_t mfl_emu_library_free(void *p)
{
        cudaError_t status = mfl_emu_enter(NULL);
        return mfl_emu_leave(status ? status : release(p, DEVICE, true));
}

cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags)
{
        cudaError_t status = mfl_emu_enter_unsafe("cudaHostAlloc");
        return mfl_emu_leave(status ? status : allocate(pHost, size, PINNED, NULL));
}

cudaError_t cudaMallocHost(void **ptr, size_t size)
{
        cudaError_t status = mfl_emu_enter_unsafe("cudaMallocHost");
        return mfl_emu_leave(status ? status : allocate(ptr, size, PINNED, NULL));
}

cudaError_t cudaFreeHost(void *ptr)
{
        cudaError_t status = mfl_emu_enter_unsafe("cudaFreeHost");
        return mfl_emu_leave(status ? status : drain_and_release(ptr, PINNED));
}

cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned int flags)
{
        cudaError_t status = mfl_emu_enter_unsafe("cudaHostRegister");
        if (!status && (!ptr || !size))
                status = cudaErrorInvalidValue;
        if (!status && find(ptr, 0))
                status = cudaErrorHostMemoryAlreadyRegistered;
        return mfl_emu_leave(status ? status : allocate(&ptr, size, REGISTERED, ptr));
}

cudaError_t cudaHostUnregister(void *ptr)
{
        cudaError_t status = mfl_emu_enter_unsafe("cudaHostUnregister");
        if (!status)
                status = drain_and_release(ptr, REGISTERED);
        return mfl_emu_leave(status == cudaErrorInvalidValue ? cudaErrorHostMemoryNotRegistered : status);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
        cudaError_t status = mfl_emu_enter("cudaMemGetInfo");
        if (!status) {
                *total = mfl_emu_memory_total();
                *free_bytes = *total - used;
        }
        return mfl_emu_leave(status);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
        cudaError_t status = mfl_emu_enter("cudaPointerGetAttributes");
        if (!status) {
                enum kind kind = kind_of(ptr);
                *attributes =
                        (struct cudaPointerAttributes){.type = kind == DEVICE     ? cudaMemoryTypeDevice
                                                               : kind == PAGEABLE ? cudaMemoryTypeUnregistered
                                                                                  : cudaMemoryTypeHost,
                                .device = kind == PAGEABLE ? -2 : 0,
                                .devicePointer = kind == PAGEABLE ? NULL : (void *)(uintptr_t)ptr,
                                .hostPointer = kind == DEVICE ? NULL : (void *)(uintptr_t)ptr};
        }
        return mfl_emu_leave(status);
}

/* ---- copies ---- */

struct copy {
        void *to;
        const void *from;
        size_t width, height, to_pitch, from_pitch;
};

static cudaError_t run_copy(struct mfl_emu_work *work)
{
        const unsigned char *from = work->copy.from ? work->copy.from : work->args;
        for (size_t i = 0; i < work->copy.height; i++)
                memmove(work->copy.to + i * work->copy.to_pitch, from + i * work->copy.from_pitch,
                        work->copy.width);
        return cudaSuccess;
}

static void count_copy(const struct copy *c, enum kind to, enum kind from)
{
        uint64_t bytes = (uint64_t)c->width * c->height;
        traffic.copies++;
        if (to == DEVICE && from != DEVICE)
                traffic.to_device[from != PAGEABLE] += bytes;
        if (from == DEVICE && to != DEVICE)
                traffic.to_host[to != PAGEABLE] += bytes;
}

/* Host memory on the device's side of a copy, or the reverse: CUDA refuses it or crashes. */
static cudaError_t check_direction(
        const struct copy *c, enum cudaMemcpyKind kind, enum kind to, enum kind from)
{
        if ((unsigned)kind > cudaMemcpyDefault)
                return cudaErrorInvalidMemcpyDirection;
        if (kind != cudaMemcpyDefault) {
                bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
                bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
                if (to_device != (to == DEVICE) || from_device != (from == DEVICE))
                        return cudaErrorInvalidValue;
        }
        size_t to_bytes = (c->height - 1) * c->to_pitch + c->width;
        size_t from_bytes = (c->height - 1) * c->from_pitch + c->width;
        if ((to != PAGEABLE && !find(c->to, to_bytes)) || (from != PAGEABLE && !find(c->from, from_bytes)))
                return cudaErrorInvalidValue;
        return cudaSuccess;
}

static cudaError_t copy(
        const struct copy *c, enum cudaMemcpyKind kind, struct CUstream_st *stream, bool synchronous)
{
        if (!stream)
                return cudaErrorInvalidResourceHandle;
        if (!c->width || !c->height)
                return cudaSuccess;
        enum kind to = kind_of(c->to), from = kind_of(c->from);
        cudaError_t status = check_direction(c, kind, to, from);
        if (status)
                return status;
        bool early = from == PAGEABLE && !stream->capture && !synchronous;
        if (!stream->capture)
                count_copy(c, to, from);
        struct mfl_emu_work *work =
                mfl_emu_work_new("copy", run_copy, NULL, early ? c->width * c->height : 0);
        if (work) {
                work->copy.to = c->to;
                work->copy.from = early ? NULL : c->from;
                work->copy.width = c->width;
                work->copy.height = c->height;
                work->copy.to_pitch = c->to_pitch;
                work->copy.from_pitch = early ? c->width : c->from_pitch;
                for (size_t i = 0; early && i < c->height; i++)
                        memcpy(work->args + i * c->width, (const unsigned char *)c->from + i * c->from_pitch,
                                c->width);
        }
        status = mfl_emu_submit(stream, work);
        if (!status && !stream->capture && (synchronous || to == PAGEABLE))
                status = mfl_emu_drain(stream);
        return status;
}

cudaError_t cudaMemcpyAsync(
        void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream)
{
        cudaError_t status = mfl_emu_enter("cudaMemcpyAsync");
        struct copy c = {dst, src, count, 1, count, count};
        return mfl_emu_leave(status ? status : copy(&c, kind, mfl_emu_find_stream(stream), false));
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind)
{
        cudaError_t status = mfl_emu_enter("cudaMemcpy");
        struct copy c = {dst, src, count, 1, count, count};
        if (!status)
                status = mfl_emu_capture_implicit();
        if (!status)
                status = mfl_emu_capture_unsafe();
        return mfl_emu_leave(status ? status : copy(&c, kind, mfl_emu_find_stream(NULL), true));
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
        size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)
{
        cudaError_t status = mfl_emu_enter("cudaMemcpy2DAsync");
        struct copy c = {dst, src, width, height, dpitch, spitch};
        if (!status && (width > dpitch || width > spitch))
                status = cudaErrorInvalidValue;
        return mfl_emu_leave(status ? status : copy(&c, kind, mfl_emu_find_stream(stream), false));
}

/* ---- fills ---- */

static cudaError_t run_set(struct mfl_emu_work *work)
{
        memset(work->set.to, work->set.value, work->set.bytes);
        return cudaSuccess;
}

static cudaError_t set(void *to, int value, size_t bytes, struct CUstream_st *stream)
{
        if (!stream)
                return cudaErrorInvalidResourceHandle;
        if (!bytes)
                return cudaSuccess;
        if (!mfl_emu_is_device(to, bytes))
                return cudaErrorInvalidValue;
        if (!stream->capture) {
                traffic.fills++;
                traffic.fill_bytes += bytes;
        }
        struct mfl_emu_work *work = mfl_emu_work_new("fill", run_set, NULL, 0);
        if (work) {
                work->set.to = to;
                work->set.value = value;
                work->set.bytes = bytes;
        }
        return mfl_emu_submit(stream, work);
}

cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream)
{
        cudaError_t status = mfl_emu_enter("cudaMemsetAsync");
        return mfl_emu_leave(status ? status : set(devPtr, value, count, mfl_emu_find_stream(stream)));
}

cudaError_t cudaMemset(void *devPtr, int value, size_t count)
{
        cudaError_t status = mfl_emu_enter("cudaMemset");
        if (!status)
                status = mfl_emu_capture_implicit();
        if (!status)
                status = mfl_emu_capture_unsafe();
        return mfl_emu_leave(status ? status : set(devPtr, value, count, mfl_emu_find_stream(NULL)));
}
