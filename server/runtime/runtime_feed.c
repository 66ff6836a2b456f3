/* SPDX-License-Identifier: Apache-2.0 */
/* compression.up.top_k: what a client sends of its change is added to the sums, and the rest is kept for its next turn. With client_state
 * daemon its site has done that, and only the sums are left to do. */
#include "server/runtime/runtime_internal.h"

#include "common/codec/top_k.h"

static bool feeds_here(const struct mfl_job *spec)
{
        return mfl_method_get(spec)->feeds && spec->client_state == MFL_CLIENT_STATE_SERVER;
}

uint64_t mfl_feed_bytes(const struct mfl_job *spec, uint64_t n)
{
        return feeds_here(spec) ? n * sizeof(float) : 0;
}

int mfl_feed_open(struct mfl_runtime *rt, struct mfl_error *err)
{
        uint64_t bytes = mfl_feed_bytes(rt->spec, rt->n);
        rt->fed = bytes ? mfl_alloc_aligned(bytes) : NULL;
        if (bytes && !rt->fed)
                return mfl_fail_memory(err, bytes, "a client's change");
        if (bytes)
                memset(rt->fed, 0, bytes);
        return 0;
}

/* The client's change and what it had not sent before. */
static int feed(struct mfl_runtime *rt, uint64_t client, const float *delta, struct mfl_error *err)
{
        int r = mfl_fixed_parts_check(&rt->fixed, &rt->graph->statistics, delta, (size_t)rt->n, err);
        memcpy(rt->fed, delta, rt->n * sizeof *delta);
        float *rest = r ? NULL : mfl_malloc(RANGE_ELEMENTS * sizeof *rest);
        if (!r && !rest)
                return mfl_fail_memory(err, RANGE_ELEMENTS * sizeof *rest, "a client's state");
        for (uint64_t first = 0; first < rt->n && !r; first += RANGE_ELEMENTS) {
                size_t n = MFL_MIN(rt->n - first, (uint64_t)RANGE_ELEMENTS);
                r = mfl_states_read(rt->states, client, false, first, n, rest, err);
                if (!r)
                        mfl_top_k_feed(&rt->graph->statistics, first, n, rest, rt->fed + first);
        }
        free(rest);
        return r;
}

int mfl_feed_put(struct mfl_runtime *rt, uint64_t client, const float *delta, struct mfl_error *err)
{
        struct mfl_top_k cut;
        int r = feed(rt, client, delta, err);
        if (r)
                return r;
        mfl_top_k_find(&rt->graph->statistics, rt->spec->compression.top_k, rt->fixed.delta_max,
                (size_t)rt->n, rt->fed, &cut);
        return mfl_states_put_rest(rt->states, client, &cut, rt->fed, err);
}

/* ---- client_state daemon ---- */

int mfl_sites_note(const struct mfl_runtime *rt, struct mfl_params *params, struct mfl_error *err)
{
        bool kept = rt->states && rt->spec->client_state == MFL_CLIENT_STATE_DAEMON;
        return kept ? mfl_states_list(rt->states, &params->sites, err) : 0;
}

const uint8_t *mfl_params_site_state(const struct mfl_params *params, uint64_t client)
{
        const struct mfl_states_list list = {.n = params->sites.n, .v = params->sites.v};
        const struct mfl_store_state *row = mfl_states_get(&list, client);
        return row && row->at_site ? row->sha256 : NULL;
}
