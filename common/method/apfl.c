/* SPDX-License-Identifier: Apache-2.0 */
/* APFL: Deng, Kamani, Mahdavi: "Adaptive Personalized Federated Learning", arXiv 2003.13461, algorithm 1.
 * Each client keeps v_k, which begins as x. For each batch of a client's local training, with w_k = x at first,
 *
 *      v_k <- v_k - lr alpha grad f(alpha v_k + (1 - alpha) w_k),    w_k <- w_k - lr grad f(w_k)
 *
 * both from the w_k before. w_k is the client's update, so x is FedAvg's, to the bit. The client's own model is the mixture
 * alpha v_k + (1 - alpha) x, which evaluations on clients use. Its running statistics are those of the mixture's training, and are kept with v_k.
 *
 * alpha is the job's; or, adaptive, each client's own, which is kept behind v_k and takes a step with each batch (equation 10):
 *
 *      alpha_k <- alpha_k - lr <v_k - w_k, grad f(alpha_k v_k + (1 - alpha_k) w_k)>
 *
 * from the v_k, w_k and alpha_k before. It begins as 0.5 and stays within [0, 1]. The paper leaves both open; its authors' code has the same
 * start and limits.
 */
#include "common/method/method.h"

#define START 0.5f

static int phases(const struct mfl_job *job, uint32_t round, struct mfl_phase *ret_phases)
{
        double mix = job->aggregation.alpha_adaptive ? (double)START : job->aggregation.alpha;
        ret_phases[0] = (struct mfl_phase){.mix = mix, .models = true};
        return 1;
}

const struct mfl_method_ops mfl_method_apfl = {
        .models = true,
        .phases = phases,
};

const struct mfl_method_ops mfl_method_apfl_adaptive = {
        .models = true,
        .n_own = 1,
        .own_start = START,
        .phases = phases,
};
