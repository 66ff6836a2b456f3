/* SPDX-License-Identifier: Apache-2.0 */
/* Noise that no party knows: each member of a secure sum adds a share of discrete Gaussian noise to its update before it masks it, so that
 * whoever opens the sum sees it with the noise of all (Kairouz, Liu, Steinke: "The Distributed Discrete Gaussian Mechanism for Federated
 * Learning with Secure Aggregation", ICML 2021).
 *
 * HOW MUCH. A sum of n members has noise of sigma if any `honest` of its survivors have it together, so each draws sigma / sqrt(honest):
 *
 *      survivors  = ceil(least * n), and 3 at least. No member signs, and so none opens, a smaller set: what drops out does not weaken the noise
 *      honest     = survivors - ceil(bad * n). Bad members know their own shares, or draw none
 *
 * Each member takes both from the number of members whose keys it has checked, so that nothing a server says can make them less. With all
 * n in the sum its noise is sigma sqrt(n / honest).
 *
 * WHAT IT COSTS is that of the Gaussian mechanism: a sum of discrete Gaussians of deviation s >= 64 differs from a discrete Gaussian by at
 * most 10 n e^(-pi^2 s^2) in max divergence (there), below e^-40000.
 *
 * EACH WITH EACH. On a sparse graph a server that drops members on purpose may see the sum of a part of them (graph.h), which would have the
 * noise of that part alone. So such sums have the complete graph, and MFL_SECURE_SHARES_MOST members at most.
 *
 * Pure; any thread. */
#ifndef MFL_COMMON_SECURE_SHARES_H
#define MFL_COMMON_SECURE_SHARES_H

#include "common/secure/graph.h"

#define MFL_SECURE_SHARES_MOST MFL_SECURE_COMPLETE

/* The least survivors of n members; MFL_SECURE_LEAST where spec->least is 0. */
uint32_t mfl_secure_survivors(const struct mfl_secure_spec *spec, uint32_t n);
/* How many of them have honest noise. MFL_INVALID: nobody may be left, or n is too large; the text says what to write. */
int mfl_secure_honest(
        const struct mfl_secure_spec *spec, uint32_t n, uint32_t *ret_honest, struct mfl_error *err);
/* A share of sigma, in the same units, rounded up. */
uint64_t mfl_secure_share(uint64_t sigma, uint32_t honest);

#endif
