/* SPDX-License-Identifier: Apache-2.0 */
/* What a job's runtime gives away of its clients' states. */
#include "server/runtime/runtime_internal.h"

int mfl_runtime_correction(struct mfl_runtime *rt, const uint8_t digest[MFL_DIGEST_BYTES], uint64_t client,
        struct mfl_params **ret_correction, struct mfl_error *err)
{
        struct mfl_params *correction;
        float *v;
        if (!rt->states || memcmp(rt->pool->current->digest, digest, MFL_DIGEST_BYTES))
                return mfl_fail(err, MFL_NOT_FOUND, "job %s: no such state", rt->job);
        int r = mfl_params_alone(rt->budget, rt->n, digest, &v, &correction, err);
        if (r)
                return r;
        r = mfl_states_correction(rt->states, client, v, err);
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
