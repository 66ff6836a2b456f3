/* SPDX-License-Identifier: Apache-2.0 */
/* Secure sums: the masks that are left in the sums are taken off, and the result is checked as a whole. */
#include <math.h>

#include "common/secure/ring.h"
#include "common/secure/shares.h"
#include "server/runtime/runtime_internal.h"

/* More elements than apply takes at once, since a mask's key is set up for each range. */
#define STRETCH ((uint64_t)65536)

static int check_figures(const struct mfl_runtime *rt, const uint64_t *figures, struct mfl_error *err)
{
        uint64_t weight = figures[MFL_FIGURE_WEIGHT];
        bool wrong = !weight || weight > rt->fixed.weight_max;
        for (int i = MFL_FIGURE_SAMPLES; i < MFL_SECURE_FIGURES; i++)
                wrong |= figures[i] > (uint64_t)INT64_MAX;
        return wrong ? mfl_fail(err, MFL_INVALID,
                               "the secure sum is not one of valid updates: its weight is %llu of at most "
                               "%llu, or another "
                               "figure is impossible",
                               (unsigned long long)weight, (unsigned long long)rt->fixed.weight_max)
                     : 0;
}

/* Kind distributed: what members' noise may add to an element, 16 standard deviations at least (common/secure/shares.h), as a weight. */
static uint64_t noise_weight(const struct mfl_runtime *rt)
{
        const struct mfl_privacy_spec *privacy = &rt->spec->privacy;
        if (privacy->kind != MFL_PRIVACY_DISTRIBUTED)
                return 0;
        double sigma = privacy->noise * privacy->clip * sqrt((double)MFL_SECURE_SHARES_MOST);
        return (uint64_t)ceil(16 * sigma / (double)rt->fixed.delta_max);
}

/* No element is larger than one of updates of that weight can be. */
static int check_range(struct mfl_runtime *rt, uint64_t from, uint64_t n, uint64_t weight, int64_t *zeros,
        struct mfl_error *err)
{
        struct mfl_error why;
        memset(zeros, 0, n * sizeof *zeros);
        int r = mfl_fixed_parts_add_i64(
                &rt->fixed, &rt->graph->statistics, from, weight, rt->sums + from, (size_t)n, zeros, &why);
        return r > 0 ? mfl_fail(err, MFL_INVALID, "the secure sum is not one of valid updates: %.300s",
                               why.text)
                     : r;
}

static int unfold(struct mfl_runtime *rt, const struct mfl_secure_ring *ring, uint64_t from, uint64_t n,
        uint64_t weight, struct mfl_error *err)
{
        struct mfl_error why;
        int r = mfl_secure_ring_unfold(ring, from, weight, rt->sums + from, n, &why);
        return r > 0 ? mfl_fail(err, MFL_INVALID, "the secure sum is not one of valid updates: %.300s",
                               why.text)
                     : r;
}

int mfl_runtime_unmask(struct mfl_runtime *rt, struct mfl_leader_opening *opening, struct mfl_error *err)
{
        int64_t *zeros = mfl_malloc(STRETCH * sizeof *zeros);
        if (!zeros)
                return mfl_fail_memory(err, STRETCH * sizeof *zeros, "a check");
        struct mfl_secure_ring ring = {0};
        uint64_t *figures = opening->figures;
        mfl_ahead_undo(rt);
        int r = mfl_secure_ring_make(rt->spec->secure.bits, rt->spec->compression.bits, rt->graph, &rt->fixed,
                rt->pool->current->grid, &ring, err);
        if (!r)
                r = mfl_leader_unmask(opening, rt->n, figures, MFL_SECURE_FIGURES, err);
        if (!r)
                r = check_figures(rt, figures, err);
        if (!r)
                r = mfl_job_check_ring(rt->spec, figures[MFL_FIGURE_WEIGHT], err);
        for (uint64_t at = 0; at < rt->n && !r; at += STRETCH) {
                uint64_t n = MFL_MIN(rt->n - at, STRETCH);
                r = mfl_leader_unmask(opening, at, (uint64_t *)rt->sums + at, (size_t)n, err);
                if (!r)
                        r = unfold(rt, &ring, at, n, figures[MFL_FIGURE_WEIGHT], err);
                if (!r)
                        r = check_range(rt, at, n, figures[MFL_FIGURE_WEIGHT] + noise_weight(rt), zeros, err);
        }
        free(zeros);
        mfl_secure_ring_deinit(&ring);
        if (!r)
                rt->weight_added = figures[MFL_FIGURE_WEIGHT];
        return r;
}
