/* SPDX-License-Identifier: Apache-2.0 */
/* The Gaussian mechanism without sampling, exactly: Balle, Wang: "Improving the Gaussian Mechanism for Differential Privacy: Analytical
 * Calibration and Optimal Denoising", ICML 2018, theorem 8. sigma is the noise's standard deviation divided by the distance of two
 * neighbours' values. Releases add up: those of sigma_1, sigma_2, .. cost what one of (sum of sigma_i^-2)^(-1/2) costs.
 *
 * Pure, no allocation, any thread. */
#ifndef MFL_COMMON_PRIVACY_GAUSSIAN_H
#define MFL_COMMON_PRIVACY_GAUSSIAN_H

/* The smallest epsilon >= 0, rounded up, for sigma > 0 and delta in (0, 1). 1e4 and above: infinity. */
double mfl_dp_gaussian_epsilon(double sigma, double delta);
/* The smallest sigma, rounded up, for epsilon > 0. */
double mfl_dp_gaussian_sigma(double epsilon, double delta);

#endif
