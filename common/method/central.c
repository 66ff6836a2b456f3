/* SPDX-License-Identifier: Apache-2.0 */
/* Central differential privacy at the daemon: a client's weight shortens its change. central_grid.h has the paper and the proof. */
#include <math.h>

#include "common/method/central_grid.h"
#include "common/method/method.h"

static void weigh(const struct mfl_job *job, const double *state, const struct mfl_client_facts *facts,
        double *ret_weight, double *ret_scalars)
{
        double clip = mfl_central_clip(job, state);
        *ret_weight = mfl_central_weight(clip, facts->scale_bits, facts->n, facts->norm2);
        if (job->privacy.adaptive)
                ret_scalars[0] = sqrt(facts->norm2) <= clip;
}

static void begin_clip(const struct mfl_job *job, int classes, double *state)
{
        state[0] = job->privacy.clip;
}

/* The scalar has its noise by now (server/runtime/runtime_noise.c). */
static void move_clip(const struct mfl_job *job, const struct mfl_round_totals *totals, double *state)
{
        state[0] = mfl_central_next_clip(job, state[0], totals->weight, totals->scalar[0]);
}

const struct mfl_method_ops mfl_method_central = {
        .weighs = true,
        .needs_norm = true,
        .weigh = weigh,
};

const struct mfl_method_ops mfl_method_central_adaptive = {
        .weighs = true,
        .needs_norm = true,
        .n_scalars = 1,
        .n_state = 1,
        .state_name = {"clip"},
        .initial = begin_clip,
        .weigh = weigh,
        .advance = move_clip,
};
