/* SPDX-License-Identifier: Apache-2.0 */
/* What simulated bad clients send in the place of their updates (common/job/robust.h), from the honest rows of the round.
 * Pure functions; any thread. */
#ifndef MFL_SERVER_ROBUST_ATTACK_H
#define MFL_SERVER_ROBUST_ATTACK_H

#include "common/job/job.h"

struct mfl_attack_plan {
        enum mfl_attack kind;
        double scale; /* of the attack; min-max and min-sum: gamma; fang-krum: lambda */
        uint64_t seed;
        uint32_t round;
        uint64_t client;
};

/* It needs the Gram matrix of the honest rows: at most MFL_ROBUST_ROWS_MAX. */
bool mfl_attack_compares(enum mfl_attack attack);
/* z of ALIE for n rows of which n_bad are bad: the quantile of (n - n_bad - s) / (n - n_bad), s = floor(n / 2) + 1 - n_bad;
 * at most 1.97, at least 0. */
double mfl_attack_alie(uint32_t n, uint32_t n_bad);
/* The largest gamma for which mean - gamma p is within the honest rows' largest distance (min-max), or has at most the
 * largest sum of squared distances that an honest row has (min-sum). g: [n + 1][n + 1] of n honest rows and p. */
double mfl_attack_gamma(enum mfl_attack kind, uint32_t n, const double *g);
/* fang-krum: the lambda of rows -lambda p that Krum takes, p the signs of the honest mean: from what it can be at most down, by halves, to
 * 1e-5. g: [n + 1][n + 1] of n honest rows and p. -ENOMEM. */
int mfl_attack_lambda(uint32_t n, uint32_t n_bad, const double *g, double *ret_lambda);
/* p of fang-krum: the sign of each element of the honest rows' mean. */
void mfl_attack_signs(const float *const *honest, uint32_t n, size_t count, float *out);
/* p of min-max and min-sum: the standard deviation of each element over the honest rows (n - 1 in the denominator). */
void mfl_attack_deviation(const float *const *honest, uint32_t n, size_t count, float *out);
/* Elements [first, first + count) of the bad row; none is larger than limit, which the server would refuse. own: what
 * the client has trained, may be out. n may be 0: out is own then, for attacks that need honest rows. */
void mfl_attack_range(const struct mfl_attack_plan *plan, const float *const *honest, uint32_t n,
        const float *own, uint64_t first, size_t count, float limit, float *out);

#endif
