/* SPDX-License-Identifier: Apache-2.0 */
/* Noise that depends on the noise of rounds before, so that sums over rounds, of which a model is made, have less of it (matrix
 * factorisation: Denisov, McMahan, Rush, Smith, Thakurta: "Improved Differential Privacy for SGD via Optimal Private Linear Operators on
 * Adaptive Streams", NeurIPS 2022).
 *
 * With the lower triangular Toeplitz matrix C and independent noise w_1, w_2, .., round t gets row t of C^-1 w. Two cohorts' sums of all T
 * rounds that differ by what one client adds in the rounds of its turns, each of norm 1, are, once C is applied, at most the
 * sensitivity apart:
 *
 *      s = || sum over i < k of the column i b of C ||,     k = ceil(T / b)
 *
 * for turns at least b rounds apart, since C's coefficients are nonnegative and do not grow (Kalinin, Lampert: "Banded Square Root Matrix
 * Factorization for Differentially Private Model Training", NeurIPS 2024, theorem 2). So all T rounds together are one Gaussian mechanism
 * of noise z, if w has the deviation z s. No sampling helps.
 *
 *   bsr    C has the first p = min(b, T) coefficients of (1 - x)^(-1/2), c_j = binom(2j, j) / 4^j (there). Its inverse has T
 *          coefficients: round t adds up t draws of noise for each element
 *   bisr   C^-1 has the first p coefficients of (1 - x)^(1/2), r_0 = 1, r_j = r_(j-1) (2j - 3) / (2j) (Kalinin, McKenna, Upadhyay, Lampert:
 *          "Back to Square Roots: An Optimal Bound on the Matrix Factorization Error for Multi-Epoch Differentially Private SGD", 2025):
 *          p draws. p is the one up to MFL_MATRIX_BANDS_MAX with the least error times sensitivity
 *
 * Noise of a round is drawn again from counters when it is needed: nothing is kept. Combinations of integers are no integers, so what
 * common/privacy/noise.h says of exactness does not extend to them: they are rounded to the grid, and accounted for as real Gaussians.
 *
 * Pure; no libm but sqrt; any thread. */
#ifndef MFL_COMMON_PRIVACY_MATRIX_H
#define MFL_COMMON_PRIVACY_MATRIX_H

#include "common/privacy/spec.h"

#define MFL_MATRIX_ROUNDS_MAX 10000u
#define MFL_MATRIX_BANDS_MAX 64u

struct mfl_matrix {
        uint32_t n;         /* of C^-1's coefficients */
        uint32_t bands;     /* p */
        double sensitivity; /* s */
        double error; /* root mean square, over rounds, of the deviation of the noise of all rounds so far, for w of deviation 1 */
        double v[]; /* C^-1's: round t gets sum over j < min(n, t) of v[j] w_(t-j) */
};

/* rounds from 1 to MFL_MATRIX_ROUNDS_MAX, separation at least 1; bisr or bsr. The caller frees it. -ENOMEM. */
int mfl_matrix_new(enum mfl_privacy_mechanism mechanism, uint32_t rounds, uint32_t separation,
        struct mfl_matrix **ret_matrix, struct mfl_error *err);

#endif
