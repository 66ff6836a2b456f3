/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the accountant. */
#include "common/privacy/spend.h"

#include <math.h>

#include "common/privacy/limits.h"

int mfl_privacy_epsilon(const struct mfl_privacy_spec *spec, double rate, uint64_t releases,
        double *ret_epsilon, struct mfl_error *err)
{
        const struct mfl_dp_rounds part = mfl_privacy_part(spec, rate, releases);
        return mfl_privacy_sum(&part, releases > 0, spec->delta, ret_epsilon, err);
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
