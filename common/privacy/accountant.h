/* SPDX-License-Identifier: Apache-2.0 */
/* What differential privacy costs: (epsilon, delta) of rounds that each release a sum over clients drawn by Poisson
 * sampling, with Gaussian noise of sigma times the largest contribution of a client. A neighbour has one client more, or one
 * less; both are taken, and the worse one counts.
 *
 * Method: privacy loss distributions (Koskela, Jalko, Honkela: "Computing tight differential privacy guarantees using
 * FFT", AISTATS 2020), on a grid of 1e-4 that overstates the loss by "connecting the dots" (Doroshenko, Ghazi, Kamath,
 * Kumar, Manurangsi: "Connect the Dots: Tighter Discrete Approximations of Privacy Loss Distributions", PoPETs 2022).
 * Rounds are composed by Fourier transforms; what lies outside of the transform's window is bounded by Chernoff's
 * inequality and counts as a loss of everything. As a check, Renyi differential privacy of whole orders (Mironov, Talwar,
 * Zhang: "Renyi Differential Privacy of the Sampled Gaussian Mechanism", 2019), which is never below.
 *
 * Pure but for memory from the heap; any thread. A call takes some tenths of a second.
 */
#ifndef MFL_COMMON_PRIVACY_ACCOUNTANT_H
#define MFL_COMMON_PRIVACY_ACCOUNTANT_H

#include "common/base/base.h"

/* `rounds` rounds alike. */
struct mfl_dp_rounds {
        double sigma;    /* noise multiplier: standard deviation / sensitivity; 0.05 to 1e6 */
        double rate;     /* probability of a client to take part, (0, 1] */
        uint64_t rounds; /* 1 to 1e9 */
};

struct mfl_dp_cost {
        double epsilon;     /* by loss distributions; infinity: delta is below what the noise can hold */
        double epsilon_rdp; /* by Renyi's divergence; infinity likewise */
};

#define MFL_DP_PARTS_MAX 1024

/* Of n kinds of rounds together. delta in (0, 1). MFL_INVALID names what is out of range; -ENOMEM. */
int mfl_dp_epsilon(const struct mfl_dp_rounds *v, size_t n, double delta, struct mfl_dp_cost *ret_cost,
        struct mfl_error *err);

/* The smallest sigma, to 1e-5 of it and rounded up, with which `rounds` rounds cost at most epsilon. MFL_INVALID also where
 * no sigma up to 1e6 is enough. */
int mfl_dp_sigma(
        double epsilon, double rate, uint64_t rounds, double delta, double *ret_sigma, struct mfl_error *err);

#endif
