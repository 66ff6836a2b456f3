/* SPDX-License-Identifier: Apache-2.0 */
/* Renyi differential privacy of the sampled Gaussian mechanism for whole orders a >= 2 (Mironov, Talwar, Zhang 2019, section
 * 3.3), which adds up over rounds:
 *
 *      R(a) = log sum_k C(a, k) (1 - q)^(a-k) q^k exp((k^2 - k) / (2 sigma^2)) / (a - 1),    a / (2 sigma^2) for q = 1
 *
 * and its epsilon (Canonne, Kamath, Steinke 2020, proposition 12): R(a) + log((a - 1) / a) - (log delta + log a) / (a - 1).
 */
#include "common/privacy/loss.h"

#include <math.h>

static double log_add(double a, double b)
{
        double high = fmax(a, b), low = fmin(a, b);
        return isinf(low) ? high : high + log1p(exp(low - high));
}

static double divergence(const struct mfl_dp_rounds *round, int order)
{
        double s2 = 2 * round->sigma * round->sigma, sum = -INFINITY;
        if (round->rate == 1)
                return order / s2;
        for (int k = 0; k <= order; k++) {
                double choose = lgamma(order + 1.0) - lgamma(k + 1.0) - lgamma(order - k + 1.0);
                sum = log_add(sum, choose + (order - k) * log1p(-round->rate) + k * log(round->rate) +
                                           ((double)k * k - k) / s2);
        }
        return fmax(0, sum) / (order - 1);
}

double mfl_dp_rdp_epsilon(const struct mfl_dp_rounds *v, size_t n, double delta)
{
        double best = INFINITY;
        for (int order = 2; order <= 1024; order += order < 64 ? 1 : order / 16) {
                double sum = 0;
                for (size_t i = 0; i < n; i++)
                        sum += (double)v[i].rounds * divergence(&v[i], order);
                best = fmin(best, sum + log1p(-1.0 / order) - (log(delta) + log(order)) / (order - 1));
        }
        return fmax(0, best);
}
