/* SPDX-License-Identifier: Apache-2.0 */
/* The table of methods, and what all of them share: limits, units, norms. */
#include "common/method/method.h"
#include "common/base/budget.h"
#include "common/method/central_grid.h"

#include <inttypes.h>
#include <math.h>

static const struct mfl_method_ops plain;

const struct mfl_method_ops *mfl_method_get(const struct mfl_job *job)
{
        if (job->personal.layers.n)
                return &mfl_method_personal;
        if (mfl_privacy_of_sums(&job->privacy))
                return job->privacy.adaptive ? &mfl_method_central_adaptive : &mfl_method_central;
        if (job->simulation.attack == MFL_ATTACK_STALE)
                return &mfl_method_stale;
        if (job->compression.top_k > 0)
                return &mfl_method_top_k;
        switch (job->aggregation.strategy) {
        case MFL_STRATEGY_FEDNOVA:
                return &mfl_method_fednova;
        case MFL_STRATEGY_QFEDAVG:
                return &mfl_method_qfedavg;
        case MFL_STRATEGY_SCAFFOLD:
                return job->aggregation.option == MFL_SCAFFOLD_I ? &mfl_method_scaffold_first
                                                                 : &mfl_method_scaffold;
        case MFL_STRATEGY_FEDDYN:
                return &mfl_method_feddyn;
        case MFL_STRATEGY_FOOLSGOLD:
                return &mfl_method_foolsgold;
        case MFL_STRATEGY_FEDBUFF:
                /* Changes that people look at are the clients' own. */
                return mfl_job_is_live(job) || job->debug.deltas ? &mfl_method_fedbuff_live
                                                                 : &mfl_method_fedbuff;
        case MFL_STRATEGY_FEDASYNC:
                return &mfl_method_fedasync;
        case MFL_STRATEGY_DITTO:
                return &mfl_method_ditto;
        case MFL_STRATEGY_PFEDME:
                return &mfl_method_pfedme;
        case MFL_STRATEGY_MIMELITE:
                return &mfl_method_mimelite;
        case MFL_STRATEGY_MIME:
                return &mfl_method_mime;
        case MFL_STRATEGY_APFL:
                return job->aggregation.alpha_adaptive ? &mfl_method_apfl_adaptive : &mfl_method_apfl;
        case MFL_STRATEGY_FEDPROX:
                return job->aggregation.mu_adaptive ? &mfl_method_adaptive_prox : &plain;
        default:
                return &plain;
        }
}

int mfl_job_fixed(const struct mfl_job *spec, uint32_t train_samples, uint32_t population,
        struct mfl_fixed *ret_fixed, struct mfl_error *err)
{
        bool local = spec->data.partition == MFL_PARTITION_LOCAL;
        uint64_t weight_max = 1;
        if (spec->aggregation.weighting == MFL_WEIGHT_UNIFORM)
                weight_max = local ? (uint64_t)1 << 20 : MFL_MAX(mfl_job_cohort_size(spec, population), 1u);
        else if (local || mfl_job_owns_data(spec))
                weight_max = (uint64_t)1 << 36;
        else
                while (weight_max < train_samples)
                        weight_max *= 2;
        struct mfl_fixed fixed = {0};
        const struct mfl_method_ops *method = mfl_method_get(spec);
        int share_bits = method->share_bits ? method->share_bits(spec) : 0;
        int r = mfl_job_check_ring(spec, weight_max, err);
        if (!r)
                r = mfl_fixed_choose_share(spec->aggregation.delta_max, weight_max, share_bits, &fixed, err);
        int most = fixed.scale_bits;
        if (!r && mfl_privacy_of_sums(&spec->privacy))
                r = mfl_central_scale_max(spec, &most, err);
        fixed.scale_bits = MFL_MIN(fixed.scale_bits, most);
        if (!r && spec->arithmetic >= MFL_ARITHMETIC_STATISTICS)
                r = mfl_fixed_choose_statistics(spec->aggregation.statistics_max, &fixed, err);
        if (!r)
                *ret_fixed = fixed;
        return r;
}

static int bits_for(uint64_t weight)
{
        return weight <= 1 ? 0 : 64 - __builtin_clzll(weight - 1);
}

int mfl_method_scalar_bits(const struct mfl_job *job, const struct mfl_fixed *fixed, int i)
{
        /* A daemon of partition `local` has one client; the server adds what daemons say in 128 bits. */
        bool local = job->data.partition == MFL_PARTITION_LOCAL;
        uint64_t weight = local ? MFL_MIN(fixed->weight_max, MFL_WEIGHT_MAX) : fixed->weight_max;
        return 62 - bits_for(weight) - mfl_method_get(job)->scalar_max_bits[i];
}

int mfl_method_weigh(const struct mfl_job *job, const struct mfl_fixed *fixed, const double *state,
        const struct mfl_client_facts *facts, double *ret_weight, int64_t ret_units[MFL_METHOD_SCALARS_MAX],
        struct mfl_error *err)
{
        const struct mfl_method_ops *ops = mfl_method_get(job);
        double scalars[MFL_METHOD_SCALARS_MAX] = {0}, weight = (double)facts->weight;
        mfl_assert(ops->weighs);
        ops->weigh(job, state, facts, &weight, scalars);
        double most = ldexp((double)facts->weight, ops->share_bits ? ops->share_bits(job) : 0);
        if (!(weight >= 0 && weight <= most))
                return mfl_fail(err, MFL_INVALID,
                        "%s gives it a weight of %g, and at most %g can be added; a smaller %s may help",
                        mfl_strategy_name(job->aggregation.strategy), weight, most,
                        ops->needs_loss ? "aggregation.q" : "training.schedule.warmup");
        for (int i = 0; i < ops->n_scalars; i++) {
                double limit = ldexp(1, ops->scalar_max_bits[i]);
                if (!(scalars[i] >= 0 && scalars[i] <= limit))
                        return mfl_fail(err, MFL_INVALID,
                                "%s gives a number of %g for the round's sum, and at most %g can be added; "
                                "it took "
                                "%" PRIu64 " steps, and its loss with the params that it received is %g",
                                mfl_strategy_name(job->aggregation.strategy), scalars[i], limit, facts->steps,
                                facts->loss);
                double units = scalars[i] * (double)facts->weight;
                ret_units[i] = (int64_t)mfl_fixed_round(ldexp(units, mfl_method_scalar_bits(job, fixed, i)));
        }
        *ret_weight = weight;
        return 0;
}

int mfl_method_count(const struct mfl_job *job, const struct mfl_fixed *fixed, uint64_t steps,
        int64_t *ret_units, struct mfl_error *err)
{
        const struct mfl_method_ops *ops = mfl_method_get(job);
        mfl_assert(ops->counts_steps);
        if (steps > (uint64_t)1 << ops->scalar_max_bits[0])
                return mfl_fail(err, MFL_INVALID, "%s counts at most 2^%d local steps, and it took %" PRIu64,
                        mfl_strategy_name(job->aggregation.strategy), ops->scalar_max_bits[0], steps);
        *ret_units = (int64_t)steps << mfl_method_scalar_bits(job, fixed, 0);
        return 0;
}

uint64_t mfl_method_steps(const struct mfl_job *job, const struct mfl_fixed *fixed, int64_t units)
{
        return (uint64_t)units >> mfl_method_scalar_bits(job, fixed, 0);
}

int mfl_method_check_states(const struct mfl_job *job, uint32_t population, uint64_t n, struct mfl_error *err)
{
        char each[16], all[16], limit[16];
        bool at_sites = job->client_state == MFL_CLIENT_STATE_DAEMON;
        uint64_t row = at_sites ? 0 : mfl_method_row_bytes(mfl_method_state_floats(job, n));
        if (!mfl_job_keeps_state(job) || row <= job->limits.state / MFL_MAX(population, 1u))
                return 0;
        if (job->data.partition == MFL_PARTITION_LOCAL) /* nobody knows how many sites there will be */
                return mfl_fail(err, MFL_INVALID,
                        "job %s: limits.state: the state of a client takes %s, and limits.state is %s: raise "
                        "it",
                        job->name, mfl_format_bytes(row, each), mfl_format_bytes(job->limits.state, limit));
        return mfl_fail(err, MFL_INVALID,
                "job %s: limits.state: the states of %u clients take %s each, %s together, and limits.state "
                "is %s: raise it, or "
                "lower data.clients",
                job->name, population, mfl_format_bytes(row, each), mfl_format_bytes(row * population, all),
                mfl_format_bytes(job->limits.state, limit));
}

int mfl_method_phases(const struct mfl_job *job, uint32_t round, struct mfl_phase ret_phases[MFL_PHASES_MAX])
{
        const struct mfl_method_ops *ops = mfl_method_get(job);
        ret_phases[0] = (struct mfl_phase){.from = MFL_FROM_RECEIVED};
        return ops->phases ? ops->phases(job, round, ret_phases) : 1;
}

uint64_t mfl_phase_steps(const struct mfl_job *job, const struct mfl_phase *phase, uint32_t n)
{
        uint64_t steps = mfl_job_steps(job, n),
                 rows = (uint64_t)job->training.batch * job->training.accumulate;
        if (phase->gradient)
                return (n + rows - 1) / rows;
        if (phase->epochs && steps)
                steps = mfl_job_epoch_steps(job, n) * phase->epochs;
        return steps * MFL_MAX(phase->inner, 1u);
}

uint64_t mfl_method_all_steps(const struct mfl_job *job, uint32_t round, uint32_t n)
{
        struct mfl_phase phases[MFL_PHASES_MAX];
        int n_phases = mfl_method_phases(job, round, phases);
        uint64_t steps = 0;
        for (int i = 0; i < n_phases; i++)
                steps += mfl_phase_steps(job, &phases[i], n);
        return steps;
}

#define BLOCK 4096u

double mfl_method_norm2(
        const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts, const float *delta, size_t n)
{
        double sum = 0;
        for (uint64_t from = 0; from < n; from += BLOCK) {
                uint64_t end = MFL_MIN((uint64_t)n, from + BLOCK);
                double block = 0;
                for (uint64_t i = from; i < end;) {
                        struct mfl_fixed_part part = mfl_fixed_part_at(fixed, parts, i, end);
                        for (; i < part.end; i++)
                                block += part.statistics ? 0 : (double)delta[i] * (double)delta[i];
                }
                sum += block;
        }
        return sum;
}
