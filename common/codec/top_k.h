/* SPDX-License-Identifier: Apache-2.0 */
/* Top-k with error feedback: of a client's change, and what it has not sent before, the largest elements are sent, and the rest is
 * kept for its next turn (Stich, Cordonnier, Jaggi 2018, "Sparsified SGD with memory", algorithm 1; Karimireddy, Rebjock, Stich, Jaggi
 * 2019, "Error feedback fixes SignSGD and other gradient compression schemes", algorithm 2).
 *
 *      u = delta + rest          in float
 *      sent = the k elements of u with the largest absolute values, each at most `limit`; of equal ones those with lower indexes
 *      rest = u - sent
 *
 * Running statistics of norms are no gradients: all of them are sent, nothing of them is kept, and they are not counted in k. Nothing
 * depends on how the vector is divided, so server and daemon find the same. Pure functions, no allocation, any thread.
 */
#ifndef MFL_COMMON_CODEC_TOP_K_H
#define MFL_COMMON_CODEC_TOP_K_H

#include "common/base/fixed.h"

/* Which elements are sent. */
struct mfl_top_k {
        const struct mfl_fixed_parts *statistics;
        float limit;    /* of a trained element, > 0 */
        uint32_t least; /* bits of the smallest absolute value that is sent */
        uint64_t last;  /* and of those with exactly that, the ones before this index */
};

/* u[i] += rest[i], but not running statistics; elements [first, first + n) of the vector. */
void mfl_top_k_feed(
        const struct mfl_fixed_parts *statistics, uint64_t first, size_t n, const float *rest, float *u);

/* The cut of the whole vector u (n floats, all finite): ceil(share * trained elements) are sent. 0 < share <= 1, limit > 0. */
void mfl_top_k_find(const struct mfl_fixed_parts *statistics, double share, float limit, size_t n,
        const float *u, struct mfl_top_k *ret_cut);

/* Splits elements [first, first + n): u becomes what is sent, ret_rest what is kept. */
void mfl_top_k_split(const struct mfl_top_k *cut, uint64_t first, size_t n, float *u, float *ret_rest);

#endif
