/* SPDX-License-Identifier: Apache-2.0 */
/* The server's part of Mime and MimeLite (common/method/mime.c has the paper). c is the mean of the clients' gradients at x:
 *
 *      x <- x + server_lr d,    s <- (1 - beta) c + beta s
 *
 * MimeLite's updates bring d and c together. Of Mime, odd rounds bring c, which waits as a vector of the state, and even ones d.
 */
#include "server/strategy/strategy.h"

static float state_initial(const struct mfl_job *job, int i)
{
        return 0.0f;
}

static float blend(double beta, double c, float s)
{
        return (float)((1 - beta) * c + beta * (double)s);
}

static void apply_lite(const struct mfl_job *job, const struct mfl_strategy_round *round, size_t count,
        const float *params_in, const double *d, float *const *state, float *params_out)
{
        double eta = (double)job->aggregation.server_lr, beta = (double)job->aggregation.momentum;
        for (size_t e = 0; e < count; e++) {
                params_out[e] = (float)((double)params_in[e] + eta * d[e]);
                state[0][e] = blend(beta, round->told[e], state[0][e]);
        }
}

static void apply(const struct mfl_job *job, const struct mfl_strategy_round *round, size_t count,
        const float *params_in, const double *d, float *const *state, float *params_out)
{
        double eta = (double)job->aggregation.server_lr, beta = (double)job->aggregation.momentum;
        bool takes = round->number % 2;
        for (size_t e = 0; e < count; e++) {
                params_out[e] = takes ? params_in[e] : (float)((double)params_in[e] + eta * d[e]);
                if (takes)
                        state[1][e] = (float)round->told[e];
                else
                        state[0][e] = blend(beta, (double)state[1][e], state[0][e]);
        }
}

const struct mfl_strategy_ops mfl_strategy_mimelite = {
        .kind = MFL_STRATEGY_MIMELITE,
        .name = "mimelite",
        .n_state = 1,
        .state_name = {"momentum"},
        .state_initial = state_initial,
        .apply = apply_lite,
};

const struct mfl_strategy_ops mfl_strategy_mime = {
        .kind = MFL_STRATEGY_MIME,
        .name = "mime",
        .n_state = 2,
        .state_name = {"momentum", "gradient"},
        .state_initial = state_initial,
        .apply = apply,
};
