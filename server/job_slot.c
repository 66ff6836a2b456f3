/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of a job that uploads land in: opened, granted, added and free again. */
#include "server/job_internal.h"

void mfl_server_job_slot_open(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        struct mfl_slot_use *use = &job->slots[action->slot.slot];
        *use = (struct mfl_slot_use){.open = true,
                .conn = action->conn,
                .task = action->slot.task,
                .update = action->slot.update,
                .bytes = action->slot.bytes,
                .encoding = action->slot.encoding};
        int r = mfl_slot_open(job->runtime, action->slot.slot, use->bytes, use->encoding, &use->err);
        use->refused = r;
        if (r < 0)
                job_fatal(job, r, &use->err);
}

static void refuse_slot(struct mfl_server_job *job, uint32_t slot)
{
        struct mfl_core_event event = {.kind = MFL_EV_ADDED, .slot = slot, .ok = false};
        mfl_strcpy(event.job, sizeof event.job, job->id);
        mfl_strcpy(event.reason, sizeof event.reason, job->slots[slot].err.text);
        mfl_server_feed(job->server, &event);
}

/* Every block of the job is held by downloads that end soon: asks again in a moment. */
static bool slot_is_open(struct mfl_server_job *job, uint32_t slot)
{
        struct mfl_slot_use *use = &job->slots[slot];
        if (use->refused == MFL_BUSY)
                use->refused = mfl_slot_open(job->runtime, slot, use->bytes, use->encoding, &use->err);
        return !use->refused;
}

void mfl_server_job_grant(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        uint32_t slot = action->slot.slot;
        struct mfl_slot_use *use = &job->slots[slot];
        struct mfl_session *session = mfl_session_find(job->server, action->conn);
        struct mfl_error err;
        use->conn = action->conn;
        use->task = action->slot.task;
        use->update = action->slot.update;
        if (!slot_is_open(job, slot)) {
                if (use->refused == MFL_BUSY)
                        use->grant_pending = true;
                else
                        refuse_slot(job, slot);
                return;
        }
        use->grant_pending = false;
        struct mfl_range ranges[MFL_RANGES_MAX];
        struct mfl_msg msg = {.kind = MFL_MSG_GRANT,
                .update = {.task = use->task, .update = use->update, .ranges = ranges}};
        msg.update.n_ranges = mfl_slot_missing(job->runtime, slot, ranges);
        if (!msg.update.n_ranges) {
                struct mfl_core_event event = {.kind = MFL_EV_UPLOAD_COMPLETE, .slot = slot};
                mfl_strcpy(event.job, sizeof event.job, job->id);
                mfl_server_feed(job->server, &event);
                return;
        }
        if (!session)
                return;
        int r = mfl_stream_send_msg(&session->stream, &msg, NULL, &err);
        if (r < 0)
                job_fatal(job, r, &err);
}

void mfl_server_job_retry_grants(struct mfl_server_job *job)
{
        for (uint32_t i = 0; i < job->n_slots; i++) {
                struct mfl_slot_use *use = &job->slots[i];
                if (!use->open || !use->grant_pending)
                        continue;
                struct mfl_core_action action = {.kind = MFL_ACT_GRANT,
                        .conn = use->conn,
                        .slot = {.slot = i, .task = use->task, .update = use->update}};
                mfl_server_job_grant(job, &action);
        }
}

static void run_add(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        op->status = mfl_slot_add(op->job->runtime, op->add.slot, op->add.weight, op->add.item, &op->err);
}

void mfl_server_job_slot_add(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        struct job_operation *op = job_operation_new(job, MFL_EV_ADDED, run_add, job_operation_finish);
        if (!op)
                return;
        job->slots[action->slot.slot].adding = true;
        op->event.slot = action->slot.slot;
        op->add.slot = action->slot.slot;
        op->add.weight = action->slot.weight;
        op->add.item = action->slot.item;
        job_operation_start(op, &job->server->compute);
}

void mfl_server_job_slot_free(struct mfl_server_job *job, uint32_t slot)
{
        if (job->slots[slot].open)
                mfl_slot_free(job->runtime, slot);
        job->slots[slot] = (struct mfl_slot_use){.open = false};
}
