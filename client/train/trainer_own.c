/* SPDX-License-Identifier: Apache-2.0 */
/* What a client with layers of its own starts from: the round's params, and on top of them what its state says. */
#include "client/train/trainer_internal.h"

/* Nobody has a state before the first round is over: its training has number 1, and so has its evaluation, which comes after. */
static bool has_states(const struct mfl_task *task)
{
        return task->round > 1 || task->kind != MFL_TASK_TRAIN;
}

int mfl_trainer_own(
        struct trainer_run *run, struct trainer_slot *slot, uint64_t client, struct mfl_error *err)
{
        const struct mfl_train_request *request = run->request;
        uint64_t n = run->job->graph->n_moving;
        uint32_t width = trainer_width(run);
        if (!has_states(request->task)) {
                memcpy(slot->own, request->params, n * sizeof *slot->own);
                return 0;
        }
        if (!request->correct)
                return mfl_fail(err, MFL_INVALID, "clients' states can't be had here");
        trainer_turn(run->trainer, width, MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE);
        int r = request->correct(request->correct_user, client, slot->own, err);
        trainer_turn(run->trainer, width, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES);
        for (uint64_t i = 0; !r && i < n; i++)
                slot->own[i] += request->params[i];
        return r;
}
