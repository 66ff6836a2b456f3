/* SPDX-License-Identifier: Apache-2.0 */
/* From events and actions to counters, lanes and histograms. */
#include "server/shell/tap.h"

/* ---- lanes ---- */

/* NULL: no timeline is kept, or the connection is gone. */
static struct mfl_lanes *lanes_of(struct mfl_server *server, uint32_t conn)
{
        struct mfl_daemon_peer *peer =
                server->observed.timeline ? mfl_daemon_find(&server->sessions, conn) : NULL;
        return peer ? &peer->lanes : NULL;
}

static void message_came(struct mfl_server *server, const struct mfl_core_event *event)
{
        struct mfl_timeline *timeline = server->observed.timeline;
        struct mfl_lanes *lanes = lanes_of(server, event->conn);
        const struct mfl_msg *msg = event->msg;
        uint64_t now = mfl_loop_now(&server->loop);
        if (!lanes)
                return;
        if (msg->kind == MFL_MSG_ANNOUNCE)
                mfl_lanes_announced(timeline, lanes, &msg->announce, now);
        else if (msg->kind == MFL_MSG_RETURNED)
                mfl_lanes_returned(lanes, msg->recall.task, msg->recall.n_items);
        else if (msg->kind == MFL_MSG_EVAL_RESULT || msg->kind == MFL_MSG_TASK_FAILED)
                mfl_lanes_computed(timeline, lanes, now);
}

static void message_sent(struct mfl_server *server, const struct mfl_core_action *action)
{
        struct mfl_timeline *timeline = server->observed.timeline;
        const struct mfl_msg *msg = &action->msg;
        uint64_t now = mfl_loop_now(&server->loop);
        if (msg->kind == MFL_MSG_REFUSED && msg->update.code <= MFL_REFUSED_UNKNOWN)
                server->observed.uploads_refused[msg->update.code]++;
        struct mfl_lanes *lanes = lanes_of(server, action->conn);
        if (!lanes)
                return;
        if (msg->kind == MFL_MSG_TASK)
                mfl_lanes_task(timeline, lanes, &msg->task, now);
        else if (msg->kind == MFL_MSG_ACCEPTED || msg->kind == MFL_MSG_REFUSED)
                mfl_lanes_answered(timeline, lanes, now);
        else if (msg->kind == MFL_MSG_CANCEL)
                mfl_lanes_cancelled(timeline, lanes, msg->cancel.task, now);
}

static void upload_complete(struct mfl_server *server, const struct mfl_core_event *event)
{
        struct mfl_lanes *lanes = lanes_of(server, event->conn);
        if (lanes)
                mfl_lanes_uploaded(server->observed.timeline, lanes, mfl_loop_now(&server->loop));
}

static void granted(struct mfl_server *server, const struct mfl_core_action *action)
{
        struct mfl_lanes *lanes = lanes_of(server, action->conn);
        if (lanes)
                mfl_lanes_granted(server->observed.timeline, lanes, mfl_loop_now(&server->loop));
}

/* ---- the disk ---- */

static double seconds_since(uint64_t *ns)
{
        uint64_t from = *ns;
        *ns = 0;
        return from ? (double)(uv_hrtime() - from) / 1e9 : 0;
}

static void stored(struct mfl_server *server, const struct mfl_core_event *event)
{
        struct mfl_server_job *job = mfl_server_job_find(&server->jobs, event->job);
        struct mfl_disk_seen *disk = &server->observed.disk;
        uint64_t now = mfl_loop_now(&server->loop);
        bool commit = event->kind == MFL_EV_COMMITTED;
        mfl_disk_note(disk, commit ? MFL_DISK_COMMIT : MFL_DISK_CHECKPOINT, event->ok, event->reason, now);
        if (!job)
                return;
        struct mfl_job_observed *seen = &job->observed;
        mfl_histogram_add(commit ? &disk->commit_seconds : &disk->checkpoint_seconds, &mfl_disk_bounds,
                seconds_since(commit ? &seen->commit_ns : &seen->checkpoint_ns));
        if (commit && event->ok)
                mfl_observed_round(&server->observed, seen, job->id, now);
}

/* ---- events and actions ---- */

void mfl_tap_event(struct mfl_server *server, const struct mfl_core_event *event)
{
        switch (event->kind) {
        case MFL_EV_MESSAGE:
                message_came(server, event);
                break;
        case MFL_EV_UPLOAD_COMPLETE:
                upload_complete(server, event);
                break;
        case MFL_EV_ADDED:
                server->observed.updates_added += event->ok;
                server->observed.updates_rejected += !event->ok;
                break;
        case MFL_EV_CHECKPOINTED:
        case MFL_EV_COMMITTED:
                stored(server, event);
                break;
        default:
                break;
        }
}

void mfl_tap_action(struct mfl_server *server, const struct mfl_core_action *action)
{
        struct mfl_server_job *job;
        switch (action->kind) {
        case MFL_ACT_SEND:
                message_sent(server, action);
                break;
        case MFL_ACT_GRANT:
                granted(server, action);
                break;
        case MFL_ACT_CHECKPOINT:
                job = mfl_server_job_find(&server->jobs, action->job);
                if (job)
                        job->observed.checkpoint_ns = uv_hrtime();
                break;
        case MFL_ACT_COMMIT:
                job = mfl_server_job_find(&server->jobs, action->job);
                if (job) {
                        job->observed.commit_ns = uv_hrtime();
                        job->observed.record = action->record;
                }
                break;
        default:
                break;
        }
}
