/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the emulated CUDA runtime share.
 *
 * Calls put work on streams and return. Work runs when somebody waits: first the work that is waited for, or
 * first the others', or mixed, as the order says; so a missing event or wait shows. One lock guards
 * everything.
 */
#ifndef MFL_TESTS_EMU_RUNTIME_H
#define MFL_TESTS_EMU_RUNTIME_H

#include "tests/emu/emu_internal.h"

#include <pthread.h>

/* ---- work: what a stream's queue or a graph's node does; counted references ---- */

struct mfl_emu_work {
        const char *name;
        cudaError_t (*run)(struct mfl_emu_work *work);
        void (*drop)(struct mfl_emu_work *work);  /* with the last reference; may be NULL */
        bool (*ready)(struct mfl_emu_work *work); /* false: it waits for something outside this device
                                                     (asked when it is the stream's next); NULL: true */
        int refs;
        union {
                struct {
                        struct mfl_emu_kernel *kernel;
                        dim3 grid, block;
                        size_t shared_bytes;
                } launch;
                struct {
                        unsigned char *to;
                        const unsigned char *from; /* NULL: the bytes in args */
                        size_t width, height, to_pitch, from_pitch;
                } copy;
                struct {
                        void *to;
                        int value;
                        size_t bytes;
                } set;
                void (*library)(void *args);
                void *pointer;
                struct {
                        cudaHostFn_t call;
                        void *data;
                } host;
                cudaGraphExec_t graph;
        };
        _Alignas(16) unsigned char args[];
};
/* NULL: no memory. args NULL: only room. */
struct mfl_emu_work *mfl_emu_work_new(
        const char *name, cudaError_t (*run)(struct mfl_emu_work *work), const void *args, size_t arg_bytes);
void mfl_emu_work_put(struct mfl_emu_work *work);

/* ---- calls ---- */

/* Every function of the runtime calls enter; if that succeeds, it does its work and calls leave with the
 * result. */
cudaError_t mfl_emu_enter(const char *name);
cudaError_t mfl_emu_leave(cudaError_t status);
/* Like enter, for calls that CUDA forbids while a stream is captured (relaxed captures excepted). */
cudaError_t mfl_emu_enter_unsafe(const char *name);
void mfl_emu_set_sticky(cudaError_t status);
cudaError_t mfl_emu_sticky(void);
int mfl_emu_device(void); /* of this thread */
int mfl_emu_sm(void);
uint64_t mfl_emu_memory_total(void);

/* ---- sets of graph nodes ---- */

struct mfl_emu_set {
        int *nodes;
        int n, max;
};
bool mfl_emu_set_add(struct mfl_emu_set *set, int node);
bool mfl_emu_set_copy(struct mfl_emu_set *to, const struct mfl_emu_set *from); /* adds */
void mfl_emu_set_clear(struct mfl_emu_set *set);

/* ---- streams and events (runtime_stream.c) ---- */

struct mfl_emu_op {
        struct mfl_emu_op *next;
        uint64_t serial;
        struct mfl_emu_work *work; /* or */
        cudaEvent_t event;         /* recorded or waited for */
        uint64_t version;
        bool wait;
};
struct CUstream_st {
        struct CUstream_st *next;
        unsigned number, flags;
        int priority;
        struct mfl_emu_op *head, *tail;
        struct mfl_emu_capture *capture;
        struct mfl_emu_set last; /* capture: nodes that the next one depends on */
};
struct CUevent_st {
        struct CUevent_st *next;
        unsigned flags;
        uint64_t recorded, done; /* versions */
        uint64_t ns;
        int n_queued;
        bool destroyed;
        uint64_t capture; /* number of the capture that last recorded it; 0: none */
        struct mfl_emu_set last;
};
extern struct CUstream_st *mfl_emu_streams;                   /* the first is the legacy stream */
struct CUstream_st *mfl_emu_find_stream(cudaStream_t stream); /* NULL: no such stream */
/* Queues, or captures, the work; takes the reference. NULL counts as "no memory". */
cudaError_t mfl_emu_submit(struct CUstream_st *stream, struct mfl_emu_work *work);
cudaError_t mfl_emu_drain(struct CUstream_st *stream); /* NULL: all */
void mfl_emu_streams_reset(void);

/* ---- capture and graphs (runtime_graph.c) ---- */

struct mfl_emu_capture {
        struct mfl_emu_capture *next;
        uint64_t number;
        enum cudaStreamCaptureMode mode;
        struct CUstream_st *origin;
        pthread_t thread;
        cudaGraph_t graph;
        bool invalid;
};
/* Whether a call that is unsafe during captures may be made now; invalidates the capture if not. */
cudaError_t mfl_emu_capture_unsafe(void);
/* Work for the legacy stream while a blocking stream is captured. */
cudaError_t mfl_emu_capture_implicit(void);
/* Invalidates the stream's capture and returns `status`. */
cudaError_t mfl_emu_capture_spoil(struct CUstream_st *stream, cudaError_t status);
cudaError_t mfl_emu_capture_add(struct CUstream_st *stream, struct mfl_emu_work *work);
cudaError_t mfl_emu_capture_record(struct CUstream_st *stream, cudaEvent_t event);
cudaError_t mfl_emu_capture_wait(struct CUstream_st *stream, cudaEvent_t event);
bool mfl_emu_capture_active(uint64_t number);
void mfl_emu_graphs_reset(void);

/* ---- memory (runtime_memory.c) ---- */

void mfl_emu_memory_reset(void);
/* Device memory that only mfl_emu_library_free may free. */
cudaError_t mfl_emu_library_alloc(void **ret, size_t bytes);
cudaError_t mfl_emu_library_free(void *p);
/* Lets other threads and processes run for a moment, for work that waits for them. */
void mfl_emu_pause(void);

#endif
