/* SPDX-License-Identifier: Apache-2.0 */
/* Central differential privacy (McMahan, Ramage, Talwar, Zhang: "Learning Differentially Private Recurrent Language Models",
 * ICLR 2018, algorithm 1): daemons clip each client's change to a norm of C, clients weigh alike, and the server adds Gaussian noise
 * to the exact sum before it leaves,
 *
 *      d = (sum of clipped deltas + N(0, (z C)^2)) / (q N),
 *
 * with the expected number of clients q N as the divisor, not the drawn one, so that one client changes the sum alone.
 *
 * ONE GRID. Deltas and noise are integers in units of 2^-s, with s at most so large that z C 2^s is at most 2^24, the largest sigma of
 * common/privacy/noise.h. Sigma is z C 2^s rounded up.
 *
 * THE SENSITIVITY IS C, rounding included. A client of n elements adds q_i = round(fl(w delta_i) 2^s), w being its weight. With
 * |q_i - w delta_i 2^s| <= 1/2 + 2^-53 |w delta_i 2^s|,
 *
 *      |q| <= (1 + 2^-53) w |delta| 2^s + sqrt(n) / 2,
 *
 * so w |delta| (1 + 2^-53) <= C - sqrt(n) 2^-s / 2 =: C' is enough for |q| <= C 2^s. |delta| is found from a sum of squares of floats,
 * which are exact in double, of blocks of 4,096 (mfl_method_norm2): its relative error is below (4096 + n / 4096) 2^-53 (Higham:
 * "Accuracy and Stability of Numerical Algorithms", 4.2). It is multiplied by 1 + (4096 + n / 4096 + 16) 2^-52, which is more than
 * that error and all roundings of w together. Then w = min(1, C' / that). A client that is drawn or not changes the integer sum by q.
 * tests/unit/common/test_central.c adds up q in 128 bits.
 */
/* NOISE THAT DEPENDS ON ROUNDS BEFORE (`mechanism: bisr` or `bsr`, common/privacy/matrix.h): a client takes part in every b-th round at
 * most, and all rounds together are one release of noise z. So sigma is z s C 2^s, s being the sensitivity there, and q N the number of
 * clients of a turn.
 *
 * IN SHARES (kind distributed, common/secure/shares.h): the same grid and weights; the server adds nothing. */
#ifndef MFL_COMMON_METHOD_CENTRAL_GRID_H
#define MFL_COMMON_METHOD_CENTRAL_GRID_H

#include "common/base/fixed.h"
#include "common/job/job.h"

/* `clip: adaptive` (Andrew, Thakkar, McMahan, Ramaswamy: "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021,
 * algorithm 1): each client also tells a bit, whether its change is at most C long. With m = q N and s_b = m / 20,
 *
 *      b = (sum of (bit - 1/2) + N(0, s_b^2)) / m + 1/2,      C <- C exp(-0.2 (b - 0.5)),
 *
 * C beginning with 0.1, so that it goes to the median length. The bits take their part of the noise: that of the sum becomes
 * (z^-2 - (2 s_b)^-2)^(-1/2) C, after which both together are one release of noise z. C stays within 2^-7 and 2^6 times the first
 * one, for which there is room on the grid. */
#define MFL_CENTRAL_BITS_SHARE 20.0
/* C of the round, whose method's numbers these are. */
double mfl_central_clip(const struct mfl_job *job, const double *state);
/* C of the next round, from the noisy sum of n clients' bits. */
double mfl_central_next_clip(const struct mfl_job *job, double clip, uint64_t n, double bits);
/* s_b */
double mfl_central_bits_sigma(const struct mfl_job *job);

/* The largest s of the grid. -ENOMEM. */
int mfl_central_scale_max(const struct mfl_job *job, int *ret_scale_bits, struct mfl_error *err);
/* Sigma in units of the grid. -ENOMEM. */
int mfl_central_sigma(const struct mfl_job *job, const struct mfl_fixed *fixed, double clip,
        uint64_t *ret_sigma, struct mfl_error *err);
/* A client's weight, from the sum of squares of its n elements. */
double mfl_central_weight(double clip, int scale_bits, uint64_t n, double norm2);
/* q N, by which a round's sum is divided. */
double mfl_central_divisor(const struct mfl_job *job);
/* Whether n elements can be trained so: MFL_INVALID with what to write. */
int mfl_central_check(
        const struct mfl_job *job, const struct mfl_fixed *fixed, uint64_t n, struct mfl_error *err);

#endif
