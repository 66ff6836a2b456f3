/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous jobs: the versions of the params that clients start from, and the calendar that is stored with the newest one. Who makes
 * a version, and from which one they start, is computed without any server; in real time it is what was written before it was applied,
 * from which a replay must give the same params. */
#include "tests/sim/sim.h"

static void one_turn(const struct sim_job *job, uint32_t round, const union mfl_calendar_row *rows,
        union mfl_calendar_row *ret_rows, struct mfl_cohort *ret_cohort)
{
        const struct mfl_job *spec = &job->spec;
        uint32_t samples[SIM_ITEMS];
        for (uint32_t k = 0; k < spec->data.clients; k++)
                samples[k] = sim_samples(spec, k) - mfl_job_held(spec, sim_samples(spec, k));
        const struct mfl_cohort_ask ask = {.job = spec,
                .population = spec->data.clients,
                .round = round,
                .samples = samples,
                .bytes = (2 * SIM_PARAMS + job->n_frozen) * sizeof(float)};
        mfl_assert(mfl_calendar_advance(&ask, rows, ret_rows, ret_cohort, NULL) == 0);
        mfl_assert(ret_cohort->n <= SIM_ITEMS);
}

static uint32_t recorded(const struct sim_job *job, uint32_t round, uint64_t *ret_items, uint32_t *ret_bases)
{
        uint32_t n = 0;
        for (uint32_t i = 0; i < job->n_arrivals; i++)
                if (job->arrival[i].version == round) {
                        ret_items[n] = job->arrival[i].client;
                        ret_bases[n++] = job->arrival[i].base;
                }
        return n;
}

/* From the beginning, as each version's turns follow from those before. */
uint32_t sim_turns(const struct sim_job *job, uint32_t round, uint64_t *ret_items, uint32_t *ret_bases)
{
        union mfl_calendar_row rows[2][SIM_ITEMS + 1] = {0};
        uint32_t n = 0;
        if (mfl_job_is_live(&job->spec))
                return recorded(job, round, ret_items, ret_bases);
        mfl_assert(mfl_calendar_rows(&job->spec) <= SIM_ITEMS + 1);
        for (uint32_t r = 1; r <= round; r++) {
                struct mfl_cohort cohort;
                one_turn(job, r, rows[r % 2], rows[(r + 1) % 2], &cohort);
                n = cohort.n;
                for (uint32_t i = 0; i < n; i++) {
                        ret_items[i] = cohort.client[i];
                        ret_bases[i] = cohort.base[i];
                }
                free(cohort.client);
                free(cohort.base);
        }
        return n;
}

uint32_t sim_base(const struct sim_job *job, uint32_t round, uint64_t item)
{
        uint64_t items[SIM_ITEMS];
        uint32_t bases[SIM_ITEMS], n = mfl_job_is_async(&job->spec) ? sim_turns(job, round, items, bases) : 0;
        for (uint32_t i = 0; i < n; i++)
                if (items[i] == item)
                        return bases[i];
        return round - 1;
}

/* Not drawn, so that the other draws stay what they were. A team trains none of their clients. */
void sim_versions_setup(struct sim *sim)
{
        for (uint32_t i = 0; i < sim->n_jobs; i++) {
                struct mfl_job *spec = &sim->job[i].spec;
                sim_versions_reset(&sim->job[i]);
                if (sim->scenario || (sim->seed + i) % 13 != 6 || sim->seed % 4 == 1 ||
                        spec->data.partition == MFL_PARTITION_LOCAL ||
                        spec->selection.kind != MFL_SELECT_UNIFORM ||
                        spec->aggregation.strategy != MFL_STRATEGY_FEDAVG)
                        continue;
                spec->aggregation.strategy = spec->seed % 3 ? MFL_STRATEGY_FEDBUFF : MFL_STRATEGY_FEDASYNC;
                spec->aggregation.buffer = 1 + (uint32_t)(spec->seed % MFL_MIN(4u, spec->data.clients));
                spec->aggregation.a = 0.5;
                spec->aggregation.alpha = 0.6;
                spec->aggregation.staleness_max = 1 + (uint32_t)(spec->seed % 5);
                spec->time = spec->seed / 3 % 2 ? MFL_TIME_VIRTUAL : MFL_TIME_REAL;
                spec->trace = (struct mfl_trace){.day_ms = 1000, .sigma = 1, .speed = 100, .online = 1};
                spec->selection.over = 1;
                spec->training.batch = 10;
                spec->training.accumulate = 1;
                spec->selection.daemons_min = 1; /* some daemons may be too old */
        }
}

/* ---- the server's ---- */

void sim_versions_reset(struct sim_job *job)
{
        memset(job->calendar, 0, sizeof job->calendar);
        job->n_arrivals = 0;
        memcpy(job->version[0], job->params, sizeof job->params);
}

void sim_versions_ready(struct sim_job *job, struct mfl_core_event *event)
{
        if (!mfl_job_is_async(&job->spec))
                return;
        uint32_t n = mfl_job_bases(&job->spec), newest = job->committed;
        for (uint32_t v = newest < n ? 0 : newest - n + 1; v <= newest; v++)
                sim_digest(job->version[v], job->bases[v % n]);
        event->bases = (const uint8_t(*)[MFL_DIGEST_BYTES])job->bases;
        event->job_ready.memory = newest ? job->calendar->word : NULL;
        uint32_t first = 0;
        while (first < job->n_arrivals && job->arrival[first].version <= newest)
                first++;
        event->job_ready.arrivals = job->arrival + first;
        event->job_ready.n_arrivals = job->n_arrivals - first;
}

void sim_versions_store(struct sim *sim, struct sim_job *job, const struct mfl_core_action *action)
{
        uint32_t n = mfl_calendar_rows(&job->spec);
        if (!n)
                return;
        sim_check(sim, action->memory.n == n, "%u rows of a calendar of %u are stored",
                (uint32_t)action->memory.n, n);
        memcpy(job->calendar_stored, action->memory.v, n * sizeof *job->calendar_stored);
}

static bool is_rejected(const struct sim_job *job, const struct mfl_arrival *arrival)
{
        for (uint32_t r = 0; r < job->n_rejected; r++)
                if (job->rejected[r].client == arrival->client && job->rejected[r].round == arrival->base + 1)
                        return true;
        return false;
}

/* Of a version that was recorded and not committed, the very same clients come again; but the daemon that trains one now may reject
 * it. */
static void check_again(
        struct sim *sim, const struct sim_job *job, const struct mfl_core_action *action, uint32_t first)
{
        uint32_t n = action->n_arrivals, found = 0, n_rejected = 0;
        for (uint32_t i = first; i < job->n_arrivals; i++) {
                const struct mfl_arrival *was = &job->arrival[i];
                bool again = false;
                for (uint32_t k = 0; k < n; k++)
                        again |= was->client == action->arrivals[k].client &&
                                 was->base == action->arrivals[k].base;
                found += again;
                n_rejected += !again && is_rejected(job, was);
        }
        sim_check(sim, found == n && n + n_rejected == job->n_arrivals - first,
                "version %u is made of %u clients, of which %u were recorded", action->round, n, found);
}

void sim_arrivals_record(struct sim *sim, struct sim_job *job, const struct mfl_core_action *action)
{
        uint32_t first = 0, n = action->n_arrivals;
        if (!mfl_job_is_live(&job->spec))
                return;
        while (first < job->n_arrivals && job->arrival[first].version < action->round)
                first++;
        if (first < job->n_arrivals)
                check_again(sim, job, action, first);
        sim_check(sim, n == job->n_in && n <= mfl_job_buffer(&job->spec) && first + n <= SIM_ARRIVALS,
                "version %u is made of %u clients, %u arrivals are recorded", action->round, job->n_in, n);
        for (uint32_t i = 0; i < n; i++) {
                uint32_t k = 0;
                while (k < n && job->in[k] != action->arrivals[i].client)
                        k++;
                sim_check(sim, k < n && action->arrivals[i].version == action->round,
                        "client %u is recorded and does not count", (uint32_t)action->arrivals[i].client);
                for (uint32_t a = 0; a < first; a++)
                        sim_check(sim,
                                job->arrival[a].client != action->arrivals[i].client ||
                                        job->arrival[a].version <= action->arrivals[i].base,
                                "client %u counts in version %u, and before in %u, from one start",
                                (uint32_t)action->arrivals[i].client, action->round, job->arrival[a].version);
                job->arrival[first + i] = action->arrivals[i];
        }
        job->n_arrivals = first + n;
}

void sim_versions_commit(struct sim_job *job)
{
        memcpy(job->calendar, job->calendar_stored, sizeof job->calendar);
}

/* The true server keeps the newest one and the last `staleness_max` before it. */
const float *sim_versions_find(const struct sim_job *job, const uint8_t *digest)
{
        uint32_t newest = job->has_new ? job->applied : job->committed, n = mfl_job_bases(&job->spec);
        uint8_t other[MFL_DIGEST_BYTES];
        if (!mfl_job_is_async(&job->spec))
                return NULL;
        for (uint32_t v = newest < n ? 0 : newest - n + 1; v <= newest; v++) {
                sim_digest(job->version[v], other);
                if (memcmp(digest, other, sizeof other) == 0)
                        return job->version[v];
        }
        return NULL;
}

/* ---- arithmetic ---- */

double sim_mix(
        const struct sim_job *job, const struct mfl_round_totals *totals, uint32_t round, int i, double mean)
{
        const struct mfl_method_ops *method = mfl_method_get(&job->spec);
        if (!method->share)
                return mean;
        double newest = (double)job->version[round - 1][i];
        double base = (double)job->version[round - 1 - totals->staleness][i];
        return method->share(&job->spec, totals) * (base + mean - newest);
}

/* What these clients make of job->version[0 .. round - 1]. */
void sim_versions_apply(
        const struct sim_job *job, uint32_t round, const uint64_t *items, uint32_t n, float *ret_params)
{
        int64_t sum[SIM_PARAMS] = {0}, unused = 0;
        struct mfl_round_totals totals = {0};
        float p1[SIM_PARAMS];
        for (uint32_t k = 0; k < n; k++) {
                uint32_t base = sim_base(job, round, items[k]);
                sim_train(items[k], mfl_job_is_live(&job->spec) ? base + 1 : round, job->version[base], p1);
                sim_fold(&job->spec, &job->fixed, items[k], round - 1 - base, p1, job->version[base], sum,
                        &unused);
                totals.weight += sim_weight(&job->spec, items[k]);
                totals.staleness = MFL_MAX(totals.staleness, round - 1 - base);
        }
        for (int i = 0; i < SIM_PARAMS; i++) {
                double mean = mfl_fixed_mean(&job->fixed, sum[i], totals.weight);
                ret_params[i] = job->version[round - 1][i] + (float)sim_mix(job, &totals, round, i, mean);
        }
}
