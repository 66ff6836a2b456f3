/* SPDX-License-Identifier: Apache-2.0 */
/* delta(epsilon, sigma) = P(1 / (2 sigma) - epsilon sigma) - e^epsilon P(-1 / (2 sigma) - epsilon sigma), P being the normal
 * distribution. It falls in both arguments, so that halving an interval finds either. */
#include "common/privacy/gaussian.h"

#include <math.h>

#define EPSILON_MAX 1e4
#define STEPS 200

/* log P(x), where P(x) itself would be 0: by the first terms of its series for large -x, which are above it. */
static double log_normal(double x)
{
        if (x > -30)
                return log(erfc(-x * M_SQRT1_2) / 2);
        return -x * x / 2 - log(-x) - log(2 * M_PI) / 2 + log1p(-1 / (x * x) + 3 / (x * x * x * x));
}

static double delta_of(double epsilon, double sigma)
{
        double a = log_normal(1 / (2 * sigma) - epsilon * sigma);
        double b = epsilon + log_normal(-1 / (2 * sigma) - epsilon * sigma);
        return b < a ? exp(a) * -expm1(b - a) : 0;
}

double mfl_dp_gaussian_epsilon(double sigma, double delta)
{
        double low = 0, high = EPSILON_MAX;
        if (delta_of(high, sigma) > delta)
                return INFINITY;
        if (delta_of(low, sigma) <= delta)
                return 0;
        for (int i = 0; i < STEPS && high - low > 1e-12 * high; i++) {
                double middle = (low + high) / 2;
                *(delta_of(middle, sigma) <= delta ? &high : &low) = middle;
        }
        return high * (1 + 1e-9);
}

double mfl_dp_gaussian_sigma(double epsilon, double delta)
{
        double low = 1e-9, high = 1e9;
        for (int i = 0; i < STEPS && high - low > 1e-12 * high; i++) {
                double middle = sqrt(low * high);
                *(delta_of(epsilon, middle) <= delta ? &high : &low) = middle;
        }
        return high * (1 + 1e-9);
}
