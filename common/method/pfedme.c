/* SPDX-License-Identifier: Apache-2.0 */
/* pFedMe: Dinh, Tran, Nguyen: "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, algorithm 1. A client of
 * a round starts with w_k = theta_k = x, the params that it received. For each batch D, `inner_steps` steps of the local
 * optimizer on
 *
 *      f(theta_k; D) + (lambda / 2) |theta_k - w_k|^2,    then    w_k <- w_k - eta lambda (w_k - theta_k)
 *
 * The inner steps go on from the theta_k before, as the authors' program does. The server, with the mean over the round's
 * clients,
 *
 *      x <- (1 - beta) x + beta mean(w_k)
 *
 * where beta is `server_lr`. theta_k is the client's own model, which evaluations on clients use; no training starts from it.
 * Running statistics have no gradient: those of w_k are theta_k's.
 */
#include "common/method/method.h"

static int phases(const struct mfl_job *job, uint32_t round, struct mfl_phase *ret_phases)
{
        ret_phases[0] = (struct mfl_phase){.pull = job->aggregation.lambda,
                .inner = job->aggregation.inner_steps,
                .rate = job->aggregation.eta,
                .models = true};
        return 1;
}

const struct mfl_method_ops mfl_method_pfedme = {
        .models = true,
        .phases = phases,
};
