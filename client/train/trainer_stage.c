/* SPDX-License-Identifier: Apache-2.0 */
/* Params that come to the device while they still arrive, so that a training starts from a copy that is there.
 * Their memory comes on top of the budget of networks and data sets, and is at most a sixteenth of it, so that
 * the size of networks does not depend on what has arrived. Params that don't fit are read from the host's
 * memory when the training starts. */
#include "client/train/trainer_internal.h"

#define BUDGET_SHARE 16u

int mfl_trainer_stage_new(
        struct mfl_trainer *trainer, uint64_t n, struct mfl_stage **ret_stage, struct mfl_error *err)
{
        const struct mfl_backend_ops *ops = trainer->ops;
        *ret_stage = NULL;
        if (!ops->stage_new || !n)
                return 0;
        uint64_t bytes = ops->stage_bytes(n), most = trainer->device_memory.own.limit_bytes / BUDGET_SHARE;
        if (atomic_fetch_add(&trainer->staged_bytes, bytes) + bytes <= most) {
                int r = ops->stage_new(trainer->device, n, ret_stage, err);
                if (!r)
                        return 0;
                if (r < 0) {
                        atomic_fetch_sub(&trainer->staged_bytes, bytes);
                        return r;
                }
        }
        atomic_fetch_sub(&trainer->staged_bytes, bytes);
        return 0;
}

void mfl_trainer_stage_free(struct mfl_trainer *trainer, struct mfl_stage *stage, uint64_t n)
{
        if (!stage)
                return;
        trainer->ops->stage_free(stage);
        uint64_t bytes = trainer->ops->stage_bytes(n);
        uint64_t before = atomic_fetch_sub(&trainer->staged_bytes, bytes);
        mfl_assert(before >= bytes);
}

int mfl_trainer_stage_put(struct mfl_trainer *trainer, struct mfl_stage *stage, uint64_t first,
        const float *params, uint64_t n, struct mfl_error *err)
{
        return trainer->ops->stage_put(stage, first, params, n, err);
}

int mfl_trainer_params_start(struct trainer_run *run, struct mfl_net *net, int group, struct mfl_error *err)
{
        const struct mfl_backend_ops *ops = run->trainer->ops;
        const struct mfl_train_request *request = run->request;
        if (request->frozen_stage || request->params_stage) {
                const struct mfl_params_part frozen = {request->frozen, request->frozen_stage};
                const struct mfl_params_part moving = {request->params, request->params_stage};
                return ops->params_staged(net, group, &frozen, &moving, err);
        }
        return group < 0 ? ops->params_base(net, request->frozen, request->params, err)
                         : ops->params_set(net, group, request->frozen, request->params, err);
}
