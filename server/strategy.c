/* SPDX-License-Identifier: Apache-2.0 */
/* The table of strategies, and the check that what they made is finite. */
#include "server/strategy.h"

#include <float.h>
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

/* Counts instead of leaving at the first one: that makes it a loop without a branch. */
static size_t count_bad(const float *v, size_t count)
{
        size_t bad = 0;
        for (size_t e = 0; e < count; e++)
                bad += !(fabsf(v[e]) <= FLT_MAX);
        return bad;
}

static int fail_bad(const struct mfl_strategy_ops *ops, const float *bad, uint64_t first, size_t count,
        const float *params_in, const double *d, struct mfl_error *err)
{
        size_t e = 0;
        while (e + 1 < count && isfinite(bad[e]))
                e++;
        return mfl_fail(err, MFL_INVALID,
                "%s: parameter %llu is not finite after the round (it was %g, the aggregate is %g); "
                "smaller learning rates may help",
                ops->name, (unsigned long long)(first + e), (double)params_in[e], d[e]);
}

int mfl_strategy_apply(const struct mfl_strategy_ops *ops, const struct mfl_job *job, uint64_t first,
        size_t count, const float *params_in, const double *d, float *const *state, float *params_out,
        struct mfl_error *err)
{
        ops->apply(job, count, params_in, d, state, params_out);
        if (count_bad(params_out, count))
                return fail_bad(ops, params_out, first, count, params_in, d, err);
        for (int i = 0; i < ops->n_state; i++)
                if (count_bad(state[i], count))
                        return fail_bad(ops, state[i], first, count, params_in, d, err);
        return 0;
}
