/* SPDX-License-Identifier: Apache-2.0 */
/* Ditto: Li, Hu, Beirami, Smith: "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, algorithm 1
 * with FedAvg as the solver of the global objective. The params w are FedAvg's. Beside them, client k trains a model v_k of
 * its own on the same samples, and is held near the w that it received:
 *
 *      v_k <- v_k - lr (grad F_k(v_k) + lambda (v_k - w))
 *
 * as many epochs or steps as for w. v_k starts as the w of the client's first turn. Nothing of v_k enters w, so w is FedAvg's
 * to the bit, whatever lambda is. Running statistics of v_k are its own, too.
 */
#include "common/method/method.h"

static int phases(const struct mfl_job *job, uint32_t round, struct mfl_phase *ret_phases)
{
        ret_phases[1] = (struct mfl_phase){
                .from = MFL_FROM_OWN, .pull = job->aggregation.lambda, .unsent = true, .models = true};
        return 2;
}

const struct mfl_method_ops mfl_method_ditto = {
        .models = true,
        .phases = phases,
};
