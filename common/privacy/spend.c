/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the accountant. */
#include "common/privacy/spend.h"

#include <math.h>

#include "common/privacy/accountant.h"
#include "common/privacy/gaussian.h"

#define EPSILON_MAX 32.0

/* Nothing is hidden by sampling: whoever gets a client's change knows that it takes part. */
static int local_epsilon(const struct mfl_privacy_spec *spec, uint64_t releases, double *ret_epsilon)
{
        double sigma = spec->noise / MFL_PRIVACY_LOCAL_DISTANCE;
        double epsilon = releases ? mfl_dp_gaussian_epsilon(sigma / sqrt((double)releases), spec->delta) : 0;
        *ret_epsilon = epsilon <= EPSILON_MAX ? epsilon : INFINITY;
        return 0;
}

int mfl_privacy_epsilon(const struct mfl_privacy_spec *spec, double rate, uint64_t releases,
        double *ret_epsilon, struct mfl_error *err)
{
        if (spec->kind == MFL_PRIVACY_LOCAL)
                return local_epsilon(spec, releases, ret_epsilon);
        struct mfl_dp_rounds rounds = {
                .sigma = spec->noise, .rate = ldexp(ceil(ldexp(rate, 32)), -32), .rounds = releases};
        struct mfl_dp_cost cost = {.epsilon = releases ? INFINITY : 0};
        for (double most = 8; releases && most <= EPSILON_MAX;
                most = MFL_MAX(most + 8, 8 * ceil(cost.epsilon / 8))) {
                double cut = rate < 1 ? ldexp((double)releases * (1 + exp(most)), -70) : 0;
                cost.epsilon = INFINITY;
                int r = spec->delta > cut ? mfl_dp_epsilon(&rounds, 1, spec->delta - cut, &cost, err) : 0;
                if (r)
                        return r;
                if (cost.epsilon <= (rate < 1 ? most : EPSILON_MAX))
                        break;
        }
        *ret_epsilon = cost.epsilon <= EPSILON_MAX ? cost.epsilon : INFINITY;
        return 0;
}

/* Costs rise with each release: doubling, then halving the distance. */
int mfl_privacy_releases(const struct mfl_privacy_spec *spec, double rate, uint64_t most,
        uint64_t *ret_releases, struct mfl_error *err)
{
        uint64_t low = 0, high = most + 1, try = MFL_MIN(most, (uint64_t)1);
        while (high - low > 1) {
                double epsilon = INFINITY;
                int r = mfl_privacy_epsilon(spec, rate, try, &epsilon, err);
                if (r)
                        return r;
                *(epsilon <= spec->epsilon_max ? &low : &high) = try;
                try = high > most ? MFL_MIN(most, 4 * low) : low + (high - low) / 2;
        }
        *ret_releases = low;
        return 0;
}

int mfl_privacy_check_first(const struct mfl_privacy_spec *spec, double rate, struct mfl_error *err)
{
        double epsilon = 0;
        int r = mfl_privacy_epsilon(spec, rate, 1, &epsilon, err);
        if (!r && epsilon > spec->epsilon_max)
                r = mfl_fail(err, MFL_INVALID,
                        "privacy: the first round would cost epsilon %.4g at delta %g, more than "
                        "epsilon_max, which is %g: "
                        "write more noise, or a larger epsilon_max",
                        epsilon, spec->delta, spec->epsilon_max);
        return r;
}
