/* SPDX-License-Identifier: Apache-2.0 */
/* Which clients or shards a phase has: pure drawing and listing. See round.h. */
#ifndef MFL_SERVER_ROUND_COHORT_H
#define MFL_SERVER_ROUND_COHORT_H

#include "server/core_internal.h"

/* Replaces job->items, all OPEN, sorted. */
int mfl_round_items_train(struct mfl_core *core, struct core_job *job);
int mfl_round_items_eval(struct mfl_core *core, struct core_job *job);
void mfl_round_items_clear(struct core_job *job);

#endif
