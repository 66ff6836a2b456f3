/* SPDX-License-Identifier: Apache-2.0 */
/* Noise where the data is: one client's change is shortened to the norm C and gets Gaussian noise before anything else happens to it, so
 * that whoever sees it later (the server, other daemons, readers of the model) sees a private value, whatever they do. Kasiviswanathan,
 * Lee, Nissim, Raskhodnikova, Smith: "What Can We Learn Privately?", FOCS 2008, for the model.
 *
 * The change becomes integers in units of 2^-s, as in common/method/central_grid.h, whose proof says that their norm is at most C 2^s.
 * The discrete Gaussian of sigma = z C 2^s is added (common/privacy/noise.h), s being the largest with sigma at most 2^24. What comes after
 * (the rounding to float, limits, weights, grids of sums) reads nothing but the noisy integers.
 *
 * WHAT IT COSTS. Two sets of data of one client give integers that are at most 2 C 2^s apart, so a release is one of the Gaussian
 * mechanism of sigma z / 2, and releases add up without any sampling (common/privacy/gaussian.h).
 *
 * Pure but for threads and memory. */
#ifndef MFL_COMMON_METHOD_LOCAL_NOISE_H
#define MFL_COMMON_METHOD_LOCAL_NOISE_H

#include "common/job/job.h"
#include "common/privacy/secret.h"

/* clip 0: nothing is done. noise 0: it is only shortened. */
struct mfl_local_rule {
        double clip, noise;
};

/* What the job asks of daemons; clip 0: nothing. */
struct mfl_local_rule mfl_local_of_job(const struct mfl_job *job);
/* The shorter clip, and the larger noise multiplier, of two. */
struct mfl_local_rule mfl_local_stricter(struct mfl_local_rule a, struct mfl_local_rule b);
/* The grid's s, for a rule with noise. */
int mfl_local_scale(const struct mfl_local_rule *rule);
/* The integers of n finite floats whose sum of squares is norm2 (mfl_method_norm2). */
void mfl_local_shorten(
        const struct mfl_local_rule *rule, const float *delta, double norm2, size_t n, int64_t *ret_q);
/* Adds the secret's noise to them, and writes what comes out as floats within +-limit. */
int mfl_local_noise(const struct mfl_local_rule *rule, const struct mfl_secret *secret, uint32_t threads,
        float limit, size_t n, int64_t *q, float *ret_delta, struct mfl_error *err);

#endif
