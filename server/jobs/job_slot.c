/* SPDX-License-Identifier: Apache-2.0 */
/* Carries out the core's orders about slots: grant, add, free. Only the core knows the state of a slot; here
 * its bytes get a place, and the worker its work. */
#include "server/jobs/job_internal.h"

#define ADD_HERE_BYTES (64u << 10)

/* The Announce that the core is processing may have had the whole update inside. Bytes that are already here
 * are dropped. */
static void take_inside(struct mfl_server_job *job, uint32_t slot, const struct mfl_upload *upload)
{
        struct mfl_jobs *jobs = job->jobs;
        struct mfl_slot_write write;
        size_t n = 0;
        const void *data = jobs->ops->inside(jobs->user, upload->conn, upload->task, upload->update, &n);
        if (!data || mfl_slot_write_begin(job->runtime, slot, 0, n, &write, NULL))
                return;
        memcpy(write.dst, data, n);
        mfl_server_job_cost_bytes(job, upload->conn, n, 0);
        struct mfl_core_event event = {
                .kind = MFL_EV_UPLOAD_COMPLETE, .conn = upload->conn, .upload = {slot, write.grant}};
        mfl_strcpy(event.job, sizeof event.job, job->id);
        if (mfl_slot_write_end(job->runtime, &write, true))
                mfl_loop_feed(jobs->loop, &event);
}

void mfl_server_job_grant(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        const struct mfl_upload upload = {.grant = action->slot.grant,
                .conn = action->conn,
                .task = action->slot.task,
                .update = action->slot.update,
                .weight = action->slot.weight,
                .item = action->slot.item,
                .steps = action->slot.steps,
                .staleness = action->slot.staleness,
                .bucket = action->slot.bucket,
                .state = action->slot.state,
                .encoding = action->slot.encoding};
        mfl_assert(action->slot.slot < mfl_runtime_slots(job->runtime) && action->slot.grant);
        struct mfl_range ranges[MFL_RANGES_MAX];
        struct mfl_msg msg = {.kind = MFL_MSG_GRANT,
                .update = {.task = upload.task, .update = upload.update, .ranges = ranges}};
        if (!mfl_slot_open(job->runtime, action->slot.slot, &upload)) {
                struct mfl_core_event event = {
                        .kind = MFL_EV_SLOT_BUSY, .upload = {action->slot.slot, action->slot.grant}};
                mfl_strcpy(event.job, sizeof event.job, job->id);
                mfl_loop_feed(job->jobs->loop, &event);
                return;
        }
        take_inside(job, action->slot.slot, &upload);
        msg.update.n_ranges = mfl_slot_missing(job->runtime, action->slot.slot, ranges);
        if (msg.update.n_ranges)
                job->jobs->ops->send(job->jobs->user, action->conn, &msg);
}

static void run_add(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        op->status = mfl_slot_add(op->job->runtime, op->slot, &op->err);
}

/* A few microseconds of addition are done at once, where two changes of thread would cost more than they. Not
 * beside the worker, nor to a spill file, which is on disk. */
static bool is_added_here(const struct mfl_server_job *job, uint64_t bytes)
{
        return bytes <= ADD_HERE_BYTES && !job->computing && !mfl_runtime_f32_only(job->spec) &&
               !mfl_job_has_rows(job->spec);
}

void mfl_server_job_slot_add(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        mfl_assert(action->slot.slot < mfl_runtime_slots(job->runtime));
        struct job_operation *op =
                mfl_job_operation_new(job, MFL_EV_ADDED, run_add, mfl_job_operation_finish);
        if (!op)
                return;
        op->event.upload.slot = op->slot = action->slot.slot;
        op->event.upload.grant = action->slot.grant;
        if (is_added_here(job, action->slot.bytes))
                mfl_job_operation_run(op);
        else
                mfl_job_operation_start(op, &job->jobs->loop->compute);
}

static void run_ahead(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        mfl_slot_add_ahead(op->job->runtime, op->slot);
}

void mfl_server_job_slot_ahead(struct mfl_server_job *job, uint32_t slot)
{
        mfl_assert(job->operations > 0); /* the chunk that has arrived */
        if (!mfl_slot_ahead(job->runtime, slot))
                return;
        struct job_operation *op =
                mfl_job_operation_new(job, MFL_EV_NONE, run_ahead, mfl_job_operation_finish);
        if (!op)
                return;
        op->slot = slot;
        mfl_job_operation_start(op, &job->jobs->loop->compute);
}

static void run_correct(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        const struct mfl_correction_ask *ask = &op->correction.ask;
        op->status = mfl_runtime_correction(
                op->job->runtime, ask->digest, ask->client, &op->correction.params, &op->err);
}

static void done_correct(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        struct mfl_server_job *job = op->job;
        if (op->status >= 0 && !work->cancelled && !mfl_loop_is_stopping(job->jobs->loop))
                job->jobs->ops->corrected(job->jobs->user, job, &op->correction.ask, op->correction.params);
        mfl_params_unref(op->correction.params);
        op->status = MFL_MIN(op->status, 0);
        mfl_job_operation_end(op);
}

void mfl_server_job_correct(struct mfl_server_job *job, const struct mfl_correction_ask *ask)
{
        mfl_assert(job->stage == MFL_STAGE_READY);
        struct job_operation *op = mfl_job_operation_new(job, MFL_EV_NONE, run_correct, done_correct);
        if (!op)
                return;
        op->correction.ask = *ask;
        mfl_job_operation_start(op, &job->jobs->loop->compute);
}

static void run_settle(struct mfl_work *work)
{
        mfl_runtime_settle(job_operation_of(work)->job->runtime);
}

void mfl_server_job_slot_free(struct mfl_server_job *job, uint32_t slot)
{
        mfl_assert(slot < mfl_runtime_slots(job->runtime));
        if (!mfl_slot_free(job->runtime, slot))
                return;
        struct job_operation *op =
                mfl_job_operation_new(job, MFL_EV_NONE, run_settle, mfl_job_operation_finish);
        if (op)
                mfl_job_operation_start(op, &job->jobs->loop->compute);
}
