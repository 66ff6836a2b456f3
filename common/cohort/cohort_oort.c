/* SPDX-License-Identifier: Apache-2.0 */
/* Oort: Lai, Zhu, Madhyastha, Chowdhury: "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI 2021,
 * algorithm 1, on virtual durations.
 *
 * A client that has counted before has the utility U = |B| sqrt(mean squared loss) of its last turn. With n clients to draw in
 * round R, T the duration at the pacer's percentile of the whole population, and e = max(floor, exploration * decay^(R - 1)):
 *
 *      score = (min(U, q) / q + sqrt(0.1 log(R) / L)) * (T / t)^penalty      the last factor only where t > T
 *
 * q is the clip quantile of U over the clients that are on and have counted (as in FedScale, utilities are scaled, so that the
 * term of staleness means the same for every loss), L the round of the last turn, t the client's duration.
 *
 * n - ceil(e n) clients are exploited: drawn in proportion to their scores from those whose score is at least cut_off times
 * that of the last of them in order. The others are explored: of the window * k with the largest |B| (T / t)^penalty among those
 * that have never counted, k are drawn in proportion to it. If one kind has too few, there are more of the other.
 *
 * Ties go to the lower number. Doubles in a fixed order, without libm's log and pow; a weight of a draw is a whole number,
 * floor(2^32 * score / best) + 1.
 */
#include "common/cohort/cohort_internal.h"

#include <math.h>

#include "common/cohort/draw.h"
#include "common/exact/exact.h"

struct choice {
        double score;
        uint32_t client;
};

static int compare_u64(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return (x > y) - (x < y);
}

static int compare_double(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

/* The best first. */
static int compare_choices(const void *a, const void *b)
{
        const struct choice *x = a, *y = b;
        if (x->score != y->score)
                return x->score > y->score ? -1 : 1;
        return (x->client > y->client) - (x->client < y->client);
}

/* The duration that is not punished; MFL_VIRTUAL_NEVER: none is. */
static int find_preferred(const struct mfl_cohort_ask *ask, uint64_t *ret_us)
{
        uint64_t percent = ask->memory[ask->population].pacer.threshold, n = ask->population;
        *ret_us = MFL_VIRTUAL_NEVER;
        if (percent >= 100)
                return 0;
        MFL_CLEANUP_FREE uint64_t *v = mfl_malloc(n * sizeof *v);
        if (!v)
                return -ENOMEM;
        for (uint32_t k = 0; k < n; k++)
                v[k] = mfl_cohort_duration(ask, k);
        qsort(v, n, sizeof *v, compare_u64);
        *ret_us = v[MFL_MIN(n * percent / 100, n - 1)];
        return 0;
}

static double punish(const struct mfl_cohort_ask *ask, uint32_t client, uint64_t preferred_us, double score)
{
        if (preferred_us == MFL_VIRTUAL_NEVER)
                return score;
        uint64_t us = mfl_cohort_duration(ask, client);
        if (us <= preferred_us)
                return score;
        double ratio = (double)MFL_MAX(preferred_us, (uint64_t)1) / (double)us;
        return score * mfl_exact_power(ratio, ask->job->selection.oort.penalty);
}

/* k of the first n choices, in proportion to their scores. */
static int draw_by_score(
        struct mfl_rng *rng, const struct choice *v, uint32_t n, uint32_t k, uint32_t *ret_v, uint32_t *ret_n)
{
        MFL_CLEANUP_FREE uint64_t *weight = mfl_malloc(MFL_MAX(n, 1u) * sizeof *weight);
        if (!weight)
                return -ENOMEM;
        for (uint32_t i = 0; i < n; i++)
                weight[i] = (uint64_t)(v[0].score > 0 ? 0x1p32 * (v[i].score / v[0].score) : 0) + 1;
        int r = mfl_draw_weighted(rng, weight, n, k, ret_v, ret_n);
        for (uint32_t i = 0; !r && i < *ret_n; i++)
                ret_v[i] = v[ret_v[i]].client;
        return r;
}

/* Scores those that have counted; v is their utilities' room. */
static int score_known(
        const struct mfl_cohort_ask *ask, uint64_t preferred_us, struct choice *known, uint32_t n)
{
        MFL_CLEANUP_FREE double *utility = mfl_malloc(MFL_MAX(n, 1u) * sizeof *utility);
        if (!utility)
                return -ENOMEM;
        for (uint32_t i = 0; i < n; i++)
                utility[i] = known[i].score =
                        mfl_memory_utility(&ask->memory[known[i].client], ask->samples[known[i].client]);
        qsort(utility, n, sizeof *utility, compare_double);
        double at = ask->job->selection.oort.clip * n, clip = n ? utility[MFL_MIN((uint32_t)at, n - 1)] : 0;
        double stale = 0.1 * mfl_exact_log(ask->round);
        for (uint32_t i = 0; i < n; i++) {
                double share = clip > 0 ? fmin(known[i].score, clip) / clip : 1;
                double score = share + sqrt(stale / ask->memory[known[i].client].round);
                known[i].score = punish(ask, known[i].client, preferred_us, score);
        }
        qsort(known, n, sizeof *known, compare_choices);
        return 0;
}

static int exploit(const struct mfl_cohort_ask *ask, const struct choice *known, uint32_t n,
        struct mfl_rng *rng, uint32_t k, uint32_t *ret_v, uint32_t *ret_n)
{
        uint32_t n_pool = k;
        *ret_n = 0;
        if (!k)
                return 0;
        double least = ask->job->selection.oort.cut_off * known[k - 1].score;
        while (n_pool < n && known[n_pool].score >= least)
                n_pool++;
        return draw_by_score(rng, known, n_pool, k, ret_v, ret_n);
}

static int explore(const struct mfl_cohort_ask *ask, struct choice *fresh, uint32_t n, struct mfl_rng *rng,
        uint32_t k, uint32_t *ret_v, uint32_t *ret_n)
{
        uint64_t window = (uint64_t)ask->job->selection.oort.window * k;
        return draw_by_score(rng, fresh, (uint32_t)MFL_MIN(window, (uint64_t)n), k, ret_v, ret_n);
}

int mfl_cohort_oort(const struct mfl_cohort_ask *ask, const struct cohort_pool *pool, struct mfl_rng *rng,
        uint32_t n, uint32_t *ret_v, uint32_t *ret_n)
{
        MFL_CLEANUP_FREE struct choice *known = mfl_malloc(MFL_MAX(pool->n, 1u) * sizeof *known);
        MFL_CLEANUP_FREE struct choice *fresh = mfl_malloc(MFL_MAX(pool->n, 1u) * sizeof *fresh);
        uint32_t n_known = 0, n_fresh = 0, n_explored;
        uint64_t preferred_us;
        int r = known && fresh ? find_preferred(ask, &preferred_us) : -ENOMEM;
        if (r)
                return r;
        for (uint32_t i = 0; i < pool->n; i++) {
                uint32_t k = pool->v ? pool->v[i] : i;
                if (ask->memory[k].times)
                        known[n_known++].client = k;
                else if (ask->samples[k] &&
                         !mfl_job_is_without(ask->job, k)) /* which would be explored for ever */
                        fresh[n_fresh++] = (struct choice){punish(ask, k, preferred_us, ask->samples[k]), k};
        }
        r = score_known(ask, preferred_us, known, n_known);
        if (r)
                return r;
        qsort(fresh, n_fresh, sizeof *fresh, compare_choices);
        double e = ask->job->selection.oort.exploration *
                   mfl_exact_power(ask->job->selection.oort.decay, ask->round - 1);
        uint32_t n_explore = (uint32_t)MFL_MIN(ceil(fmax(e, ask->job->selection.oort.floor) * n), (double)n);
        n_explore = MFL_MIN(MFL_MAX(n_explore, n - MFL_MIN(n, n_known)), n_fresh);
        r = exploit(ask, known, n_known, rng, MFL_MIN(n - n_explore, n_known), ret_v, ret_n);
        if (r)
                return r;
        r = explore(ask, fresh, n_fresh, rng, n_explore, ret_v + *ret_n, &n_explored);
        *ret_n += r ? 0 : n_explored;
        return r;
}
