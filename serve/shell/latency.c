/* SPDX-License-Identifier: Apache-2.0 */
/* How long requests take: for Prometheus by buckets, and for people as quantiles. */
#include "serve/shell/latency.h"

#include <math.h>

/* Microseconds. */
const uint64_t mfl_latency_bounds[MFL_LATENCY_BUCKETS] = {100, 250, 500, 1000, 2000, 3000, 5000, 7500, 10000,
        20000, 30000, 50000, 100000, 250000, 1000000, 10000000};

void mfl_latency_add(struct mfl_latency *latency, uint64_t us)
{
        size_t i = 0;
        while (i < MFL_LATENCY_BUCKETS && us > mfl_latency_bounds[i])
                i++;
        latency->bucket[i]++;
        latency->sum_us += us;
        latency->n++;
        latency->n_steps++;
        /* The position of the highest bit, and the two below it. */
        const int bit = us ? 63 - __builtin_clzll(us) : 0;
        const uint64_t two = bit < 2 ? us << (2 - bit) : us >> (bit - 2);
        latency->step[MFL_MIN(bit * 4 + (int)(two & 3), MFL_LATENCY_STEPS - 1)]++;
}

static uint64_t quantile(const struct mfl_latency *latency, double share)
{
        const double rank = ceil(share * latency->n_steps);
        uint64_t n = 0;
        for (uint32_t i = 0; i < MFL_LATENCY_STEPS; i++) {
                n += latency->step[i];
                if (n && (double)n >= rank)
                        return ((uint64_t)(5 + i % 4) << (i / 4)) / 4; /* the step's end */
        }
        return 0;
}

void mfl_latency_take(struct mfl_latency *latency, uint64_t *ret_p50_us, uint64_t *ret_p99_us)
{
        if (latency->n_steps) {
                latency->p50_us = quantile(latency, 0.5);
                latency->p99_us = quantile(latency, 0.99);
        }
        *ret_p50_us = latency->p50_us;
        *ret_p99_us = latency->p99_us;
        memset(latency->step, 0, sizeof latency->step);
        latency->n_steps = 0;
}
