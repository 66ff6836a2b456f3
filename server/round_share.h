/* SPDX-License-Identifier: Apache-2.0 */
/* How many items each daemon gets: pure arithmetic, whole numbers, no core.
 *
 * All items are expected to cost the same on one daemon, so that longest-processing-time-first comes down to
 * filling every daemon up to the same time T: the least T at which floor(T / cost) - load, summed over the
 * daemons, reaches the number of items. That is the least possible makespan, not an approximation of it.
 */
#ifndef MFL_SERVER_ROUND_SHARE_H
#define MFL_SERVER_ROUND_SHARE_H

#include "common/base.h"

struct mfl_share {
        double cost;    /* time of one item, above 0, in any unit that is the same for all */
        uint32_t load;  /* items that it has already and has not done */
        bool probe;     /* gets one at least, if there are enough for everybody: its cost is only a guess */
        bool fixed;     /* n is given: it gets exactly that */
        uint32_t n;     /* out: how many it gets */
        uint64_t ticks; /* scratch: cost as a whole number */
};

/* Sets every n; their sum is n_items. Of equals the later ones get more. fixed ones that can't add up are as
 * the others. n_shares > 0; n_items and every load at most 2^24. */
void mfl_round_share(struct mfl_share *v, uint32_t n_shares, uint32_t n_items);

#endif
