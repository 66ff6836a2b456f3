/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer's part in a group of daemons: where a task's sum is put so that the others can read it, and
 * adding the group's sums. */
#include "client/train/trainer_internal.h"
#include "common/base/log.h"

static uint64_t sum_bytes(const struct mfl_train_result *result)
{
        return (result->n + result->tail) * sizeof(int64_t);
}

static int place_shared(struct trainer_run *run, struct trainer_result *result, struct mfl_error *err)
{
        struct mfl_trainer *trainer = run->trainer;
        if (!trainer->share || !trainer->shm)
                return mfl_fail(err, MFL_INVALID, "this daemon has no shared memory");
        uint64_t bytes = sum_bytes(&result->base);
        int r = mfl_trainer_shared_get(&trainer->memory, trainer->share, bytes, &result->shared, err);
        if (!r)
                result->base.data[0] = mfl_share_buffer_data(result->shared->buffer);
        return r;
}

static int place_held(struct trainer_run *run, struct trainer_result *result, struct mfl_error *err)
{
        struct mfl_trainer *trainer = run->trainer;
        const struct mfl_backend_ops *ops = trainer->ops;
        if (!trainer->nccl || !ops->sum_new || !ops->sum_add)
                return mfl_fail(err, MFL_INVALID, "this daemon has no NCCL");
        if (run->job->program)
                return mfl_fail(err, MFL_INVALID, "a program's updates are not on the GPU");
        if (mfl_trainer_rule(run).clip > 0)
                return mfl_fail(err, MFL_INVALID, "the site's noise is added on the host");
        if (!trainer_can_add_on_device(run)) /* the sum there would stay empty */
                return mfl_fail(err, MFL_INVALID, "this job's updates are made on the host, not on the GPU");
        trainer->device_memory.held_free = ops->sum_free;
        int r = mfl_trainer_held_get(
                &trainer->device_memory, ops, trainer->device, result->base.n, &result->held, err);
        if (!r)
                run->held = result->held->sum;
        return r;
}

int mfl_trainer_group_place(struct trainer_run *run, struct trainer_result *result, struct mfl_error *err)
{
        const struct mfl_task *task = run->request->task;
        struct mfl_error why;
        if (!task->group.group || run->alone || task->single_updates || !result->base.n)
                return 0;
        int r = MFL_INVALID;
        if (task->group.collective == MFL_COLLECTIVE_SHM)
                r = place_shared(run, result, &why);
        else if (task->group.collective == MFL_COLLECTIVE_NCCL)
                r = place_held(run, result, &why);
        else
                mfl_fail(&why, r, "this daemon does not know the way in which the group adds");
        if (r < 0) {
                if (err)
                        *err = why;
                return r;
        }
        result->base.grouped = r == 0;
        result->kind = task->group.collective;
        if (r && !run->job->told_ungrouped)
                mfl_log_job(MFL_LOG_INFO, run->job->id, "%s: updates are uploaded alone: %s", run->job->id,
                        why.text);
        run->job->told_ungrouped |= r != 0;
        return 0;
}

void mfl_trainer_group_leave(struct mfl_trainer *trainer, struct trainer_result *result)
{
        if (result->shared)
                result->base.data[0] = NULL;
        mfl_trainer_shared_put(&trainer->memory, result->shared);
        mfl_trainer_held_put(&trainer->device_memory, result->held);
}

int mfl_trainer_publish(struct mfl_trainer *trainer, const struct mfl_train_result *result, uint64_t group,
        struct mfl_error *err)
{
        const struct trainer_result *owned = MFL_CONTAINER_OF(result, const struct trainer_result, base);
        uint8_t key[MFL_SHARE_KEY_BYTES];
        if (!result->grouped)
                return mfl_fail(err, MFL_INVALID, "the result is in memory that only its daemon can read");
        if (!owned->shared)
                return 0;
        mfl_collective_key(group, key);
        return mfl_share_publish(owned->shared->buffer, key, err);
}

static int get_sum(struct mfl_trainer *trainer, struct mfl_train_combine *combine, struct mfl_error *err)
{
        void *buffer;
        if (combine->group.rank != combine->leader)
                return 0;
        int r = mfl_trainer_buffer_get(
                &trainer->memory, sum_bytes(combine->result), "the node's sum", &buffer, err);
        if (!r)
                combine->sum = buffer;
        return r;
}

int mfl_trainer_combine(struct mfl_trainer *trainer, struct mfl_train_combine *combine, struct mfl_error *err)
{
        const struct trainer_result *owned =
                MFL_CONTAINER_OF(combine->result, const struct trainer_result, base);
        if (!combine->result->grouped || owned->kind != combine->group.collective)
                return mfl_fail(err, MFL_INVALID, "the result is not where this group can read it");
        int r = get_sum(trainer, combine, err);
        if (r)
                return r;
        struct mfl_collective *collective = owned->kind == MFL_COLLECTIVE_SHM ? trainer->shm : trainer->nccl;
        struct mfl_combine order = {.group = &combine->group,
                .ranks = combine->ranks,
                .leader = combine->leader,
                .n = combine->result->n + combine->result->tail,
                .own = combine->result->data[0],
                .held = owned->held ? owned->held->sum : NULL,
                .out = combine->sum,
                .deadline_ms = combine->deadline_ms,
                .control = combine->control};
        return collective->ops->combine(collective, &order, err);
}

void mfl_trainer_combine_free(struct mfl_trainer *trainer, struct mfl_train_combine *combine)
{
        mfl_trainer_buffer_put(&trainer->memory, combine->sum, sum_bytes(combine->result));
        combine->sum = NULL;
}

int mfl_trainer_communicator(struct mfl_trainer *trainer, const struct mfl_group *group, const uint8_t *id,
        void (*made)(void *user, uint64_t communicator, const uint8_t *id, const char *reason), void *user,
        struct mfl_error *err)
{
        struct mfl_collective *nccl = trainer->nccl;
        if (!nccl || !nccl->ops->communicator)
                return mfl_fail(err, MFL_INVALID, "this daemon has no NCCL");
        return nccl->ops->communicator(nccl, group, id, made, user, err);
}
