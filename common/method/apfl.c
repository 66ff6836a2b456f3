/* SPDX-License-Identifier: Apache-2.0 */
/* APFL: Deng, Kamani, Mahdavi: "Adaptive Personalized Federated Learning", arXiv 2003.13461, algorithm 1 with a fixed share alpha.
 * Each client keeps v_k, which begins as x. For each batch of a client's local training, with w_k = x at first,
 *
 *      v_k <- v_k - lr alpha grad f(alpha v_k + (1 - alpha) w_k),    w_k <- w_k - lr grad f(w_k)
 *
 * both from the w_k before. w_k is the client's update, so x is FedAvg's, to the bit. The client's own model is the mixture
 * alpha v_k + (1 - alpha) x, which evaluations on clients use. Its running statistics are those of the mixture's training, and are kept with v_k.
 */
#include "common/method/method.h"

static int phases(const struct mfl_job *job, uint32_t round, struct mfl_phase *ret_phases)
{
        ret_phases[0] = (struct mfl_phase){.mix = job->aggregation.alpha, .models = true};
        return 1;
}

const struct mfl_method_ops mfl_method_apfl = {
        .models = true,
        .phases = phases,
};
