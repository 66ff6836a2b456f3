/* SPDX-License-Identifier: Apache-2.0 */
/* Federated averaging: McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-Efficient Learning of
 * Deep Networks from Decentralized Data", AISTATS 2017, algorithm 1:
 *
 *      w(t+1) = sum_k (n_k / m) w_k(t+1)
 *             = w(t) + d,                    d = sum_k (n_k / m) delta_k
 *
 * With a server learning rate (Reddi et al. 2021, algorithm 1 with SGD as the server's optimizer) it becomes
 * w(t+1) = w(t) + eta d. FedProx (Li et al.: "Federated Optimization in Heterogeneous Networks", MLSys 2020,
 * algorithm 2) is the same on the server: clients add its proximal term (mu/2) |w - w(t)|^2. FedNova and q-FedAvg
 * (common/method/fednova.c, qfedavg.c) weigh clients otherwise, and d has a factor that follows from that.
 */
#include "server/strategy/strategy.h"

static void apply(const struct mfl_job *job, const struct mfl_strategy_round *round, size_t count,
        const float *params_in, const double *d, float *const *state, float *params_out)
{
        double eta = (double)job->aggregation.server_lr * round->step;
        for (size_t e = 0; e < count; e++)
                params_out[e] = (float)((double)params_in[e] + eta * d[e]);
}

const struct mfl_strategy_ops mfl_strategy_fedavg = {
        .kind = MFL_STRATEGY_FEDAVG,
        .name = "fedavg",
        .apply = apply,
};

const struct mfl_strategy_ops mfl_strategy_fednova = {
        .kind = MFL_STRATEGY_FEDNOVA,
        .name = "fednova",
        .apply = apply,
};

const struct mfl_strategy_ops mfl_strategy_qfedavg = {
        .kind = MFL_STRATEGY_QFEDAVG,
        .name = "qfedavg",
        .apply = apply,
};

/* The clients' states, and what feddyn adds to d, are common/method/scaffold.c's and feddyn.c's. */
const struct mfl_strategy_ops mfl_strategy_scaffold = {
        .kind = MFL_STRATEGY_SCAFFOLD,
        .name = "scaffold",
        .apply = apply,
};

const struct mfl_strategy_ops mfl_strategy_feddyn = {
        .kind = MFL_STRATEGY_FEDDYN,
        .name = "feddyn",
        .apply = apply,
};

/* What clients' own models are is common/method/ditto.c's, pfedme.c's and apfl.c's. */
const struct mfl_strategy_ops mfl_strategy_apfl = {
        .kind = MFL_STRATEGY_APFL,
        .name = "apfl",
        .apply = apply,
};

const struct mfl_strategy_ops mfl_strategy_ditto = {
        .kind = MFL_STRATEGY_DITTO,
        .name = "ditto",
        .apply = apply,
};

const struct mfl_strategy_ops mfl_strategy_pfedme = {
        .kind = MFL_STRATEGY_PFEDME,
        .name = "pfedme",
        .apply = apply,
};

/* The clients' weights, and the share of a client's model, are common/method/stale.c's. */
const struct mfl_strategy_ops mfl_strategy_fedbuff = {
        .kind = MFL_STRATEGY_FEDBUFF,
        .name = "fedbuff",
        .apply = apply,
};

const struct mfl_strategy_ops mfl_strategy_fedasync = {
        .kind = MFL_STRATEGY_FEDASYNC,
        .name = "fedasync",
        .apply = apply,
};

const struct mfl_strategy_ops mfl_strategy_fedprox = {
        .kind = MFL_STRATEGY_FEDPROX,
        .name = "fedprox",
        .apply = apply,
};
