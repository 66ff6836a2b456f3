/* SPDX-License-Identifier: Apache-2.0 */
/* Gaussian noise on integers, from integers alone: the discrete Gaussian, whose probability of x is proportional to
 * exp(-x^2 / (2 sigma^2)), by exact rejection (Canonne, Kamath, Steinke: "The Discrete Gaussian for Differential Privacy", NeurIPS
 * 2020, algorithms 1 to 3). No logarithms, no floats: no tail is cut and no bit says what was added. A number whose geometric part
 * exceeds 127 is drawn again, as it is with probability 1 - e^-8000 anyway; such a part comes up with probability e^-128.
 *
 * Elements belong to parts of MFL_NOISE_PART, each with a stream of its own (common/privacy/secret.h), so that element e has the
 * same noise whatever the number of threads. Pure but for threads and memory.
 */
#ifndef MFL_COMMON_PRIVACY_NOISE_H
#define MFL_COMMON_PRIVACY_NOISE_H

#include "common/privacy/secret.h"

#define MFL_NOISE_PART 1024u
#define MFL_NOISE_SIGMA_MAX ((uint64_t)1 << 24)

/* sigma = a / b. */
struct mfl_noise {
        uint64_t a, b; /* a > 0, 1 <= b <= 16, a / b at most MFL_NOISE_SIGMA_MAX */
};

int64_t mfl_noise_draw(const struct mfl_noise *noise, struct mfl_secret_stream *stream);

/* sums[e] += noise of element e, for e in [0, n), on so many threads at most (the caller's is one). -ENOMEM: the sums are then of
 * no use. */
int mfl_noise_add(const struct mfl_noise *noise, const struct mfl_secret *secret, uint64_t n,
        uint32_t threads, int64_t *sums, struct mfl_error *err);

/* Draws that add up with weights: sums[e] += the nearest integer to sum over j < n_terms of factor[j] times the noise of element e from
 * secret j (common/privacy/matrix.h). Added up in double, in that order, without libm: the same on every machine. As mfl_noise_add otherwise.
 */
int mfl_noise_add_weighted(const struct mfl_noise *noise, const struct mfl_secret *secrets,
        const double *factors, uint32_t n_terms, uint64_t n, uint32_t threads, int64_t *sums,
        struct mfl_error *err);

#endif
