/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated attacks on data. Private to the trainer. */
#ifndef MFL_CLIENT_TRAIN_TRAINER_POISON_H
#define MFL_CLIENT_TRAIN_TRAINER_POISON_H

#include "client/train/trainer_internal.h"

/* job->poison, for a job with such an attack; its partition is there. MFL_INVALID: no memory for it in the budget. */
int mfl_trainer_poison_new(struct mfl_trainer *trainer, struct trainer_job *job, struct mfl_error *err);
/* What a task of that kind reads of it; the job's own samples are prepared. */
int mfl_trainer_poison_prepare(
        struct mfl_trainer *trainer, struct trainer_job *job, enum mfl_task_kind kind, struct mfl_error *err);
void mfl_trainer_poison_free(struct mfl_trainer *trainer, struct trainer_job *job);

/* The training samples of the task's round. */
const struct mfl_device_data *mfl_trainer_train_data(const struct trainer_run *run);
const struct mfl_split *mfl_trainer_train_split(const struct trainer_run *run);

/* Evaluates the patched copies of those test samples that have another label than the backdoor's, and adds how many they are
 * and how many got the backdoor's label. */
int mfl_trainer_backdoor_count(struct trainer_run *run, struct trainer_slot *slot, const uint32_t *samples,
        uint32_t n, uint64_t tally[2], struct mfl_error *err);

#endif
