/* SPDX-License-Identifier: Apache-2.0 */
/* How long requests take. Loop thread only. */
#ifndef MFL_SERVE_SHELL_LATENCY_H
#define MFL_SERVE_SHELL_LATENCY_H

#include "common/base/base.h"

#define MFL_LATENCY_BUCKETS 16

#define MFL_LATENCY_STEPS 128 /* four for each power of two, from 1 us */

/* From a whole request to its answer. */
struct mfl_latency {
        uint32_t step[MFL_LATENCY_STEPS], n_steps; /* since mfl_latency_take */
        uint64_t p50_us, p99_us;                   /* that it has told */
        uint64_t bucket[MFL_LATENCY_BUCKETS + 1];  /* the last: longer than all bounds */
        uint64_t sum_us, n;
};
extern const uint64_t mfl_latency_bounds[MFL_LATENCY_BUCKETS]; /* of the buckets, in us */
void mfl_latency_add(struct mfl_latency *latency, uint64_t us);
/* Median and 99th percentile of what was added since the last call, at most 25% too large; if nothing was, what the last call told; 0: nothing yet. */
void mfl_latency_take(struct mfl_latency *latency, uint64_t *ret_p50_us, uint64_t *ret_p99_us);

#endif
