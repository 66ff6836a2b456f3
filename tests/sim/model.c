/* SPDX-License-Identifier: Apache-2.0 */
/* Federated learning in miniature: six parameters, a training that is a function of (params, client, round),
 * and the true fixed-point sums. */
#include "tests/sim/sim.h"
#include "common/method/method.h"

#include "common/base/digest.h"

bool sim_single(const struct mfl_job *spec)
{
        return spec->aggregation.strategy == MFL_STRATEGY_MEDIAN;
}

void sim_digest(const float *params, uint8_t *ret_digest)
{
        mfl_assert(mfl_sha256(params, SIM_PARAMS * sizeof *params, ret_digest, NULL) == 0);
}

void sim_digest_frozen(const float *frozen, uint8_t *ret_digest)
{
        mfl_assert(mfl_sha256(frozen, SIM_FROZEN * sizeof *frozen, ret_digest, NULL) == 0);
}

void sim_initial(const struct mfl_job *spec, float *ret_params)
{
        struct mfl_rng rng = mfl_rng_new(spec->seed, MFL_RNG_INIT, 0, 0);
        for (int i = 0; i < SIM_PARAMS; i++)
                ret_params[i] = mfl_u32_to_unit(mfl_rng_u32(&rng));
}

/* Those that the client trains on. */
static uint32_t trained(const struct mfl_job *spec, uint64_t client)
{
        uint32_t n = sim_samples(spec, client);
        return n - mfl_job_held(spec, n);
}

uint64_t sim_weight(const struct mfl_job *spec, uint64_t item)
{
        return spec->aggregation.weighting == MFL_WEIGHT_UNIFORM ? 1 : trained(spec, item);
}

uint32_t sim_samples(const struct mfl_job *spec, uint64_t item)
{
        return spec->data.partition == MFL_PARTITION_LOCAL ? 128 : 1 + (uint32_t)(item % 5);
}

void sim_train(uint64_t item, uint32_t round, const float *p0, float *ret_p1)
{
        struct mfl_philox block = mfl_rng_block(mfl_rng_derive(item, MFL_RNG_SIM, round, 0), 0);
        for (int i = 0; i < SIM_PARAMS; i++) {
                float target = mfl_u32_to_unit(block.v[i % 4] * (uint32_t)(2 * i + 1));
                ret_p1[i] = p0[i] + 0.3f * (target - p0[i]);
        }
}

void sim_fixed(struct sim_job *job)
{
        mfl_assert(mfl_job_fixed(&job->spec, 128, job->spec.data.clients, &job->fixed, NULL) == 0);
}

static int compare_floats(const void *a, const void *b)
{
        float x = *(const float *)a, y = *(const float *)b;
        return (x > y) - (x < y);
}

void sim_median(const float (*single)[SIM_PARAMS], uint32_t n, const float *p0, float *ret_params)
{
        for (int i = 0; i < SIM_PARAMS; i++) {
                float v[SIM_ITEMS];
                for (uint32_t k = 0; k < n; k++)
                        v[k] = single[k][i];
                qsort(v, n, sizeof *v, compare_floats);
                ret_params[i] = p0[i] + (v[(n - 1) / 2] + v[n / 2]) / 2;
        }
}

void sim_fold(const struct mfl_job *spec, const struct mfl_fixed *fixed, uint64_t item, uint32_t staleness,
        const float *p1, const float *p0, int64_t *sum, int64_t *scalar)
{
        uint64_t weight = sim_weight(spec, item);
        const struct mfl_method_ops *method = mfl_method_get(spec);
        if (method->discount) {
                float d[SIM_PARAMS];
                for (int i = 0; i < SIM_PARAMS; i++)
                        d[i] = p1[i] - p0[i];
                double share = (double)weight * method->discount(spec, staleness);
                mfl_assert(mfl_fixed_parts_add_real(
                                   fixed, NULL, 0, weight, share, d, SIM_PARAMS, sum, NULL) == 0);
                return;
        }
        if (!method->weighs) {
                mfl_assert(mfl_fixed_add_delta(fixed, weight, p1, p0, SIM_PARAMS, sum, NULL) == 0);
                return;
        }
        const struct mfl_client_facts facts = {.weight = weight,
                .samples = sim_samples(spec, item),
                .steps = 1 + item % 3,
                .staleness = staleness};
        float delta[SIM_PARAMS];
        double real;
        int64_t units[MFL_METHOD_SCALARS_MAX] = {0};
        for (int i = 0; i < SIM_PARAMS; i++)
                delta[i] = p1[i] - p0[i];
        mfl_assert(mfl_method_weigh(spec, fixed, NULL, &facts, &real, units, NULL) == 0);
        mfl_assert(mfl_fixed_parts_add_real(fixed, NULL, 0, weight, real, delta, SIM_PARAMS, sum, NULL) == 0);
        *scalar += method->n_scalars ? units[0] : 0;
}

/* What a round with exactly these clients must give, computed without any server or daemon. */
void sim_apply(const struct mfl_job *spec, const struct mfl_fixed *fixed, uint32_t round, const float *p0,
        const uint64_t *items, uint32_t n, float *ret_params)
{
        memcpy(ret_params, p0, sizeof *ret_params * SIM_PARAMS);
        if (!n)
                return; /* nobody was drawn */
        int64_t sum[SIM_PARAMS] = {0};
        float single[SIM_ITEMS][SIM_PARAMS], p1[SIM_PARAMS];
        uint64_t weight = 0, steps = 0;
        int64_t unused = 0;
        for (uint32_t k = 0; k < n; k++) {
                sim_train(items[k], round, p0, p1);
                for (int i = 0; i < SIM_PARAMS; i++)
                        single[k][i] = p1[i] - p0[i];
                sim_fold(spec, fixed, items[k], 0, p1, p0, sum, &unused);
                weight += sim_weight(spec, items[k]);
                steps += sim_weight(spec, items[k]) * (1 + items[k] % 3);
        }
        double factor =
                spec->aggregation.strategy == MFL_STRATEGY_FEDNOVA ? (double)steps / (double)weight : 1;
        if (sim_single(spec))
                sim_median((const float(*)[SIM_PARAMS])single, n, p0, ret_params);
        else
                for (int i = 0; i < SIM_PARAMS; i++)
                        ret_params[i] = p0[i] + (float)(mfl_fixed_mean(fixed, sum[i], weight) * factor);
}

static int compare_items(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return (x > y) - (x < y);
}

/* round.h's rule, written a second time. */
uint32_t sim_cohort(const struct mfl_job *spec, uint32_t round, uint32_t attempt, uint64_t *ret_items)
{
        uint32_t population = spec->data.clients, v[SIM_ITEMS];
        uint32_t n = spec->selection.clients ? MFL_MIN(spec->selection.clients, population) : population;
        struct mfl_rng rng = mfl_rng_new(spec->seed, MFL_RNG_SELECT, round, attempt);
        if (spec->selection.kind == MFL_SELECT_POISSON) {
                for (uint32_t i = n = 0; i < population; i++)
                        if ((double)mfl_rng_u32(&rng) / 4294967296.0 < spec->selection.rate)
                                ret_items[n++] = i;
                return n;
        }
        for (uint32_t i = 0; i < population; i++)
                v[i] = i;
        if (spec->selection.kind == MFL_SELECT_WEIGHTED) { /* who is drawn leaves a gap */
                __extension__ typedef unsigned __int128 wide;
                for (uint32_t i = 0; i < n; i++) {
                        uint64_t total = 0;
                        for (uint32_t k = 0; k < population - i; k++)
                                total += trained(spec, v[k]);
                        wide m = (wide)mfl_rng_u64(&rng) * total;
                        while ((uint64_t)m < -total % total)
                                m = (wide)mfl_rng_u64(&rng) * total;
                        uint64_t at = (uint64_t)(m >> 64);
                        uint32_t k = 0;
                        for (; at >= trained(spec, v[k]); k++)
                                at -= trained(spec, v[k]);
                        ret_items[i] = v[k];
                        memmove(v + k, v + k + 1, (population - i - 1 - k) * sizeof *v);
                }
                qsort(ret_items, n, sizeof *ret_items, compare_items);
                return n;
        }
        for (uint32_t i = 0; i < n; i++) {
                uint32_t j = n < population ? i + mfl_rng_below(&rng, population - i) : i;
                uint32_t t = v[i];
                v[i] = v[j];
                v[j] = t;
                ret_items[i] = v[i];
        }
        qsort(ret_items, n, sizeof *ret_items, compare_items);
        return n;
}
