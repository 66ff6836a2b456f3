/* SPDX-License-Identifier: Apache-2.0 */
/* Normalised averaging: Wang, Liu, Liang, Joshi, Poor: "Tackling the Objective Inconsistency Problem in Heterogeneous
 * Federated Optimization", NeurIPS 2020, equations 8 and 9. A client k of weight p_k that took more steps does not pull
 * more strongly for it:
 *
 *      w <- w + tau_eff sum_k p_k delta_k / a_k,    tau_eff = sum_k p_k a_k,    p_k = n_k / sum n
 *
 * where a_k is the sum of the coefficients with which the gradients of its steps stand in delta_k / -lr: for SGD the number
 * of steps, and with momentum rho the sum of m_s = rho m_(s-1) + 1 over the steps, [tau - rho (1 - rho^tau) / (1 - rho)] /
 * (1 - rho). Nesterov's step has 1 + rho m_s instead. A schedule per step multiplies each term by its factor; one per round
 * is the same for all clients and cancels. Here
 *
 *      real weight = n_k / a_k,   scalar = a_k   (so that the round has sum n_k a_k),   step = sum n_k a_k / sum n
 */
#include "common/method/method.h"

static bool per_step(const struct mfl_job *job)
{
        return mfl_job_has_schedule(job) && job->training.schedule.per == MFL_SCHEDULE_PER_STEP;
}

static double coefficients(const struct mfl_job *job, uint64_t steps)
{
        double rho = (double)job->training.momentum, m = 0, a = 0;
        for (uint64_t s = 0; s < steps; s++) {
                m = rho * m + 1;
                double c = job->training.nesterov ? 1 + rho * m : m;
                a += per_step(job) ? c * (double)mfl_job_lr_scale(job, 1, s, steps) : c;
        }
        return a;
}

/* Without a schedule a is at least 1. A client of one step, at the start of a warm-up, may have much less. */
static int share_bits(const struct mfl_job *job)
{
        return per_step(job) ? 10 : 0;
}

static void weigh(const struct mfl_job *job, const double *state, const struct mfl_client_facts *facts,
        double *ret_weight, double *ret_scalars)
{
        double a = coefficients(job, facts->steps);
        *ret_weight = (double)facts->weight / a;
        ret_scalars[0] = a;
}

static double step(const struct mfl_job *job, const struct mfl_round_totals *totals)
{
        return totals->scalar[0] / (double)totals->weight;
}

const struct mfl_method_ops mfl_method_fednova = {
        .weighs = true,
        .n_scalars = 1,
        .scalar_max_bits = {24},
        .share_bits = share_bits,
        .weigh = weigh,
        .step = step,
};
