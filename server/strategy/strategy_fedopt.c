/* SPDX-License-Identifier: Apache-2.0 */
/* Adaptive server optimizers: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: "Adaptive
 * Federated Optimization", ICLR 2021, algorithm 2 (FedAdagrad, FedYogi, FedAdam), without bias correction, as
 * in the paper:
 *
 *      m(t) = beta1 m(t-1) + (1 - beta1) d(t)
 *      v(t) = v(t-1) + d(t)^2                                           FedAdagrad
 *      v(t) = v(t-1) - (1 - beta2) d(t)^2 sign(v(t-1) - d(t)^2)         FedYogi
 *      v(t) = beta2 v(t-1) + (1 - beta2) d(t)^2                         FedAdam
 *      x(t+1) = x(t) + eta m(t) / (sqrt(v(t)) + tau)
 *
 * m(-1) = 0 and v(-1) = tau^2, the smallest value that the algorithm allows. The step uses m and v before
 * they are rounded to float and stored. If tau^2 is not a normal float, v starts at or near 0, and tau
 * alone keeps the division safe.
 *
 * aggregation.variant: flower is what flwr.serverapp.strategy of Flower 1.22 to 1.43 computes instead: v(-1) = 0, and
 * for FedAdam (only) eta of round r = 1, 2, ... becomes eta sqrt(1 - beta2^(r+1)) / (1 - beta1^(r+1)), which is the
 * correction before section 2.1 of Kingma and Ba, "Adam", ICLR 2015, one step ahead.
 */
#include "server/strategy/strategy.h"

#include "common/exact/exact.h"

#include <math.h>

static float state_initial(const struct mfl_job *job, int i)
{
        double tau = (double)job->aggregation.tau;
        return i == 0 || job->aggregation.variant == MFL_VARIANT_FLOWER ? 0.0f : (float)(tau * tau);
}

static double sign(double x)
{
        return (double)((x > 0.0) - (x < 0.0));
}

/* Not libm's, whose last bit may differ on another server. */
static double power(double beta, const struct mfl_strategy_round *round)
{
        return beta > 0 ? mfl_exact_power(beta, round->number + 1.0) : 0;
}

/* kind is a constant in each caller, so the compiler makes three loops without a branch inside. */
static inline __attribute__((always_inline)) void apply(enum mfl_strategy_kind kind,
        const struct mfl_job *job, const struct mfl_strategy_round *round, size_t count,
        const float *params_in, const double *d, float *const *state, float *params_out)
{
        double eta = (double)job->aggregation.server_lr, tau = (double)job->aggregation.tau;
        double beta1 = (double)job->aggregation.beta1, beta2 = (double)job->aggregation.beta2;
        if (kind == MFL_STRATEGY_FEDADAM && job->aggregation.variant == MFL_VARIANT_FLOWER)
                eta *= sqrt(1.0 - power(beta2, round)) / (1.0 - power(beta1, round));
        float *m_kept = state[0], *v_kept = state[1];
        for (size_t e = 0; e < count; e++) {
                double d2 = d[e] * d[e];
                double m = beta1 * (double)m_kept[e] + (1.0 - beta1) * d[e];
                double v = (double)v_kept[e];
                if (kind == MFL_STRATEGY_FEDADAGRAD)
                        v = v + d2;
                else if (kind == MFL_STRATEGY_FEDYOGI)
                        v = v - (1.0 - beta2) * d2 * sign(v - d2);
                else
                        v = beta2 * v + (1.0 - beta2) * d2;
                params_out[e] = (float)((double)params_in[e] + eta * m / (sqrt(v) + tau));
                m_kept[e] = (float)m;
                v_kept[e] = (float)v;
        }
}

static void apply_adagrad(const struct mfl_job *job, const struct mfl_strategy_round *round, size_t count,
        const float *params_in, const double *d, float *const *state, float *params_out)
{
        apply(MFL_STRATEGY_FEDADAGRAD, job, round, count, params_in, d, state, params_out);
}

static void apply_adam(const struct mfl_job *job, const struct mfl_strategy_round *round, size_t count,
        const float *params_in, const double *d, float *const *state, float *params_out)
{
        apply(MFL_STRATEGY_FEDADAM, job, round, count, params_in, d, state, params_out);
}

static void apply_yogi(const struct mfl_job *job, const struct mfl_strategy_round *round, size_t count,
        const float *params_in, const double *d, float *const *state, float *params_out)
{
        apply(MFL_STRATEGY_FEDYOGI, job, round, count, params_in, d, state, params_out);
}

const struct mfl_strategy_ops mfl_strategy_fedadagrad = {
        .kind = MFL_STRATEGY_FEDADAGRAD,
        .name = "fedadagrad",
        .n_state = 2,
        .state_name = {"momentum", "variance"},
        .state_initial = state_initial,
        .apply = apply_adagrad,
};

const struct mfl_strategy_ops mfl_strategy_fedadam = {
        .kind = MFL_STRATEGY_FEDADAM,
        .name = "fedadam",
        .n_state = 2,
        .state_name = {"momentum", "variance"},
        .state_initial = state_initial,
        .apply = apply_adam,
};

const struct mfl_strategy_ops mfl_strategy_fedyogi = {
        .kind = MFL_STRATEGY_FEDYOGI,
        .name = "fedyogi",
        .n_state = 2,
        .state_name = {"momentum", "variance"},
        .state_initial = state_initial,
        .apply = apply_yogi,
};
