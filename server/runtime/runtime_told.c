/* SPDX-License-Identifier: Apache-2.0 */
/* The second vector of clients' updates, where the strategy gets the round's weighted mean of them (common/method/method.h, `tells`): an
 * exact sum, as that of the deltas. An element counts as round(weight * v * 2^s), |v| <= 2^10, and s is such that the largest weight
 * of a round fits. A client with a larger element counts with neither vector. */
#include "server/runtime/runtime_internal.h"

#include <math.h>

#define LIMIT_BITS 10

/* The others keep it as clients' states. */
static bool has_sum(const struct mfl_job *spec)
{
        return mfl_method_get(spec)->tells && !mfl_job_keeps_state(spec);
}

uint64_t mfl_told_bytes(const struct mfl_job *spec, uint64_t n)
{
        return has_sum(spec) ? n * sizeof(int64_t) : 0;
}

int mfl_told_open(struct mfl_runtime *rt, struct mfl_error *err)
{
        uint64_t most = rt->fixed.weight_max;
        if (!has_sum(rt->spec))
                return 0;
        rt->told = mfl_alloc_aligned(rt->n * sizeof *rt->told);
        rt->told_mean = mfl_calloc(RANGE_ELEMENTS, sizeof *rt->told_mean);
        if (!rt->told || !rt->told_mean)
                return mfl_fail_memory(err, rt->n * sizeof *rt->told, "clients' gradients");
        rt->told_unit = ldexp(1, 62 - LIMIT_BITS - (most <= 1 ? 0 : 64 - __builtin_clzll(most - 1)));
        mfl_told_clear(rt);
        return 0;
}

void mfl_told_clear(struct mfl_runtime *rt)
{
        if (rt->told)
                memset(rt->told, 0, rt->n * sizeof *rt->told);
}

int mfl_told_check(const struct mfl_runtime *rt, const float *update, struct mfl_error *err)
{
        const float *v = update + rt->n, limit = 1 << LIMIT_BITS;
        for (uint64_t i = 0; rt->told && i < rt->n; i++)
                if (!(fabsf(v[i]) <= limit))
                        return mfl_fail(err, MFL_INVALID,
                                "its gradient has %g as element %llu, and at most %g can be added: its "
                                "training diverges; a smaller training.lr may help, or scaled data",
                                (double)v[i], (unsigned long long)i, (double)limit);
        return 0;
}

void mfl_told_add(struct mfl_runtime *rt, uint64_t weight, const float *update)
{
        const float *v = update + rt->n;
        for (uint64_t i = 0; rt->told && i < rt->n; i++)
                rt->told[i] += (int64_t)mfl_fixed_round((double)weight * (double)v[i] * rt->told_unit);
}

const double *mfl_told_mean(struct mfl_runtime *rt, uint64_t begin, size_t count, uint64_t weight)
{
        double factor = 1 / rt->told_unit;
        for (size_t e = 0; rt->told && e < count; e++)
                rt->told_mean[e] = weight ? (double)rt->told[begin + e] / (double)weight * factor : 0;
        return rt->told ? rt->told_mean : NULL;
}

/* mfl_fixed_mean, with the factor 2^-s made once: it is exact, and no result comes near to underflow. */
void mfl_runtime_mean(
        struct mfl_runtime *rt, const int64_t *sums, uint64_t begin, size_t count, double divisor)
{
        for (uint64_t at = begin; at < begin + count;) {
                struct mfl_fixed_part part =
                        mfl_fixed_part_at(&rt->fixed, &rt->graph->statistics, at, begin + count);
                double factor = ldexp(1.0, -part.fixed.scale_bits);
                for (; at < part.end; at++)
                        rt->d[at - begin] = (double)sums[at - begin] / divisor * factor;
        }
}
