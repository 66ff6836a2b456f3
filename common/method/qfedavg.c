/* SPDX-License-Identifier: Apache-2.0 */
/* Fair averaging: Li, Sanjabi, Beirami, Smith: "Fair Resource Allocation in Federated Learning", ICLR 2020, algorithm 2
 * (q-FedAvg). A client whose loss F_k is larger counts more; F_k is taken with the params that the client received, before
 * it trains. With L = 1 / lr (training.lr, without a schedule's factor):
 *
 *      Delta_k = F_k^q L (w - w_k),   h_k = q F_k^(q-1) |L (w - w_k)|^2 + L F_k^q,   w <- w - sum Delta_k / sum h_k
 *
 * Both sums are divided by L N^q, which leaves their ratio as it is. N follows the losses so that the mean weight is near 1,
 * and with it the room in the fixed point is used well whatever q is:
 *
 *      real weight v_k = (F_k / N)^q,   scalars h_k = v_k (1 + q L |delta_k|^2 / F_k) and v_k,   step = m / sum h_k
 *      N <- N (sum v_k / m)^(1/q);   N = log(classes) at first, or 1 where there are none
 *
 * for m clients of whole weight 1. F_k below 1e-10 counts as 1e-10. q = 0 is FedAvg with `weighting: uniform`.
 */
#include "common/method/method.h"
#include "common/exact/exact.h"

#include <math.h>

#define LOSS_MIN 1e-10

static int share_bits(const struct mfl_job *job)
{
        return job->aggregation.q > 0 ? 16 : 0;
}

static void initial(const struct mfl_job *job, int classes, double *state)
{
        state[0] = classes > 1 ? mfl_exact_log(classes) : 1;
}

static void weigh(const struct mfl_job *job, const double *state, const struct mfl_client_facts *facts,
        double *ret_weight, double *ret_scalars)
{
        double q = job->aggregation.q, L = 1 / (double)job->training.lr;
        double loss = fmax(facts->loss, LOSS_MIN), v = mfl_exact_power(loss / state[0], q);
        *ret_weight = v;
        ret_scalars[0] = q > 0 ? v * (1 + q * L * facts->norm2 / loss) : 1;
        ret_scalars[1] = v;
}

/* Clients that all have a weight of almost nothing leave no direction. */
static double step(const struct mfl_job *job, const struct mfl_round_totals *totals)
{
        return totals->scalar[0] > 0 ? (double)totals->weight / totals->scalar[0] : 0;
}

static void advance(const struct mfl_job *job, const struct mfl_round_totals *totals, double *state)
{
        double q = job->aggregation.q, mean = totals->scalar[1] / (double)totals->weight;
        if (q > 0 && mean > 0)
                state[0] = fmin(fmax(state[0] * mfl_exact_power(mean, 1 / q), LOSS_MIN), 0x1p20);
}

const struct mfl_method_ops mfl_method_qfedavg = {
        .weighs = true,
        .needs_loss = true,
        .needs_norm = true,
        .n_scalars = 2,
        .scalar_max_bits = {30, 16},
        .n_state = 1,
        .state_name = {"loss"},
        .share_bits = share_bits,
        .initial = initial,
        .weigh = weigh,
        .step = step,
        .advance = advance,
};
