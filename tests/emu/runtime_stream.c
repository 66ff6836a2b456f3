/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated runtime's streams and events: queues whose work runs when somebody waits for it. */
#include "tests/emu/runtime.h"

#include <time.h>

enum {
        PENDING_MAX = 4096, /* then the oldest work runs, so that queues do not grow without end */
};

static struct CUstream_st legacy = {.number = 0};
struct CUstream_st *mfl_emu_streams = &legacy;
static struct CUevent_st *events;
static uint64_t serial;
static unsigned n_streams, n_pending;

unsigned mfl_emu_pending(void)
{
        return n_pending;
}

struct CUstream_st *mfl_emu_find_stream(cudaStream_t stream)
{
        if (!stream || stream == cudaStreamLegacy)
                return &legacy;
        for (struct CUstream_st *s = &legacy; s; s = s->next)
                if (s == stream)
                        return s;
        return NULL;
}

static struct CUevent_st *find_event(cudaEvent_t event)
{
        for (struct CUevent_st *e = events; e; e = e->next)
                if (e == event && !e->destroyed)
                        return e;
        return NULL;
}

/* ---- running ---- */

static bool blocking(const struct CUstream_st *s)
{
        return s != &legacy && !(s->flags & cudaStreamNonBlocking);
}

/* The legacy stream's work comes after earlier work of blocking streams, and before their later work. */
static bool ready(const struct CUstream_st *s)
{
        const struct mfl_emu_op *op = s->head;
        if (!op || (op->wait && op->event->done < op->version))
                return false;
        if (op->work && op->work->ready && !op->work->ready(op->work))
                return false;
        if (blocking(s))
                return !legacy.head || legacy.head->serial > op->serial;
        for (const struct CUstream_st *o = legacy.next; s == &legacy && o; o = o->next)
                if (blocking(o) && o->head && o->head->serial < op->serial)
                        return false;
        return true;
}

static void free_event(struct CUevent_st *event)
{
        struct CUevent_st **link = &events;
        while (*link != event)
                link = &(*link)->next;
        *link = event->next;
        mfl_emu_set_clear(&event->last);
        free(event);
}

static void finish(struct mfl_emu_op *op)
{
        if (op->event && !--op->event->n_queued && op->event->destroyed)
                free_event(op->event);
        mfl_emu_work_put(op->work);
        free(op);
        n_pending--;
}

static void run_one(struct CUstream_st *s)
{
        struct mfl_emu_op *op = s->head;
        s->head = op->next;
        if (!s->head)
                s->tail = NULL;
        if (op->work && !mfl_emu_sticky()) {
                cudaError_t status = op->work->run(op->work);
                if (status)
                        mfl_emu_set_sticky(status);
        }
        if (op->event && !op->wait) {
                struct timespec now;
                clock_gettime(CLOCK_MONOTONIC, &now);
                op->event->ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
                op->event->done = op->version;
        }
        finish(op);
}

/* Which stream continues when `wanted` is waited for. forward: that one, else the first that can; reverse:
 * the last of the others that can, then that one; random: any. */
static struct CUstream_st *choose(const struct CUstream_st *wanted)
{
        struct CUstream_st *choice = NULL, *s;
        uint32_t n = 0;
        for (s = &legacy; s; s = s->next) {
                if (!ready(s))
                        continue;
                n++;
                if (mfl_emu_order() == MFL_EMU_RANDOM) {
                        if (mfl_emu_random(n) == 0)
                                choice = s;
                } else if (mfl_emu_order() == MFL_EMU_REVERSE) {
                        if (s != wanted || !choice)
                                choice = s;
                } else if (!choice || s == wanted) {
                        choice = s;
                }
        }
        return choice;
}

static bool busy(const struct CUstream_st *stream)
{
        for (const struct CUstream_st *s = &legacy; !stream && s; s = s->next)
                if (s->head)
                        return true;
        return stream && stream->head;
}

/* Some stream's next work waits for another thread or process. */
static bool waits_outside(void)
{
        for (const struct CUstream_st *s = &legacy; s; s = s->next)
                if (s->head && s->head->work && s->head->work->ready)
                        return true;
        return false;
}

/* False: nothing can run now, but may later. */
static bool run_next(const struct CUstream_st *wanted)
{
        struct CUstream_st *s = choose(wanted);
        if (!s && waits_outside())
                return false;
        if (!s) {
                mfl_emu_fault_after("all streams wait for each other's events");
                abort();
        }
        run_one(s);
        return true;
}

cudaError_t mfl_emu_drain(struct CUstream_st *stream)
{
        while (busy(stream))
                if (!run_next(stream))
                        mfl_emu_pause();
        return mfl_emu_sticky();
}

static cudaError_t append(struct CUstream_st *s, struct mfl_emu_op op)
{
        struct mfl_emu_op *new = malloc(sizeof *new);
        if (!new) {
                mfl_emu_work_put(op.work);
                return cudaErrorMemoryAllocation;
        }
        op.serial = ++serial;
        op.next = NULL;
        *new = op;
        *(s->tail ? &s->tail->next : &s->head) = new;
        s->tail = new;
        if (op.event)
                op.event->n_queued++;
        for (n_pending++; n_pending > PENDING_MAX && run_next(s);)
                ;
        return cudaSuccess;
}

cudaError_t mfl_emu_submit(struct CUstream_st *s, struct mfl_emu_work *work)
{
        if (!work)
                return cudaErrorMemoryAllocation;
        cudaError_t status = s == &legacy ? mfl_emu_capture_implicit() : cudaSuccess;
        if (!status && s->capture)
                status = mfl_emu_capture_add(s, work);
        if (status || s->capture) {
                mfl_emu_work_put(work); /* the graph has its own reference */
                return status;
        }
        return append(s, (struct mfl_emu_op){.work = work});
}

void mfl_emu_streams_reset(void)
{
        for (struct CUstream_st *s = &legacy; s; s = s->next)
                while (s->head) {
                        struct mfl_emu_op *op = s->head;
                        s->head = op->next;
                        finish(op);
                }
        legacy.tail = NULL;
        while (legacy.next) {
                struct CUstream_st *s = legacy.next;
                legacy.next = s->next;
                mfl_emu_set_clear(&s->last);
                free(s);
        }
        while (events)
                free_event(events);
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *pStream, unsigned int flags, int priority)
{
        cudaError_t status = mfl_emu_enter("cudaStreamCreateWithPriority");
        struct CUstream_st *s = NULL, **link = &legacy.next;
        if (!status && flags & ~(unsigned)cudaStreamNonBlocking)
                status = cudaErrorInvalidValue;
        if (!status && !(s = calloc(1, sizeof *s)))
                status = cudaErrorMemoryAllocation;
        if (!status) {
                s->number = ++n_streams;
                s->flags = flags;
                s->priority = priority;
                while (*link)
                        link = &(*link)->next;
                *pStream = *link = s;
        }
        return mfl_emu_leave(status);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags)
{
        return cudaStreamCreateWithPriority(pStream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *pStream)
{
        return cudaStreamCreateWithPriority(pStream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
        cudaError_t status = mfl_emu_enter("cudaStreamDestroy");
        struct CUstream_st *s = mfl_emu_find_stream(stream), **link = &legacy.next;
        if (!s || s == &legacy)
                return mfl_emu_leave(cudaErrorInvalidResourceHandle);
        if (s->capture)
                return mfl_emu_leave(mfl_emu_capture_spoil(s, cudaErrorStreamCaptureUnsupported));
        (void)mfl_emu_drain(s);
        while (*link != s)
                link = &(*link)->next;
        *link = s->next;
        mfl_emu_set_clear(&s->last);
        free(s);
        return mfl_emu_leave(status);
}

/* Functions that may not be called for a captured stream, or for the legacy stream then. */
static cudaError_t check_wait(struct CUstream_st *s)
{
        if (!s)
                return cudaErrorInvalidResourceHandle;
        if (s->capture)
                return mfl_emu_capture_spoil(s, cudaErrorStreamCaptureUnsupported);
        return s == &legacy ? mfl_emu_capture_implicit() : cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
        cudaError_t status = mfl_emu_enter("cudaStreamSynchronize");
        struct CUstream_st *s = mfl_emu_find_stream(stream);
        if (!status)
                status = check_wait(s);
        return mfl_emu_leave(status ? status : mfl_emu_drain(s));
}

/* Makes a little progress, so that polling ends. */
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
        cudaError_t status = mfl_emu_enter("cudaStreamQuery");
        struct CUstream_st *s = mfl_emu_find_stream(stream);
        if (!status)
                status = check_wait(s);
        if (!status && s->head) {
                run_next(s);
                status = s->head ? cudaErrorNotReady : cudaSuccess;
        }
        return mfl_emu_leave(status);
}

cudaError_t cudaDeviceSynchronize(void)
{
        cudaError_t status = mfl_emu_enter_unsafe("cudaDeviceSynchronize");
        return mfl_emu_leave(status ? status : mfl_emu_drain(NULL));
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
        cudaError_t status = mfl_emu_enter("cudaEventCreateWithFlags");
        struct CUevent_st *e = NULL;
        if (!status && !(e = calloc(1, sizeof *e)))
                status = cudaErrorMemoryAllocation;
        if (!status) {
                e->flags = flags;
                e->next = events;
                *event = events = e;
        }
        return mfl_emu_leave(status);
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
        return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
        cudaError_t status = mfl_emu_enter("cudaEventDestroy");
        struct CUevent_st *e = find_event(event);
        if (!e)
                return mfl_emu_leave(cudaErrorInvalidResourceHandle);
        if (e->n_queued)
                e->destroyed = true;
        else
                free_event(e);
        return mfl_emu_leave(status);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags)
{
        cudaError_t status = mfl_emu_enter("cudaEventRecord");
        struct CUevent_st *e = find_event(event);
        struct CUstream_st *s = mfl_emu_find_stream(stream);
        if (!status && (!e || !s))
                status = cudaErrorInvalidResourceHandle;
        if (!status && flags)
                status = cudaErrorNotSupported;
        if (!status && s == &legacy)
                status = mfl_emu_capture_implicit();
        if (!status && s->capture) {
                status = mfl_emu_capture_record(s, e);
        } else if (!status) {
                e->capture = 0;
                status = append(s, (struct mfl_emu_op){.event = e, .version = ++e->recorded});
        }
        return mfl_emu_leave(status);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
        return cudaEventRecordWithFlags(event, stream, 0);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
        cudaError_t status = mfl_emu_enter("cudaStreamWaitEvent");
        struct CUevent_st *e = find_event(event);
        struct CUstream_st *s = mfl_emu_find_stream(stream);
        if (!status && (!e || !s))
                status = cudaErrorInvalidResourceHandle;
        if (!status && flags)
                status = cudaErrorNotSupported;
        if (!status && (e->capture || s->capture))
                status = mfl_emu_capture_wait(s, e);
        else if (!status && e->done < e->recorded)
                status = append(s, (struct mfl_emu_op){.event = e, .version = e->recorded, .wait = true});
        return mfl_emu_leave(status);
}

static cudaError_t check_event(const struct CUevent_st *e)
{
        if (!e)
                return cudaErrorInvalidResourceHandle;
        return e->capture && mfl_emu_capture_active(e->capture) ? cudaErrorCapturedEvent : cudaSuccess;
}

/* Finds the stream that has the event's last record by running any. */
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
        cudaError_t status = mfl_emu_enter("cudaEventSynchronize");
        struct CUevent_st *e = find_event(event);
        if (!status)
                status = check_event(e);
        while (!status && e->done < e->recorded)
                if (!run_next(NULL))
                        mfl_emu_pause();
        return mfl_emu_leave(status);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
        cudaError_t status = mfl_emu_enter("cudaEventQuery");
        struct CUevent_st *e = find_event(event);
        if (!status)
                status = check_event(e);
        if (!status && e->done < e->recorded) {
                run_next(NULL);
                status = e->done < e->recorded ? cudaErrorNotReady : cudaSuccess;
        }
        return mfl_emu_leave(status);
}

/* The host's time between the two events: it says nothing about a GPU. */
static double slowness = 1000;

void mfl_emu_set_slowness(double factor)
{
        slowness = factor;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
        cudaError_t status = mfl_emu_enter("cudaEventElapsedTime");
        const struct CUevent_st *a = find_event(start), *b = find_event(end);
        if (!status)
                status = check_event(a);
        if (!status)
                status = check_event(b);
        if (!status && (!a->recorded || !b->recorded || (a->flags | b->flags) & cudaEventDisableTiming))
                status = cudaErrorInvalidResourceHandle;
        if (!status && (a->done < a->recorded || b->done < b->recorded))
                status = cudaErrorNotReady;
        /* Usually a thousand times as long: code that measures to choose (conv_plan_trial.c) then takes the
         * work for slow and does not run it again, which would show nothing about a device. */
        if (!status)
                *ms = (float)((double)(int64_t)(b->ns - a->ns) * 1e-6 * slowness);
        return mfl_emu_leave(status);
}
