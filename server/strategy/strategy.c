/* SPDX-License-Identifier: Apache-2.0 */
/* The table of strategies, and the check that their results are finite. */
#include "server/strategy/strategy.h"

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
        &mfl_strategy_fednova,
        &mfl_strategy_qfedavg,
        &mfl_strategy_scaffold,
        &mfl_strategy_feddyn,
        &mfl_strategy_trimmed_mean,
        &mfl_strategy_mean_around_median,
        &mfl_strategy_krum,
        &mfl_strategy_multi_krum,
        &mfl_strategy_bulyan,
        &mfl_strategy_rfa,
        &mfl_strategy_centered_clip,
        &mfl_strategy_norm_filter,
        &mfl_strategy_dnc,
        &mfl_strategy_signguard,
        &mfl_strategy_flame,
        &mfl_strategy_fedbuff,
        &mfl_strategy_fedasync,
        &mfl_strategy_ditto,
        &mfl_strategy_pfedme,
        &mfl_strategy_foolsgold,
        &mfl_strategy_fltrust,
        &mfl_strategy_mimelite,
        &mfl_strategy_mime,
        &mfl_strategy_apfl,
};

const struct mfl_strategy_ops *mfl_strategy_get(enum mfl_strategy_kind kind)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(strategies); i++)
                if (strategies[i]->kind == kind)
                        return strategies[i];
        mfl_assert(!"a valid strategy");
}

const struct mfl_strategy_ops *mfl_strategy_of(const struct mfl_job *job)
{
        bool plugin = job->aggregation.strategy == MFL_STRATEGY_PLUGIN;
        mfl_assert(!plugin || job->aggregation.plugin.ops);
        return plugin ? job->aggregation.plugin.ops : mfl_strategy_get(job->aggregation.strategy);
}

/* Counts all, because a loop that stops at the first one would need a branch. */
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

static void apply_part(const struct mfl_strategy_ops *ops, const struct mfl_job *job,
        const struct mfl_strategy_round *round, bool trained, size_t from, size_t to, const float *params_in,
        const double *d, float *const *state, float *params_out)
{
        float *part[MFL_STRATEGY_STATES_MAX] = {NULL};
        struct mfl_strategy_round of_part = *round;
        for (int i = 0; i < ops->n_state; i++)
                part[i] = state[i] + from;
        if (round->told)
                of_part.told += from;
        if (trained)
                ops->apply(job, &of_part, to - from, params_in + from, d + from, part, params_out + from);
        for (size_t e = from; e < to && !trained; e++)
                params_out[e] = (float)((double)params_in[e] + d[e]);
}

/* Neighbouring tensors that are treated alike are one call. */
static void apply_by_tensor(const struct mfl_strategy_ops *ops, const struct mfl_job *job,
        const struct mfl_strategy_round *round, const struct mfl_graph *graph, uint64_t first, size_t count,
        const float *params_in, const double *d, float *const *state, float *params_out)
{
        size_t from = 0;
        for (int t = 0; t < graph->n_params && from < count; t++) {
                const struct mfl_param *param = &graph->params[t];
                uint64_t end = param->offset + param->count;
                bool last = t + 1 == graph->n_params;
                if (end <= first || (!last && graph->params[t + 1].trained == param->trained))
                        continue;
                size_t to = (size_t)MFL_MIN(end - first, (uint64_t)count);
                apply_part(ops, job, round, param->trained, from, to, params_in, d, state, params_out);
                from = to;
        }
        mfl_assert(from == count);
}

int mfl_strategy_apply(const struct mfl_strategy_ops *ops, const struct mfl_job *job,
        const struct mfl_strategy_round *round, const struct mfl_graph *graph, uint64_t first, size_t count,
        const float *params_in, const double *d, float *const *state, float *params_out,
        struct mfl_error *err)
{
        if (graph)
                apply_by_tensor(ops, job, round, graph, first, count, params_in, d, state, params_out);
        else
                ops->apply(job, round, count, params_in, d, state, params_out);
        if (count_bad(params_out, count))
                return fail_bad(ops, params_out, first, count, params_in, d, err);
        for (int i = 0; i < ops->n_state; i++)
                if (count_bad(state[i], count))
                        return fail_bad(ops, state[i], first, count, params_in, d, err);
        return 0;
}
