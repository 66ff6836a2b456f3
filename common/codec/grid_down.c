/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of params, and what they leave. */
#include "common/codec/grid_down.h"

#include <math.h>

static double wanted_at(const struct mfl_grid_down *down, size_t i)
{
        return (double)down->v[i] + (double)down->rest[i];
}

static float after_of(float before, float step)
{
        return (float)((double)before + (double)step);
}

void mfl_grid_down_measure(const struct mfl_graph *graph, uint64_t first, size_t count,
        const struct mfl_grid_down *down, double *scratch, double *largest)
{
        for (size_t i = 0; i < count; i++)
                scratch[i] = wanted_at(down, i) - (double)down->before[i];
        mfl_grid_measure(graph, first, count, scratch, largest);
}

/* Elements [from, to) of the arrays, of one tensor. exponent: MFL_GRID_EXACT: not rounded. */
static void round_piece(const struct mfl_grid_down *down, size_t from, size_t to, int bits, int exponent)
{
        bool exact = exponent == MFL_GRID_EXACT;
        const double up = exact ? 1 : ldexp(1, -exponent), unit = exact ? 1 : ldexp(1, exponent);
        const double most = ldexp(1, bits - 1) - 1;
        for (size_t i = from; i < to; i++) {
                double wanted = wanted_at(down, i), step = wanted - (double)down->before[i];
                if (!exact)
                        step = fmin(fmax(nearbyint(step * up), -most), most) * unit;
                down->step[i] = (float)(step + 0.0); /* -0 becomes 0, which packs */
                down->v[i] = after_of(down->before[i], down->step[i]);
                down->rest[i] = (float)(wanted - (double)down->v[i]);
        }
}

void mfl_grid_down_round(const struct mfl_graph *graph, int bits, const double *largest, uint64_t first,
        size_t count, const struct mfl_grid_down *down)
{
        uint64_t end = first + count;
        for (int t = graph->i_moving; t < graph->n_params; t++) {
                const struct mfl_param *param = &graph->params[t];
                uint64_t place = param->offset - graph->n_frozen, from = MFL_MAX(first, place),
                         to = MFL_MIN(end, place + param->count);
                /* mfl_grid_exponent gives room for four times as much as it is told. */
                int exponent = mfl_param_is_statistics(param)
                                       ? MFL_GRID_EXACT
                                       : mfl_grid_exponent(bits, largest[t - graph->i_moving] / 4);
                if (from < to)
                        round_piece(down, (size_t)(from - first), (size_t)(to - first), bits, exponent);
        }
}

void mfl_grid_down_add(size_t n, const float *before, float *step)
{
        for (size_t i = 0; i < n; i++)
                step[i] = after_of(before[i], step[i]);
}
