/* SPDX-License-Identifier: Apache-2.0 */
/* Federated averaging with server momentum: Hsu, Qi, Brown: "Measuring the Effects of Non-Identical Data
 * Distribution for Federated Visual Classification", 2019, section 4.3 (FedAvgM). With dw = w(t) - mean of
 * the clients = -d:
 *
 *      v <- beta v + dw,   w <- w - v
 *
 * Here v has the opposite sign, and the server's learning rate eta scales the step:
 *
 *      v <- beta v + d,   w <- w + eta v,   v = 0 at first
 *
 * The step uses v before it is rounded to float and stored. With `nesterov` it looks ahead by one more beta, as in
 * Sutskever et al.: "On the importance of initialization and momentum in deep learning", 2013, in the form that
 * optimizers use, in which the params are those after the look-ahead:
 *
 *      w <- w + eta (d + beta v)
 */
#include "server/strategy/strategy.h"

static float state_initial(const struct mfl_job *job, int i)
{
        return 0.0f;
}

static void apply(const struct mfl_job *job, const struct mfl_strategy_round *round, size_t count,
        const float *params_in, const double *d, float *const *state, float *params_out)
{
        double eta = (double)job->aggregation.server_lr;
        double beta = (double)job->aggregation.momentum;
        bool nesterov = job->aggregation.nesterov;
        for (size_t e = 0; e < count; e++) {
                double v = beta * (double)state[0][e] + d[e];
                double step = nesterov ? d[e] + beta * v : v;
                params_out[e] = (float)((double)params_in[e] + eta * step);
                state[0][e] = (float)v;
        }
}

const struct mfl_strategy_ops mfl_strategy_fedavgm = {
        .kind = MFL_STRATEGY_FEDAVGM,
        .name = "fedavgm",
        .n_state = 1,
        .state_name = {"momentum"},
        .state_initial = state_initial,
        .apply = apply,
};
