/* SPDX-License-Identifier: Apache-2.0 */
/* Which clients or shards a phase has. common/cohort/cohort.h says how clients of a population are drawn; the sites of a
 * `local` job are drawn in the same way from those whose daemons are leased, in the order of their numbers.
 *
 * Where the draw needs the samples of each client, and those do not follow from the job alone, the first round is preceded by a
 * census: one daemon evaluates one shard, because a daemon reports its cut of the population with its first result. The score
 * is dropped. After a restart of the server there is another. If the samples prove false while a round that was drawn from them is
 * under way, it is drawn again. One daemon that nobody contradicts is believed.
 */
#ifndef MFL_SERVER_ROUND_ROUND_COHORT_H
#define MFL_SERVER_ROUND_ROUND_COHORT_H

#include "server/state/state.h"

/* These replace job->items: all OPEN, sorted. -ENOMEM. MFL_INVALID: there will never be enough clients. */
int mfl_round_items_train(struct core_job *job, struct mfl_error *err);
int mfl_round_items_eval(struct core_job *job);
int mfl_round_items_census(struct core_job *job);
/* The round was drawn from other samples than those that are known now: a daemon has lied. */
bool mfl_round_samples_differ(const struct core_job *job);
/* A census has to come before the next round. */
bool mfl_round_lacks_samples(const struct core_job *job);
/* How many clients of the round must count. */
uint32_t mfl_round_quorum(const struct core_job *job);

#endif
