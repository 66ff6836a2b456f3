/* SPDX-License-Identifier: Apache-2.0 */
/* How many items each daemon gets: pure arithmetic in whole numbers, without the core.
 *
 * All items are expected to cost the same on one daemon. Then longest-processing-time-first means filling
 * every daemon up to the same time T: the least T at which floor(T / cost) - load, summed over the daemons,
 * reaches the number of items. That is the least possible makespan, not an approximation.
 */
#ifndef MFL_SERVER_ROUND_ROUND_SHARE_H
#define MFL_SERVER_ROUND_ROUND_SHARE_H

#include "common/base/base.h"

struct mfl_share {
        double cost;    /* time of one item, above 0, in the same unit for all daemons */
        uint32_t load;  /* items that it has and has not done */
        bool probe;     /* its cost is only a guess: gets at least one item if there are enough for all */
        bool fixed;     /* gets exactly n items */
        uint32_t n;     /* the result: how many it gets */
        uint64_t ticks; /* scratch: cost as a whole number */
};

/* Sets every n; their sum is n_items. Among equal daemons the later ones get more. If the fixed ones can't
 * add up, they are treated like the others. n_shares > 0; n_items and every load are at most 2^24. */
void mfl_round_share(struct mfl_share *v, uint32_t n_shares, uint32_t n_items);

#endif
