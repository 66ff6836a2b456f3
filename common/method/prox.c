/* SPDX-License-Identifier: Apache-2.0 */
/* FedProx with a mu that follows the loss: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in
 * Heterogeneous Networks", MLSys 2020, section 5.3.2 and appendix C.3.3. After each round:
 *
 *      the mean training loss is not lower than in the round before:   mu <- mu + 0.1
 *      it was lower in each of the last mu_patience rounds:            mu <- mu - 0.1, and the count begins anew
 *
 * kept within [0, 1], from mu_start on. The paper starts at 0 with IID data and at 1 otherwise, and has a patience of 5;
 * the defaults, 0 and 1, are pfl-research's. The loss is that of the round's local trainings, which is there without an
 * evaluation.
 */
#include "common/method/method.h"

#include <math.h>

#define STEP 0.1
#define UNKNOWN (-1.0) /* a loss is never negative */

enum { MU, LAST, LOWER };

static void initial(const struct mfl_job *job, int classes, double *state)
{
        state[MU] = job->aggregation.mu_start;
        state[LAST] = UNKNOWN;
        state[LOWER] = 0;
}

static void advance(const struct mfl_job *job, const struct mfl_round_totals *totals, double *state)
{
        if (state[LAST] == UNKNOWN) {
                state[LOWER] = 0;
        } else if (totals->train_loss < state[LAST]) {
                if (++state[LOWER] >= job->aggregation.mu_patience) {
                        state[MU] = fmax(0, state[MU] - STEP);
                        state[LOWER] = 0;
                }
        } else {
                state[MU] = fmin(1, state[MU] + STEP);
                state[LOWER] = 0;
        }
        state[LAST] = totals->train_loss;
}

const struct mfl_method_ops mfl_method_adaptive_prox = {
        .n_state = 3,
        .state_name = {"mu", "loss", "lower"},
        .initial = initial,
        .advance = advance,
};
