/* SPDX-License-Identifier: Apache-2.0 */
/* A client's own model: what its state says, or the round's params and that on top of them, or a mixture of both. */
#include "client/train/trainer_internal.h"

/* Nobody has a state before the first round is over: its training has number 1, and so has its evaluation, which comes after. */
static bool has_states(const struct mfl_task *task)
{
        return task->round > 1 || task->kind != MFL_TASK_TRAIN;
}

/* Statistics are v's. */
void mfl_trainer_mix(const struct trainer_run *run, double mix, const float *v, const float *w, float *to)
{
        static const struct mfl_fixed apart = {.statistics_max = 1}; /* the parts count as such */
        const struct mfl_graph *graph = run->job->graph;
        for (uint64_t e = 0; e < graph->n_moving;) {
                struct mfl_fixed_part part =
                        mfl_fixed_part_at(&apart, &graph->statistics, e, graph->n_moving);
                for (; e < part.end; e++)
                        to[e] = part.statistics ? v[e]
                                                : (float)(mix * (double)v[e] + (1 - mix) * (double)w[e]);
        }
}

int mfl_trainer_own(struct trainer_run *run, uint64_t client, float *ret_own, struct mfl_error *err)
{
        const struct mfl_train_request *request = run->request;
        uint64_t n = run->job->graph->n_moving;
        uint32_t width = trainer_width(run);
        if (!has_states(request->task)) {
                memcpy(ret_own, request->params, n * sizeof *ret_own);
                return 0;
        }
        if (!request->correct)
                return mfl_fail(err, MFL_INVALID, "clients' states can't be had here");
        trainer_turn(run->trainer, width, MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE);
        int r = request->correct(request->correct_user, client, ret_own, err);
        trainer_turn(run->trainer, width, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES);
        bool adds = mfl_method_get(run->job->spec)->starts;
        double mix = run->phases[0].mix;
        if (!r && mix != 0 && request->task->kind != MFL_TASK_TRAIN)
                mfl_trainer_mix(run, mix, ret_own, request->params, ret_own);
        for (uint64_t i = 0; !r && adds && i < n; i++)
                ret_own[i] += request->params[i];
        return r;
}
