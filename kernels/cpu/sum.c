/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and updates as whole vectors: starts of clients, their ends, and the exact sum of their updates.
 *
 * A client starts with one copy in wide order and ends with one addition in wide order: integers are added,
 * so the order of the elements does not matter. The conversion between wide and flat happens once per task,
 * through a table of places.
 */
#include <math.h>

#include "kernels/cpu/net.h"

#define LOW_BITS 20u /* a float holds these bits, and the rest, exactly */

/* Fills a wide vector with the numbers of its own places and converts it: this tells where flat elements come
 * from. It takes two passes, as a float has only 24 bits. `wide`: params that are not yet set; flat: n floats. */
static int number_places(struct mfl_net *net, enum mfl_cpu_home home, float *wide, uint64_t n_wide,
        float *flat, uint32_t *place, uint64_t n, struct mfl_error *err)
{
        for (uint64_t i = 0; i < n_wide; i++)
                wide[i] = (float)(i & ((1u << LOW_BITS) - 1));
        int rc = mfl_cpu_params_to_flat(net, home, wide, flat, err);
        if (rc)
                return rc;
        for (uint64_t i = 0; i < n; i++)
                place[i] = (uint32_t)flat[i];
        for (uint64_t i = 0; i < n_wide; i++)
                wide[i] = (float)(i >> LOW_BITS);
        rc = mfl_cpu_params_to_flat(net, home, wide, flat, err);
        for (uint64_t i = 0; !rc && i < n; i++)
                place[i] |= (uint32_t)flat[i] << LOW_BITS;
        memset(wide, 0, (size_t)n_wide * sizeof *wide);
        return rc;
}

int mfl_cpu_places_new(struct mfl_net *net, struct mfl_error *err)
{
        uint64_t n_moving = net->graph->n_moving, n_copied = net->n_placed - n_moving;
        size_t n = (size_t)MFL_MAX(n_moving, n_copied);
        if (net->n_wide > UINT32_MAX || net->n_copied > UINT32_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "the cpu backend supports at most 2^32 parameters, not %llu",
                        (unsigned long long)net->graph->n);
        MFL_CLEANUP_FREE float *flat = mfl_malloc(n * sizeof *flat + 1);
        net->place = mfl_malloc((size_t)net->n_placed * sizeof *net->place + 1);
        if (!flat || !net->place)
                return mfl_fail_memory(err, n * sizeof *net->place, "places of parameters");
        int rc = number_places(net, MFL_CPU_WIDE, net->params, net->n_wide, flat, net->place, n_moving, err);
        return rc ? rc
                  : number_places(net, MFL_CPU_COPIED, net->copies, net->n_copied, flat,
                            net->place + n_moving, n_copied, err);
}

/* Padding stays as it is. */
static void scatter(const struct mfl_net *net, const float *restrict moving, float *restrict wide)
{
        const uint32_t *restrict place = net->place;
        for (uint64_t i = 0, n = net->graph->n_moving; i < n; i++)
                wide[place[i]] = moving[i];
}

int mfl_cpu_params_base(struct mfl_net *net, const float *frozen, const float *moving, struct mfl_error *err)
{
        mfl_assert(net->options.training);
        mfl_assert(frozen || !net->graph->n_frozen);
        if (frozen)
                mfl_cpu_frozen_set(net, net->options.groups, frozen);
        scatter(net, moving, net->base);
        return 0;
}

/* Steps of a client that diverged may have left anything in the padding of params; starts have zeros there.
 */
int mfl_cpu_params_set(
        struct mfl_net *net, int group, const float *frozen, const float *moving, struct mfl_error *err)
{
        size_t at = (size_t)net->n_wide * (size_t)group, bytes = (size_t)net->n_wide * sizeof(float);
        mfl_assert(group >= 0 && group < net->options.groups);
        /* A start from the base has the base's frozen params too. */
        if (net->graph->n_frozen)
                mfl_cpu_frozen_set(net, group, moving ? frozen : NULL);
        mfl_assert(net->frozen[group].lent || !net->graph->n_frozen);
        if (!net->options.training) {
                scatter(net, moving, net->params + at);
                return 0;
        }
        mfl_assert(!moving || !net->options.shared_start);
        if (moving)
                scatter(net, moving, net->first + at);
        else if (!net->options.shared_start)
                memcpy(net->first + at, net->base, bytes);
        memcpy(net->params + at, mfl_cpu_first(net, group), bytes);
        if (net->momentum)
                memset(net->momentum + at, 0, bytes);
        if (net->second)
                memset(net->second + at, 0, bytes);
        if (net->corrected)
                net->corrected[group] = false;
        return 0;
}

int mfl_cpu_correction_set(struct mfl_net *net, int group, const float *moving, struct mfl_error *err)
{
        mfl_assert(net->correction && group >= 0 && group < net->options.groups);
        net->corrected[group] = moving != NULL;
        if (moving)
                scatter(net, moving, net->correction + net->n_wide * (uint64_t)group);
        return 0;
}

int mfl_cpu_params_get(
        struct mfl_net *net, int group, uint64_t first, float *restrict params, struct mfl_error *err)
{
        const float *restrict wide = net->params + net->n_wide * (uint64_t)group;
        const uint32_t *restrict place = net->place;
        uint64_t n_frozen = net->graph->n_frozen;
        mfl_assert(group >= 0 && group < net->options.groups);
        mfl_cpu_frozen_get(net, group, first, params);
        for (uint64_t i = MFL_MAX(first, n_frozen); i < net->graph->n; i++)
                params[i - first] = wide[place[i - n_frozen]];
        return 0;
}

static uint64_t count_bad(const struct mfl_net *net, int group, const struct mfl_fixed *fixed)
{
        const float *params = net->params + net->n_wide * (uint64_t)group, *first = mfl_cpu_first(net, group);
        const struct mfl_graph *graph = net->graph;
        const uint32_t *place = net->place;
        uint64_t n_bad = 0;
        for (uint64_t i = 0; i < graph->n_moving;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(fixed, &graph->statistics, i, graph->n_moving);
                for (; i < part.end; i++)
                        n_bad += !(fabsf(params[place[i]] - first[place[i]]) <= part.fixed.delta_max);
        }
        return n_bad;
}

/* Padding has no update, so it adds nothing, and it is in range wherever the rest is: what is not finite
 * reaches all of a layer's weights, through the gradient or the input. */
int mfl_cpu_sum_add(struct mfl_net *net, const struct mfl_fixed *fixed, const uint64_t *weight,
        uint64_t *n_bad, struct mfl_error *err)
{
        for (int g = 0; g < net->options.groups; g++) {
                n_bad[g] = 0;
                if (!weight[g])
                        continue;
                int rc = mfl_fixed_parts_add_delta(fixed, &net->statistics, 0, weight[g],
                        net->params + net->n_wide * (uint64_t)g, mfl_cpu_first(net, g), (size_t)net->n_wide,
                        net->sum, err);
                if (rc)
                        n_bad[g] = count_bad(net, g, fixed);
                if (rc && !n_bad[g])
                        return rc;
        }
        return 0;
}

static void take_range(const int64_t *restrict sum, const uint32_t *restrict place, uint64_t n, bool add,
        int64_t *restrict acc)
{
        for (uint64_t i = 0; add && i < n; i++)
                acc[i] += sum[place[i]];
        for (uint64_t i = 0; !add && i < n; i++)
                acc[i] = sum[place[i]];
}

int mfl_cpu_sum_take(
        struct mfl_net *net, int64_t *acc, bool add, struct mfl_comm_control *control, struct mfl_error *err)
{
        uint64_t n = net->graph->n_moving;
        for (uint64_t at = 0, count; acc && at < n; at += count) {
                count = MFL_MIN(MFL_SUM_RANGE, n - at);
                take_range(net->sum, net->place + at, count, add, acc + at);
                mfl_comm_advance(control, at + count);
        }
        memset(net->sum, 0, (size_t)net->n_wide * sizeof *net->sum);
        return 0;
}
