/* SPDX-License-Identifier: Apache-2.0 */
/* Rounding to bfloat16. */
#include "common/codec/bf16.h"

#include <math.h>

#include "common/base/rng.h"

float mfl_bf16_nearest(double x)
{
        /* Veltkamp's splitting (Dekker 1971, "A floating-point technique for extending the available precision"): 8 of 53 bits. */
        double c = x * (0x1p45 + 1), high = c - (c - x);
        if (fabs(high) < 0x1p-126)
                return 0;
        return (float)fmin(fmax(high, -(double)MFL_BF16_MAX), (double)MFL_BF16_MAX);
}

void mfl_bf16_feed(size_t n, float *v, float *rest)
{
        for (size_t i = 0; i < n; i++) {
                double whole = (double)v[i] + (double)rest[i];
                v[i] = mfl_bf16_nearest(whole);
                rest[i] = (float)(whole - (double)v[i]);
        }
}

/* The lower 16 bits, and a random number of 16 bits, carry into the upper ones together: up with the probability of where it lies
 * between its neighbours. */
static float round_up_or_down(float v, uint32_t random)
{
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        uint32_t exponent = bits >> 23 & 255;
        if (!(exponent == 254 && (bits & 0x7f0000) == 0x7f0000)) /* else there is no finite one above */
                bits += random >> 16;
        bits &= 0xffff0000u;
        if (bits == 0x80000000u)
                bits = 0;
        memcpy(&v, &bits, sizeof v);
        return v;
}

void mfl_bf16_round(
        const struct mfl_graph *graph, uint64_t seed, uint64_t client, uint32_t round, float *delta)
{
        struct mfl_rng_key key = mfl_rng_derive(seed, MFL_RNG_HALF, client, round);
        for (int t = graph->i_moving; t < graph->n_params; t++) {
                const struct mfl_param *param = &graph->params[t];
                uint64_t place = param->offset - graph->n_frozen;
                struct mfl_philox block = {{0}};
                for (uint64_t i = place; !mfl_param_is_statistics(param) && i < place + param->count; i++) {
                        if (i == place || i % 4 == 0)
                                block = mfl_rng_block(key, i / 4);
                        delta[i] = round_up_or_down(delta[i], block.v[i % 4]);
                }
        }
}
