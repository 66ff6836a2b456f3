/* SPDX-License-Identifier: Apache-2.0 */
/* Central differential privacy at the daemon: a client's weight shortens its change. central_grid.h has the paper and the proof. */
#include "common/method/central_grid.h"
#include "common/method/method.h"

static void weigh(const struct mfl_job *job, const double *state, const struct mfl_client_facts *facts,
        double *ret_weight, double *ret_scalars)
{
        *ret_weight = mfl_central_weight(job, facts->scale_bits, facts->n, facts->norm2);
}

const struct mfl_method_ops mfl_method_central = {
        .weighs = true,
        .needs_norm = true,
        .weigh = weigh,
};
