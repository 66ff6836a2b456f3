/* SPDX-License-Identifier: Apache-2.0 */
/* What rows say of earlier rounds: the clients' states (states.h) of jobs that keep a history (common/method/history.c). Unlike
 * those of other strategies, the round's states are made when the round is decided, from the rows as an attack has left
 * them. Fails when a state can't be stored. */
#include "server/runtime/runtime_internal.h"

static int keep_row(struct mfl_runtime *rt, uint32_t row, struct mfl_error *err)
{
        int r = mfl_states_put(
                rt->states, mfl_spill_item(rt->spill, row), 0, mfl_spill_row(rt->spill, row), err);
        if (!r)
                mfl_states_keep(rt->states);
        return r;
}

static int read_row(struct mfl_runtime *rt, uint32_t row, struct mfl_error *err)
{
        uint64_t item = mfl_spill_item(rt->spill, row);
        float *to = mfl_spill_row(rt->history, row);
        int r = 0;
        for (uint64_t at = 0; at < rt->n && !r; at += RANGE_ELEMENTS) {
                size_t n = MFL_MIN(rt->n - at, (uint64_t)RANGE_ELEMENTS);
                r = mfl_states_read(rt->states, item, true, at, n, to + at, err);
        }
        return r;
}

int mfl_history_make(struct mfl_runtime *rt, struct mfl_error *err)
{
        uint32_t n = mfl_spill_rows(rt->spill);
        int r = 0;
        mfl_spill_clear(rt->history);
        for (uint32_t i = 0; i < n && !r; i++) {
                r = keep_row(rt, i, err);
                if (!r) /* takes the row's place; its contents come next */
                        r = mfl_spill_put(rt->history, mfl_spill_item(rt->spill, i), 0,
                                mfl_spill_row(rt->spill, i), err);
                if (!r)
                        r = read_row(rt, i, err);
                mfl_spill_release_rows(rt->spill, &i, 1, 0, rt->n);
                if (!r)
                        mfl_spill_release_rows(rt->history, &i, 1, 0, rt->n);
        }
        return r;
}

int mfl_history_replay(struct mfl_runtime *rt, uint32_t row, struct mfl_error *err)
{
        uint64_t item = mfl_spill_item(rt->spill, row);
        float *to = mfl_spill_row(rt->spill, row);
        int r = keep_row(rt, row, err);
        for (uint64_t at = 0; at < rt->n && !r;) { /* running statistics stay its own */
                struct mfl_fixed_part part = mfl_fixed_part_at(
                        &rt->fixed, &rt->graph->statistics, at, MFL_MIN(rt->n, at + RANGE_ELEMENTS));
                if (!part.statistics)
                        r = mfl_states_read(rt->states, item, false, at, part.end - at, to + at, err);
                at = part.end;
        }
        mfl_spill_release_rows(rt->spill, &row, 1, 0, rt->n);
        return r;
}
