/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated runtime's stream capture and graphs (CUDA C++ Programming Guide, "Creating a Graph Using
 * Stream Capture").
 *
 * A capture belongs to the stream that began it. Other streams join by waiting for an event that was recorded
 * in it, and must be waited for again before it ends. Each captured work is a node that depends on the last
 * ones of its stream. A launched graph runs its nodes in any order that the dependencies allow: as captured,
 * the latest first, or at random. */
#include "tests/emu/runtime.h"

#include <stdio.h>

struct node {
        struct mfl_emu_work *work;
        struct mfl_emu_set after;
};
struct CUgraph_st {
        struct CUgraph_st *next;
        struct node *nodes;
        int n, max;
};
struct CUgraphExec_st {
        struct CUgraphExec_st *next;
        cudaGraph_t graph; /* a copy */
        int refs, *left, *ready;
        bool destroyed;
};

static struct mfl_emu_capture *captures;
static cudaGraph_t graphs;
static cudaGraphExec_t execs;
static uint64_t n_captures;
static _Thread_local enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

/* ---- sets ---- */

bool mfl_emu_set_add(struct mfl_emu_set *set, int node)
{
        for (int i = 0; i < set->n; i++)
                if (set->nodes[i] == node)
                        return true;
        if (set->n == set->max) {
                int max = set->max ? 2 * set->max : 4;
                int *nodes = realloc(set->nodes, (size_t)max * sizeof nodes[0]);
                if (!nodes)
                        return false;
                set->nodes = nodes;
                set->max = max;
        }
        set->nodes[set->n++] = node;
        return true;
}

bool mfl_emu_set_copy(struct mfl_emu_set *to, const struct mfl_emu_set *from)
{
        bool good = true;
        for (int i = 0; i < from->n; i++)
                good = mfl_emu_set_add(to, from->nodes[i]) && good;
        return good;
}

void mfl_emu_set_clear(struct mfl_emu_set *set)
{
        free(set->nodes);
        *set = (struct mfl_emu_set){0};
}

/* ---- graphs ---- */

static cudaGraph_t new_graph(void)
{
        cudaGraph_t graph = calloc(1, sizeof *graph);
        if (graph) {
                graph->next = graphs;
                graphs = graph;
        }
        return graph;
}

static bool add_node(cudaGraph_t graph, struct mfl_emu_work *work, const struct mfl_emu_set *after)
{
        if (graph->n == graph->max) {
                int max = graph->max ? 2 * graph->max : 64;
                struct node *nodes = realloc(graph->nodes, (size_t)max * sizeof nodes[0]);
                if (!nodes)
                        return false;
                graph->nodes = nodes;
                graph->max = max;
        }
        struct node *node = &graph->nodes[graph->n];
        *node = (struct node){.work = work};
        if (!mfl_emu_set_copy(&node->after, after)) {
                mfl_emu_set_clear(&node->after);
                return false;
        }
        work->refs++;
        graph->n++;
        return true;
}

static void free_graph(cudaGraph_t graph)
{
        cudaGraph_t *link = &graphs;
        while (*link != graph)
                link = &(*link)->next;
        *link = graph->next;
        for (int i = 0; i < graph->n; i++) {
                mfl_emu_work_put(graph->nodes[i].work);
                mfl_emu_set_clear(&graph->nodes[i].after);
        }
        free(graph->nodes);
        free(graph);
}

/* ---- capture ---- */

bool mfl_emu_capture_active(uint64_t number)
{
        for (struct mfl_emu_capture *c = captures; c; c = c->next)
                if (c->number == number)
                        return true;
        return false;
}

cudaError_t mfl_emu_capture_unsafe(void)
{
        cudaError_t status = cudaSuccess;
        for (struct mfl_emu_capture *c = captures; c; c = c->next) {
                bool own = pthread_equal(c->thread, pthread_self());
                if (thread_mode == cudaStreamCaptureModeRelaxed || c->mode == cudaStreamCaptureModeRelaxed)
                        continue;
                if (own || (thread_mode == cudaStreamCaptureModeGlobal &&
                                   c->mode == cudaStreamCaptureModeGlobal)) {
                        c->invalid = true;
                        status = cudaErrorStreamCaptureUnsupported;
                }
        }
        return status;
}

cudaError_t mfl_emu_capture_implicit(void)
{
        for (struct CUstream_st *s = mfl_emu_streams->next; s; s = s->next)
                if (s->capture && !(s->flags & cudaStreamNonBlocking))
                        return mfl_emu_capture_spoil(s, cudaErrorStreamCaptureImplicit);
        return cudaSuccess;
}

cudaError_t mfl_emu_capture_spoil(struct CUstream_st *stream, cudaError_t status)
{
        stream->capture->invalid = true;
        return status;
}

static void end_capture(struct mfl_emu_capture *capture)
{
        struct mfl_emu_capture **link = &captures;
        while (*link != capture)
                link = &(*link)->next;
        *link = capture->next;
        for (struct CUstream_st *s = mfl_emu_streams; s; s = s->next)
                if (s->capture == capture) {
                        s->capture = NULL;
                        mfl_emu_set_clear(&s->last);
                }
        free(capture);
}

cudaError_t mfl_emu_capture_add(struct CUstream_st *stream, struct mfl_emu_work *work)
{
        struct mfl_emu_capture *c = stream->capture;
        if (c->invalid)
                return cudaErrorStreamCaptureInvalidated;
        int number = c->graph->n;
        if (!add_node(c->graph, work, &stream->last))
                return cudaErrorMemoryAllocation;
        stream->last.n = 0;
        return mfl_emu_set_add(&stream->last, number) ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t mfl_emu_capture_record(struct CUstream_st *stream, cudaEvent_t event)
{
        if (stream->capture->invalid)
                return cudaErrorStreamCaptureInvalidated;
        event->capture = stream->capture->number;
        event->last.n = 0;
        return mfl_emu_set_copy(&event->last, &stream->last) ? cudaSuccess : cudaErrorMemoryAllocation;
}

static struct mfl_emu_capture *find_capture(uint64_t number)
{
        struct mfl_emu_capture *c = captures;
        while (c && c->number != number)
                c = c->next;
        return c;
}

cudaError_t mfl_emu_capture_wait(struct CUstream_st *stream, cudaEvent_t event)
{
        struct mfl_emu_capture *c = find_capture(event->capture);
        if (!c && stream->capture)
                return mfl_emu_capture_spoil(stream, cudaErrorStreamCaptureIsolation);
        if (!c)
                return event->capture ? cudaErrorCapturedEvent : cudaSuccess;
        if (stream == mfl_emu_streams)
                return mfl_emu_capture_spoil(c->origin, cudaErrorStreamCaptureImplicit);
        if (stream->capture && stream->capture != c) {
                stream->capture->invalid = true;
                return mfl_emu_capture_spoil(c->origin, cudaErrorStreamCaptureMerge);
        }
        if (c->invalid)
                return cudaErrorStreamCaptureInvalidated;
        stream->capture = c;
        return mfl_emu_set_copy(&stream->last, &event->last) ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
        cudaError_t status = mfl_emu_enter("cudaStreamBeginCapture");
        struct CUstream_st *s = mfl_emu_find_stream(stream);
        struct mfl_emu_capture *c = NULL;
        if (!status && !s)
                status = cudaErrorInvalidResourceHandle;
        if (!status && s == mfl_emu_streams)
                status = cudaErrorStreamCaptureUnsupported;
        if (!status && s->capture)
                status = mfl_emu_capture_spoil(s, cudaErrorIllegalState);
        if (!status && !(c = calloc(1, sizeof *c)))
                status = cudaErrorMemoryAllocation;
        if (!status && !(c->graph = new_graph())) {
                free(c);
                status = cudaErrorMemoryAllocation;
        }
        if (!status) {
                c->number = ++n_captures;
                c->mode = mode;
                c->origin = s;
                c->thread = pthread_self();
                c->next = captures;
                captures = c;
                s->capture = c;
        }
        return mfl_emu_leave(status);
}

/* Every other stream's last nodes come before those of the origin. */
static bool joined(const struct mfl_emu_capture *c)
{
        bool *reached = calloc((size_t)c->graph->n + 1, sizeof *reached), good = reached;
        for (int i = 0; good && i < c->origin->last.n; i++)
                reached[c->origin->last.nodes[i]] = true;
        for (int i = c->graph->n - 1; good && i >= 0; i--)
                for (int k = 0; reached[i] && k < c->graph->nodes[i].after.n; k++)
                        reached[c->graph->nodes[i].after.nodes[k]] = true;
        for (const struct CUstream_st *s = mfl_emu_streams; good && s; s = s->next)
                for (int i = 0; good && s->capture == c && i < s->last.n; i++)
                        good = reached[s->last.nodes[i]];
        free(reached);
        return good;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph)
{
        cudaError_t status = mfl_emu_enter("cudaStreamEndCapture");
        struct CUstream_st *s = mfl_emu_find_stream(stream);
        struct mfl_emu_capture *c = s ? s->capture : NULL;
        if (!s)
                return mfl_emu_leave(cudaErrorInvalidResourceHandle);
        if (!c)
                return mfl_emu_leave(cudaErrorIllegalState);
        if (c->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c->thread, pthread_self()))
                return mfl_emu_leave(cudaErrorStreamCaptureWrongThread);
        if (c->origin != s)
                return mfl_emu_leave(mfl_emu_capture_spoil(s, cudaErrorStreamCaptureUnmatched));
        if (!status && c->invalid)
                status = cudaErrorStreamCaptureInvalidated;
        if (!status && !joined(c))
                status = cudaErrorStreamCaptureUnjoined;
        *pGraph = status ? NULL : c->graph;
        if (status)
                free_graph(c->graph);
        end_capture(c);
        return mfl_emu_leave(status);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *pCaptureStatus)
{
        cudaError_t status = mfl_emu_enter("cudaStreamIsCapturing");
        struct CUstream_st *s = mfl_emu_find_stream(stream);
        if (!status && !s)
                status = cudaErrorInvalidResourceHandle;
        if (!status && s == mfl_emu_streams)
                status = mfl_emu_capture_implicit();
        if (!status)
                *pCaptureStatus = !s->capture           ? cudaStreamCaptureStatusNone
                                  : s->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                                        : cudaStreamCaptureStatusActive;
        return mfl_emu_leave(status);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
        cudaError_t status = mfl_emu_enter("cudaThreadExchangeStreamCaptureMode");
        if (!status) {
                enum cudaStreamCaptureMode old = thread_mode;
                thread_mode = *mode;
                *mode = old;
        }
        return mfl_emu_leave(status);
}

/* ---- launches of graphs ---- */

static bool valid_graph(cudaGraph_t graph)
{
        cudaGraph_t g = graphs;
        while (g && g != graph)
                g = g->next;
        return g;
}

static bool valid_exec(cudaGraphExec_t exec)
{
        cudaGraphExec_t e = execs;
        while (e && e != exec)
                e = e->next;
        return e && !e->destroyed;
}

static void put_exec(cudaGraphExec_t exec)
{
        cudaGraphExec_t *link = &execs;
        if (--exec->refs)
                return;
        while (*link != exec)
                link = &(*link)->next;
        *link = exec->next;
        free_graph(exec->graph);
        free(exec->left);
        free(exec->ready);
        free(exec);
}

static cudaGraphExec_t new_exec(cudaGraph_t graph)
{
        cudaGraphExec_t exec = calloc(1, sizeof *exec);
        size_t n = (size_t)graph->n + 1;
        if (!exec)
                return NULL;
        exec->next = execs;
        execs = exec;
        exec->refs = 1;
        bool good = (exec->graph = new_graph());
        good = good && (exec->left = malloc(n * sizeof exec->left[0]));
        good = good && (exec->ready = malloc(n * sizeof exec->ready[0]));
        for (int i = 0; good && i < graph->n; i++)
                good = add_node(exec->graph, graph->nodes[i].work, &graph->nodes[i].after);
        if (good)
                return exec;
        execs = exec->next;
        if (exec->graph)
                free_graph(exec->graph);
        free(exec->left);
        free(exec->ready);
        free(exec);
        return NULL;
}

static cudaError_t instantiate(cudaGraphExec_t *ret_exec, cudaGraph_t graph, const char *name)
{
        cudaError_t status = mfl_emu_enter(name);
        cudaGraphExec_t exec = NULL;
        if (!status && !valid_graph(graph))
                status = cudaErrorInvalidValue;
        if (!status && !(exec = new_exec(graph)))
                status = cudaErrorMemoryAllocation;
        if (!status)
                *ret_exec = exec;
        return mfl_emu_leave(status);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph, unsigned long long flags)
{
        return instantiate(pGraphExec, graph, "cudaGraphInstantiate");
}

cudaError_t cudaGraphInstantiateWithFlags(
        cudaGraphExec_t *pGraphExec, cudaGraph_t graph, unsigned long long flags)
{
        return instantiate(pGraphExec, graph, "cudaGraphInstantiate");
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
        cudaError_t status = mfl_emu_enter("cudaGraphDestroy");
        if (!valid_graph(graph))
                return mfl_emu_leave(cudaErrorInvalidValue);
        free_graph(graph);
        return mfl_emu_leave(status);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
        cudaError_t status = mfl_emu_enter("cudaGraphExecDestroy");
        if (!valid_exec(exec))
                return mfl_emu_leave(cudaErrorInvalidValue);
        exec->destroyed = true;
        put_exec(exec);
        return mfl_emu_leave(status);
}

/* Nodes of the same kinds with the same dependencies, in the same order; arguments may differ. */
static bool same_topology(const struct CUgraph_st *a, const struct CUgraph_st *b)
{
        if (a->n != b->n)
                return false;
        for (int i = 0; i < a->n; i++) {
                const struct mfl_emu_set *x = &a->nodes[i].after, *y = &b->nodes[i].after;
                if (a->nodes[i].work->run != b->nodes[i].work->run || x->n != y->n ||
                        (x->n && memcmp(x->nodes, y->nodes, (size_t)x->n * sizeof x->nodes[0])))
                        return false;
        }
        return true;
}

/* Launches that still wait keep what they were launched with, and this emulation keeps only one copy: the
 * update then fails, as it may. */
cudaError_t cudaGraphExecUpdate(
        cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *resultInfo)
{
        cudaError_t status = mfl_emu_enter("cudaGraphExecUpdate");
        if (!status && (!valid_exec(exec) || !valid_graph(graph)))
                status = cudaErrorInvalidValue;
        if (!status && (exec->refs > 1 || !same_topology(exec->graph, graph)))
                status = cudaErrorGraphExecUpdateFailure;
        *resultInfo = (cudaGraphExecUpdateResultInfo){
                .result = status ? cudaGraphExecUpdateError : cudaGraphExecUpdateSuccess};
        for (int i = 0; !status && i < graph->n; i++) {
                graph->nodes[i].work->refs++;
                mfl_emu_work_put(exec->graph->nodes[i].work);
                exec->graph->nodes[i].work = graph->nodes[i].work;
        }
        return mfl_emu_leave(status);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *numNodes)
{
        cudaError_t status = mfl_emu_enter("cudaGraphGetNodes");
        if (!status && !valid_graph(graph))
                status = cudaErrorInvalidValue;
        if (!status && nodes)
                for (size_t i = 0; i < *numNodes; i++)
                        nodes[i] = i < (size_t)graph->n ? (cudaGraphNode_t)&graph->nodes[i] : NULL;
        if (!status && (!nodes || *numNodes > (size_t)graph->n))
                *numNodes = (size_t)graph->n;
        return mfl_emu_leave(status);
}

/* Removes one of the n ready nodes from the list: its place. */
static int pick(const int *ready, int n)
{
        int at = 0;
        if (mfl_emu_order() == MFL_EMU_RANDOM)
                return (int)mfl_emu_random((uint32_t)n);
        for (int i = 1; i < n; i++)
                if (mfl_emu_order() == MFL_EMU_REVERSE ? ready[i] > ready[at] : ready[i] < ready[at])
                        at = i;
        return at;
}

static cudaError_t run_graph(struct mfl_emu_work *work)
{
        cudaGraphExec_t exec = work->graph;
        cudaGraph_t graph = exec->graph;
        cudaError_t status = cudaSuccess;
        int n_ready = 0;
        for (int i = 0; i < graph->n; i++)
                if (!(exec->left[i] = graph->nodes[i].after.n))
                        exec->ready[n_ready++] = i;
        while (!status && n_ready) {
                int at = pick(exec->ready, n_ready), node = exec->ready[at];
                exec->ready[at] = exec->ready[--n_ready];
                status = graph->nodes[node].work->run(graph->nodes[node].work);
                for (int i = node + 1; i < graph->n; i++) /* dependencies point backwards */
                        for (int k = 0; k < graph->nodes[i].after.n; k++)
                                if (graph->nodes[i].after.nodes[k] == node && !--exec->left[i])
                                        exec->ready[n_ready++] = i;
        }
        return status;
}

static void drop_graph(struct mfl_emu_work *work)
{
        put_exec(work->graph);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
        cudaError_t status = mfl_emu_enter("cudaGraphLaunch");
        struct CUstream_st *s = mfl_emu_find_stream(stream);
        if (!status && (!s || !valid_exec(exec)))
                status = s ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle;
        if (!status) {
                struct mfl_emu_work *work = mfl_emu_work_new("graph", run_graph, NULL, 0);
                if (work) {
                        work->graph = exec;
                        work->drop = drop_graph;
                        exec->refs++;
                }
                status = mfl_emu_submit(s, work);
        }
        return mfl_emu_leave(status);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
        cudaError_t status = mfl_emu_enter("cudaGraphUpload");
        if (!status && (!valid_exec(exec) || !mfl_emu_find_stream(stream)))
                status = cudaErrorInvalidValue;
        return mfl_emu_leave(status);
}

void mfl_emu_graphs_reset(void)
{
        while (captures)
                end_capture(captures);
        while (execs) {
                execs->refs = 1;
                put_exec(execs);
        }
        while (graphs)
                free_graph(graphs);
}
