/* SPDX-License-Identifier: Apache-2.0 */
/* bfloat16 as a code for params and updates: floats whose lower 16 bits are 0, which pack.h packs in 2 bytes. They have 8 bits of
 * precision and float32's range.
 *
 * Params are rounded to nearest, and what rounding has taken away is added before it rounds again: error feedback (Seide, Fu, Droppo, Li, Yu
 * 2014, "1-bit stochastic gradient descent and its application to data-parallel distributed training of speech DNNs"). Clients' deltas are
 * rounded up or down at random, so that their mean stays, as on a grid (grid.h). All arithmetic is exact, or in double in a fixed order.
 * Pure functions, no allocation, any thread.
 */
#ifndef MFL_COMMON_CODEC_BF16_H
#define MFL_COMMON_CODEC_BF16_H

#include "common/model/graph.h"

#define MFL_BF16_MAX 0x1.fep127f

/* The nearest bfloat16; what is beyond the range becomes its end, what is below its normal numbers 0. x is finite. */
float mfl_bf16_nearest(double x);

/* v[i] + rest[i], rounded, into v; the rest of it into rest. n floats each. */
void mfl_bf16_feed(size_t n, float *v, float *rest);

/* Rounds a client's delta (n_moving floats, all finite) up or down at random, without bias. Running statistics of norms stay as they are. Random numbers
 * come from the job's seed, the client, the round and the element's place. */
void mfl_bf16_round(
        const struct mfl_graph *graph, uint64_t seed, uint64_t client, uint32_t round, float *delta);

#endif
