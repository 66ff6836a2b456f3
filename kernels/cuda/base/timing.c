/* SPDX-License-Identifier: Apache-2.0 */
/* Captures launches, runs the graphs back to back, and takes the median of the times between their events. */
#include "kernels/cuda/base/timing.h"

#include "kernels/cuda/base/context.h"

#define GRAPH_NS 5e5 /* of one graph, approximately */
#define ENOUGH_NS 3e6

struct run {
        cudaStream_t stream;
        cudaGraphExec_t graphs[MFL_TIMING_GRAPHS];
        cudaEvent_t events[MFL_TIMING_SAMPLES + 1];
};

int mfl_cuda_timing_sets(uint64_t set_bytes, uint64_t l2_bytes, uint64_t bytes_max)
{
        uint64_t most = MFL_TIMING_LAUNCHES * MFL_TIMING_GRAPHS;
        set_bytes = MFL_MAX(set_bytes, 1);
        most = MFL_MIN(most, bytes_max / set_bytes);
        uint64_t wanted = (2 * l2_bytes + set_bytes - 1) / set_bytes;
        return (int)MFL_MAX(1, MFL_MIN(wanted, most));
}

struct mfl_cuda_timing mfl_cuda_timing_of(double first_ns, int n_sets)
{
        struct mfl_cuda_timing t = {1, 1, 1};
        first_ns = MFL_MAX(first_ns, 1.0);
        while (t.launches < MFL_TIMING_LAUNCHES && (t.launches + 1) * first_ns <= GRAPH_NS)
                t.launches++;
        while (t.samples < MFL_TIMING_SAMPLES && (t.samples + 1) * t.launches * first_ns <= ENOUGH_NS)
                t.samples++;
        t.graphs = MFL_MIN((n_sets + t.launches - 1) / t.launches, MFL_MIN(MFL_TIMING_GRAPHS, t.samples + 1));
        return t;
}

uint64_t mfl_cuda_l2_bytes(int device)
{
        int bytes = 0;
        if (cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device) != cudaSuccess)
                (void)cudaGetLastError();
        return (uint64_t)MFL_MAX(bytes, 0);
}

static int capture(struct run *run, int first, int n, int (*launch)(void *user, int i, struct mfl_error *err),
        void *user, cudaGraphExec_t *ret_exec, struct mfl_error *err)
{
        cudaGraph_t graph = NULL;
        int rc = mfl_cuda_check(
                cudaStreamBeginCapture(run->stream, cudaStreamCaptureModeRelaxed), "begin a capture", err);
        if (rc)
                return rc;
        for (int i = 0; !rc && i < n; i++)
                rc = launch(user, first + i, err);
        /* The capture must end in any case; the first error counts. */
        cudaError_t status = cudaStreamEndCapture(run->stream, &graph);
        if (!rc)
                rc = mfl_cuda_check(status, "end a capture", err);
        if (!rc)
                rc = mfl_cuda_check(cudaGraphInstantiate(ret_exec, graph, 0), "make a graph", err);
        if (graph)
                (void)cudaGraphDestroy(graph);
        return rc;
}

/* One graph to warm up, then one for each sample, without a gap. */
static int run_graphs(struct run *run, const struct mfl_cuda_timing *timing, struct mfl_error *err)
{
        int rc = 0;
        for (int i = 0; !rc && i <= timing->samples; i++) {
                rc = mfl_cuda_check(
                        cudaGraphLaunch(run->graphs[i % timing->graphs], run->stream), "launch a graph", err);
                if (!rc)
                        rc = mfl_cuda_check(
                                cudaEventRecord(run->events[i], run->stream), "record an event", err);
        }
        return rc ? rc : mfl_cuda_check(cudaStreamSynchronize(run->stream), "work that is timed", err);
}

static int compare_floats(const void *a, const void *b)
{
        float x = *(const float *)a, y = *(const float *)b;
        return x < y ? -1 : x > y;
}

static int read_median(
        struct run *run, const struct mfl_cuda_timing *timing, double *ret_ns, struct mfl_error *err)
{
        float ms[MFL_TIMING_SAMPLES];
        int rc = 0;
        for (int i = 0; !rc && i < timing->samples; i++)
                rc = mfl_cuda_check(cudaEventElapsedTime(&ms[i], run->events[i], run->events[i + 1]),
                        "read the device's clock", err);
        if (rc)
                return rc;
        qsort(ms, (size_t)timing->samples, sizeof ms[0], compare_floats);
        *ret_ns = (double)ms[timing->samples / 2] * 1e6 / timing->launches;
        return 0;
}

int mfl_cuda_time(const struct mfl_cuda_timing *timing, cudaStream_t stream,
        int (*launch)(void *user, int i, struct mfl_error *err), void *user, double *ret_ns,
        struct mfl_error *err)
{
        struct run run = {.stream = stream};
        int rc = 0;
        for (int i = 0; !rc && i <= timing->samples; i++)
                rc = mfl_cuda_check(cudaEventCreate(&run.events[i]), "create an event", err);
        for (int g = 0; !rc && g < timing->graphs; g++)
                rc = capture(&run, g * timing->launches, timing->launches, launch, user, &run.graphs[g], err);
        if (!rc)
                rc = run_graphs(&run, timing, err);
        if (!rc)
                rc = read_median(&run, timing, ret_ns, err);
        for (int i = 0; i <= MFL_TIMING_SAMPLES; i++)
                if (run.events[i])
                        (void)cudaEventDestroy(run.events[i]);
        for (int g = 0; g < MFL_TIMING_GRAPHS; g++)
                if (run.graphs[g])
                        (void)cudaGraphExecDestroy(run.graphs[g]);
        return rc;
}
