/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and updates as whole vectors: starts of clients, their ends, and the exact sum of their updates.
 *
 * A client starts with one copy in wide order and ends with one addition in wide order: integers are added,
 * so the order of the elements does not matter. The conversion between wide and flat happens once per task.
 */
#include <math.h>

#include "kernels/cpu/net.h"

/* Padding stays as it is. */
static void scatter(const struct mfl_net *net, const float *restrict moving, float *restrict wide)
{
        struct mfl_cpu_places places = mfl_cpu_places_from(net, 0);
        uint32_t place[MFL_CPU_PLACES], count;
        for (uint64_t at = 0, n = net->graph->n_moving; at < n; at += count) {
                count = (uint32_t)MFL_MIN(MFL_CPU_PLACES, n - at);
                mfl_cpu_places_next(&places, count, place);
                for (uint32_t i = 0; i < count; i++)
                        wide[place[i]] = moving[at + i];
        }
}

int mfl_cpu_params_base(struct mfl_net *net, const float *frozen, const float *moving, struct mfl_error *err)
{
        mfl_assert(net->options.training && !net->options.worker);
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
                mfl_cpu_frozen_set(net, group, moving || net->options.lent ? frozen : NULL);
        mfl_assert(net->frozen[group].lent || !net->graph->n_frozen);
        if (net->options.lent && !moving)
                return 0;
        mfl_assert(net->params);
        if (!net->options.training || net->options.worker) {
                memset(net->params + at, 0, net->options.worker ? bytes : 0);
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
        uint64_t n_frozen = net->graph->n_frozen, from = MFL_MAX(first, n_frozen);
        struct mfl_cpu_places places = mfl_cpu_places_from(net, from - n_frozen);
        uint32_t place[MFL_CPU_PLACES], count;
        mfl_assert(group >= 0 && group < net->options.groups);
        mfl_cpu_frozen_get(net, group, first, params);
        for (uint64_t at = from; at < net->graph->n; at += count) {
                count = (uint32_t)MFL_MIN(MFL_CPU_PLACES, net->graph->n - at);
                mfl_cpu_places_next(&places, count, place);
                for (uint32_t i = 0; i < count; i++)
                        params[at - first + i] = wide[place[i]];
        }
        return 0;
}

static uint64_t count_bad(const struct mfl_net *net, int group, const struct mfl_fixed *fixed)
{
        const float *params = net->params + net->n_wide * (uint64_t)group, *first = mfl_cpu_first(net, group);
        const struct mfl_graph *graph = net->graph;
        struct mfl_cpu_places places = mfl_cpu_places_from(net, 0);
        uint64_t n_bad = 0;
        for (uint64_t i = 0; i < graph->n_moving;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(fixed, &graph->statistics, i, graph->n_moving);
                for (uint32_t place; i < part.end; i++) {
                        mfl_cpu_places_next(&places, 1, &place);
                        n_bad += !(fabsf(params[place] - first[place]) <= part.fixed.delta_max);
                }
        }
        return n_bad;
}

/* Padding has no update, so it adds nothing, and it is in range wherever the rest is: what is not finite
 * reaches all of a layer's weights, through the gradient or the input. */
int mfl_cpu_sum_add(struct mfl_net *net, const struct mfl_fixed *fixed, const uint64_t *weight,
        uint64_t *n_bad, struct mfl_error *err)
{
        mfl_assert(!net->options.worker);
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

static void take_range(struct mfl_cpu_places *places, uint64_t n, bool add, int64_t *restrict acc)
{
        const int64_t *restrict sum = places->net->sum;
        uint32_t place[MFL_CPU_PLACES], count;
        for (uint64_t at = 0; at < n; at += count) {
                count = (uint32_t)MFL_MIN(MFL_CPU_PLACES, n - at);
                mfl_cpu_places_next(places, count, place);
                for (uint32_t i = 0; i < count; i++)
                        acc[at + i] = add ? acc[at + i] + sum[place[i]] : sum[place[i]];
        }
}

int mfl_cpu_sum_take(
        struct mfl_net *net, int64_t *acc, bool add, struct mfl_comm_control *control, struct mfl_error *err)
{
        uint64_t n = net->graph->n_moving;
        struct mfl_cpu_places places = mfl_cpu_places_from(net, 0);
        for (uint64_t at = 0, count; acc && at < n; at += count) {
                count = MFL_MIN(MFL_SUM_RANGE, n - at);
                take_range(&places, count, add, acc + at);
                mfl_comm_advance(control, at + count);
        }
        memset(net->sum, 0, (size_t)net->n_wide * sizeof *net->sum);
        return 0;
}
