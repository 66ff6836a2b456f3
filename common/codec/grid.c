/* SPDX-License-Identifier: Apache-2.0 */
/* Grids: their steps, and rounding to them. */
#include "common/codec/grid.h"

#include <math.h>

#include "common/base/rng.h"

int mfl_grid_exponent(int bits, double largest)
{
        int e;
        if (!(largest > 0))
                return MFL_GRID_EXACT;
        /* largest = m * 2^e with m in [1/2, 1): the next power of two is 2^e, or itself. */
        double m = frexp(4 * largest, &e);
        e -= m == 0.5;
        e -= bits - 1;
        return MFL_MAX(MFL_GRID_LEAST, MFL_MIN(e, 127));
}

/* The first moving tensor that ends behind element `at` of the moving vector. */
static int tensor_at(const struct mfl_graph *graph, uint64_t at)
{
        int low = graph->i_moving, high = graph->n_params - 1;
        while (low < high) {
                int middle = low + (high - low) / 2;
                const struct mfl_param *param = &graph->params[middle];
                if (param->offset - graph->n_frozen + param->count > at)
                        high = middle;
                else
                        low = middle + 1;
        }
        return low;
}

void mfl_grid_measure(
        const struct mfl_graph *graph, uint64_t first, size_t count, const double *d, double *largest)
{
        uint64_t at = first, end = first + count;
        for (int t = tensor_at(graph, first); at < end; t++) {
                const struct mfl_param *param = &graph->params[t];
                uint64_t stop = MFL_MIN(end, param->offset - graph->n_frozen + param->count);
                double most = 0;
                for (; at < stop; at++)
                        most = fmax(most, fabs(d[at - first]));
                double *own = &largest[t - graph->i_moving];
                *own = fmax(*own, most);
        }
}

/* Element i takes number i of the stream. */
static uint64_t round_tensor(
        float *v, uint64_t count, uint64_t place, int bits, int exponent, struct mfl_rng_key key)
{
        const double up = ldexp(1, -exponent), down = ldexp(1, exponent);
        /* The largest number of so many bits that is a float, too. */
        const double most = ldexp(1, bits - 1) - ldexp(1, MFL_MAX(0, bits - 25));
        struct mfl_philox block = {{0}};
        uint64_t n_beyond = 0;
        for (uint64_t i = 0; i < count; i++) {
                uint64_t number = place + i;
                if (i == 0 || number % 4 == 0)
                        block = mfl_rng_block(key, number / 4);
                double x = (double)v[i] * up, whole = floor(x);
                whole += (double)block.v[number % 4] * 0x1p-32 < x - whole;
                n_beyond += fabs(whole) > most;
                whole = fmin(fmax(whole, -most), most);
                v[i] = (float)(whole * down);
        }
        return n_beyond;
}

uint64_t mfl_grid_round(const struct mfl_graph *graph, int bits, const int32_t *exponent, uint64_t seed,
        uint64_t client, uint32_t round, float *delta)
{
        struct mfl_rng_key key = mfl_rng_derive(seed, MFL_RNG_GRID, client, round);
        uint64_t n_beyond = 0;
        for (int t = graph->i_moving; t < graph->n_params; t++) {
                const struct mfl_param *param = &graph->params[t];
                uint64_t place = param->offset - graph->n_frozen;
                int e = exponent[t - graph->i_moving];
                if (e != MFL_GRID_EXACT && !mfl_param_is_statistics(param))
                        n_beyond += round_tensor(delta + place, param->count, place, bits, e, key);
        }
        return n_beyond;
}
