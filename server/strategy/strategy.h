/* SPDX-License-Identifier: Apache-2.0 */
/* Strategies: how params(r + 1) follow from params(r) and the collected updates. One table of functions
 * and one short file per algorithm (server/strategy/strategy_*.c), with the paper and the equation at its
 * top.
 *
 * A strategy sees one number per element and round, the aggregate d: the weighted mean of the clients'
 * deltas from exact sums (common/base/fixed.h), or what a robust rule makes of the single updates (server/robust).
 * The papers call -d the pseudo-gradient. Parameters that are not trained (running statistics of batch
 * norm) have no gradient that a server optimizer could follow. With every strategy and learning rate they
 * become param + d: the clients' weighted mean (for median, their median); their state stays the same.
 *
 * All arithmetic is elementwise, in double, in a fixed order, with one rounding to float per stored
 * element, so the result depends only on the input. The state of a strategy is a set of float vectors of
 * the model's length. Checkpoints contain it beside the params, so a resumed job goes on with the same
 * bits. Pure functions, no allocation, any thread.
 */
#ifndef MFL_SERVER_STRATEGY_STRATEGY_H
#define MFL_SERVER_STRATEGY_STRATEGY_H

#include "common/job/job.h"

#define MFL_STRATEGY_STATES_MAX 2

/* The round that is applied. */
struct mfl_strategy_round {
        uint32_t number; /* from 1 on */
        double step; /* factor of d that follows from the round's scalars (common/method/method.h); 1 with most strategies */
        const double *
                told; /* of the range: the weighted mean of what clients tell beside their deltas; NULL: they don't */
};

struct mfl_strategy_ops {
        enum mfl_strategy_kind kind;
        const char *name; /* as in job files */
        int n_state;
        const char *state_name[MFL_STRATEGY_STATES_MAX]; /* "momentum", "variance", ...: part of checkpoint
                                                            tensors' names */

        /* The value of every element of state i before the first round. NULL if n_state is 0. */
        float (*state_initial)(const struct mfl_job *job, int i);

        /* Computes one range: params_out[e] from params_in[e], d[e] and state[i][e], which is updated in
         * place. params_out and params_in do not overlap. mfl_strategy_apply checks that the results are
         * finite. */
        void (*apply)(const struct mfl_job *job, const struct mfl_strategy_round *round, size_t count,
                const float *params_in, const double *d, float *const *state, float *params_out);
};

/* Never NULL for a valid kind. */
const struct mfl_strategy_ops *mfl_strategy_get(enum mfl_strategy_kind kind);

/* Of the job: the table's, or its plug-in's once it is resolved. */
const struct mfl_strategy_ops *mfl_strategy_of(const struct mfl_job *job);

/* Computes params [first, first + count) of the graph's flat vector: ops->apply for those that are trained
 * (all, if graph is NULL), params_in + d for the others. MFL_INVALID: a new param or state element is not
 * finite; the text tells its position, first + e. */
int mfl_strategy_apply(const struct mfl_strategy_ops *ops, const struct mfl_job *job,
        const struct mfl_strategy_round *round, const struct mfl_graph *graph, uint64_t first, size_t count,
        const float *params_in, const double *d, float *const *state, float *params_out,
        struct mfl_error *err);

extern const struct mfl_strategy_ops mfl_strategy_fedavg, mfl_strategy_fedprox, mfl_strategy_fedavgm,
        mfl_strategy_fedadagrad, mfl_strategy_fedadam, mfl_strategy_fedyogi, mfl_strategy_median,
        mfl_strategy_fednova, mfl_strategy_qfedavg, mfl_strategy_scaffold, mfl_strategy_feddyn,
        mfl_strategy_ditto, mfl_strategy_pfedme, mfl_strategy_trimmed_mean, mfl_strategy_mean_around_median,
        mfl_strategy_krum, mfl_strategy_multi_krum, mfl_strategy_bulyan, mfl_strategy_rfa,
        mfl_strategy_centered_clip, mfl_strategy_norm_filter, mfl_strategy_dnc, mfl_strategy_signguard,
        mfl_strategy_flame, mfl_strategy_foolsgold, mfl_strategy_fltrust, mfl_strategy_fedbuff,
        mfl_strategy_fedasync, mfl_strategy_mimelite, mfl_strategy_mime, mfl_strategy_apfl;

#endif
