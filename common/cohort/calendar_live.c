/* SPDX-License-Identifier: Apache-2.0 */
/* An asynchronous job's places in real time: filled by a draw, or from a record of what has come. */
#include "common/cohort/calendar.h"

#include "common/cohort/draw.h"

static int compare_numbers(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return (x > y) - (x < y);
}

/* Sites have numbers of their own. */
static bool knows(const struct mfl_job *job, uint64_t client)
{
        return job->data.partition == MFL_PARTITION_LOCAL || client < job->data.clients;
}

bool mfl_calendar_valid(const struct mfl_job *job, const union mfl_calendar_row *rows, uint32_t newest)
{
        uint32_t n_places = mfl_job_concurrency(job), n = 0;
        MFL_CLEANUP_FREE uint64_t *v = mfl_malloc(n_places * sizeof *v);
        bool valid = v != NULL;
        for (uint32_t i = 1; valid && i <= n_places; i++) {
                if (!rows[i].client)
                        continue;
                valid = knows(job, rows[i].client - 1) && rows[i].base <= newest;
                v[n++] = rows[i].client;
        }
        if (valid)
                qsort(v, n, sizeof *v, compare_numbers);
        for (uint32_t i = 1; valid && i < n; i++)
                valid = v[i - 1] != v[i];
        return valid;
}

bool mfl_calendar_arrival_valid(const struct mfl_job *job, const struct mfl_arrival *arrival)
{
        return arrival->base < arrival->version &&
               arrival->version - 1 - arrival->base <= job->aggregation.staleness_max &&
               knows(job, arrival->client);
}

/* Who trains, ascending, and who is too stale leaves its place. */
static uint32_t list_busy(
        const struct mfl_cohort_ask *ask, union mfl_calendar_row *place, uint64_t *v, uint32_t *ret_dropped)
{
        uint32_t n = 0, dropped = 0;
        for (uint32_t i = 0; i < mfl_job_concurrency(ask->job); i++) {
                if (!place[i].client)
                        continue;
                if (ask->round - 1 - place[i].base > ask->job->aggregation.staleness_max) {
                        place[i] = (union mfl_calendar_row){.word = {0}};
                        dropped++;
                } else
                        v[n++] = place[i].client - 1;
        }
        qsort(v, n, sizeof *v, compare_numbers);
        *ret_dropped = dropped;
        return n;
}

/* The sites that are not busy, ascending; returns how many. */
static uint32_t list_idle(
        const uint64_t *sites, uint32_t n_sites, const uint64_t *busy, uint32_t n_busy, uint64_t *ret_idle)
{
        uint32_t n = 0;
        for (uint32_t i = 0; i < n_sites; i++)
                if (!bsearch(&sites[i], busy, n_busy, sizeof *busy, compare_numbers))
                        ret_idle[n++] = sites[i];
        return n;
}

/* The n clients that start; from a population: those whose ranks among who is not busy are drawn. */
static int draw(const struct mfl_cohort_ask *ask, const uint64_t *idle, uint32_t n_idle, const uint64_t *busy,
        uint32_t n_busy, uint32_t n, uint64_t *ret_v)
{
        MFL_CLEANUP_FREE uint32_t *rank = mfl_malloc(MFL_MAX(n, 1u) * sizeof *rank);
        struct mfl_rng rng = mfl_rng_new(ask->job->seed, MFL_RNG_SELECT, ask->round, 0);
        int r = !rank ? -ENOMEM : n < n_idle ? mfl_draw_uniform(&rng, n_idle, n, rank) : 0;
        for (uint32_t i = 0, at = 0; !r && i < n; i++) {
                uint32_t k = n < n_idle ? rank[i] : i;
                while (!idle && at < n_busy && busy[at] <= k + at)
                        at++;
                ret_v[i] = idle ? idle[k] : k + at;
        }
        return r;
}

int mfl_calendar_fill(const struct mfl_cohort_ask *ask, const union mfl_calendar_row *rows,
        const uint64_t *sites, uint32_t n_sites, union mfl_calendar_row *ret_rows, uint32_t *ret_dropped)
{
        uint32_t n_places = mfl_job_concurrency(ask->job), most = MFL_MAX(MFL_MAX(n_places, n_sites), 1u);
        MFL_CLEANUP_FREE uint64_t *busy = mfl_malloc(most * sizeof *busy);
        MFL_CLEANUP_FREE uint64_t *idle = mfl_malloc(most * sizeof *idle);
        MFL_CLEANUP_FREE uint64_t *starts = mfl_malloc(most * sizeof *starts);
        if (!busy || !idle || !starts)
                return -ENOMEM;
        memcpy(ret_rows, rows, ((size_t)n_places + 1) * sizeof *rows);
        union mfl_calendar_row *place = ret_rows + 1;
        uint32_t n_busy = list_busy(ask, place, busy, ret_dropped);
        uint32_t n_idle = sites ? list_idle(sites, n_sites, busy, n_busy, idle) : ask->population - n_busy;
        uint32_t n = MFL_MIN(n_idle, n_places - n_busy), at = 0;
        int r = draw(ask, sites ? idle : NULL, n_idle, busy, n_busy, n, starts);
        for (uint32_t i = 0; !r && at < n; i++)
                if (!place[i].client)
                        place[i] =
                                (union mfl_calendar_row){.client = starts[at++] + 1, .base = ask->round - 1};
        return r;
}

int mfl_calendar_refill(const struct mfl_cohort_ask *ask, const struct mfl_arrival *arrival, uint32_t n,
        union mfl_calendar_row *ret_rows, struct mfl_error *err)
{
        uint32_t n_places = mfl_job_concurrency(ask->job), at = 0;
        memset(ret_rows, 0, ((size_t)n_places + 1) * sizeof *ret_rows);
        for (uint32_t i = 0; i < n; i++) {
                if (arrival[i].base >= ask->round)
                        continue;
                if (at == n_places)
                        return mfl_fail(err, MFL_INVALID,
                                "version %u: the record has more than %u clients under way", ask->round,
                                n_places);
                ret_rows[++at] =
                        (union mfl_calendar_row){.client = arrival[i].client + 1, .base = arrival[i].base};
        }
        return mfl_calendar_valid(ask->job, ret_rows, ask->round - 1)
                       ? 0
                       : mfl_fail(err, MFL_INVALID, "version %u: the record has a client under way twice",
                                 ask->round);
}
