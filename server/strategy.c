/* SPDX-License-Identifier: Apache-2.0 */
/* The table of strategies, and the check that what they made is finite. */
#include "server/strategy.h"

#include <math.h>

static const struct mfl_strategy_ops *const strategies[] = {
        &mfl_strategy_fedavg,
        &mfl_strategy_fedavgm,
        &mfl_strategy_fedadagrad,
        &mfl_strategy_fedadam,
        &mfl_strategy_fedyogi,
        &mfl_strategy_fedprox,
        &mfl_strategy_median,
};

const struct mfl_strategy_ops *mfl_strategy_get(enum mfl_strategy_kind kind)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(strategies); i++)
                if (strategies[i]->kind == kind)
                        return strategies[i];
        mfl_assert(!"a valid strategy");
}

int mfl_strategy_apply(const struct mfl_strategy_ops *ops, const struct mfl_job *job, uint64_t first,
        size_t count, const float *params_in, const double *d, float *const *state, float *params_out,
        struct mfl_error *err)
{
        ops->apply(job, count, params_in, d, state, params_out);
        for (size_t e = 0; e < count; e++) {
                bool finite = isfinite(params_out[e]);
                for (int i = 0; i < ops->n_state; i++)
                        finite = finite && isfinite(state[i][e]);
                if (!finite)
                        return mfl_fail(err, MFL_INVALID,
                                "%s: parameter %llu is not finite after the round (it was %g, the aggregate "
                                "is %g); "
                                "smaller learning rates may help",
                                ops->name, (unsigned long long)(first + e), (double)params_in[e], d[e]);
        }
        return 0;
}
