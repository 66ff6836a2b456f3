/* SPDX-License-Identifier: Apache-2.0 */
/* Storing a round that is applied, beside whatever its job does next (core.h's diagram). */
#ifndef MFL_SERVER_ROUND_STORE_H
#define MFL_SERVER_ROUND_STORE_H

#include "server/round.h"

/* None is being stored. */
void mfl_round_store_clear(struct core_job *job);
/* The round at hand, with its record as far as it is known. */
void mfl_round_store_begin(struct mfl_core *core, struct core_job *job);
/* Commits once the checkpoint is on disk and the record complete. */
void mfl_round_store_progress(struct mfl_core *core, struct core_job *job);
/* What the disk refused is tried again. */
void mfl_round_store_timers(struct mfl_core *core, struct core_job *job, uint64_t *next_ms);

/* ---- of round.c, for it ---- */
/* Counts an answer of the worker; false: the job is over, the answer means nothing. */
bool mfl_round_answered(struct core_job *job);
/* Applies the counted round; nothing is being stored. */
void mfl_round_apply(struct mfl_core *core, struct core_job *job);
/* On to the round after the newest params. */
void mfl_round_next(struct mfl_core *core, struct core_job *job);

#endif
