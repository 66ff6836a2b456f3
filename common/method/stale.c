/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that don't wait for each other: when client k is done, the params are s_k versions further than those that it
 * started from (common/cohort/calendar.h). With s(t) = (1 + t)^-a, a = 1/2 unless the job says otherwise:
 *
 *   FedBuff:  Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: "Federated Learning with Buffered Asynchronous Aggregation",
 *             AISTATS 2022, algorithm 1 and section 5.2: of each B updates to arrive,
 *
 *                  x <- x + (eta / B) sum_k s(s_k) (y_k - x_k)
 *
 *             with y_k what client k made of x_k; `weighting: samples` puts n_k / sum n in the place of 1 / B
 *   FedAsync: Xie, Koyejo, Gupta: "Asynchronous Federated Optimization", 2019, algorithm 1, with the polynomial s of section
 *             5.2; of each update to arrive,
 *
 *                  x <- (1 - alpha s(s_k)) x + alpha s(s_k) y_k
 *
 * Running statistics of norms become the clients' weighted mean (FedAsync: are mixed like all params), as stale sums of changes
 * would swing. FedBuff's factor is the client's real weight and is folded into its delta before the only rounding: by its daemon, or, in
 * real time, where nobody knows it before the update has come, and with debug.deltas, by the server. FedAsync's is the server's, which has x_k.
 */
#include "common/exact/exact.h"
#include "common/method/method.h"

static double discount(const struct mfl_job *job, uint32_t staleness)
{
        return mfl_exact_power(1 + (double)staleness, -job->aggregation.a);
}

static void weigh(const struct mfl_job *job, const double *state, const struct mfl_client_facts *facts,
        double *ret_weight, double *ret_scalars)
{
        *ret_weight = (double)facts->weight * discount(job, facts->staleness);
}

static double share(const struct mfl_job *job, const struct mfl_round_totals *totals)
{
        return job->aggregation.alpha * discount(job, totals->staleness);
}

const struct mfl_method_ops mfl_method_fedbuff = {
        .weighs = true,
        .weigh = weigh,
};

const struct mfl_method_ops mfl_method_fedbuff_live = {
        .discount = discount,
};

const struct mfl_method_ops mfl_method_fedasync = {
        .share = share,
};
