/* SPDX-License-Identifier: Apache-2.0 */
/* Which clients or shards a phase has.
 *
 * The cohort of (round, attempt), attempt counting from 0, is the first n of a partial Fisher-Yates
 * shuffle of 0 .. population - 1 with stream (seed, MFL_RNG_SELECT, round, attempt), sorted ascending. If
 * the cohort is the whole population, nothing is drawn. With `selection.kind: separated` the population is those
 * clients whose turn it is, in ascending order. With `poisson` client k takes part if the k-th number of that stream is
 * below rate * 2^32; at most mfl_job_cohort_size of them.
 */
#ifndef MFL_SERVER_ROUND_ROUND_COHORT_H
#define MFL_SERVER_ROUND_ROUND_COHORT_H

#include "common/base/rng.h"
#include "server/state/state.h"

/* These replace job->items: all OPEN, sorted. -ENOMEM. */
int mfl_round_items_train(struct core_job *job);
int mfl_round_items_eval(struct core_job *job);
/* The first n of a Fisher-Yates shuffle of 0 .. population - 1, sorted; n is at most population. Time and
 * memory depend on n alone. -ENOMEM. */
int mfl_round_draw(struct mfl_rng *rng, uint32_t population, uint32_t n, uint32_t *ret_v);

#endif
