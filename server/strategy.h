/* SPDX-License-Identifier: Apache-2.0 */
/* How params(r + 1) comes from params(r) and the collected updates: one table of functions per algorithm, one
 * short file per algorithm (server/strategy_*.c, with the paper and the equation at its top).
 *
 * All of them see one number per element and round, the aggregate d: the weighted mean of the clients' deltas
 * (from exact sums, common/fixed.h), or what the strategy makes of the single updates (median). -d is what
 * the papers call the pseudo-gradient. Parameters that are not trained (running statistics of batch norm)
 * have no gradient for a server optimizer to follow: they become param + d whatever the strategy and its
 * learning rate, that is, the clients' weighted mean (median: their median), and their state stays.
 * Everything is elementwise, in double, in a fixed order, with one rounding to float per stored element, so
 * the result depends on nothing but its input. Strategy state are float vectors of the model's length; they
 * travel in checkpoints next to the params, so that a resumed job goes on with the same bits. Pure functions,
 * no allocation, any thread.
 */
#ifndef MFL_SERVER_STRATEGY_H
#define MFL_SERVER_STRATEGY_H

#include "common/job.h"

#define MFL_STRATEGY_STATES_MAX 2

struct mfl_strategy_ops {
        enum mfl_strategy_kind kind;
        const char *name; /* as in job files */
        int n_state;
        const char *state_name[MFL_STRATEGY_STATES_MAX]; /* "momentum", "variance", ...: part of checkpoint
                                                            tensors' names */
        bool needs_single_updates;

        /* The value that every element of state i has before the first round. NULL when n_state is 0. */
        float (*state_initial)(const struct mfl_job *job, int i);

        /* Only with needs_single_updates: d[e] from n_rows deltas rows[k][e], e in [0, count). scratch holds
         * n_rows floats. n_rows >= 1. */
        void (*reduce)(
                const float *const *rows, uint32_t n_rows, size_t count, float *scratch, double *ret_d);

        /* One range: params_out[e] from params_in[e], d[e] and state[i][e] (updated in place). params_out and
         * params_in do not overlap. Finiteness is checked by mfl_strategy_apply. */
        void (*apply)(const struct mfl_job *job, size_t count, const float *params_in, const double *d,
                float *const *state, float *params_out);
};

/* Never NULL for a valid kind. */
const struct mfl_strategy_ops *mfl_strategy_get(enum mfl_strategy_kind kind);

/* For params [first, first + count) of the graph's flat vector (graph NULL: all are trained): ops->apply on
 * those that are trained, params_out = params_in + d for the others. Then every new param and state element
 * is checked to be finite: else MFL_INVALID, with the element's number (first + e) in the text. */
int mfl_strategy_apply(const struct mfl_strategy_ops *ops, const struct mfl_job *job,
        const struct mfl_graph *graph, uint64_t first, size_t count, const float *params_in, const double *d,
        float *const *state, float *params_out, struct mfl_error *err);

extern const struct mfl_strategy_ops mfl_strategy_fedavg, mfl_strategy_fedprox, mfl_strategy_fedavgm,
        mfl_strategy_fedadagrad, mfl_strategy_fedadam, mfl_strategy_fedyogi, mfl_strategy_median;

#endif
