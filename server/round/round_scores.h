/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of an evaluation that are kept with the round: scores of clients, and the confusion matrix. For jobs that have
 * neither, these functions do nothing. */
#ifndef MFL_SERVER_ROUND_ROUND_SCORES_H
#define MFL_SERVER_ROUND_ROUND_SCORES_H

#include "server/state/state.h"

int mfl_round_scores_begin(struct core_job *job); /* -ENOMEM */
/* i: of job->items. */
void mfl_round_scores_take(struct core_job *job, uint32_t i, const struct mfl_eval_item *item);
/* Adds the clients' measures to the round's record, and keeps what is stored with the round. */
void mfl_round_scores_end(struct mfl_core *core, struct core_job *job);
void mfl_round_scores_clear(struct core_job *job);

#endif
