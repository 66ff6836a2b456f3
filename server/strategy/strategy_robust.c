/* SPDX-License-Identifier: Apache-2.0 */
/* Strategies whose aggregate d is not the mean of the deltas: server/robust makes it from the single updates. Then
 * w <- w + eta d, as with fedavg. Centered clipping begins with the d of the round before, and keeps it. */
#include "server/strategy/strategy.h"

static void apply(const struct mfl_job *job, const struct mfl_strategy_round *round, size_t count,
        const float *params_in, const double *d, float *const *state, float *params_out)
{
        mfl_strategy_fedavg.apply(job, round, count, params_in, d, state, params_out);
}

static float zero(const struct mfl_job *job, int i)
{
        return 0;
}

static void apply_and_keep(const struct mfl_job *job, const struct mfl_strategy_round *round, size_t count,
        const float *params_in, const double *d, float *const *state, float *params_out)
{
        apply(job, round, count, params_in, d, state, params_out);
        for (size_t e = 0; e < count; e++)
                state[0][e] = (float)d[e];
}

#define ROBUST(symbol, kind_, name_)                                                                         \
        const struct mfl_strategy_ops mfl_strategy_##symbol = {                                              \
                .kind = MFL_STRATEGY_##kind_, .name = name_, .apply = apply}

ROBUST(median, MEDIAN, "median");
ROBUST(trimmed_mean, TRIMMED_MEAN, "trimmed-mean");
ROBUST(mean_around_median, MEAN_AROUND_MEDIAN, "mean-around-median");
ROBUST(krum, KRUM, "krum");
ROBUST(multi_krum, MULTI_KRUM, "multi-krum");
ROBUST(bulyan, BULYAN, "bulyan");
ROBUST(rfa, RFA, "rfa");
ROBUST(norm_filter, NORM_FILTER, "norm-filter");
ROBUST(dnc, DNC, "dnc");
ROBUST(signguard, SIGNGUARD, "signguard");
ROBUST(flame, FLAME, "flame");
ROBUST(foolsgold, FOOLSGOLD, "foolsgold");
ROBUST(fltrust, FLTRUST, "fltrust");

const struct mfl_strategy_ops mfl_strategy_centered_clip = {
        .kind = MFL_STRATEGY_CENTERED_CLIP,
        .name = "centered-clip",
        .n_state = 1,
        .state_name = {"aggregate"},
        .state_initial = zero,
        .apply = apply_and_keep,
};
