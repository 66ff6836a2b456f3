/* SPDX-License-Identifier: Apache-2.0 */
/* Discrete distributions of the privacy loss: one round's, and of many rounds together. Private to the accountant. */
#ifndef MFL_COMMON_PRIVACY_LOSS_H
#define MFL_COMMON_PRIVACY_LOSS_H

#include "common/privacy/accountant.h"

/* p[i]: the probability of a loss of (first + i) * step. `infinite`: that of a loss of everything. p is on the heap. */
struct mfl_dp_loss {
        double step, infinite;
        int64_t first;
        size_t n;
        double *p;
};

enum mfl_dp_neighbour {
        MFL_DP_LESS, /* the neighbour lacks a client */
        MFL_DP_MORE,
};

/* One round's, overstated on a grid of `step`. */
int mfl_dp_loss_round(const struct mfl_dp_rounds *round, enum mfl_dp_neighbour neighbour, double step,
        struct mfl_dp_loss *ret_loss, struct mfl_error *err);
void mfl_dp_loss_deinit(struct mfl_dp_loss *loss);

/* times[i] rounds of v[i] for all i < n, which have one step. MFL_BUSY: the window would have more than 2^22 points of that
 * step; try a wider one. */
int mfl_dp_loss_compose(const struct mfl_dp_loss *v, const uint64_t *times, size_t n,
        struct mfl_dp_loss *ret_loss, struct mfl_error *err);

/* The smallest epsilon >= 0 whose delta is at most `delta`; infinity: none. */
double mfl_dp_loss_epsilon(const struct mfl_dp_loss *loss, double delta);

/* rdp.c */
double mfl_dp_rdp_epsilon(const struct mfl_dp_rounds *v, size_t n, double delta);

#endif
