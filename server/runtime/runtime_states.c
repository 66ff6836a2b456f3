/* SPDX-License-Identifier: Apache-2.0 */
/* A job's clients' states, as its runtime uses them. */
#include "server/runtime/runtime_internal.h"

int mfl_runtime_open_states(
        struct mfl_runtime *rt, const struct mfl_runtime_options *options, struct mfl_error *err)
{
        static const struct mfl_store_states none;
        const struct mfl_states_options states = {.path = options->states_path,
                .spec = rt->spec,
                .statistics = &rt->graph->statistics,
                .personal = &rt->graph->personal,
                .n = rt->spec->client_state == MFL_CLIENT_STATE_DAEMON
                             ? 0
                             : mfl_method_state_floats(rt->spec, rt->n),
                .population = options->population,
                .known = options->states ? options->states : &none};
        return mfl_job_keeps_state(rt->spec) ? mfl_states_open(&states, &rt->states, err) : 0;
}

_Static_assert(RANGE_ELEMENTS <= MFL_STATES_RANGE, "a range of states is at least as long");

/* What stays with the clients does not move. */
static void hold_personal(struct mfl_runtime *rt, uint64_t begin, size_t count)
{
        static const struct mfl_fixed apart = {.statistics_max = 1}; /* the parts count as such */
        for (uint64_t i = begin, end = begin + count; i < end;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(&apart, &rt->graph->personal, i, end);
                for (; i < part.end; i++)
                        rt->d[i - begin] = part.statistics ? 0 : rt->d[i - begin];
        }
}

int mfl_runtime_advance_states(
        struct mfl_runtime *rt, uint64_t begin, size_t count, uint64_t weight, struct mfl_error *err)
{
        const double *mean;
        int r = rt->states ? mfl_states_advance(rt->states, begin, count, &mean, err) : 0;
        for (size_t e = 0; rt->states && !r && weight && rt->method->shift && e < count; e++)
                rt->d[e] += rt->method->shift(rt->spec, mean[e]);
        if (!r && rt->method->starts)
                hold_personal(rt, begin, count);
        return r;
}

int mfl_runtime_correction(struct mfl_runtime *rt, const uint8_t digest[MFL_DIGEST_BYTES], uint64_t client,
        struct mfl_params **ret_correction, struct mfl_error *err)
{
        struct mfl_params *correction;
        float *v;
        if ((!rt->states && !rt->method->guide) ||
                memcmp(rt->pool->current->digest, digest, MFL_DIGEST_BYTES))
                return mfl_fail(err, MFL_NOT_FOUND, "job %s: no such state", rt->job);
        uint64_t n = rt->states ? mfl_method_state_floats(rt->spec, rt->n) : rt->n;
        int r = mfl_params_alone(rt->budget, n, digest, &v, &correction, err);
        if (r)
                return r;
        if (rt->method->guide)
                rt->method->guide(rt->spec, rt->n, (const float *const *)rt->state, v);
        else
                r = mfl_states_correction(rt->states, client, rt->pool->current->v, v, err);
        if (r)
                mfl_params_unref(correction);
        else
                *ret_correction = correction;
        return r;
}

struct mfl_states *mfl_runtime_states(struct mfl_runtime *rt)
{
        return rt->states;
}

bool mfl_runtime_corrects(const struct mfl_runtime *rt)
{
        return rt->states || rt->method->guide;
}
