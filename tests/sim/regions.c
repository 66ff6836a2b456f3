/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs with regions (common/job/edges.h): the params that each region's clients start from, and what a round makes of them. The server's
 * are made of the updates as they came; the oracle's, of the clients alone, without any server or daemon. */
#include "tests/sim/sim.h"
#include "common/method/method.h"

/* Not drawn, so that the other draws stay what they were. A team trains none of their clients. */
void sim_regions_setup(struct sim *sim)
{
        for (uint32_t i = 0; i < sim->n_jobs; i++) {
                struct mfl_job *spec = &sim->job[i].spec;
                sim_regions_reset(&sim->job[i], &sim->job[i].regions);
                if (sim->scenario || (sim->seed + i) % 17 != 8 || sim->seed % 4 == 1 ||
                        spec->selection.kind == MFL_SELECT_POISSON ||
                        spec->aggregation.strategy != MFL_STRATEGY_FEDAVG)
                        continue;
                spec->edges.count = 1 + (uint32_t)(spec->seed / 3 % SIM_REGIONS);
                spec->edges.rounds = 1 + (uint32_t)(spec->seed % 3);
                spec->selection.daemons_min = 1; /* some daemons may be too old */
        }
}

void sim_regions_reset(const struct sim_job *job, struct sim_regions *regions)
{
        *regions = (struct sim_regions){0};
        for (uint32_t e = 0; e < SIM_REGIONS; e++)
                memcpy(regions->x[e], job->params, sizeof regions->x[e]);
}

static const struct sim_regions *newest(const struct sim_job *job)
{
        return job->has_new ? &job->regions_new : &job->regions;
}

const float *sim_regions_start(const struct sim_job *job, uint64_t item)
{
        return newest(job)->x[mfl_job_region(&job->spec, item)];
}

/* The true server keeps the newest ones alone. */
const float *sim_regions_find(const struct sim_job *job, const uint8_t *digest)
{
        uint8_t other[MFL_DIGEST_BYTES];
        for (uint32_t e = 0; mfl_job_has_regions(&job->spec) && e < job->spec.edges.count; e++) {
                sim_digest(newest(job)->x[e], other);
                if (memcmp(digest, other, sizeof other) == 0)
                        return newest(job)->x[e];
        }
        return NULL;
}

void sim_regions_tell(struct sim_job *job, struct mfl_core_event *event)
{
        if (!mfl_job_has_regions(&job->spec))
                return;
        for (uint32_t e = 0; e < job->spec.edges.count; e++)
                sim_digest(newest(job)->x[e], job->bases[e]);
        event->bases = (const uint8_t(*)[MFL_DIGEST_BYTES])job->bases;
}

/* A region's mean of its clients; a region of nobody stays as it was, and does not count. */
static void make_region(const struct sim_job *job, uint32_t e, const uint64_t *items, uint32_t n,
        const float (*single)[SIM_PARAMS], struct sim_regions *regions)
{
        int64_t sum[SIM_PARAMS] = {0};
        uint64_t weight = 0;
        for (uint32_t k = 0; k < n; k++) {
                if (mfl_job_region(&job->spec, items[k]) != e)
                        continue;
                uint64_t w = sim_weight(&job->spec, items[k]);
                mfl_assert(mfl_fixed_parts_add_f32(
                                   &job->fixed, NULL, 0, w, single[k], SIM_PARAMS, sum, NULL) == 0);
                weight += w;
        }
        for (int i = 0; weight && i < SIM_PARAMS; i++)
                regions->x[e][i] += (float)mfl_fixed_mean(&job->fixed, sum[i], weight);
        regions->weight[e] += weight;
}

void sim_regions_make(const struct sim_job *job, uint32_t round, const uint64_t *items, uint32_t n,
        const float (*single)[SIM_PARAMS], const float *before, struct sim_regions *regions,
        float *ret_params)
{
        uint32_t count = job->spec.edges.count, n_met = 0;
        double sum[SIM_PARAMS] = {0};
        uint64_t weight = 0;
        memcpy(ret_params, before, SIM_PARAMS * sizeof *ret_params);
        for (uint32_t e = 0; e < count; e++) {
                make_region(job, e, items, n, single, regions);
                if (!regions->weight[e] && count > 1)
                        continue;
                if (!n_met++)
                        memcpy(ret_params, regions->x[e], sizeof regions->x[e]);
                weight += regions->weight[e];
                for (int i = 0; i < SIM_PARAMS; i++)
                        sum[i] += (double)regions->weight[e] * (double)regions->x[e][i];
        }
        for (int i = 0; n_met > 1 && i < SIM_PARAMS; i++)
                ret_params[i] = (float)(sum[i] / (double)weight);
        if (!mfl_job_regions_meet(&job->spec, round))
                return;
        memset(regions->weight, 0, sizeof regions->weight);
        for (uint32_t e = 0; e < count; e++)
                memcpy(regions->x[e], ret_params, sizeof regions->x[e]);
}

void sim_regions_apply(const struct sim_job *job, uint32_t round, const uint64_t *items, uint32_t n,
        const float *before, struct sim_regions *regions, float *ret_params)
{
        float single[SIM_ITEMS][SIM_PARAMS];
        for (uint32_t k = 0; k < n; k++) {
                const float *start = regions->x[mfl_job_region(&job->spec, items[k])];
                sim_train(items[k], round, start, single[k]);
                for (int i = 0; i < SIM_PARAMS; i++)
                        single[k][i] -= start[i];
        }
        sim_regions_make(
                job, round, items, n, (const float(*)[SIM_PARAMS])single, before, regions, ret_params);
}
