/* SPDX-License-Identifier: Apache-2.0 */
/* How long the device takes for some work, by its own clock.
 *
 * Up to 20 launches are captured as one graph, so that the host's launches are not measured. Graphs follow
 * one another without a gap, with an event between any two. The time is the median of the distances between
 * events, over the launches of a graph; the first graph does not count. Buffers rotate: launch i works on set
 * i % n_sets. The sets are together twice the L2 cache, as far as memory and their number allow, so that a
 * launch does not find its operands in the cache; in a network it would not either.
 */
#ifndef MFL_KERNELS_CUDA_BASE_TIMING_H
#define MFL_KERNELS_CUDA_BASE_TIMING_H

#include <cuda_runtime_api.h>

#include "common/base/base.h"

#define MFL_TIMING_LAUNCHES 20 /* in a graph, at most */
#define MFL_TIMING_GRAPHS 8    /* at most */
#define MFL_TIMING_SAMPLES 5   /* that count, at most */

struct mfl_cuda_timing {
        int launches, graphs, samples;
};
/* How many sets of set_bytes make twice l2_bytes: at least 1, and no more than bytes_max holds. */
int mfl_cuda_timing_sets(uint64_t set_bytes, uint64_t l2_bytes, uint64_t bytes_max);
/* Launches for about half a millisecond in a graph and three in all, given that a launch takes about
 * first_ns. */
struct mfl_cuda_timing mfl_cuda_timing_of(double first_ns, int n_sets);
/* launch(user, i) puts launch i on `stream`, and is safe to capture. Errors: those of launch; CUDA. */
int mfl_cuda_time(const struct mfl_cuda_timing *timing, cudaStream_t stream,
        int (*launch)(void *user, int i, struct mfl_error *err), void *user, double *ret_ns,
        struct mfl_error *err);
/* Of the current device; 0: unknown. */
uint64_t mfl_cuda_l2_bytes(int device);

#endif
