/* SPDX-License-Identifier: Apache-2.0 */
/* FedDyn: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: "Federated Learning Based on Dynamic Regularization",
 * ICLR 2021, algorithm 1. Client k keeps g_k, the gradient of its loss where its last local training ended (0 at first), and
 * minimises
 *
 *      F_k(y) - <g_k, y> + (alpha / 2) |y - x|^2,    then    g_k <- g_k - alpha (y - x)
 *
 * The server, with the mean over the round's clients, every client counting alike, and N clients in all,
 *
 *      h <- h - (alpha / N) sum (y - x),    x <- x + mean(y - x) - h / alpha
 *
 * So h is the mean of all clients' g_k, which is how the server has it: from exact integers. Weight decay is a part of F_k.
 */
#include "common/method/method.h"

static void correct(
        const struct mfl_job *job, size_t n, const double *mean, const float *own, float *ret_correction)
{
        for (size_t i = 0; i < n; i++)
                ret_correction[i] = -own[i];
}

static void remember(const struct mfl_job *job, const struct mfl_client_turn *turn, size_t n,
        const double *mean, const float *own, const float *delta, float *ret_own)
{
        double alpha = job->aggregation.alpha;
        for (size_t i = 0; i < n; i++)
                ret_own[i] = (float)((double)own[i] - alpha * (double)delta[i]);
}

static double shift(const struct mfl_job *job, double mean)
{
        return -mean / job->aggregation.alpha;
}

const struct mfl_method_ops mfl_method_feddyn = {
        .correct = correct,
        .remember = remember,
        .shift = shift,
};
