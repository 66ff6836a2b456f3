/* SPDX-License-Identifier: Apache-2.0 */
/* A client's new row: what its method makes of its update, the part of its change that was not sent, or the word of its site. */
#include "server/runtime/states_internal.h"

#include <float.h>
#include <math.h>

#include "common/base/crc32c.h"

/* Running statistics are no gradients, and what is not personal is the job's. */
static void clear_others(const struct mfl_states *states, uint64_t first, size_t n, float *v)
{
        static const struct mfl_fixed apart = {.statistics_max = 1}; /* the parts count as such */
        for (uint64_t i = first, end = first + n; i < end;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(&apart, states->parts, i, end);
                if (part.statistics != states->method->starts && !states->method->models)
                        memset(v + (i - first), 0, (size_t)(part.end - i) * sizeof *v);
                i = part.end;
        }
}

/* The sum has a limit. What is not added to it needs only to be finite. */
static int check_range(const struct mfl_states *states, uint64_t client, const float *v, size_t n,
        uint64_t first, struct mfl_error *err)
{
        const float limit = states->sum ? (float)(1 << MFL_STATES_LIMIT_BITS) : FLT_MAX;
        for (size_t i = 0; i < n; i++)
                if (!(fabsf(v[i]) <= limit))
                        return mfl_fail(err, MFL_INVALID,
                                "the state of client %llu would have %g as its element %llu, and at most %g "
                                "can be "
                                "kept: its training diverges; a smaller training.lr may help",
                                (unsigned long long)client, (double)v[i], (unsigned long long)(first + i),
                                (double)limit);
        return 0;
}

/* A place for the client's new row. */
static int begin_row(
        struct mfl_states *states, uint64_t client, struct mfl_store_state *ret_row, struct mfl_error *err)
{
        mfl_states_drop_put(states);
        int r = mfl_states_reserve_one(&states->round_rows, err);
        if (r)
                return r;
        *ret_row = (struct mfl_store_state){
                .client = client, .round = states->round, .slot = mfl_states_take_place(states)};
        return 0;
}

static int write_fresh(struct mfl_states *states, struct mfl_store_state *row, uint64_t first, size_t n,
        struct mfl_error *err)
{
        int r = check_range(states, row->client, states->fresh, n, first, err);
        if (!r)
                r = mfl_states_write(states, row->slot, first, n, states->fresh, err);
        row->crc = mfl_crc32c(row->crc, states->fresh, n * sizeof(float));
        return r;
}

static int end_row(struct mfl_states *states, const struct mfl_store_state *row, bool anew, int r)
{
        if (r) {
                mfl_states_give_place(states, row->slot, NULL);
                return r;
        }
        states->put = *row;
        states->has_put = true;
        states->put_anew = anew;
        return 0;
}

int mfl_states_put(
        struct mfl_states *states, uint64_t client, uint64_t steps, const float *delta, struct mfl_error *err)
{
        const struct mfl_store_state *own = mfl_states_get(&states->index, client);
        const struct mfl_client_turn turn = {.round = states->round, .steps = steps};
        struct mfl_store_state row;
        int r = begin_row(states, client, &row, err);
        if (r)
                return r;
        for (uint64_t first = 0, n; first < states->n && !r; first += n) {
                n = mfl_states_range(states, first);
                mfl_states_mean(states, first, n, states->mean);
                r = mfl_states_own(states, own, first, n, states->own, err);
                if (r)
                        break;
                if (states->method->models || states->method->tells)
                        memcpy(states->fresh, delta + (states->n - states->method->n_own) + first,
                                n * sizeof *delta);
                else
                        states->method->remember(states->spec, &turn, n, states->mean, states->own,
                                delta + first, states->fresh);
                clear_others(states, first, n, states->fresh);
                r = write_fresh(states, &row, first, n, err);
        }
        return end_row(states, &row, false, r);
}

int mfl_states_put_rest(struct mfl_states *states, uint64_t client, const struct mfl_top_k *cut, float *u,
        struct mfl_error *err)
{
        struct mfl_store_state row;
        int r = begin_row(states, client, &row, err);
        if (r)
                return r;
        for (uint64_t first = 0, n; first < states->n && !r; first += n) {
                n = mfl_states_range(states, first);
                mfl_top_k_split(cut, first, n, u + first, states->fresh);
                r = write_fresh(states, &row, first, n, err);
        }
        return end_row(states, &row, false, r);
}

int mfl_states_put_site(
        struct mfl_states *states, uint64_t client, const struct mfl_site_state *state, struct mfl_error *err)
{
        struct mfl_store_state row;
        int r = begin_row(states, client, &row, err);
        if (r)
                return r;
        row.at_site = true;
        memcpy(row.sha256, state->digest, sizeof row.sha256);
        return end_row(states, &row, state->anew, 0);
}

void mfl_states_keep(struct mfl_states *states)
{
        mfl_assert(states->has_put);
        const struct mfl_store_state *before = mfl_states_get(&states->round_rows, states->put.client);
        uint32_t old = before ? before->slot : MFL_STORE_STATE_LOST;
        int r = mfl_states_set(&states->round_rows, &states->put, NULL); /* put has made room */
        mfl_assert(!r);
        if (before)
                mfl_states_give_place(states, old, NULL);
        states->has_put = false;
        states->n_anew += states->put_anew;
}
