/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/team/team_internal.h"

int mfl_team_exponent(float largest)
{
        int exponent;
        mfl_assert(largest > 0 && isfinite(largest));
        float fraction = frexpf(largest, &exponent); /* [1/2, 1) */
        return fraction == 0.5f ? exponent - 1 : exponent;
}

bool mfl_team_fits(int exponent, float largest)
{
        if (!(largest > 0) || !isfinite(largest))
                return true;
        int own = mfl_team_exponent(largest);
        return own <= exponent + MFL_TEAM_HEADROOM && own >= exponent - MFL_TEAM_FALL;
}

int mfl_team_bits(int exponent, uint32_t n_grains)
{
        int log2_grains = 0;
        while (((uint64_t)1 << log2_grains) < n_grains)
                log2_grains++;
        return 62 - (exponent + MFL_TEAM_HEADROOM) - log2_grains;
}

bool mfl_team_scales_fit(struct mfl_team *team)
{
        bool fit = true;
        for (int t = 0; !team->options.floats && t < team->layout.n_tensors; t++) {
                if (mfl_team_fits(team->exponent[t], team->largest[t]))
                        continue;
                team->exponent[t] = mfl_team_exponent(team->largest[t]);
                fit = false;
        }
        return fit;
}

bool mfl_team_overflows(const struct mfl_team *team)
{
        bool all = true;
        for (int t = 0; team->layout.scaled && t < team->layout.n_tensors; t++)
                all = all && isfinite(team->largest[t]);
        return !all;
}
